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

from collections.abc import Sized
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
_MEAN_FILE = "mean.npy"
_MATRIX_FILE = "matrix.npy"
_SUMMARY = "corpus.json"


class Projected(SentenceEncoder):
    """A teacher whose joined vectors lose their mean and what a fixed map leaves out.

    Attributes:
        mean: Of the joined vectors, float32 [joined].
        matrix: Orthonormal columns, float32 [joined, dim]; None where nothing is left out.
    """

    def __init__(self, teacher: SentenceEncoder, mean: Float32, matrix: Float32 | None) -> None:
        """Hold all three."""
        self._teacher = teacher
        self.mean = mean
        self.matrix = matrix

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of a projected vector."""
        if self.matrix is None:
            return len(self.mean)
        return int(self.matrix.shape[1])

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return projected vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        centred: Float32 = self._teacher.encode(sentences, batch_size=batch_size) - self.mean
        if self.matrix is None:
            return centred
        return centred @ self.matrix


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
        members = []
        encoders = []
        for member in loaded.members:
            if isinstance(member.encoder, LexicalModel):
                members.append(member)
                continue
            encoder = _LastKept(member.encoder)
            members.append(LoadedMember(member.name, encoder))
            encoders.append(encoder)
        ensemble = Ensemble(members, folder=loaded.folder, result=loaded.result)
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
    """Return the ensemble of a folder as a teacher of those tasks that it predicts and that settings name."""
    ensemble_result = read_result(folder)
    downstream = _downstream(settings)
    downstream_tasks = [] if downstream is None else downstream.tasks
    num_classes = {}
    keys = []
    for task in downstream_tasks:
        task_result = ensemble_result.tasks.get(task.task)
        # The teacher predicts single sentences of the text, which are no pairs.
        is_sentence_task = isinstance(task, TaskData) and task.kind == "sentence"
        if task_result is not None and is_sentence_task:
            num_classes[task.task] = len(task_result.label_names)
            keys.append([task.task, task_result.combination, task_result.keys])
    return Teacher(str(folder), content_key(model_key(str(folder)), keys), num_classes)


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
    teacher = find_teacher(settings)
    cache = cache_folder(config.cache_dir)
    downstream = _downstream(settings)
    text_key = content_key(corpus.text_key, corpus.train.text_hash, corpus.validation.text_hash)
    projection_parts = [FORMAT_VERSION, teacher.key, text_key, settings.dim, settings.projection]
    if downstream is not None:
        projection_parts.append(downstream.hash)
    projection_key = content_key(*projection_parts)
    # Loaded once, and only if the cache lacks one of the two.
    load = lru_cache(teacher.load)
    texts = partial(sentence_texts, config, progress=progress)

    def build_projection(folder: Path) -> dict[str, Any]:
        encoder, _ = load()
        sample = _sample(texts(), corpus, encoder)
        projected, loss = _fit_projection(settings, encoder, sample, downstream)
        np.save(folder / _MEAN_FILE, projected.mean)
        if projected.matrix is not None:
            np.save(folder / _MATRIX_FILE, projected.matrix)
        return {"loss": loss}

    projection_folder = build_once(cache, f"projections/{projection_key}", build_projection)
    mean: Float32 = np.load(projection_folder / _MEAN_FILE)
    _check_loss(read_json(projection_folder / _SUMMARY)["loss"], len(mean), settings)

    def build_targets(folder: Path) -> dict[str, Any]:
        encoder, ensemble = load()
        matrix = None
        if (projection_folder / _MATRIX_FILE).is_file():
            matrix = np.load(projection_folder / _MATRIX_FILE)
        projected = Projected(encoder, mean, matrix)
        _write(folder, texts(), projected, ensemble, teacher.tasks, progress)
        return {"teacher": teacher.key}

    targets_key = content_key(projection_key, sorted(teacher.tasks))
    folder = build_once(cache, f"targets/{targets_key}", build_targets)
    arrays = [np.load(folder / name, mmap_mode="r") for name in _files(teacher.tasks)]
    task_outputs = dict(zip(teacher.tasks, arrays[1:], strict=True))
    return SentenceTargets(targets_key, arrays[0], task_outputs)


def _files(tasks: Sized) -> list[str]:
    """Return the names of a folder's arrays: the vectors, and the outputs of each task."""
    return ["vectors.npy", *(f"task-{index}.npy" for index in range(len(tasks)))]


