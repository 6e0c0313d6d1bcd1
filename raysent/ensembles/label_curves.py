"""Scores against the number of labels: members, baselines and their ensembles on one task.

Each size has several draws of labelled rows. Draws are stratified, the smaller ones are parts of the larger ones, and
all models share them. On a draw a model's probe is fitted with C chosen by cross-validation, the out-of-fold
predictions of which fit the weights of the ensembles, and choose the answer as `RUN/best` is chosen; no row outside the
draw is used but for its text. Scores are
means over draws on the same test rows, with 95 % intervals that resample draws and test rows together; differences are
paired.

`write_curves` keeps a `LabelCurve` for each task in ``label_curves/<task>.json`` of a run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np
import pydantic
import torch
from scipy import sparse

from raysent.config import StrictModel
from raysent.data.languages import language_of_texts
from raysent.ensembles.best import calibrated, groups_of, to_take, unread
from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.methods import ANSWER, ENSEMBLE
from raysent.ensembles.pools import LOWEST_FEATURE
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.baselines import CHANCE, is_free, is_pretrained, worth_elsewhere
from raysent.evaluation.bootstrap import BootstrapEstimate, Resamples
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import MapJobs, run_in_turn
from raysent.evaluation.members import Member
from raysent.evaluation.probes.features import Encode, features_of
from raysent.evaluation.probes.lexical import fit_classifier, full_probe
from raysent.evaluation.probes.lexical_features import join_columns
from raysent.evaluation.probes.logistic import Fits, class_targets, log_probabilities
from raysent.evaluation.probes.results import Probe
from raysent.evaluation.protocols.fast import STRENGTHS, stratified_ranks
from raysent.evaluation.targets import Float64, Targets
from raysent.evaluation.task import Metric, TaskData
from raysent.evaluation.task_kinds import Load, has_learned
from raysent.evaluation.units import folds_of_units
from raysent.evaluation.vector_store import stored
from raysent.models import load as load_model
from raysent.models.schemes.tfidf import LexicalModel
from raysent.parallel import Progress
from raysent.storage import path_below, read_json, write_json

_LABELS_FOLDER = "label_curves"
DEFAULT_SIZES: tuple[int, ...] = (32, 100, 300, 1000)
ALL = "all"
_MAX_TEST = 2000
NUM_FOLDS = 3
NUM_RESAMPLES = 1000
SEED = 7

Kind = Literal["baseline", "member", "ensemble"]
Means = Callable[[str, int], Float64]


class Curve(StrictModel):
    """One model's scores.

    Attributes:
        kind: What the model is.
        points: Its score at each size.
        validation: Its cross-validated score within the draws at each size, in percent; of `chance`, the score of the
            draws' most frequent class.
        learned: Whether it, or a member, was trained on labels of the task, so that it had more than the size says.
    """

    kind: Kind
    points: tuple[BootstrapEstimate, ...]
    validation: tuple[float, ...]
    learned: bool = False


class LabelCurve(StrictModel):
    """Scores of models on a task against the number of labels.

    Attributes:
        task: The task.
        metric: What the scores are.
        sizes: Numbers of labels; in files of earlier versions also of pairs of a query and a relevant passage.
        num_draws: The number of draws of each size.
        num_test: The number of test rows.
        chance: The score of always predicting the most frequent class of the test rows, in percent.
        curves: Name -> the model's scores.
        sentence: At how many labels a model is better than all others by an interval; without those that had learned.
    """

    task: str
    metric: Metric | Literal["ndcg_at_10"]
    sizes: tuple[int, ...]
    num_draws: tuple[int, ...]
    num_test: int = pydantic.Field(ge=1)
    chance: float
    curves: dict[str, Curve]
    sentence: str

    @property
    def counted(self) -> str:
        """What `sizes` count."""
        if self.metric == "ndcg_at_10":
            return "pairs"
        return "labels"


def parse_sizes(sizes: str | int | Sequence[int | str]) -> list[int | str]:
    """Return sizes, which may be given as text such as ``32,100,all``.

    Raises:
        ConfigError: If one is no number of at least 8, or `all`.
    """
    parts: Sequence[int | str]
    if isinstance(sizes, str | int):
        parts = [part.strip() for part in str(sizes).split(",")]
    else:
        parts = sizes
    parsed: list[int | str] = []
    for part in parts:
        if str(part).isdecimal():
            parsed.append(int(part))
        elif part != "":
            parsed.append(part)
    if not parsed:
        raise ConfigError("labels: must name at least one number; as 32,100,300,1000,all")
    for size in parsed:
        if size != ALL and not (isinstance(size, int) and size >= 8):
            raise ConfigError(f"labels {size}: must be a number of at least 8, or all")
    return parsed


def label_curve(
    data: TaskData,
    members: Sequence[Member],
    baselines: Sequence[Member],
    *,
    sizes: Sequence[int | str] = DEFAULT_SIZES,
    method: str = "validation",
    progress: Progress | None = None,
    map_jobs: MapJobs | None = None,
) -> LabelCurve:
    """Return the scores of models on a task against the number of labels.

    Args:
        data: The task's rows, with classes.
        members: The models; two or more are also combined.
        baselines: Models to compare with. Those of them that need no training are candidates of the answer too.
        sizes: Numbers of labels, or `all`; those above the rows that may train are left out.
        method: A name in `METHODS`, for the ensemble of the members.
        progress: Called with the progress.
        map_jobs: Runs a `CurveJob` for each model, e.g. on a cluster; by default one after another.

    Raises:
        ConfigError: If the task's rows have scores instead of classes, or no size fits.
    """
    scores = LabelScores(
        data, members, baselines, sizes=sizes, progress=progress, map_jobs=map_jobs
    )
    names = [member.name for member in members]
    if len(names) > 1:
        scores.combine(ENSEMBLE, names, method=method)
    free = [baseline for baseline in baselines if is_free(baseline.path)]
    scores.answer(data, members, free)
    return scores.curve()


def write_curves(folder: Path, curves: Sequence[LabelCurve]) -> None:
    """Write one file for each task into ``label_curves/`` of a run's folder.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    for curve in curves:
        write_json(
            path_below(folder / _LABELS_FOLDER, f"{curve.task}.json"),
            curve.model_dump(mode="json"),
        )


