"""A task's sentences as points on a plane, by t-SNE: sentences of similar vectors are near each other.

A pair of sentences with vectors u, v is the point of [u * v ; |u - v|].

Source: van der Maaten and Hinton, 2008; Kiros et al., 2015, section 3.6 and figure 2 (TREC, SUBJ, SICK).
Differs: vectors of more than 50 dimensions are first reduced to their 50 principal components; van der Maaten and
Hinton use 30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from raysent.errors import ConfigError, DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.task import PROBED, SimilarityData, Task
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.report.analyses import Analysis, Request
from raysent.report.blocks import Block, Section, label
from raysent.report.figures import PALETTE, QUIET, figure

MAX_DIM = 50
PERPLEXITY = 30.0
# Characters of text per point, because a page holds thousands of points.
MAX_TEXT = 80
DECIMALS = 2
_COLORS = "Viridis"
# About square where three maps are side by side.
_HEIGHT = 400


@dataclass(frozen=True)
class LabelledRows:
    """A task's rows to project.

    Attributes:
        columns: One list of sentences [rows] per column.
        colours: Classes or ratings, which colour the points, float64 [rows].
        label_names: The classes' names; empty for ratings.
    """

    columns: tuple[list[str], ...]
    colours: np.ndarray
    label_names: tuple[str, ...]


class Projection(Analysis):
    """A model's vectors of a task's rows as points on a plane.

    Attributes:
        model: The model's name.
        task: The task's name.
        label_names: The classes' names; empty if points have ratings.
        x: Horizontal coordinates [points].
        y: Vertical coordinates [points].
        colours: Each point's class or rating [points].
        texts: Each point's sentences, truncated [points].
        num_rows: The task's rows, of which the points are a sample.
        perplexity: Of t-SNE, the effective number of neighbours.
        seed: Of the sample and of t-SNE.
        divergence: The loss of t-SNE, a Kullback-Leibler divergence in nats.
    """

    SECTION: ClassVar = Section(
        "maps",
        "Maps of sentences",
        "Each point is a sentence, or a pair as [u * v ; |u − v|], placed by t-SNE without labels. Points that are "
        "close have similar vectors. Sizes of groups and distances between distant groups have no meaning.",
    )
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

    def blocks(self) -> list[Block]:
        """Return the map, coloured by class or human rating."""
        shown = f"{len(self.x):,} of {self.num_rows:,} rows" if len(self.x) < self.num_rows else "all rows"
        hidden = {"visible": False, "showgrid": False}
        drawn = figure(
            list(self._classes()) if self.label_names else [self._ratings()],
            height=_HEIGHT,
            label=f"A map of {shown} of {self.task} by the vectors of {self.model}.",
            title=f"{self.task}, {self.model}",
            caption=f"{shown}, perplexity {self.perplexity:g}, divergence {self.divergence:.2f} nats, seed {self.seed}",
            is_narrow=True,
            xaxis=hidden,
            yaxis={**hidden, "scaleanchor": "x"},
            showlegend=bool(self.label_names),
            legend_itemsizing="constant",
        )
        return [drawn]

    def _classes(self) -> Iterator[Any]:
        classes = np.array(self.colours).astype(int)
        for place, name in enumerate(self.label_names):
            color = {"color": PALETTE[place % len(PALETTE)]}
            yield self._points(np.flatnonzero(classes == place), name=label(name), marker=color)

    def _ratings(self) -> Any:
        ratings = np.array(self.colours)
        bar = {"thickness": 8, "len": 0.5, "outlinewidth": 0, "tickfont": {"size": 11, "color": QUIET}}
        order = np.random.default_rng(0).permutation(len(ratings))  # no rating is on top of all others
        color = {"color": ratings[order].round(2).tolist(), "colorscale": _COLORS, "showscale": True, "colorbar": bar}
        return self._points(order, name="", marker=color)

    def _points(self, places: np.ndarray, *, name: str, marker: Mapping[str, Any]) -> Any:
        return go.Scatter(
            x=[self.x[place] for place in places],
            y=[self.y[place] for place in places],
            text=[label(self.texts[place]) for place in places],
            name=name,
            mode="markers",
            marker={"size": 3.5, "opacity": 0.75, **marker},
            hovertemplate="%{text}<extra>" + ("%{marker.color}" if "showscale" in marker else name) + "</extra>",
        )


class ProjectionRequest(Request):
    """The sentences of tasks on a plane.

    Attributes:
        points: Most rows to show.
        seed: Seed of the sample and of t-SNE.
    """

    RESULT: ClassVar = Projection
    points: int = 2000
    seed: int = 0

    def compute(
        self, models: Sequence[str | Path], tasks: Sequence[str] | None, evaluator: Evaluator
    ) -> list[Projection]:
        """Return a projection for every model and task; all models of a task get the same rows."""
        if self.points <= PERPLEXITY:
            raise ConfigError(f"points: must be more than {PERPLEXITY:.0f}, the perplexity; given {self.points}")
        chosen = resolve_tasks(tasks, evaluator.data_dir, default=PROBED)
        rows = {task.name: _rows(task, evaluator.data_dir) for task in chosen}
        members = expand(models)
        report = evaluator.progress or (lambda *_: None)
        found: list[Projection] = []
        for member in members:
            encoder = evaluator.load(member.path)
            for task, of_task in rows.items():
                report(f"{member.name}: {task}", len(found), len(members) * len(rows))
                options = {"num_points": self.points, "seed": self.seed}
                found.append(project_rows(encoder, of_task, model=member.name, task=task, **options))
        report("done", len(found), len(found))
        return found


def _rows(task: Task, data_dir: Path | None) -> LabelledRows:
    """Return a task's rows with their ratings, or else their classes."""
    data = task.load(data_dir)
    if isinstance(data, SimilarityData) or data.is_scored:
        return LabelledRows(data.sentences, data.scores, ())
    return LabelledRows(data.sentences, data.labels.astype(np.float64), data.label_names)


