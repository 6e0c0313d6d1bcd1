"""Files of word vectors -> a model that averages them: the baselines that need no training.

Source: Arora et al., 2017 (weights a / (a + p(w)), the top component removed); Mikolov et al., 2018 (plain means).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from raysent.embeddings import EmbeddingConfig, EmptyTables, WordTable
from raysent.encoders.bag import Config as Bag
from raysent.errors import ConfigError, DataError
from raysent.model.config import ModelConfig
from raysent.model.postprocessing import PostprocessingConfig
from raysent.model.sentence_model import SentenceModel
from raysent.objectives.paraphrase_margin import Config as ParaphraseMargin
from raysent.vocabulary import PAD_WORD, UNK_ID, UNK_WORD, Vocabulary, WordVectors

Weighting = Literal["uniform", "sif"]
_WEIGHTINGS: dict[str, Weighting] = {"uniform": "uniform", "sif": "sif"}


def average_of_words(
    vectors: WordVectors,
    *,
    weighting: Weighting = "uniform",
    counts: Mapping[str, int] | None = None,
    sif_weight: float = 1e-3,
    lowercase: bool = False,
    remove_component: bool = False,
) -> SentenceModel:
    """Return the model whose vector of a sentence is the mean of its words' vectors; unknown words count as zero.

    Args:
        vectors: The words and their vectors.
        weighting: `sif` multiplies a word's vector by a / (a + p(w)).
        counts: How often words occur; p(w) is their share. A word that is not there has p = 0. Needed for `sif`.
        sif_weight: a.
        lowercase: Whether text is lower-cased before its words are looked up.
        remove_component: Whether the model loses a component; fit it with `fit_postprocessing`.

    Raises:
        DataError: If `sif` is asked for and there are no counts.
    """
    weights = _weights(vectors.words, weighting, counts, sif_weight)
    vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *vectors.words], lowercase=lowercase)
    dim = vectors.vectors.shape[1]
    config = ModelConfig(
        encoder=Bag(pooling="mean", embedding=EmbeddingConfig(dim=dim)),
        objective=ParaphraseMargin(),
        postprocessing=PostprocessingConfig(remove_component=remove_component),
    )
    tables = EmptyTables(vocabulary, generator=torch.Generator())
    model = SentenceModel(config, vocabulary, tables=tables, has_objective=False)
    table = next(module for module in model.modules() if isinstance(module, WordTable)).weight.data
    table[: UNK_ID + 1] = 0.0
    table[UNK_ID + 1 :] = torch.from_numpy(vectors.vectors * weights[:, None])
    return model.eval()


def check_weighting(name: str) -> Weighting:
    """Return the name of a weighting.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name in _WEIGHTINGS:
        return _WEIGHTINGS[name]
    raise ConfigError(f"--weighting: must be uniform or sif; given '{name}'")


def _weights(words: list[str], weighting: Weighting, counts: Mapping[str, int] | None, sif_weight: float) -> np.ndarray:
    """Return the weight of each word, float32 [words]."""
    if weighting == "uniform":
        return np.ones(len(words), dtype=np.float32)
    if not counts:
        raise DataError("--counts: must name a file of 'word count' lines for --weighting sif; given none")
    total = sum(counts.values())
    shares = np.array([counts.get(word, counts.get(word.lower(), 0)) / total for word in words])
    return (sif_weight / (sif_weight + shares)).astype(np.float32)
