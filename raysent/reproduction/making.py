"""One model of a paper's graph -> its folder.

A folder holds `graph.json` with a key of the model's settings and of those of its parts. A model whose key is unchanged
is kept, or trained on from its last checkpoint; another one is made again.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from raysent.config import Document, validate
from raysent.data import read_counts, read_lines
from raysent.data.vocabulary import Vocabulary, read_word_vectors
from raysent.errors import ConfigError, DataError, TrainingError
from raysent.evaluation.members import Member, model_key
from raysent.evaluation.task import Scoring, SimilarityData
from raysent.evaluation.tasks import find_task
from raysent.models import SentenceModel, average_of_words, bag_of_words, compose, expand
from raysent.models.config import ModelConfig
from raysent.models.files import read_record
from raysent.models.postprocessing import Postprocessing
from raysent.models.sentence_encoder import Float32, SentenceEncoder, normalize_rows
from raysent.reading import parse_json
from raysent.reproduction.files import DERIVED, ModelEntry, PaperFile, Scale, filled, merged
from raysent.storage import (
    content_key,
    load_tensors,
    path_below,
    read_json,
    remove_tree,
    write_json,
    write_text,
)
from raysent.storage.layout import TENSORS_FILE, VOCABULARY_FILE
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.outcome import load_reports
from raysent.training.run import RunConfig, load_run

GRAPH_FILE = "graph.json"
# Parts and means of others' vectors, and of their predictions.
_MADE_AT_USE = frozenset({"blocks", "mean", "ensemble"})


class Blocks(SentenceEncoder):
    """Some blocks of a model's vectors, such as a single view."""

    def __init__(self, model: SentenceModel, blocks: list[int]) -> None:
        """Choose the blocks by number."""
        ends = np.cumsum([0, *model.config.encoded_dims])
        ranges = [np.arange(ends[block], ends[block + 1]) for block in blocks]
        self._model = model
        self._columns = np.concatenate(ranges)

    @property
    def model(self) -> SentenceModel:
        """The model."""
        return self._model

    def get_sentence_embedding_dimension(self) -> int:
        """Return the sum of the blocks' sizes."""
        return len(self._columns)

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the blocks, each of unit length, float32 [sentences, dim]."""
        return self._model.encode_texts(sentences, batch_size=batch_size)[:, self._columns]


class MeanOf(SentenceEncoder):
    """The mean of the vectors of several models, each of unit length, as of two views that were trained apart."""

    def __init__(self, encoders: Sequence[SentenceEncoder]) -> None:
        """Take encoders of one size.

        Raises:
            ConfigError: If their vectors differ in size.
        """
        sizes = {encoder.get_sentence_embedding_dimension() for encoder in encoders}
        if len(sizes) != 1:
            raise ConfigError(
                f"mean: must be of models of one size; given {sorted(map(str, sizes))}"
            )
        self.encoders = list(encoders)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of one of them."""
        return self.encoders[0].get_sentence_embedding_dimension()

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the means, float32 [sentences, dim]."""
        parts = [
            normalize_rows(encoder.encode_texts(sentences, batch_size=batch_size))
            for encoder in self.encoders
        ]
        mean: Float32 = np.mean(parts, axis=0, dtype=np.float32)
        return mean


class OfTested(SentenceEncoder):
    """A model whose top component is that of the sentences that are encoded together, as of one set of pairs.

    A vector then depends on the other sentences, so this is for tables of papers that were made so, and no saved model
    is one.

    Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.4.
    """

    def __init__(self, encoder: SentenceEncoder) -> None:
        """Take a model, or blocks of one, which are changed at each call."""
        self._encoder = encoder
        self._model = encoder
        if isinstance(encoder, Blocks):
            self._model = encoder.model

    @property
    def similarity_measure(self) -> str:
        """That of the model."""
        return self._encoder.similarity_measure

    def get_sentence_embedding_dimension(self) -> int:
        """Return that of the model."""
        return self._encoder.get_sentence_embedding_dimension()

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return vectors without the first singular vector of these sentences, float32 [sentences, dim]."""
        model = self._model
        if isinstance(model, SentenceModel) and model.config.postprocessing.remove_component:
            ids = model.vocabulary.ids(sentences, max_length=model.max_length)
            model.fit_postprocessing(ids)
        return self._encoder.encode_texts(sentences, batch_size=batch_size)


