"""Models that are made of word vectors or of trained models, without training.

    average_of_words    a file of word vectors -> the model that averages them
    expand              a trained model and word vectors -> the same model with more words
    bag_of_words        a trained model -> the model that averages its word vectors
    Whitening           a trained model and sentences -> the same model with whitened vectors
    compose             trained models -> a composition, whose vectors are theirs one after another

A composition is a folder of `composition.json` and a copy of each member, which keeps its own vocabulary, its own
clipping of gradients in training, and any size; one run of the encoder `concat` cannot give them these. A member's own
blocks keep their lengths: two towers are two blocks of unit length.

Source: Arora et al., 2017 (weights a / (a + p(w)), first singular vector removed); Mikolov et al., 2018 (plain means);
Kiros et al., 2015, section 2.2 (expansion), section 3 (combine-skip) and table 2 (bow); Logeswaran and Lee, 2018, who
expand both towers, and section 4.2 (combine and MC); Su et al., 2021, algorithm 1 and section 3.3 (whitening-k).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from raysent.config import Document, validate
from raysent.data.unicode_form import OF_NEW, in_form
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_ID,
    UNK_WORD,
    Sentences,
    SubwordVocabulary,
    Vocabulary,
    WordVectors,
    fit_linear_map,
    new_words,
    shared_words,
)
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.models.config import ModelConfig
from raysent.models.embeddings import EmbeddingConfig, EmptyTables, WordTable
from raysent.models.encoders.bag import Config as Bag
from raysent.models.model import SentenceModel
from raysent.models.origin import Origin, of_words
from raysent.models.postprocessing import PostprocessingConfig, whitening_directions
from raysent.models.sentence_encoder import JoinedEncoders
from raysent.storage import address_of, path_below, read_json, storage_errors, write_json
from raysent.storage.layout import (
    COMPOSITION_FILE,
    MEMBERS_FOLDER,
    MODEL_FILE,
    OUTCOME_FILE,
    TENSORS_FILE,
    VOCABULARY_FILE,
)

Weighting = Literal["uniform", "sif"]
_WEIGHTINGS: dict[str, Weighting] = {"uniform": "uniform", "sif": "sif"}
_COMPOSITION = "raysent composition"
# Beside a member's files: the linear map that `raysent rank --output` of 0.2 saved.
_RETIRED_MAP = "map.safetensors"
_MEMBER_FILES = (MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE)


def average_of_words(
    vectors: WordVectors,
    *,
    weighting: Weighting = "uniform",
    counts: Mapping[str, int] | None = None,
    sif_weight: float = 1e-3,
    lowercase: bool = False,
    sample: Sequence[str] | None = None,
) -> SentenceModel:
    """Return the model whose vector of a sentence is the mean of its first 50 words' vectors; unknown ones are zero.

    Args:
        vectors: The words and their vectors; names of padding and unknown words, and phrases with blanks, are left out.
        weighting: `sif` multiplies a word's vector by a / (a + p(w)).
        counts: How often words occur; p(w) is the relative frequency, 0 for a word without a count. Required for `sif`.
        sif_weight: a.
        lowercase: Whether text is lower-cased before its words are looked up.
        sample: Sentences; vectors lose the first singular vector of theirs. None leaves vectors as they are.

    Raises:
        DataError: If `sif` is given without counts.
    """
    first_rows: dict[str, int] = {}
    for row, written in enumerate(vectors.words):
        word = in_form(written, OF_NEW)
        if word.split() == [word] and word not in (PAD_WORD, UNK_WORD):
            first_rows.setdefault(word, row)
    words = list(first_rows)
    rows = vectors.vectors[list(first_rows.values())]
    rows *= _weights(words, weighting, counts, sif_weight)[:, None]
    vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *words], lowercase=lowercase)
    dim = rows.shape[1]
    config = ModelConfig(
        encoder=Bag(pooling="mean", embedding=EmbeddingConfig(dim=dim)),
        postprocessing=PostprocessingConfig(remove_component=sample is not None),
    )
    tables = EmptyTables(vocabulary, generator=torch.Generator())
    model = SentenceModel(config, vocabulary, tables=tables)
    table = next(module for module in model.modules() if isinstance(module, WordTable)).weight.data
    table[: UNK_ID + 1] = 0.0
    table[UNK_ID + 1 :] = torch.from_numpy(rows)
    model.origin = Origin(kind="vectors", encoder=config.encoder.type)
    model.eval()
    if sample is not None:
        read = vocabulary.ids(
            sample[: model.postprocessing.num_sentences], max_length=model.max_length
        )
        model.fit_postprocessing(read)
    return model


def check_weighting(name: str) -> Weighting:
    """Return a valid name of a weighting.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name in _WEIGHTINGS:
        return _WEIGHTINGS[name]
    raise ConfigError(f"weighting: must be uniform or sif; given '{name}'")


