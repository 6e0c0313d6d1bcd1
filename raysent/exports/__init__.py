"""Exports: a trained model or an ensemble as a folder that other libraries read, and its vectors of many files.

- `export`: writes a folder for a target, compares it with the model, and adds a model card
- `formats`: the registry of targets, one file each
- `tokenizer`: a vocabulary as `tokenizer.json`
- `card`: the model card
- `encode_corpus`: many files of text as a folder of vectors; `corpus` does it
- `commands`: the commands `export` and `encode-corpus`
- `modeling_raysent`: the code that an export for sentence-transformers contains
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
