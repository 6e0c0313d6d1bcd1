"""A trained model -> the same model with more words, and the bag of its words.

Source: Kiros et al., 2015, section 2.2 (expansion) and table 2 (bow); Logeswaran and Lee, 2018, who expand both towers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raysent.config import Document, validate
from raysent.embeddings import EmptyTables, WordTable
from raysent.encoders import SentenceReader
from raysent.errors import DataError
from raysent.model.config import ModelConfig
from raysent.model.sentence_model import SentenceModel
from raysent.vocabulary import Vocabulary, WordVectors, fit_linear_map, new_words, shared_words


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
    return _filled(model, model.config, vocabulary, tensors)


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
    empty = SentenceModel(
        config, model.vocabulary, tables=EmptyTables(model.vocabulary, generator=torch.Generator()), has_objective=False
    )
    values = [table.weight.detach() for tables in towers for table in tables]
    names = [f"{name}.weight" for name, module in empty.named_modules() if isinstance(module, WordTable)]
    return _filled(model, config, model.vocabulary, dict(zip(names, values, strict=True)))


def _tables(tower: SentenceReader) -> list[WordTable]:
    return [module for module in tower.modules() if isinstance(module, WordTable)]


def _bags(tables: list[WordTable]) -> dict[str, Any]:
    """Return the configuration of an encoder that averages the words of each table."""
    bags = [{"type": "bag", "pooling": "mean", "embedding": {"dim": int(table.weight.shape[1])}} for table in tables]
    members = {f"words_{number}": bag for number, bag in enumerate(bags)}
    return bags[0] if len(bags) == 1 else {"type": "concat", "members": members}


def _filled(
    model: SentenceModel, config: ModelConfig, vocabulary: Vocabulary, tensors: dict[str, Tensor]
) -> SentenceModel:
    """Return a model of a like kind with the given values, ready to encode."""
    empty = EmptyTables(vocabulary, generator=torch.Generator())
    made = SentenceModel(
        config,
        vocabulary,
        tables=empty,
        max_length=model.max_length,
        num_classes=model.num_classes,
        has_objective=config.objective.is_kept,
    )
    made.load_tensors(tensors)
    return made.eval()
