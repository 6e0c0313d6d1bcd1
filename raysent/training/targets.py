"""What a teacher returns for each sentence of a corpus: computed once, kept in the cache, memory-mapped.

    teacher, text -> unit vectors of all members, joined [sentences, joined]
                  -> minus their mean, times a fixed matrix of orthonormal columns [joined, dim] -> float16
    ensemble, tasks -> pooled log-probabilities [sentences, classes] -> float16

The mean and the matrix are fitted on a sample of the training text. Before the text is encoded, their loss is measured
and refused above `max_loss`: the mean validation score of probes on the tasks with the projected instead of the joined
vectors, or the variance that is lost where no tasks are named.

Both results are folders of the cache: `projections/<key>` (mean.npy, matrix.npy) and `targets/<key>` (vectors.npy and a
file for each task). Keys are hashes of the teacher's and the text's content, so that runs with other settings and other
students share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.data.batches import SentenceTargets
from raysent.data.corpus import Corpus, CorpusConfig, SentenceTexts, sentence_texts
from raysent.data.corpus.cache import build_once
from raysent.ensembles import Ensemble, read_result
from raysent.ensembles.ensemble import LoadedMember
from raysent.errors import ConfigError, RaysentError
from raysent.evaluation.members import model_folder, model_key
from raysent.evaluation.task import TaskData
from raysent.models import load as load_model
from raysent.models.objectives import TargetBatches
from raysent.models.schemes import is_scheme_name, with_scheme
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import Float32, JoinedEncoders, SentenceEncoder
from raysent.parallel import Progress
from raysent.storage import cache_folder, content_key, open_folder, read_json
from raysent.storage.layout import COMPOSITION_FILE, ENSEMBLE_FILE
from raysent.training.validation.config import DownstreamConfig
from raysent.training.validation.metrics import Downstream

FORMAT_VERSION = 1
# Sentences that the projection is fitted on, at most, and numbers of their joined vectors.
_SAMPLED = 10_000
_SAMPLED_NUMBERS = 40_000_000
_BLOCK = 4096
_LEAST_LOG = -30.0
_SUMMARY = "corpus.json"


class Projected(SentenceEncoder):
    """A teacher whose joined vectors lose their mean and what a fixed map leaves out.

    Attributes:
        mean: Of the joined vectors, float32 [joined].
        matrix: Orthonormal columns, float32 [joined, dim]; None where nothing is left out.
    """

    def __init__(self, teacher: SentenceEncoder, mean: Float32, matrix: Float32 | None) -> None:
        """Hold all three."""
        self._teacher, self.mean, self.matrix = teacher, mean, matrix

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of a projected vector."""
        return len(self.mean) if self.matrix is None else self.matrix.shape[1]

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return projected vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        centred: Float32 = self._teacher.encode(sentences, batch_size=batch_size) - self.mean
        return centred if self.matrix is None else centred @ self.matrix


