"""Scores against the number of labels: members, baselines and their ensembles on one task.

Each size has several draws of labelled rows. Draws are stratified, the smaller ones are parts of the larger ones, and
all models share them. On a draw a model's probe is fitted with C chosen by cross-validation, the out-of-fold
predictions of which fit the weights of the ensembles; no row outside the draw is used but for its text. Scores are
means over draws on the same test rows, with 95 % intervals that resample draws and test rows together; differences are
paired.

`write_curves` keeps a `LabelCurve` for each task in ``label_curves/<task>.json`` of a run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pydantic
import torch
from scipy import sparse

from raysent.config import StrictModel
from raysent.ensembles.methods import fit
from raysent.ensembles.result import ENSEMBLE, WITH_LEXICAL, name_with_lexical
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.baselines import CHANCE, LEXICAL
from raysent.evaluation.evaluate import Load, MapJobs, run_in_turn
from raysent.evaluation.members import Member
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.probes.lexical import STRENGTHS as LEXICAL_STRENGTHS
from raysent.evaluation.probes.lexical import fit_classifier, full_probe
from raysent.evaluation.probes.logistic import Fits, class_targets
from raysent.evaluation.probes.results import PERCENTILES, Probe, log_probabilities
from raysent.evaluation.protocols.fast import STRENGTHS, stratified_folds
from raysent.evaluation.task import TaskData
from raysent.models import load as load_model
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import read_json, write_json

LABELS_FOLDER = "label_curves"
DEFAULT_SIZES: tuple[int, ...] = (32, 100, 300, 1000)
ALL = "all"
MAX_TEST = 2000
NUM_FOLDS = 3
NUM_RESAMPLES = 1000
SEED = 7

Float64 = npt.NDArray[np.float64]
Kind = Literal["baseline", "member", "ensemble"]
Progress = Callable[[str, int, int], None]


class Point(StrictModel):
    """A score in percent, the mean over draws, and its 95 % interval."""

    value: float
    interval: tuple[float, float]


class Curve(StrictModel):
    """One model's scores.

    Attributes:
        kind: What the model is.
        points: Its score at each size.
        validation: Its cross-validated score within the draws at each size, in percent; 0 for `chance`.
    """

    kind: Kind
    points: tuple[Point, ...]
    validation: tuple[float, ...]


class Comparison(StrictModel):
    """The best model of one size against the best baseline, both chosen by validation.

    Attributes:
        size: The number of labels.
        model: The member or ensemble of the best validation score.
        baseline: The baseline of the best validation score.
        difference: The model's test score minus the baseline's, in points; paired.
    """

    size: int
    model: str
    baseline: str
    difference: Point


class LabelCurve(StrictModel):
    """Scores of models on a task against the number of labels.

    Attributes:
        task: The task.
        sizes: Numbers of labels.
        num_draws: The number of draws of each size.
        num_test: The number of test rows.
        chance: The fraction of the most frequent class in the test rows, in percent.
        curves: Name -> the model's scores.
        comparisons: For each size; empty without a member or without a baseline.
        sentence: From how many labels on which choice is best.
    """

    task: str
    sizes: tuple[int, ...]
    num_draws: tuple[int, ...]
    num_test: int = pydantic.Field(ge=1)
    chance: float
    curves: dict[str, Curve]
    comparisons: tuple[Comparison, ...]
    sentence: str


def parse_sizes(text: str) -> list[int | str]:
    """Return the sizes of an option such as ``32,100,all``.

    Raises:
        ConfigError: If one is no number of at least 8, or `all`.
    """
    found: list[int | str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part != ALL and not (part.isdigit() and int(part) >= 8):
            raise ConfigError(f"--labels {text}: must be numbers of at least 8, or all; given '{part}'")
        found.append(part if part == ALL else int(part))
    if not found:
        raise ConfigError("--labels: must name at least one number; as 32,100,300,1000,all")
    return found


def label_curve(
    data: TaskData,
    members: Sequence[Member],
    baselines: Sequence[Member],
    *,
    sizes: Sequence[int | str] = DEFAULT_SIZES,
    method: str = "validation",
    load: Load = load_model,
    progress: Progress | None = None,
    map_jobs: MapJobs | None = None,
) -> LabelCurve:
    """Return the scores of models on a task against the number of labels.

    Args:
        data: The task's rows, with classes.
        members: The models; two or more are also combined.
        baselines: Models to compare with; the lexical one that is best on validation is also combined with the members,
            by `WITH_LEXICAL`.
        sizes: Numbers of labels, or `all`; those above the rows that may train are left out.
        method: A name in `METHODS`, for the ensemble of the members.
        load: Path -> encoder.
        progress: Called with the progress.
        map_jobs: Runs a `CurveJob` for each model, e.g. on a cluster; by default one after another.

    Raises:
        ConfigError: If the task's rows have scores instead of classes, or no size fits.
    """
    if data.is_scored:
        raise ConfigError(f"--labels: {data.task} has scores; it must have classes; leave it out")
    pool, test = _pool_and_test(data)
    counts = sorted({len(pool) if size == ALL else int(size) for size in sizes})
    counts = [count for count in counts if count <= len(pool)]
    if not counts:
        raise ConfigError(f"--labels: {data.task} has {len(pool)} rows to train on; name fewer labels")
    draws = {count: _draws(data.labels, pool, count) for count in counts}
    models = [*members, *baselines]
    jobs = [CurveJob(model, data, tuple(counts)) for model in models]
    if progress is not None:
        progress(f"{models[0].name}: {data.task}, by number of labels", 0, len(models))
    fitted: dict[str, dict[int, list[_Fitted]]] = {}
    for place, of_model in run_in_turn(jobs, load=load) if map_jobs is None else map_jobs(jobs):
        fitted[models[place].name] = of_model
        if progress is not None:
            progress(f"{models[place].name}: {data.task}, by number of labels", len(fitted), len(models))
    found = {model.name: fitted[model.name] for model in models}
    kinds: dict[str, Kind] = {one.name: "member" for one in members}
    kinds.update({one.name: "baseline" for one in baselines})
    lexical = [one.name for one in baselines if one.name in LEXICAL]
    best = max(lexical, key=lambda name: _mean_validation(found[name], data, draws), default=None)
    for name, (names, rule) in _ensembles([one.name for one in members], best, method).items():
        found[name] = {
            count: _pooled([found[one][count] for one in names], data, draws[count], rule) for count in counts
        }
        kinds[name] = "ensemble"
    if progress is not None:
        progress("done", len(models), len(models))
    return _summarize(data, test, draws, found, kinds)


def write_curves(folder: Path, curves: Sequence[LabelCurve]) -> None:
    """Write one file for each task into ``label_curves/`` of a run's folder.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    for curve in curves:
        write_json(folder / LABELS_FOLDER / f"{curve.task}.json", curve.model_dump(mode="json"))


