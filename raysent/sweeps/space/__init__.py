"""search_spaces/*.yaml -> checked domains and a `RunConfig` per trial; no Ray."""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
