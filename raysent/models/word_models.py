"""Models that are made from word vectors without training.

    average_of_words    a file of word vectors -> the model that averages them
    expand              a trained model and word vectors -> the same model with more words
    bag_of_words        a trained model -> the model that averages its word vectors

Source: Arora et al., 2017 (weights a / (a + p(w)), first singular vector removed); Mikolov et al., 2018 (plain means);
Kiros et al., 2015, section 2.2 (expansion) and table 2 (bow); Logeswaran and Lee, 2018, who expand both towers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from raysent.config import Document, validate
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_ID,
    UNK_WORD,
    SubwordVocabulary,
    Vocabulary,
    WordVectors,
    fit_linear_map,
    new_words,
    shared_words,
)
from raysent.errors import ConfigError, DataError
from raysent.models.config import ModelConfig
from raysent.models.embeddings import EmbeddingConfig, EmptyTables, WordTable
from raysent.models.encoders import Tower
from raysent.models.encoders.bag import Config as Bag
from raysent.models.model import SentenceModel
from raysent.models.objectives.paraphrase_margin import Config as ParaphraseMargin
from raysent.models.postprocessing import PostprocessingConfig

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
        counts: How often words occur; p(w) is the relative frequency, 0 for a word without a count. Required for `sif`.
        sif_weight: a.
        lowercase: Whether text is lower-cased before its words are looked up.
        remove_component: Whether vectors lose their first singular vector; fit it with `fit_postprocessing`.

    Raises:
        DataError: If `sif` is given without counts.
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
    model = SentenceModel(config, vocabulary, tables=tables)
    table = next(module for module in model.modules() if isinstance(module, WordTable)).weight.data
    table[: UNK_ID + 1] = 0.0
    table[UNK_ID + 1 :] = torch.from_numpy(vectors.vectors * weights[:, None])
    return model.eval()


def check_weighting(name: str) -> Weighting:
    """Return a valid name of a weighting.

    Raises:
        ConfigError: If the name is unknown.
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
    frequencies = np.array([counts.get(word, counts.get(word.lower(), 0)) / total for word in words])
    return (sif_weight / (sif_weight + frequencies)).astype(np.float32)


def expand(model: SentenceModel, vectors: WordVectors, *, has_intercept: bool = True) -> SentenceModel:
    """Return the model with every word that has a pretrained vector; the vectors of its own words do not change.

    New words get the images of their pretrained vectors under a linear map that is fitted to the shared words, one map
    for each word table of each tower.

    Args:
        model: A trained model.
        vectors: Pretrained vectors; their words are case-sensitive.
        has_intercept: Whether the map has an intercept.

    Raises:
        DataError: If fewer words are shared than the vectors have dimensions, or none is new.
    """
    if isinstance(model.vocabulary, SubwordVocabulary):
        raise ConfigError("MODEL: must have words of its own to be expanded; a pretrained encoder reads sub-words")
    ids, rows = shared_words(model.vocabulary, vectors)
    dim = vectors.vectors.shape[1]
    if len(ids) <= dim:
        raise DataError(
            f"VECTORS: must share more than {dim} words with the model, one for each dimension; given {len(ids)}; "
            "check the case of the words, or name a larger file"
        )
    added = new_words(model.vocabulary, vectors)
    vocabulary = Vocabulary(
        [*model.vocabulary.words, *(vectors.words[row] for row in added)], lowercase=model.vocabulary.lowercase
    )

    def expanded(table: Tensor) -> Tensor:
        known = table.detach().cpu()
        linear = fit_linear_map(vectors.vectors[rows], known[ids].numpy(), has_intercept=has_intercept)
        return torch.cat([known, torch.from_numpy(linear(vectors.vectors[added]))])

    tables = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, WordTable)}
    tensors = {name: expanded(value) if name in tables else value for name, value in model.kept_tensors().items()}
    return SentenceModel.from_tensors(model.record._replace(num_words=len(vocabulary)), vocabulary, tensors)


def bag_of_words(model: SentenceModel) -> SentenceModel:
    """Return the model that averages the word vectors of each tower, one block for each word table.

    Fixed word vectors, which all towers share, are one block.
    """
    towers = [_tables(tower) for tower in model.towers]
    if not model.tables:
        towers = [list(dict.fromkeys(towers[0]))]
        values: dict[str, Any] = {"encoder": _bags(towers[0]), "objective": {"type": "paraphrase_margin"}}
    else:
        values = {
            "encoder": _bags(towers[0]),
            "objective": model.config.objective.model_dump(mode="json"),
            "second_encoder": _bags(towers[1]) if model.config.second_encoder is not None else None,
        }
    config = validate(ModelConfig, Document(values))
    empty = SentenceModel(config, model.vocabulary, tables=EmptyTables(model.vocabulary, generator=torch.Generator()))
    weights = [table.weight.detach() for tables in towers for table in tables]
    names = [f"{name}.weight" for name, module in empty.named_modules() if isinstance(module, WordTable)]
    tensors = dict(zip(names, weights, strict=True))
    return SentenceModel.from_tensors(model.record._replace(config=config), model.vocabulary, tensors)


def _tables(tower: Tower) -> list[WordTable]:
    return [module for module in tower.modules() if isinstance(module, WordTable)]


def _bags(tables: list[WordTable]) -> dict[str, Any]:
    bags = [{"type": "bag", "pooling": "mean", "embedding": {"dim": int(table.weight.shape[1])}} for table in tables]
    members = {f"words_{number}": bag for number, bag in enumerate(bags)}
    return bags[0] if len(bags) == 1 else {"type": "concat", "members": members}