def read_curves(folder: Path) -> list[LabelCurve]:
    """Return what `write_curves` wrote into a run's folder, by task; nothing if there is none.

    Raises:
        ArtifactError: If a file is of another kind or version.
    """
    found = []
    for path in sorted((folder / LABELS_FOLDER).glob("*.json")):
        try:
            found.append(LabelCurve.model_validate(read_json(path), strict=False))
        except pydantic.ValidationError:
            raise ArtifactError(
                f"{path}: not scores against the number of labels; remove it, or evaluate again"
            ) from None
    return found


@dataclass(frozen=True)
class _Fitted:
    """A model fitted on one draw.

    Attributes:
        validation: Out-of-fold log-probabilities of the draw's rows, float32 [labels, classes].
        test: Log-probabilities of the test rows, float32 [test rows, classes].
    """

    validation: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class CurveJob:
    """The probes of one model on every draw of a task.

    Attributes:
        member: The model.
        data: The task's rows.
        counts: Numbers of labels.
    """

    member: Member
    data: TaskData = field(repr=False)
    counts: tuple[int, ...]

    def run(self, *, load: Load = load_model) -> dict[int, list[_Fitted]]:
        """Encode the rows that are needed, and return the fits on each number of labels."""
        encoder = load(self.member.path) if self.member.encoder is None else self.member.encoder
        pool, test = _pool_and_test(self.data)
        draws = {count: _draws(self.data.labels, pool, count) for count in self.counts}
        fitter: _Lexical | _Dense
        if isinstance(encoder, LexicalModel):
            fitter = _Lexical(encoder, self.data, test)
        else:
            needed = np.unique(np.concatenate([test, *(draw for of_size in draws.values() for draw in of_size)]))
            fitter = _Dense(encoder, self.data, test, needed)
        return {count: fitter.fit(of_size) for count, of_size in draws.items()}


