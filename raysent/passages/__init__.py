"""Passages: a folder of vectors and words that is searched by queries.

index.py          `SearchIndex`: a folder that is open, and searched by vectors, by words, or by both
functions.py      `index` makes such a folder; `search` searches it
derived_files.py  what a search makes beside the vectors, and makes again where it is stale
commands.py       the commands `index` and `search`
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