def read_curves(folder: Path) -> list[LabelCurve]:
    """Return what `write_curves` wrote into a run's folder, by task; nothing if there is none.

    Raises:
        ArtifactError: If a file is of another kind or version.
    """
    curves = []
    for path in sorted((folder / _LABELS_FOLDER).glob("*.json")):
        try:
            curves.append(LabelCurve.model_validate(read_json(path), strict=False))
        except pydantic.ValidationError:
            raise ArtifactError(
                f"{path}: not scores against the number of labels; remove it, or evaluate again"
            ) from None
    return curves


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

    def run(self, *, load: Load = load_model) -> tuple[bool, dict[int, list[_Fitted]]]:
        """Encode the rows that are needed; return whether it had learned labels, and the fits on each number."""
        encoder = self.member.encoder
        if encoder is None:
            encoder = load(self.member.path)
        pool, test = _pool_and_test(self.data)
        draws = {count: _draws(self.data.labels, pool, count) for count in self.counts}
        fitter: _Lexical | _Dense
        if isinstance(encoder, LexicalModel):
            fitter = _Lexical(encoder, self.data, test)
        else:
            all_draws = [draw for of_size in draws.values() for draw in of_size]
            needed_rows = np.unique(np.concatenate([test, *all_draws]))
            encode = stored(encoder, self.member, is_kept=is_pretrained(self.member.path))
            fitter = _Dense(encode, self.data, test, needed_rows)
        fits = {count: fitter.fit(of_size) for count, of_size in draws.items()}
        return has_learned(encoder, self.data), fits