class _LastKept(SentenceEncoder):
    """An encoder that keeps its last vectors, for a teacher that encodes a block for its vector and for each task."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.wrapped = encoder
        self._last: tuple[list[str], Float32] | None = None

    def get_sentence_embedding_dimension(self) -> int:
        return self.wrapped.get_sentence_embedding_dimension()

    @property
    def similarity_measure(self) -> str:
        return self.wrapped.similarity_measure

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        if self._last is None or self._last[0] != sentences:
            self._last = (list(sentences), self.wrapped.encode(sentences, batch_size=batch_size))
        return self._last[1]


@dataclass(frozen=True)
class Teacher:
    """A model that is learned from.

    Attributes:
        name: As `load` takes it.
        key: Hash of its content.
        tasks: The tasks whose log-probabilities it returns, with the number of their classes.
    """

    name: str
    key: str
    tasks: dict[str, int]

    def load(self) -> tuple[SentenceEncoder, Ensemble | None]:
        """Return what encodes its joined vectors, and the ensemble that predicts; None for a single model.

        Lexical members predict and have no vectors.
        """
        loaded = load_model(self.name)
        if not isinstance(loaded, Ensemble):
            return JoinedEncoders([loaded]), None
        members = [
            member
            if isinstance(member.encoder, LexicalModel)
            else LoadedMember(member.name, _LastKept(member.encoder))
            for member in loaded.members
        ]
        ensemble = Ensemble(members, folder=loaded.folder, result=loaded.result)
        encoders = [
            member.encoder for member in members if not isinstance(member.encoder, LexicalModel)
        ]
        if not encoders:
            raise ConfigError(
                f"objective.teacher: {self.name}: must have a member with vectors; all are lexical"
            )
        return JoinedEncoders(encoders), ensemble


def find_teacher(settings: TargetBatches) -> Teacher:
    """Return the teacher that settings name, without loading it.

    Raises:
        ArtifactError: If there is no such model.
        ConfigError: If a task is unknown.
    """
    assert settings.teacher is not None  # checked when the configuration was made
    teacher = with_scheme(settings.teacher)
    if is_scheme_name(teacher):
        return Teacher(teacher, model_key(teacher), {})
    folder = open_folder(settings.teacher)
    try:
        if (folder / ENSEMBLE_FILE).is_file() and model_folder(folder) is None:
            return _ensemble(settings, folder)
        if model_folder(folder) is None and not (folder / COMPOSITION_FILE).is_file():
            load_model(folder)  # raises the error of a folder without a model
        return Teacher(str(folder), model_key(str(folder)), {})
    except RaysentError as error:
        raise type(error)(f"objective.teacher: {error}") from None


def _ensemble(settings: TargetBatches, folder: Path) -> Teacher:
    result, downstream = read_result(folder), _downstream(settings)
    tasks, keys = dict[str, int](), []
    for data in () if downstream is None else downstream.tasks:
        found = result.tasks.get(data.task)
        if found is not None and isinstance(data, TaskData) and data.kind == "sentence":
            tasks[data.task] = len(found.label_names)
            keys.append([data.task, found.combination, found.keys])
    return Teacher(str(folder), content_key(model_key(str(folder)), keys), tasks)


def open_targets(
    settings: TargetBatches, config: CorpusConfig, corpus: Corpus, progress: Progress | None = None
) -> SentenceTargets:
    """Return what a teacher returns for each sentence of a corpus; it is computed if the cache does not have it.

    Args:
        settings: The teacher, the projection and the tasks.
        config: The text.
        corpus: The corpus that was prepared of it.
        progress: Called with the name of a stage, the number of sentences done, and the total.

    Raises:
        ConfigError: If the projection loses more than `settings.max_loss`.
        ArtifactError: If the teacher cannot be loaded, or the cache cannot be written.
    """
    teacher, cache, downstream = (
        find_teacher(settings),
        cache_folder(config.cache_dir),
        _downstream(settings),
    )
    text = content_key(corpus.text_key, corpus.train.text_hash, corpus.validation.text_hash)
    of_tasks = [] if downstream is None else [downstream.hash]
    fitted = content_key(
        FORMAT_VERSION, teacher.key, text, settings.dim, settings.projection, *of_tasks
    )
    load, texts = lru_cache(teacher.load), partial(sentence_texts, config, progress=progress)

    def build_projection(folder: Path) -> dict[str, Any]:
        encoder = load()[0]
        projected, loss = _fit_projection(
            settings, encoder, _sample(texts(), corpus, encoder), downstream
        )
        np.save(folder / "mean.npy", projected.mean)
        if projected.matrix is not None:
            np.save(folder / "matrix.npy", projected.matrix)
        return {"loss": loss}

    place = build_once(cache, f"projections/{fitted}", build_projection)
    mean: Float32 = np.load(place / "mean.npy")
    _check_loss(read_json(place / _SUMMARY)["loss"], len(mean), settings)

    def build_targets(folder: Path) -> dict[str, Any]:
        encoder, ensemble = load()
        matrix = place / "matrix.npy"
        projected = Projected(encoder, mean, np.load(matrix) if matrix.is_file() else None)
        _write(folder, texts(), projected, ensemble, teacher.tasks, progress)
        return {"teacher": teacher.key}

    key = content_key(fitted, sorted(teacher.tasks))
    folder = build_once(cache, f"targets/{key}", build_targets)
    vectors, *outputs = (np.load(folder / name, mmap_mode="r") for name in _files(teacher.tasks))
    return SentenceTargets(key, vectors, dict(zip(teacher.tasks, outputs, strict=True)))


def _files(tasks: Iterable[str]) -> list[str]:
    return ["vectors.npy", *(f"task-{place}.npy" for place, _ in enumerate(tasks))]


def _downstream(settings: TargetBatches) -> Downstream | None:
    if settings.tasks is None:
        return None
    return Downstream(DownstreamConfig(tasks=list(settings.tasks), data=settings.data))


def _sample(texts: SentenceTexts, corpus: Corpus, teacher: SentenceEncoder) -> list[str]:
    dim = teacher.get_sentence_embedding_dimension()
    count = min(len(corpus.train), _SAMPLED, max(_BLOCK, _SAMPLED_NUMBERS // dim))
    return texts.texts(np.unique(np.linspace(0, len(corpus.train) - 1, count).astype(np.int64)))


def _fit_projection(
    settings: TargetBatches,
    teacher: SentenceEncoder,
    sample: list[str],
    downstream: Downstream | None,
) -> tuple[Projected, float]:
    """Return a projection fitted to sentences, and its loss: points of the score, or percent of the variance."""
    vectors = teacher.encode(sample)
    mean = vectors.mean(axis=0)
    if vectors.shape[1] <= settings.dim:
        return Projected(teacher, mean, None), 0.0
    matrix, kept = _directions(vectors - mean, settings.dim, kind=settings.projection)
    projected = Projected(teacher, mean, matrix)
    if downstream is None:
        return projected, 100 * (1 - kept)
    whole, left = (downstream.downstream_metrics(one)["downstream"] for one in (teacher, projected))
    return projected, whole - left


def _directions(centred: Float32, dim: int, *, kind: str) -> tuple[Float32, float]:
    """Return orthonormal columns [joined, dim], and what they keep of the variance of vectors [rows, joined]."""
    rows, joined = torch.from_numpy(centred), centred.shape[1]
    drawn = torch.randn(
        joined, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    if kind != "pca":
        columns = torch.linalg.qr(drawn).Q
    else:
        if (
            len(rows) < joined
        ):  # of fewer rows than numbers, their inner products have the same directions
            of_rows = (
                torch.linalg.eigh(rows.double() @ rows.double().T).eigenvectors[:, -dim:].flip(1)
            )
            found = rows.double().T @ of_rows
            columns = torch.linalg.qr(torch.cat([found, drawn[:, found.shape[1] :]], dim=1)).Q
        else:
            columns = torch.linalg.eigh((rows.T @ rows).double()).eigenvectors[:, -dim:].flip(1)
        # The sign of a direction is free: its largest number is positive.
        largest = columns.gather(0, columns.abs().argmax(dim=0, keepdim=True))
        columns = columns * largest.sign()
    whole = rows.double().square().sum().clamp(min=1e-300)
    return columns.float().numpy(), float((rows.double() @ columns).square().sum() / whole)


def _check_loss(loss: float, joined: int, settings: TargetBatches) -> None:
    if loss <= settings.max_loss:
        return
    tasks = ", ".join(settings.tasks or ())
    unit = (
        f"points of the teacher's score on {tasks}"
        if tasks
        else "% of the variance of the teacher's vectors"
    )
    raise ConfigError(
        f"objective.dim: must keep all but {settings.max_loss:g} {unit}; {settings.dim} of {joined} dimensions lose "
        f"{loss:.2f}; raise objective.dim, or objective.max_loss to accept it"
    )


def _write(
    folder: Path,
    texts: SentenceTexts,
    teacher: Projected,
    ensemble: Ensemble | None,
    tasks: dict[str, int],
    progress: Progress | None,
) -> None:
    sizes = [teacher.get_sentence_embedding_dimension(), *tasks.values()]
    files = [
        np.lib.format.open_memmap(
            folder / name, mode="w+", dtype=np.float16, shape=(len(texts), size)
        )
        for name, size in zip(_files(tasks), sizes, strict=True)
    ]
    # A student is compared on the rows that test its teacher, so it learns from what has not seen them.
    predictors = {}
    if ensemble is not None:
        predictors = {task: ensemble.predictors[task].as_scored() for task in tasks}
    for first in range(0, len(texts), _BLOCK):
        stop = min(first + _BLOCK, len(texts))
        block = texts.texts(np.arange(first, stop, dtype=np.int64))
        files[0][first:stop] = teacher.encode_texts(block)
        for task, values in zip(tasks, files[1:], strict=True):
            values[first:stop] = np.maximum(predictors[task].combined([block]), _LEAST_LOG)
        if progress:
            progress("encoding with the teacher", stop, len(texts))
    for values in files:
        values.flush()
