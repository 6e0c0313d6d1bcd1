"""Encoders + objective: a `ModelConfig` and a vocabulary -> a model that trains, encodes, saves and loads.

    vectors   ids -> a vector of each tower, [batch, dim], with gradient
    loss      a batch -> a scalar
    encode    text -> the towers' vectors, each block of unit length, float32 [sentences, dim]

A saved model is three files in one folder: `model.json` (what it is), `model.safetensors` (its values) and
`vocabulary.txt`. `load` reads it.

- `config`: what a model is
- `files`: what a saved model's files say
- `reading`: the way in which an objective reads sentences
- `encoding`: text -> vectors or bits
- `learning`: vectors with gradient, losses and scores
- `sentence_model`: the model: built, saved and loaded
- `postprocessing`: what becomes of the towers' blocks
- `averages`: models that average a file's word vectors
- `words`: the same model with more words, and the bag of its words
"""

from raysent.models.averages import average_of_words, bag_of_words, check_weighting, expand
from raysent.models.config import ModelConfig
from raysent.models.files import TENSORS_FILE, encoder_tensors
from raysent.models.loading import load, register_loader
from raysent.models.model import SentenceModel
from raysent.storage.layout import MODEL_FILE, VOCABULARY_FILE

__all__ = [
    "MODEL_FILE",
    "TENSORS_FILE",
    "VOCABULARY_FILE",
    "ModelConfig",
    "SentenceModel",
    "average_of_words",
    "bag_of_words",
    "check_weighting",
    "encoder_tensors",
    "expand",
    "load",
    "register_loader",
]
