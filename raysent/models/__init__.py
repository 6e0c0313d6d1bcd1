"""Sentence encoders: a `ModelConfig` and a vocabulary -> a model that trains, encodes, saves and loads.

- `encoders`, `objectives`, `codes`, `schemes`: the registries of components; `schemes` also loads models by name
- `config`: the parts of a model
- `model`: `SentenceModel`, which joins the parts
- `files`: the content of a saved model's folder
- `sentence_encoder`: the interface of every model
- `pretrained`: folders of models of other libraries, and whose code may run
- `embeddings`, `layers`, `postprocessing`: building blocks
- `derived`: models that are made of word vectors or of trained models, without training
- `vector_codes`: codes of vectors from any source
- `vector_folder`: vectors of many files of text
"""

from raysent.models.config import ModelConfig
from raysent.models.derived import (
    Whitening,
    average_of_words,
    bag_of_words,
    check_new,
    check_weighting,
    compose,
    expand,
    member_folders,
)
from raysent.models.files import TENSORS_FILE, encoder_tensors
from raysent.models.known_vectors import KnownVectors, sentence_keys
from raysent.models.model import SentenceModel
from raysent.models.pretrained import trust_remote_code
from raysent.models.schemes import load
from raysent.models.vector_codes import VectorCode, VectorCodeConfig, load_code, make_code, read_vectors

__all__ = [
    "TENSORS_FILE",
    "KnownVectors",
    "ModelConfig",
    "SentenceModel",
    "VectorCode",
    "VectorCodeConfig",
    "Whitening",
    "average_of_words",
    "bag_of_words",
    "check_new",
    "check_weighting",
    "compose",
    "encoder_tensors",
    "expand",
    "load",
    "load_code",
    "make_code",
    "member_folders",
    "read_vectors",
    "sentence_keys",
    "trust_remote_code",
]