def _downstream(settings: TargetBatches) -> Downstream | None:
    if settings.tasks is None:
        return None
    return Downstream(DownstreamConfig(tasks=list(settings.tasks), data=settings.data))


def _sample(texts: SentenceTexts, corpus: Corpus, teacher: SentenceEncoder) -> list[str]:
    """Return sentences of the training text at equal distances."""
    dim = teacher.get_sentence_embedding_dimension()
    num_that_fit = max(_BLOCK, _SAMPLED_NUMBERS // dim)
    num_sentences = min(len(corpus.train), _SAMPLED, num_that_fit)
    positions = np.linspace(0, len(corpus.train) - 1, num_sentences).astype(np.int64)
    return texts.texts(np.unique(positions))


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
    matrix, variance_share = _directions(vectors - mean, settings.dim, kind=settings.projection)
    projected = Projected(teacher, mean, matrix)
    if downstream is None:
        return projected, 100 * (1 - variance_share)
    joined_score = downstream.downstream_metrics(teacher)["downstream"]
    projected_score = downstream.downstream_metrics(projected)["downstream"]
    return projected, joined_score - projected_score


def _directions(centred: Float32, dim: int, *, kind: str) -> tuple[Float32, float]:
    """Return orthonormal columns [joined, dim], and what they keep of the variance of vectors [rows, joined]."""
    rows = torch.from_numpy(centred)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(centred.shape[1], dim, generator=generator, dtype=torch.float64)
    if kind == "pca":
        columns = _principal_directions(rows, drawn)
    else:
        columns = torch.linalg.qr(drawn).Q
    total = rows.double().square().sum().clamp(min=1e-300)
    projected = (rows.double() @ columns).square().sum()
    return columns.float().numpy(), float(projected / total)


def _principal_directions(rows: Tensor, drawn: Tensor) -> Tensor:
    """Return the directions of the largest variance, each with a positive largest number, float64 [joined, dim].

    Args:
        rows: Centred vectors, float32 [rows, joined].
        drawn: Random directions, float64 [joined, dim]; the last ones stand in where rows vary in fewer.
    """
    joined, dim = drawn.shape
    if len(rows) < joined:
        # Of fewer rows than numbers, their inner products have the same directions and are fewer.
        products = rows.double() @ rows.double().T
        row_directions = torch.linalg.eigh(products).eigenvectors[:, -dim:].flip(1)
        mapped = rows.double().T @ row_directions
        stand_ins = drawn[:, mapped.shape[1] :]
        directions = torch.linalg.qr(torch.cat([mapped, stand_ins], dim=1)).Q
    else:
        moments = (rows.T @ rows).double()
        directions = torch.linalg.eigh(moments).eigenvectors[:, -dim:].flip(1)
    # The sign of a direction is free.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    signed: Tensor = directions * largest.sign()
    return signed


def _check_loss(loss: float, joined: int, settings: TargetBatches) -> None:
    """Refuse a projection of `joined` numbers that loses more than settings allow."""
    if loss <= settings.max_loss:
        return
    unit = "% of the variance of the teacher's vectors"
    if settings.tasks:
        unit = f"points of the teacher's score on {', '.join(settings.tasks)}"
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
    """Write what a teacher returns for each sentence of a text into an empty folder, in blocks."""
    sizes = [teacher.get_sentence_embedding_dimension(), *tasks.values()]
    arrays = []
    for name, size in zip(_files(tasks), sizes, strict=True):
        shape = (len(texts), size)
        array = np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.float16, shape=shape)
        arrays.append(array)
    # A student is compared on the rows that test its teacher, so it learns from what has not seen them.
    predictors = {}
    if ensemble is not None:
        predictors = {task: ensemble.predictors[task].as_scored() for task in tasks}
    for first in range(0, len(texts), _BLOCK):
        stop = min(first + _BLOCK, len(texts))
        block = texts.texts(np.arange(first, stop, dtype=np.int64))
        arrays[0][first:stop] = teacher.encode_texts(block)
        for task, log_probabilities in zip(tasks, arrays[1:], strict=True):
            predicted = predictors[task].combined([block])
            # The logarithm of a probability of zero is not finite.
            log_probabilities[first:stop] = np.maximum(predicted, _LEAST_LOG)
        if progress:
            progress("encoding with the teacher", stop, len(texts))
    for array in arrays:
        array.flush()