def _pool_and_test(data: TaskData) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that draws are made of and the test rows, whole folds where the task gives them."""
    generator = np.random.default_rng(SEED)
    if data.split != "nested":
        pool, test = data.train, data.test
    elif len(data.folds):
        held_out = data.folds >= int(np.ceil(0.7 * (data.folds.max() + 1)))
        pool, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    else:
        held_out = stratified_folds(data.labels, 10, seed=SEED) >= 7
        pool, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    return pool, np.sort(generator.permutation(test)[:MAX_TEST])


def _draws(labels: np.ndarray, pool: np.ndarray, count: int) -> list[np.ndarray]:
    """Return draws of rows, int64 [labels] each; a draw is the beginning of the same draw of any larger size."""
    num_draws = 1 if count == len(pool) else 5 if count <= 100 else 3 if count <= 300 else 2
    draws = []
    for number in range(num_draws):
        generator = np.random.default_rng((SEED, number))
        ranks = np.empty(len(pool))
        for label in np.unique(labels[pool]):
            places = generator.permutation(np.flatnonzero(labels[pool] == label))
            # Classes alternate in their proportions, each from its first row on.
            ranks[places] = (np.arange(len(places)) + generator.uniform(0, 0.5)) / len(places)
        draws.append(pool[np.argsort(ranks, kind="stable")[:count]])
    return draws


def _folds(labels: np.ndarray) -> np.ndarray:
    return stratified_folds(labels, NUM_FOLDS, seed=SEED)


class _Dense:
    """Fits probes on vectors: all draws of a size at once."""

    def __init__(self, encoder: SentenceEncoder, data: TaskData, test: np.ndarray, needed: np.ndarray) -> None:
        """Encode the needed rows alone; they are sorted, and contain the test rows and all draws."""
        columns = tuple([column[row] for row in needed] for column in data.sentences)
        self.features, self.needed = features_of(encoder, columns, kind=data.kind), needed
        self.data, self.test = data, test

    def fit(self, draws: Sequence[np.ndarray]) -> list[_Fitted]:
        """Return the fits of draws of one size."""
        union = np.unique(np.concatenate(draws))
        labels = np.concatenate([self.data.labels[union], self.data.labels[self.test]])
        fits = Fits(
            self.features[np.searchsorted(self.needed, np.concatenate([union, self.test]))],
            class_targets(labels, num_classes=len(self.data.label_names)),
            trainable=np.arange(len(union)),
            strengths=STRENGTHS,
        )
        places = [np.searchsorted(union, draw) for draw in draws]
        folds = [_folds(self.data.labels[draw]) for draw in draws]
        masks = torch.zeros(len(labels), len(draws) * (NUM_FOLDS + 1), dtype=torch.bool)
        for number, (place, fold) in enumerate(zip(places, folds, strict=True)):
            for left_out in range(NUM_FOLDS + 1):
                masks[place[fold != left_out], number * (NUM_FOLDS + 1) + left_out] = True
        margins, num_masks = fits.margins(fits.path(masks)), masks.shape[1]
        found = []
        for number, (draw, place, fold) in enumerate(zip(draws, places, folds, strict=True)):
            first = number * (NUM_FOLDS + 1)
            problems = first + torch.from_numpy(fold)
            candidates = [
                log_probabilities(margins[torch.from_numpy(place), :, problems + index * num_masks]).numpy()
                for index in range(len(STRENGTHS))
            ]
            best = _best(candidates, self.data.labels[draw])
            tested = margins[len(union) :, :, first + NUM_FOLDS + best * num_masks]
            found.append(_Fitted(candidates[best], log_probabilities(tested).numpy()))
        return found


class _Lexical:
    """Fits TF-IDF with logistic regression; words are weighted by the draw alone."""

    def __init__(self, model: LexicalModel, data: TaskData, test: np.ndarray) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - it takes seconds to import, and most commands do without

        options = model.vectorizer().get_params()
        names = ("analyzer", "ngram_range", "token_pattern", "lowercase")
        vectorizer = CountVectorizer(**{name: options[name] for name in names})
        vectorizer.fit([sentence for column in data.sentences for sentence in column])
        self.counts = [vectorizer.transform(column).astype(np.float32) for column in data.sentences]
        for counts in self.counts:
            counts.data = 1 + np.log(counts.data)
        self.data, self.test = data, test

    def fit(self, draws: Sequence[np.ndarray]) -> list[_Fitted]:
        """Return the fits of draws of one size."""
        return [self._fit(draw) for draw in draws]

    def _fit(self, draw: np.ndarray) -> _Fitted:
        features = self._features(draw)
        labels, num_classes = self.data.labels[draw], len(self.data.label_names)
        folds = _folds(labels)
        candidates = []
        for strength in LEXICAL_STRENGTHS:
            margins = np.empty((len(draw), 1 if num_classes == 2 else num_classes), dtype=np.float32)
            for fold in range(NUM_FOLDS):
                probe = self._probe(features[: len(draw)][folds != fold], labels[folds != fold], strength)
                margins[folds == fold] = features[: len(draw)][folds == fold] @ probe.weights + probe.intercepts
            candidates.append(Probe.log_probabilities_of_margins(margins))
        best = _best(candidates, labels)
        probe = self._probe(features[: len(draw)], labels, LEXICAL_STRENGTHS[best])
        tested = Probe.log_probabilities_of_margins(features[len(draw) :] @ probe.weights + probe.intercepts)
        return _Fitted(candidates[best], tested)

    def _probe(self, features: sparse.csr_matrix, labels: np.ndarray, strength: float) -> Probe:
        num_classes = len(self.data.label_names)
        if len(np.unique(labels)) == 1:
            outputs = 1 if num_classes == 2 else num_classes
            return Probe(np.zeros((features.shape[1], outputs), np.float32), np.zeros(outputs, np.float32), strength)
        return full_probe(fit_classifier(features, labels, strength=strength), num_classes, strength)

    def _features(self, draw: np.ndarray) -> sparse.csr_matrix:
        """Return the features of the draw's rows and of the test rows, sparse [rows, features]."""
        from sklearn.preprocessing import normalize  # noqa: PLC0415 - as above

        seen = sum(np.asarray((counts[draw] > 0).sum(axis=0)).ravel() for counts in self.counts)
        num_texts = len(draw) * len(self.counts)
        idf = np.where(seen > 0, np.log((1 + num_texts) / (1 + seen)) + 1, 0.0).astype(np.float32)
        rows = np.concatenate([draw, self.test])
        vectors = [normalize(counts[rows] @ sparse.diags_array(idf), copy=False) for counts in self.counts]
        if self.data.kind == "sentence":
            return vectors[0].tocsr()
        u, v = vectors
        parts = [abs(u - v), u.multiply(v)]
        return sparse.hstack([u, v, *parts] if self.data.kind == "order" else parts, format="csr")