def _weights(
    words: list[str], weighting: Weighting, counts: Mapping[str, int] | None, sif_weight: float
) -> np.ndarray:
    if weighting == "uniform":
        return np.ones(len(words), dtype=np.float32)
    if not counts or not any(counts.values()):
        raise DataError(
            "counts: must name a file of 'word count' lines for weighting sif; given none"
        )
    total = sum(counts.values())
    frequencies = np.array(
        [counts.get(word, counts.get(word.lower(), 0)) / total for word in words]
    )
    return (sif_weight / (sif_weight + frequencies)).astype(np.float32)


def expand(
    model: SentenceModel, vectors: WordVectors, *, has_intercept: bool = True
) -> SentenceModel:
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
        raise ConfigError(
            "MODEL: must read words to be expanded; it reads sub-words, which leave no word unknown"
        )
    ids, rows = shared_words(model.vocabulary, vectors)
    dim = vectors.vectors.shape[1]
    if len(ids) <= dim:
        raise DataError(
            f"VECTORS: must share more than {dim} words with the model, one for each dimension; given {len(ids)}; "
            "check the case of the words, or name a larger file"
        )
    added = new_words(model.vocabulary, vectors)
    vocabulary = Vocabulary(
        [*model.vocabulary.words, *(vectors.words[row] for row in added)],
        lowercase=model.vocabulary.lowercase,
        unicode_form=model.vocabulary.unicode_form,
    )

    tensors = model.kept_tensors()
    for name in _table_names(model):
        if name not in tensors:
            # A table of the objective is not saved with the model.
            continue
        weight = tensors[name].detach().cpu()
        linear_map = fit_linear_map(
            vectors.vectors[rows], weight[ids].numpy(), has_intercept=has_intercept
        )
        new_weight = torch.from_numpy(linear_map(vectors.vectors[added]))
        tensors[name] = torch.cat([weight, new_weight])
    record = model.record.model_copy(update={"num_words": len(vocabulary)})
    return SentenceModel.from_tensors(record, vocabulary, tensors)


def _table_names(model: SentenceModel) -> list[str]:
    """Return the names of the word tables among a model's tensors, each once."""
    return [
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, WordTable)
    ]


def bag_of_words(model: SentenceModel) -> SentenceModel:
    """Return the model that averages the word vectors of each tower, one block for each word table.

    Fixed word vectors, which all towers share, are one block.
    """
    towers = [_word_tables(tower) for tower in model.towers]
    if not any(towers):
        raise ConfigError(
            "MODEL: must have word vectors of its own; it reads sub-words of a pretrained model"
        )
    if not model.tables or len(towers) == 1:
        # Tables that several members share are one block.
        towers = [list(dict.fromkeys(towers[0]))]
    settings = {"encoder": _bags(towers[0])}
    if len(towers) == 2:
        settings["second_encoder"] = _bags(towers[1])
    config = validate(ModelConfig, Document(settings))
    empty_tables = EmptyTables(model.vocabulary, generator=torch.Generator())
    empty = SentenceModel(config, model.vocabulary, tables=empty_tables)
    weights = [table.weight.detach() for tables in towers for table in tables]
    tensors = dict(zip(_table_names(empty), weights, strict=True))
    origin = of_words(model.origin, has_trained_words=bool(model.tables))
    record = model.record.model_copy(update={"config": config, "origin": origin})
    return SentenceModel.from_tensors(record, model.vocabulary, tensors)


def _word_tables(tower: nn.Module) -> list[WordTable]:
    """Return the word tables of a tower."""
    return [module for module in tower.modules() if isinstance(module, WordTable)]


def _bags(tables: list[WordTable]) -> dict[str, Any]:
    """Return the settings of an encoder that averages the vectors of each table."""
    bags = [
        {"type": "bag", "pooling": "mean", "embedding": {"dim": int(table.weight.shape[1])}}
        for table in tables
    ]
    if len(bags) == 1:
        return bags[0]
    members = {f"words_{number}": bag for number, bag in enumerate(bags)}
    return {"type": "concat", "members": members}