def _pool_and_test(data: TaskData) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that labels are drawn of, and those that test, int64 [rows] each."""
    data = divided(data)
    shuffled = np.random.default_rng(SEED).permutation(data.test)
    return data.train, np.sort(shuffled[:_MAX_TEST])


def _num_draws(count: int, num_rows: int) -> int:
    """Return how many draws there are of so many labels; more of few labels, as these differ more."""
    if count == num_rows:
        return 1
    if count <= 100:
        return 5
    if count <= 300:
        return 3
    return 2


def _draws(labels: np.ndarray, pool: np.ndarray, count: int) -> list[np.ndarray]:
    """Return draws of rows, int64 [labels] each; a draw is the beginning of the same draw of any larger size."""
    draws = []
    for number in range(_num_draws(count, len(pool))):
        generator = np.random.default_rng((SEED, number))
        order = np.argsort(stratified_ranks(labels[pool], generator), kind="stable")
        draws.append(pool[order[:count]])
    return draws


def _folds(data: TaskData, draw: np.ndarray) -> np.ndarray:
    """Return the fold of each row of a draw, int64 [labels]; rows that belong together are in one."""
    units = data.units
    if len(units):
        units = units[draw]
    return folds_of_units(data.labels[draw], NUM_FOLDS, seed=SEED, units=units)


def _counts_of(sizes: Sequence[int | str], *, num_rows: int) -> list[int]:
    """Return the numbers of labels that sizes stand for, rising; those above the rows there are, are left out."""
    counts = set()
    for size in sizes:
        if size == ALL:
            counts.add(num_rows)
        elif int(size) <= num_rows:
            counts.add(int(size))
    return sorted(counts)


def _num_outputs(num_classes: int) -> int:
    """Return the outputs of a probe: two classes have one, that of the second."""
    if num_classes == 2:
        return 1
    return num_classes


class _Dense:
    """Fits probes on vectors: all draws of a size at once."""

    def __init__(
        self, encoder: Encode, data: TaskData, test: np.ndarray, needed_rows: np.ndarray
    ) -> None:
        """Encode the needed rows alone; they are sorted, and contain the test rows and all draws."""
        columns = tuple([column[row] for row in needed_rows] for column in data.sentences)
        self.features = features_of(encoder, columns, kind=data.kind)
        self.needed_rows = needed_rows
        self.data = data
        self.test = test

    def fit(self, draws: Sequence[np.ndarray]) -> list[_Fitted]:
        """Return the fits of draws of one size."""
        drawn_rows = np.unique(np.concatenate(draws))
        rows = np.concatenate([drawn_rows, self.test])
        fits = Fits(
            self.features[np.searchsorted(self.needed_rows, rows)],
            class_targets(self.data.labels[rows], num_classes=len(self.data.label_names)),
            trainable=np.arange(len(drawn_rows)),
            strengths=STRENGTHS,
        )
        # Of each draw a fit without each fold, and one on all of its rows, as no row has the fold after the last.
        fits_a_draw = NUM_FOLDS + 1
        draw_indices = [np.searchsorted(drawn_rows, draw) for draw in draws]
        draw_folds = [_folds(self.data, draw) for draw in draws]
        masks = torch.zeros(len(rows), len(draws) * fits_a_draw, dtype=torch.bool)
        for number, (indices, folds) in enumerate(zip(draw_indices, draw_folds, strict=True)):
            for left_out in range(fits_a_draw):
                masks[indices[folds != left_out], number * fits_a_draw + left_out] = True
        num_masks = masks.shape[1]
        margins = fits.margins(fits.path(masks))
        fitted = []
        for number, draw in enumerate(draws):
            rows_of_draw = torch.from_numpy(draw_indices[number])
            first = number * fits_a_draw
            # Each row is predicted by the fit that left out its fold.
            problems = first + torch.from_numpy(draw_folds[number])
            candidates = []
            for strength_index in range(len(STRENGTHS)):
                of_strength = margins[rows_of_draw, :, problems + strength_index * num_masks]
                candidates.append(log_probabilities(of_strength).numpy())
            best = Targets.of(self.data).take(draw).best(candidates, STRENGTHS)
            tested = margins[len(drawn_rows) :, :, first + NUM_FOLDS + best * num_masks]
            fitted.append(_Fitted(candidates[best], log_probabilities(tested).numpy()))
        return fitted


class _Lexical:
    """Fits TF-IDF with logistic regression; words are weighted by the draw alone."""

    def __init__(self, model: LexicalModel, data: TaskData, test: np.ndarray) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - it takes seconds to import, and most commands do without

        vectorizer = CountVectorizer(analyzer=model.of(data.sentences[0]).words_of)
        vectorizer.fit([sentence for column in data.sentences for sentence in column])
        self.counts = [vectorizer.transform(column).astype(np.float32) for column in data.sentences]
        for counts in self.counts:
            counts.data = 1 + np.log(counts.data)
        self.data = data
        self.test = test

    def fit(self, draws: Sequence[np.ndarray]) -> list[_Fitted]:
        """Return the fits of draws of one size."""
        return [self._fit(draw) for draw in draws]

    def _fit(self, draw: np.ndarray) -> _Fitted:
        features = self._features(draw)
        drawn_features = features[: len(draw)]
        test_features = features[len(draw) :]
        labels = self.data.labels[draw]
        num_outputs = _num_outputs(len(self.data.label_names))
        folds = _folds(self.data, draw)
        candidates = []
        for strength in STRENGTHS:
            margins = np.empty((len(draw), num_outputs), dtype=np.float32)
            for fold in range(NUM_FOLDS):
                is_held_out = folds == fold
                probe = self._probe(drawn_features[~is_held_out], labels[~is_held_out], strength)
                held_out = drawn_features[is_held_out]
                margins[is_held_out] = held_out @ probe.weights + probe.intercepts
            candidates.append(Probe.log_probabilities_of_margins(margins))
        best = Targets.of(self.data).take(draw).best(candidates, STRENGTHS)
        probe = self._probe(drawn_features, labels, STRENGTHS[best])
        test_margins = test_features @ probe.weights + probe.intercepts
        return _Fitted(candidates[best], Probe.log_probabilities_of_margins(test_margins))

    def _probe(self, features: sparse.csr_matrix, labels: np.ndarray, strength: float) -> Probe:
        """Return the probe of some rows; of rows of one class one that knows nothing."""
        num_classes = len(self.data.label_names)
        if len(np.unique(labels)) < 2:
            num_outputs = _num_outputs(num_classes)
            return Probe(
                np.zeros((features.shape[1], num_outputs), np.float32),
                np.zeros(num_outputs, np.float32),
                strength,
            )
        classifier = fit_classifier(features, labels, strength=strength)
        return full_probe(classifier, num_classes, strength)

    def _features(self, draw: np.ndarray) -> sparse.csr_matrix:
        """Return the features of the draw's rows and of the test rows, sparse [rows, features]."""
        from sklearn.preprocessing import normalize  # noqa: PLC0415 - as above

        by_column = [(counts[draw] > 0).sum(axis=0) for counts in self.counts]
        num_with_word = np.sum(by_column, axis=0).ravel()
        num_texts = len(draw) * len(self.counts)
        known_words = np.flatnonzero(num_with_word)
        unknown_words = np.flatnonzero(num_with_word == 0)
        # Other words have no weight in a probe, and count for lengths and cosines as the rarest known ones do.
        counted_as = np.maximum(num_with_word, num_with_word[known_words].min())
        idf = (np.log((1 + num_texts) / (1 + counted_as)) + 1).astype(np.float32)
        rows = np.concatenate([draw, self.test])
        weighted = [counts[rows] @ sparse.diags_array(idf) for counts in self.counts]
        vectors = [normalize(of_column, copy=False) for of_column in weighted]
        known_parts = [of_column[:, known_words] for of_column in vectors]
        if self.data.kind != "likeness":
            return join_columns(known_parts, kind=self.data.kind)
        first, second = (of_column[:, unknown_words] for of_column in vectors)
        unknown_cosines = np.asarray(first.multiply(second).sum(axis=1)).ravel()
        return join_columns(known_parts, kind=self.data.kind, unknown_cosines=unknown_cosines)