def _best(candidates: Sequence[np.ndarray], labels: np.ndarray) -> int:
    """Return the index of the most accurate candidate, the first of equals."""
    return int(np.argmax([(one.argmax(axis=1) == labels).mean() for one in candidates]))


def _ensembles(members: Sequence[str], lexical: str | None, method: str) -> dict[str, tuple[list[str], str]]:
    """Return the ensembles to score, with their methods: of the members, and of these with a lexical model."""
    found = {ENSEMBLE: ([*members], method)} if len(members) > 1 else {}
    if lexical is not None and members and not set(members) & set(LEXICAL):
        found[name_with_lexical(members, lexical)] = ([*members, lexical], WITH_LEXICAL)
    return found


def _mean_validation(
    fitted: Mapping[int, Sequence[_Fitted]], data: TaskData, draws: Mapping[int, Sequence[np.ndarray]]
) -> float:
    return float(np.mean([_validation(of_size, data, draws[size]) for size, of_size in fitted.items()]))


def _pooled(
    fitted: Sequence[Sequence[_Fitted]], data: TaskData, draws: Sequence[np.ndarray], method: str
) -> list[_Fitted]:
    """Return an ensemble of members [members][draws], its weights fitted on each draw."""
    found = []
    for of_draw, draw in zip(zip(*fitted, strict=True), draws, strict=True):
        validation = np.stack([one.validation for one in of_draw])
        combination = fit(validation, data.labels[draw], method=method).combination
        found.append(_Fitted(combination(validation), combination(np.stack([one.test for one in of_draw]))))
    return found