@dataclass(frozen=True)
class Graph:
    """A paper's models at one scale, in a folder.

    Attributes:
        paper: The paper's file.
        scale: The scale.
        data: Folder of the datasets.
        output: Folder of the models: `models/NAME/SEED`.
    """

    paper: PaperFile
    scale: Scale
    data: Path
    output: Path

    def folder(self, name: str, seed: int) -> Path:
        """Return the folder of a model."""
        return path_below(self.output / "models", name) / str(seed)

    def values(self, name: str) -> dict[str, Any]:
        """Return the values of a model's run, or its changes of another model."""
        values = self.paper.values(name, scale=self.scale, data=self.data)
        return dict(filled(values, {DERIVED: str(self.output / "derived")}))

    def derive(self) -> None:
        """Write the files that are derived from datasets, unless they exist.

        Raises:
            DataError: If a dataset cannot be read.
        """
        for key, dataset in self.paper.scales[self.scale].data.items():
            path = self.output / "derived" / dataset.derived(key, self.data)
            source = self.data / dataset.path
            if dataset.derive is None or not source.is_file() or path.is_file():
                continue
            held_out = _task_sentences(dataset.without, self.data / "senteval")
            lines = []
            for line in _LINES[dataset.derive](source):
                if held_out.isdisjoint(map(letters, line.split("\t"))):
                    lines.append(line)
            write_text(path, "".join(lines))

    def config(self, name: str, seed: int) -> RunConfig:
        """Return the run of a trained model.

        Raises:
            ConfigError: If the values are wrong, or the model that it starts with is not made yet.
        """
        settings = {**self.values(name), "seed": seed}
        initial = self.paper.models[name].initial
        if initial is not None:
            settings["initial"] = str(self.folder(initial, seed))
        return validate(RunConfig, Document(settings, source=f"models.{name}"))

    def key(self, name: str, seed: int) -> str:
        """Return a key of what determines a model."""
        model = self.paper.models[name]
        how_made = model.model_dump(
            mode="json", exclude={"run", "small", "paper", "train", "parameters"}
        )
        optional = [*map(str, self._files(model).values())]
        # The small models keep the keys that they had before expansion at this scale lost its intercept.
        if model.expand is not None and not self._has_intercept:
            optional.append("no intercept")
        parts = [self.key(part, seed) for part in model.parts]
        return content_key(how_made, self.values(name), seed, parts, *optional)

    @property
    def _has_intercept(self) -> bool:
        """Whether an expansion has an intercept; the text has a matrix alone."""
        return self.scale != "paper"

    def make(self, name: str, seed: int) -> float:
        """Train or make a model whose parts exist, unless it exists; returns the seconds that it took when made.

        Raises:
            RaysentError: If it cannot be made.
        """
        model = self.paper.models[name]
        folder = self.folder(name, seed)
        key = self.key(name, seed)
        if model.kind in _MADE_AT_USE:
            return 0.0
        about = {}
        if (folder / GRAPH_FILE).is_file():
            about = read_json(folder / GRAPH_FILE)
        if about.get("key") == key and about.get("seconds") is not None:
            return float(about["seconds"])
        # A training that was interrupted goes on from its last checkpoint.
        if about.get("key") != key or model.kind != "train":
            remove_tree(folder, below=self.output)
        started = time.perf_counter()
        if model.kind == "train":
            write_json(folder / GRAPH_FILE, {"key": key, "seconds": None})
            self._train(name, seed)
        elif model.compose is not None:
            compose({part: self.folder(part, seed) for part in model.compose}, folder)
        else:
            self._made(name, seed).save(folder)
        seconds = time.perf_counter() - started
        write_json(folder / GRAPH_FILE, {"key": key, "seconds": round(seconds, 1)})
        return seconds

    def training_s(self, name: str, seed: int) -> float:
        """Return the seconds by the clock in which a made model and its parts were trained."""
        trained = [
            part for part in self.paper.order([name]) if self.paper.models[part].kind == "train"
        ]
        return sum(load_reports(self.folder(part, seed))[-1].seconds for part in trained)

    def member(self, name: str, seed: int) -> Member:
        """Return a made model as one to evaluate."""
        model = self.paper.models[name]
        label = f"{name}-{seed}"
        if model.blocks is not None:
            source = self.folder(str(model.of), seed)
            key = content_key(model_key(str(source)), model.blocks)
            return Member(label, label, key, Blocks(SentenceModel.load(source), model.blocks))
        if model.mean is not None:
            parts = [self.member(part, seed) for part in model.mean]
            key = content_key("mean", [part.key for part in parts])
            return Member(label, label, key, MeanOf([_encoder_of(part) for part in parts]))
        folder = str(self.folder(name, seed))
        return Member(label, folder, model_key(folder))

    def member_of_tested(self, name: str, seed: int) -> Member:
        """Return a made model that loses the top component of what is tested; see `OfTested`."""
        member = self.member(name, seed)
        label = f"{member.name}-of-tested"
        key = content_key(member.key, "of tested")
        return Member(label, label, key, of_tested(_encoder_of(member)))

    def _train(self, name: str, seed: int) -> None:
        outcome = fit(self.config(name, seed), self.folder(name, seed))
        if outcome.status != "finished":
            raise TrainingError(f"{name}: {outcome.message or outcome.status}")

    def _files(self, entry: ModelEntry) -> dict[str, Path]:
        datasets = self.paper.scales[self.scale].data
        return {key: self.data / datasets[key].path for key in entry.datasets}

    def _made(self, name: str, seed: int) -> SentenceModel:
        entry = self.paper.models[name]
        files = self._files(entry)
        if entry.average is not None:
            return average_of_words(
                read_word_vectors(files[entry.average]),
                weighting=entry.weighting,
                counts=None if entry.counts is None else read_counts(files[entry.counts]),
                sample=None if entry.sample is None else read_lines(files[entry.sample]),
            )
        if entry.represent is not None:
            return represent(self.folder(entry.represent, seed), self.values(name))
        if entry.expand is not None:
            assert entry.vectors is not None  # checked when the file was read
            return expand(
                SentenceModel.load(self.folder(entry.expand, seed)),
                read_word_vectors(files[entry.vectors]),
                has_intercept=self._has_intercept,
            )
        return bag_of_words(SentenceModel.load(self.folder(str(entry.bag), seed)))