class LabelScores:
    """Models on one task, fitted on draws of labels, and combinations of them.

    Call order: `combine` as often as wanted; then `validation`, `means` and `curve`.

    Attributes:
        draws: Number of labels -> the draws, int64 [labels] each.
    """

    def __init__(
        self,
        data: TaskData,
        members: Sequence[Member],
        baselines: Sequence[Member],
        *,
        sizes: Sequence[int | str] = DEFAULT_SIZES,
        progress: Progress | None = None,
        map_jobs: MapJobs | None = None,
    ) -> None:
        """Fit every model on every draw; arguments as for `label_curve`."""
        if data.is_scored:
            raise ConfigError(f"labels: {data.task} has scores; it must have classes; leave it out")
        pool, test = _pool_and_test(data)
        counts = _counts_of(sizes, num_rows=len(pool))
        if not counts:
            raise ConfigError(
                f"labels: {data.task} has {len(pool)} rows to train on; name fewer labels"
            )
        self.draws = {count: _draws(data.labels, pool, count) for count in counts}
        self._data = data
        self._test = test
        self._targets = Targets.of(data)
        self._kinds: dict[str, Kind] = {}
        for member in members:
            self._kinds[member.name] = "member"
        for baseline in baselines:
            self._kinds[baseline.name] = "baseline"
        self._learned = set[str]()
        self._means: dict[tuple[str, int], Float64] = {}
        models = [*members, *baselines]
        jobs = [CurveJob(model, data, tuple(counts)) for model in models]
        self._report(progress, models[0].name, 0, len(models))
        finished: Iterable[tuple[int, tuple[bool, dict[int, list[_Fitted]]]]]
        if map_jobs is None:
            finished = run_in_turn(jobs)
        else:
            finished = map_jobs(jobs)
        fitted: dict[str, dict[int, list[_Fitted]]] = {}
        for model_index, (learned, of_model) in finished:
            name = models[model_index].name
            fitted[name] = of_model
            if learned:
                self._learned.add(name)
            self._report(progress, name, len(fitted), len(models))
        if progress is not None:
            progress("done", len(models), len(models))
        # Jobs may end in any order, and scores are shown in that of the models.
        self._fitted = {model.name: fitted[model.name] for model in models}
        self._fitted[CHANCE] = {
            count: [self._most_frequent(draw) for draw in self.draws[count]] for count in counts
        }
        self._kinds[CHANCE] = "baseline"

    def _report(self, progress: Progress | None, name: str, done: int, total: int) -> None:
        if progress is not None:
            progress(f"{name}: {self._data.task}, by number of labels", done, total)

    def combine(
        self,
        name: str,
        models: Sequence[str],
        *,
        method: str = ANSWER,
        worth: Sequence[float] | None = None,
        kind: Kind = "ensemble",
    ) -> None:
        """Combine models.

        Their weights are fitted on each draw; the validation score is of out-of-fold predictions of its rows.

        Args:
            name: Of the combination.
            models: Names of models.
            method: A name in `METHODS`.
            worth: What each model is worth on other tables, for methods that lean to it.
            kind: Of the combination; one of baselines is a baseline.
        """
        combined: dict[int, list[_Fitted]] = {}
        for count, draws in self.draws.items():
            combined[count] = []
            for draw_index, draw in enumerate(draws):
                fits = [self._fitted[model][count][draw_index] for model in models]
                predictions = MemberPredictions([fit.validation for fit in fits])
                if worth is not None and any(worth):
                    predictions = predictions.with_prior(worth)
                fitted = cross_fit(predictions, self._targets.take(draw), method=method)
                tested = fitted.predict(np.stack([fit.test for fit in fits]))
                combined[count].append(_Fitted(fitted.held_out, tested))
        self._fitted[name] = combined
        self._kinds[name] = kind
        if self._learned & set(models):
            self._learned.add(name)

    def answer(self, data: TaskData, members: Sequence[Member], free: Sequence[Member]) -> None:
        """Score what would be taken on each draw, under the name `answer`; see `raysent.ensembles.best`.

        Args:
            data: The task's rows.
            members: The models that were trained, best first; those that learned labels take no part.
            free: Models that need no training.
        """
        unlearned = [member for member in members if member.name not in self._learned]
        trained = [member for member in unlearned if not is_free(member.path)]
        models = [*unlearned, *(member for member in free if member not in unlearned)]
        if len(models) < 2:
            return
        unfit = unread(models, language_of_texts(data.sentences[0]))
        worth = worth_elsewhere([model.path for model in models], unfit=unfit)
        leaders = [index for index in range(len(models)) if worth[index]]
        steps: dict[str, int | None] = {model.name: None for model in models}
        steps[models[leaders[0]].name] = 0
        # The combinations are candidates alone, and have no curves of their own.
        combinations = []
        for step, group in enumerate(groups_of(models, trained), start=1):
            name = f"{ANSWER}:{step}"
            group_worth = [worth[index] for index in group]
            self.combine(name, [models[index].name for index in group], worth=group_worth)
            combinations.append(name)
            steps[name] = None
            if set(leaders) <= set(group):
                steps[name] = step
        self._fitted[ANSWER] = {
            count: [self._to_take(steps, count, index) for index in range(len(draws))]
            for count, draws in self.draws.items()
        }
        self._kinds[ANSWER] = "ensemble"
        for name in combinations:
            del self._fitted[name]
            del self._kinds[name]

    def _to_take(self, steps: Mapping[str, int | None], count: int, draw_index: int) -> _Fitted:
        """Return the fit of the candidate that would be taken on a draw; `steps` are as of `best.Fitted`."""
        draw = self.draws[count][draw_index]
        fits = [self._fitted[name][count][draw_index] for name in steps]
        targets = self._targets.take(draw)
        rows = np.arange(len(draw))
        label_logs = []
        for fit in fits:
            of_labels = calibrated(fit.validation, targets)[rows, targets.labels]
            label_logs.append(np.maximum(of_labels, LOWEST_FEATURE))
        return fits[to_take(label_logs, [*steps.values()])]

    def validation(self, name: str) -> tuple[float, ...]:
        """Return a model's cross-validated score within the draws at each size, in percent."""
        means = []
        for draws, fits in zip(self.draws.values(), self._fitted[name].values(), strict=True):
            scores = [
                self._targets.take(draw).score(fit.validation)
                for draw, fit in zip(draws, fits, strict=True)
            ]
            means.append(100 * mean(scores))
        return tuple(means)

    def means(self, name: str, size: int) -> Float64:
        """Return a model's mean test score over draws, in percent, float64 [resamples].

        The first is that of the draws and test rows themselves. Resamples are the same for all models.
        """
        if (name, size) not in self._means:
            targets = self._targets.take(self._test)
            all_rows = np.arange(len(self._test))
            weights, resamples = _resamples(len(self.draws[size]), len(self._test))
            parts = []
            for fit in self._fitted[name][size]:
                parts.append((all_rows, targets.columns(targets.values(fit.test))))
            scores = [targets.scores_of_means(of_draw) for of_draw in resamples.means(parts)]
            over_draws = (weights * np.stack(scores, axis=1)).sum(axis=1)
            # Rounded, so that sums in another order give the same percentages.
            self._means[name, size] = np.round(100 * over_draws, 9)
        return self._means[name, size]

    def curve(self) -> LabelCurve:
        """Return the scores of all models, with intervals."""
        sizes = tuple(self.draws)
        names = [*(name for name in self._fitted if name != CHANCE), CHANCE]
        leading = _leaders([name for name in names if name not in self._learned], sizes, self.means)
        curves = {}
        for name in names:
            curves[name] = Curve(
                kind=self._kinds[name],
                points=tuple(_estimate_of(self.means(name, size)) for size in sizes),
                validation=self.validation(name),
                learned=name in self._learned,
            )
        targets = self._targets.take(self._test)
        most_frequent = int(np.bincount(targets.labels).argmax())
        return LabelCurve(
            task=self._data.task,
            metric=self._data.metric,
            sizes=sizes,
            num_draws=tuple(map(len, self.draws.values())),
            num_test=len(self._test),
            chance=100 * targets.score(self._always(most_frequent, len(targets))),
            curves=curves,
            sentence=f"{self._data.task}: {leading}",
        )

    def _most_frequent(self, draw: np.ndarray) -> _Fitted:
        label = int(np.bincount(self._data.labels[draw]).argmax())
        return _Fitted(self._always(label, len(draw)), self._always(label, len(self._test)))

    def _always(self, label: int, num_rows: int) -> np.ndarray:
        """Return the log-probabilities of always predicting one class, float32 [rows, classes]."""
        predicted = np.full((num_rows, len(self._data.label_names)), -np.inf, dtype=np.float32)
        predicted[:, label] = 0.0
        return predicted


