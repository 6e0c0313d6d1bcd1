"""Tokenization, vocabularies (tokens <-> int32 ids), and word vectors from files or from a corpus."""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
