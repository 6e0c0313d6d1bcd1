"""static: a folder of sentence-transformers' own modules, `StaticEmbedding` and `Normalize`, for bags of one tower.

The mean of word vectors has the direction of their sum, so both poolings have the same vectors of unit length.

Differs: `StaticEmbedding` reads all words of a sentence, also beyond the model's `max_length`; truncation is set in
`tokenizer.json`. Text of blanks may have a vector of zeros in place of that of an unknown word.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from raysent.errors import ConfigError
from raysent.exports.formats import Encode
from raysent.exports.formats.sentence_transformers import STANDARD_USAGE
from raysent.exports.tokenizer import build_tokenizer
from raysent.models import SentenceModel

TARGET = "static"
EXTRA = "sentence-transformers"
LIBRARY = "sentence-transformers"
USAGE = STANDARD_USAGE
DIFFERS_ON: tuple[str, ...] = ("", " ")


def check_model(models: Sequence[SentenceModel]) -> None:
    """Refuse all but one bag of one tower without code, removed component and whitening.

    Both act between two scalings to unit length, so no table of word vectors has the same result.
    """
    model = models[0]
    is_bag = len(models) == 1 and model.config.encoder.type == "bag" and len(model.towers) == 1
    is_scaled = model.config.normalizes and not model.postprocessing.is_fitted_to_text
    if not is_bag or model.code is not None or not is_scaled:
        raise ConfigError(
            "to static: must be a bag of words of one tower, of unit length, without code, remove_component and "
            "whitening; use sentence-transformers"
        )


def write(models: Sequence[SentenceModel], folder: Path) -> None:
    """Write the folder."""
    model = models[0]
    library = import_module("sentence_transformers")
    modules = import_module("sentence_transformers.sentence_transformer.modules")
    tokenizer = build_tokenizer(model.vocabulary, max_length=model.max_length)
    tokenizer.enable_truncation(model.max_length)
    weight = model.tables[0].weight.detach().clone()
    static = modules.StaticEmbedding(tokenizer, embedding_weights=weight)
    library.SentenceTransformer(modules=[static, modules.Normalize()], device="cpu").save(
        str(folder)
    )


def open(folder: Path) -> Encode:
    """Return the `encode` of sentence-transformers."""
    model = import_module("sentence_transformers").SentenceTransformer(str(folder), device="cpu")

    def encode(sentences: list[str]) -> Any:
        return model.encode(sentences)

    return encode