class Whitening:
    """What whitens the vectors of one model, computed once and applied with any number of dimensions.

    Attributes:
        rank: Directions in which the vectors of the sample vary: the most dimensions that can be kept.
        num_sentences: Sentences of the sample.
    """

    def __init__(self, model: SentenceModel, sentences: Sentences) -> None:
        """Compute the directions.

        Args:
            model: A trained model without a code; of one that is whitened already, the whitening is replaced.
            sentences: Ids of the model's words, more sentences than dimensions are to be kept.

        Raises:
            ConfigError: If the model has a code.
            DataError: If the sample has fewer than two sentences, or all have the same vector.
        """
        if model.code is not None:
            raise ConfigError(
                "MODEL: its vectors are bits, which are not whitened; name the model that it was made of"
            )
        self.num_sentences = len(sentences.lengths)
        if self.num_sentences < 2:
            raise DataError(f"corpus: must have at least two sentences; given {self.num_sentences}")
        self._model = model.eval()
        self._center, self._directions = whitening_directions(model.combined_vectors(sentences))
        self.rank = self._directions.shape[1]
        if not self.rank:
            raise DataError(
                "corpus: its sentences must have different vectors; given one vector for all"
            )

    def apply(self, dimension: int) -> SentenceModel:
        """Return the whitened model.

        Args:
            dimension: Numbers of a vector, from 1 to `rank`.

        Raises:
            ConfigError: If it is out of range.
        """
        if not 1 <= dimension <= self.rank:
            raise ConfigError(
                f"dimension: must be from 1 to {self.rank}, the directions in which the vectors of the sample vary; "
                f"given {dimension}"
            )
        config = self._model.config
        # The settings describe the sample that was used; a smaller one cannot have this rank.
        postprocessing = config.postprocessing.model_copy(
            update={"whitening": dimension, "num_sentences": self.num_sentences}
        )
        whitened_config = config.model_copy(update={"postprocessing": postprocessing})
        record = self._model.record.model_copy(update={"config": whitened_config})
        tensors = {
            **self._model.kept_tensors(),
            "postprocessing.center": torch.zeros(len(self._center)),
            "postprocessing.projection": torch.zeros(len(self._center), dimension),
        }
        model = SentenceModel.from_tensors(record, self._model.vocabulary, tensors)
        model.postprocessing.set_whitening(self._center, self._directions)
        return model


def compose(models: Mapping[str, Path], output: Path) -> JoinedEncoders:
    """Make one model of several trained ones and save it.

    Args:
        models: Name of the member -> folder of its model, a run's or a trial's.
        output: Folder of the composition; must not hold one yet.

    Raises:
        ConfigError: If fewer than two models are given, a member has a code, or `output` is not empty.
        ArtifactError: If a folder holds no model, or `output` cannot be written.
    """
    if len(models) < 2:
        raise ConfigError(f"MODEL: a composition needs at least two models; given {len(models)}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(
            f"output {address_of(output)}: must be a new or an empty folder; name another"
        )
    members = {name: SentenceModel.load(folder) for name, folder in models.items()}
    for name, member in members.items():
        if member.code is not None:
            raise ConfigError(
                f"{name}: its vectors are bits, which do not compose; name the model that it was made of"
            )
    _save_composition(models, output)
    return JoinedEncoders(members.values(), normalizes=False)


def _save_composition(models: Mapping[str, Path], output: Path) -> None:
    with storage_errors(output):
        for name, folder in models.items():
            member_folder = path_below(output / MEMBERS_FOLDER, name)
            member_folder.mkdir(parents=True, exist_ok=True)
            for file in _MEMBER_FILES:
                shutil.copyfile(folder / file, member_folder / file)
            if (folder / OUTCOME_FILE).is_file():  # how long it trained
                shutil.copyfile(folder / OUTCOME_FILE, member_folder / OUTCOME_FILE)
    # Last, because it marks the members as complete.
    write_json(output / COMPOSITION_FILE, {"kind": _COMPOSITION, "members": list(models)})


def member_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of a composition's members by name.

    Raises:
        ArtifactError: If its file is missing or of another kind.
    """
    about = read_json(folder / COMPOSITION_FILE)
    if (
        not isinstance(about, dict)
        or about.get("kind") != _COMPOSITION
        or not isinstance(about.get("members"), list)
    ):
        raise ArtifactError(
            f"{address_of(folder / COMPOSITION_FILE)}: not a composition; compose the models again"
        )
    names = map(str, about["members"])
    return {name: path_below(folder / MEMBERS_FOLDER, name) for name in names}


def load_composition(folder: Path) -> JoinedEncoders:
    """Load a saved composition.

    Raises:
        ArtifactError: If a file is missing, truncated or of another kind.
    """
    folders = member_folders(folder)
    if any((path / _RETIRED_MAP).is_file() for path in folders.values()):
        raise ArtifactError(
            f"{address_of(folder)}: holds a map of sentences, which is read no longer; name the model"
        )
    return JoinedEncoders(map(SentenceModel.load, folders.values()), normalizes=False)
