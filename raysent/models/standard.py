"""Which models a folder of sentence-transformers holds as they are, without code of raysent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from raysent.data.vocabulary import SubwordVocabulary
from raysent.models.model import SentenceModel


def is_standard(models: Sequence[SentenceModel]) -> bool:
    """Return whether sentence-transformers' own modules compute a model: one pretrained tower, and nothing after it."""
    model = models[0]
    has_more = (
        model.code is not None
        or model.postprocessing.is_fitted_to_text
        or not model.config.postprocessing.unit_length
        or len(model.towers) > 1
    )
    is_one = len(models) == 1 and model.config.encoder.type == "pretrained" and not has_more
    return is_one and cast("SubwordVocabulary", model.vocabulary).num_special > 0