def _summarize(
    data: TaskData,
    test: np.ndarray,
    draws: Mapping[int, Sequence[np.ndarray]],
    found: Mapping[str, Mapping[int, Sequence[_Fitted]]],
    kinds: Mapping[str, Kind],
) -> LabelCurve:
    """Return the scores of all models, with intervals."""
    labels, sizes = data.labels[test], list(draws)
    right = {
        name: {size: np.stack([one.test.argmax(axis=1) == labels for one in fits]) for size, fits in of_model.items()}
        for name, of_model in found.items()
    }
    # The most frequent class of each draw.
    right[CHANCE] = {
        size: np.stack([labels == np.bincount(data.labels[draw]).argmax() for draw in of_size])
        for size, of_size in draws.items()
    }
    weights = {size: _resamples(len(of_size), len(test)) for size, of_size in draws.items()}
    scores = {
        name: {size: _means(of_size, weights[size]) for size, of_size in of_model.items()}
        for name, of_model in right.items()
    }
    validation = {
        name: tuple(_validation(of_model[size], data, draws[size]) for size in sizes)
        for name, of_model in found.items()
    }
    curves = {
        name: Curve(
            kind=kinds.get(name, "baseline"),
            points=tuple(_point(scores[name][size]) for size in sizes),
            validation=validation.get(name, (0.0,) * len(sizes)),
        )
        for name in [*found, CHANCE]
    }
    comparisons = tuple(
        comparison
        for place, size in enumerate(sizes)
        if (comparison := _comparison(size, place, curves, scores)) is not None
    )
    return LabelCurve(
        task=data.task,
        sizes=tuple(sizes),
        num_draws=tuple(len(of_size) for of_size in draws.values()),
        num_test=len(test),
        chance=100 * float(np.bincount(labels).max()) / len(labels),
        curves=curves,
        comparisons=comparisons,
        sentence=_sentence(data.task, sizes, curves, comparisons),
    )


def _resamples(num_draws: int, num_test: int) -> tuple[Float64, Float64]:
    """Return the weights of draws and of test rows in each resample; the first is the original."""
    generator = np.random.default_rng(SEED)
    draws = generator.multinomial(num_draws, [1 / num_draws] * num_draws, size=NUM_RESAMPLES) / num_draws
    rows = generator.multinomial(num_test, [1 / num_test] * num_test, size=NUM_RESAMPLES) / num_test
    draws[0], rows[0] = 1 / num_draws, 1 / num_test
    return draws, rows


def _means(right: np.ndarray, weights: tuple[Float64, Float64]) -> Float64:
    """Return the mean in percent of correct rows [draws, rows] in each resample."""
    draws, rows = weights
    # Rounded, so that sums in another order give the same percentages.
    means: Float64 = np.round(100 * ((draws @ right) * rows).sum(axis=1), 9)
    return means


def _point(means: Float64) -> Point:
    low, high = np.percentile(means[1:], PERCENTILES)
    return Point(value=float(means[0]), interval=(float(low), float(high)))


def _validation(fits: Sequence[_Fitted], data: TaskData, draws: Sequence[np.ndarray]) -> float:
    right = [(one.validation.argmax(axis=1) == data.labels[draw]).mean() for one, draw in zip(fits, draws, strict=True)]
    return 100 * float(np.mean(right))


def _comparison(
    size: int, place: int, curves: Mapping[str, Curve], scores: Mapping[str, Mapping[int, Float64]]
) -> Comparison | None:
    """Return the best model against the best baseline, both chosen by validation."""
    best: dict[bool, str] = {}
    for is_baseline in (False, True):
        names = [name for name, curve in curves.items() if (curve.kind == "baseline") == is_baseline and name != CHANCE]
        if not names:
            return None
        best[is_baseline] = max(names, key=lambda name: curves[name].validation[place])
    difference = scores[best[False]][size] - scores[best[True]][size]
    return Comparison(size=size, model=best[False], baseline=best[True], difference=_point(difference))


def _sentence(task: str, sizes: Sequence[int], curves: Mapping[str, Curve], comparisons: Sequence[Comparison]) -> str:
    """Return from how many labels on which model is best, and whether models beat the best baseline."""
    best = [max(curves, key=lambda name: curves[name].points[place].value) for place in range(len(sizes))]
    ranges: list[str] = []
    for place, name in enumerate(best):
        if place == 0 or name != best[place - 1]:
            ranges.append(f"{name} from {sizes[place]:,} labels on")
    text = f"{task}: best is {', '.join(ranges)}"
    if comparisons:
        ahead = [f"{one.size:,}" for one in comparisons if one.difference.interval[0] > 0]
        behind = [f"{one.size:,}" for one in comparisons if one.difference.interval[1] < 0]
        what = "; the models chosen by validation beat the best baseline "
        text += f"{what}at {', '.join(ahead)} labels" if ahead else f"{what}at no size"
        text += f" and lose to it at {', '.join(behind)}" if behind else ""
    return text