def _encoder_of(member: Member) -> SentenceEncoder:
    return member.encoder or SentenceModel.load(Path(member.path))


def of_tested(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return an encoder that loses the top component of what is tested; of a mean, each part its own."""
    if isinstance(encoder, MeanOf):
        return MeanOf([of_tested(part) for part in encoder.encoders])
    return OfTested(encoder)


def letters(text: str) -> str:
    """Return a text's letters and digits, in lower case: what is the same however it was tokenized."""
    return "".join(re.findall(r"\w", text.casefold()))


def _task_sentences(names: Sequence[str], folder: Path) -> set[str]:
    """Return the `letters` of the sentences of tasks of similarity, of those whose files a folder holds."""
    similarity: tuple[Scoring, ...] = ("similarity",)
    sentences: set[str] = set()
    for name in names:
        task = find_task(name, scorings=similarity, option="without ")
        if task.is_present(folder):
            for scored_set in cast("SimilarityData", task.load(folder)).sets:
                sentences.update(map(letters, (*scored_set.first, *scored_set.second)))
    return sentences


def caption_pairs(source: Path) -> list[str]:
    """Return two pairs of captions of each training image of Flickr30k's JSON lines, as lines of two columns.

    Raises:
        DataError: If the file is of another kind.
    """
    lines = []
    try:
        with gzip.open(source, "rt", encoding="utf-8") as stream:
            for image in map(parse_json, stream):
                if image["split"] == "train":
                    first = image["captions"]
                    lines += [f"{first[0]}\t{first[1]}\n", f"{first[2]}\t{first[3]}\n"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{source}: must hold an image's captions a line, as gzipped JSON ({error})"
        ) from None
    return lines


def complete_pairs(source: Path) -> list[str]:
    """Return the lines of a gzipped `.tsv` file that have two columns with text.

    Raises:
        DataError: If the file is of another kind.
    """
    return [
        line
        for line in all_lines(source)
        if [bool(part.strip()) for part in line.split("\t")] == [True, True]
    ]


def all_lines(source: Path) -> list[str]:
    """Return the lines of a gzipped `.tsv` file.

    Raises:
        DataError: If the file is of another kind.
    """
    try:
        with gzip.open(source, "rt", encoding="utf-8") as stream:
            return list(stream)
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: must hold columns, as gzipped text ({error})") from None


# The lines of each kind of derived file.
_LINES = {"caption_pairs": caption_pairs, "complete_pairs": complete_pairs, "lines": all_lines}


def represent(folder: Path, changes: Mapping[str, Any]) -> SentenceModel:
    """Return a trained model with another test representation; its postprocessing is fitted to its training text.

    Args:
        folder: Folder of the run.
        changes: Changes of its settings: `encode_pooling` of the encoders, or `postprocessing`.
    """
    record = read_record(folder)
    values = merged(record.config.model_dump(mode="json"), changes)
    config = validate(ModelConfig, Document(values, source=str(folder)))
    post = Postprocessing(config.postprocessing, config.encoded_dims)
    tensors = {
        name: value
        for name, value in load_tensors(folder / TENSORS_FILE).items()
        if not name.startswith("postprocessing.")
    }
    tensors |= {f"postprocessing.{name}": value.detach() for name, value in post.named_parameters()}
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    record = record.model_copy(update={"config": config})
    model = SentenceModel.from_tensors(record, vocabulary, tensors, source=folder)
    if model.postprocessing.is_fitted_to_text:
        run = load_run(folder)
        model.fit_postprocessing(
            open_training_data(run).sample(config.postprocessing.num_sentences)
        )
    return model
