"""Sentence encoders: a `ModelConfig` and a vocabulary -> a model that trains, encodes, saves and loads.

- `encoders`, `objectives`, `codes`, `schemes`: the registries of components; `schemes` also loads models by name
- `config`: the parts of a model
- `model`: `SentenceModel`, which joins the parts
- `files`: the content of a saved model's folder
- `sentence_encoder`: the interface of every model
- `encoding`: how sentences become rows of vectors
- `pretrained`: folders of models of other libraries, and whose code may run
- `embeddings`, `layers`, `postprocessing`: building blocks
- `derived`: models that are made of word vectors or of trained models, without training
- `vector_codes`: codes of vectors from any source
- `vector_folder`: vectors of many files of text
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
