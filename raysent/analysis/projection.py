"""A task's sentences on a plane, near each other where their vectors are. In: a model and a task. Out: points.

t-SNE of frozen vectors; a pair of sentences u, v is the point of [u * v ; |u - v|].

Source: van der Maaten and Hinton, 2008; Kiros et al., 2015, section 3.6 and figure 2 (TREC, SUBJ, SICK).
Differs: vectors of more than 50 dimensions are first cut to their 50 main ones, as van der Maaten and Hinton do to 30.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from raysent.analysis.files import Analysis
from raysent.errors import ConfigError, DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.tasks import SimilarityData, find_task
from raysent.models import load as load_model
from raysent.models.sentence_encoder import SentenceEncoder

MAX_DIM = 50
PERPLEXITY = 30.0
# Text beside a point; a page of thousands of points must stay small.
MAX_TEXT = 80
DECIMALS = 2


@dataclass(frozen=True)
class Shown:
    """Rows to be placed: their sentences by column, and the classes or scores [rows] that colour them."""

    columns: tuple[list[str], ...]
    colours: np.ndarray
    label_names: tuple[str, ...]


class Projection(Analysis):
    """A model's vectors of a task's rows as points of a plane.

    Attributes:
        model: Its name.
        task: The task's name.
        label_names: The classes' names; empty where points have scores.
        x: Across [points].
        y: Upward [points].
        colours: A point's class, or its score [points].
        texts: A point's sentences, cut short [points].
        num_rows: The task's rows, of which the points are a sample.
        perplexity: About how many neighbours each point keeps near.
        seed: Of the sample and of t-SNE.
        divergence: What t-SNE could not fit, in nats.
    """

    model: str
    task: str
    label_names: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    colours: tuple[float, ...]
    texts: tuple[str, ...]
    num_rows: int
    perplexity: float
    seed: int
    divergence: float

    @property
    def name(self) -> str:
        """The task and the model."""
        return f"{self.task} {self.model}"


def project(
    models: Sequence[str | Path], tasks: Sequence[str], *, evaluator: Evaluator, num_points: int = 2000, seed: int = 0
) -> list[Projection]:
    """Return a map for every model and task; the models of a task show the same rows.

    Raises:
        ConfigError: If there is no such task, or too few points are asked for.
        DataError: If the task's files are missing or wrong, or a vector is not finite.
    """
    if num_points <= PERPLEXITY:
        raise ConfigError(f"--points: must be more than {PERPLEXITY:.0f}, the perplexity; given {num_points}")
    rows = {task: _rows(task, evaluator.data_dir) for task in tasks}
    members = expand(models)
    report = evaluator.progress or (lambda *_: None)
    found = []
    for number, member in enumerate(members):
        encoder = load_model(member.path)
        for place, (task, shown) in enumerate(rows.items()):
            report(f"{member.name}: {task}", number * len(rows) + place, len(members) * len(rows))
            found.append(placed(encoder, shown, model=member.name, task=task, num_points=num_points, seed=seed))
    report("done", len(members) * len(rows), len(members) * len(rows))
    return found


def _rows(task: str, data_dir: Path | None) -> Shown:
    """Return a task's rows, with their scores or else their classes."""
    data = find_task(task).load(data_dir)
    if isinstance(data, SimilarityData) or data.is_scored:
        return Shown(data.sentences, data.scores, ())
    return Shown(data.sentences, data.labels.astype(np.float64), data.label_names)


def placed(encoder: SentenceEncoder, shown: Shown, *, model: str, task: str, num_points: int, seed: int) -> Projection:
    """Return the points of at most `num_points` rows, drawn by the seed."""
    total = len(shown.colours)
    kept = np.sort(np.random.default_rng(seed).permutation(total)[:num_points])
    columns = tuple([column[row] for row in kept] for column in shown.columns)
    points, divergence = neighbour_map(_features(encoder, columns, source=f"{model}: {task}"), seed=seed)
    x, y = (tuple(axis.round(DECIMALS).tolist()) for axis in points.T.astype(np.float64))
    return Projection(
        model=model,
        task=task,
        label_names=shown.label_names,
        x=x,
        y=y,
        colours=tuple(shown.colours[kept].tolist()),
        texts=tuple(" | ".join(map(_short, texts)) for texts in zip(*columns, strict=True)),
        num_rows=total,
        perplexity=PERPLEXITY,
        seed=seed,
        divergence=round(divergence, 4),
    )


def _features(encoder: SentenceEncoder, columns: tuple[list[str], ...], *, source: str) -> np.ndarray:
    """Return what is placed, float32 [rows, features]: vectors, or of pairs [u * v ; |u - v|]."""
    vectors = encode_columns(encoder, columns)
    features = vectors[0]
    if len(vectors) == 2:
        u, v = vectors
        features = np.hstack([u * v, np.abs(u - v)])
    if not np.isfinite(features).all():
        raise DataError(f"{source}: vectors must be finite; given NaN or infinity; train the model again")
    if len(features) <= PERPLEXITY or not np.ptp(features, axis=0).any():
        raise DataError(f"{source}: a map needs more than {PERPLEXITY:.0f} rows whose vectors differ; given fewer")
    return features


def neighbour_map(features: np.ndarray, *, seed: int) -> tuple[np.ndarray, float]:
    """Return t-SNE's points [rows, 2] of features [rows, dim], and its divergence in nats."""
    if min(features.shape) > MAX_DIM:
        features = PCA(MAX_DIM, random_state=seed).fit_transform(features)
    method = TSNE(perplexity=PERPLEXITY, init="pca", random_state=seed, n_jobs=1)
    points = method.fit_transform(np.ascontiguousarray(features, dtype=np.float32))
    return points, float(method.kl_divergence_)


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