def _leaders(names: Sequence[str], sizes: Sequence[int], means: Means) -> str:
    """Return which model is better than all others by an interval, and at how many labels.

    Args:
        names: The models.
        sizes: Numbers of labels.
        means: A model and a number -> its mean score, float64 [resamples].
    """
    leaders = [_leader(names, size, means) for size in sizes]
    if not any(leaders):
        return "no model is better than all others by an interval"
    # From here on the leader is that of the largest size.
    last = len(leaders)
    while last > 0 and leaders[last - 1] == leaders[-1]:
        last -= 1
    phrases = []
    for leader, size in zip(leaders[:last], sizes, strict=False):
        if leader:
            phrases.append(f"{leader} at {size:,} labels")
    if leaders[-1]:
        phrases.append(f"{leaders[-1]} from {sizes[last]:,} labels on")
    return f"best by an interval is {', '.join(phrases)}"


def _leader(names: Sequence[str], size: int, means: Means) -> str | None:
    """Return the model that is better than all others by an interval at so many labels; None where none is."""
    leader = max(names, key=lambda name: float(means(name, size)[0]))
    rivals = [name for name in names if name != leader]
    leads = [_estimate_of(means(leader, size) - means(rival, size)) for rival in rivals]
    if leads and all(lead.interval[0] > 0 for lead in leads):
        return leader
    return None


def _resamples(num_draws: int, num_test: int) -> tuple[Float64, Resamples]:
    """Return the weights of draws [resamples, draws], and the resamples of test rows; the first are the original."""
    generator = np.random.default_rng(SEED)
    draws = generator.multinomial(num_draws, [1 / num_draws] * num_draws, size=NUM_RESAMPLES)
    rows = generator.multinomial(num_test, [1 / num_test] * num_test, size=NUM_RESAMPLES)
    draws[0] = 1
    rows[0] = 1
    return draws / num_draws, Resamples(rows)


def _estimate_of(means: Float64) -> BootstrapEstimate:
    """Return the estimate of means over draws, float64 [resamples], the first of which is of all rows."""
    return BootstrapEstimate.of(float(means[0]), means[1:])