def project_rows(
    encoder: SentenceEncoder, rows: LabelledRows, *, model: str, task: str, num_points: int, seed: int
) -> Projection:
    """Return the points of at most `num_points` random rows."""
    total = len(rows.colours)
    kept = np.sort(np.random.default_rng(seed).permutation(total)[:num_points])
    columns = tuple([column[row] for row in kept] for column in rows.columns)
    points, divergence = tsne(_features(encoder, columns, source=f"{model}: {task}"), seed=seed)
    x, y = (tuple(axis.round(DECIMALS).tolist()) for axis in points.T.astype(np.float64))
    return Projection(
        model=model,
        task=task,
        label_names=rows.label_names,
        x=x,
        y=y,
        colours=tuple(rows.colours[kept].tolist()),
        texts=tuple(" | ".join(map(_short, texts)) for texts in zip(*columns, strict=True)),
        num_rows=total,
        perplexity=PERPLEXITY,
        seed=seed,
        divergence=round(divergence, 4),
    )


def _features(encoder: SentenceEncoder, columns: tuple[list[str], ...], *, source: str) -> np.ndarray:
    """Return what t-SNE reads, float32 [rows, features]: vectors, or [u * v ; |u - v|] for pairs."""
    vectors = encode_columns(encoder, columns)
    features = vectors[0]
    if len(vectors) == 2:
        u, v = vectors
        features = np.hstack([u * v, np.abs(u - v)])
    if not np.isfinite(features).all():
        raise DataError(f"{source}: vectors must be finite; given NaN or infinity; train the model again")
    if len(features) <= PERPLEXITY or not np.ptp(features, axis=0).any():
        raise DataError(
            f"{source}: a projection needs more than {PERPLEXITY:.0f} rows whose vectors differ; given fewer"
        )
    return features


def tsne(features: np.ndarray, *, seed: int) -> tuple[np.ndarray, float]:
    """Return points [rows, 2] of features [rows, dim], and the divergence in nats."""
    from sklearn.decomposition import PCA  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.manifold import TSNE  # noqa: PLC0415 - as above

    if min(features.shape) > MAX_DIM:
        features = PCA(MAX_DIM, random_state=seed).fit_transform(features)
    method = TSNE(perplexity=PERPLEXITY, init="pca", random_state=seed, n_jobs=1)
    points = method.fit_transform(np.ascontiguousarray(features, dtype=np.float32))
    return points, float(method.kl_divergence_)


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


REQUESTS = {"tsne": ProjectionRequest}
