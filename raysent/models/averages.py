"""Files of word vectors -> a model that averages them: the baselines that need no training.

Source: Arora et al., 2017 (weights a / (a + p(w)), the top component removed); Mikolov et al., 2018 (plain means).

A trained model -> the same model with more words, and the bag of its words.

Source: Kiros et al., 2015, section 2.2 (expansion) and table 2 (bow); Logeswaran and Lee, 2018, who expand both towers.
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
    model = SentenceModel(config, vocabulary, tables=tables)
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


def expand(model: SentenceModel, vectors: WordVectors, *, has_intercept: bool = True) -> SentenceModel:
    """Return the model with every word that has a pretrained vector; the vectors of its own words stay as they are.

    Each word table of each tower gets a map of its own.

    Args:
        model: A trained model.
        vectors: Pretrained vectors; case counts.
        has_intercept: Whether the map has a constant part.

    Raises:
        DataError: If fewer words are shared than the vectors have dimensions, or none is new.
    """
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
    """Return the baseline of a model: in each tower the mean of its word vectors, one block for each word table."""
    towers = [_tables(tower) for tower in model.towers]
    config = validate(
        ModelConfig,
        Document(
            {
                "encoder": _bags(towers[0]),
                "objective": model.config.objective.model_dump(mode="json"),
                "second_encoder": _bags(towers[1]) if model.config.second_encoder is not None else None,
            }
        ),
    )
    empty = SentenceModel(config, model.vocabulary, tables=EmptyTables(model.vocabulary, generator=torch.Generator()))
    values = [table.weight.detach() for tables in towers for table in tables]
    names = [f"{name}.weight" for name, module in empty.named_modules() if isinstance(module, WordTable)]
    tensors = dict(zip(names, values, strict=True))
    return SentenceModel.from_tensors(model.record._replace(config=config), model.vocabulary, tensors)


def _tables(tower: Tower) -> list[WordTable]:
    return [module for module in tower.modules() if isinstance(module, WordTable)]


def _bags(tables: list[WordTable]) -> dict[str, Any]:
    """Return the configuration of an encoder that averages the words of each table."""
    bags = [{"type": "bag", "pooling": "mean", "embedding": {"dim": int(table.weight.shape[1])}} for table in tables]
    members = {f"words_{number}": bag for number, bag in enumerate(bags)}
    return bags[0] if len(bags) == 1 else {"type": "concat", "members": members}
