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

from collections.abc import Callable, Mapping, Sequence
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
from raysent.evaluation.probes.lexical import fit_classifier, full_probe, join_columns
from raysent.evaluation.probes.logistic import Fits, class_targets
from raysent.evaluation.probes.results import Probe, log_probabilities
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

LABELS_FOLDER = "label_curves"
DEFAULT_SIZES: tuple[int, ...] = (32, 100, 300, 1000)
ALL = "all"
MAX_TEST = 2000
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
        return "pairs" if self.metric == "ndcg_at_10" else "labels"


def parse_sizes(sizes: str | int | Sequence[int | str]) -> list[int | str]:
    """Return sizes, which may be given as text such as ``32,100,all``.

    Raises:
        ConfigError: If one is no number of at least 8, or `all`.
    """
    parts = (
        [part.strip() for part in str(sizes).split(",")] if isinstance(sizes, str | int) else sizes
    )
    found = [int(part) if str(part).isdecimal() else part for part in parts if part != ""]
    if not found:
        raise ConfigError("labels: must name at least one number; as 32,100,300,1000,all")
    for size in found:
        if size != ALL and not (isinstance(size, int) and size >= 8):
            raise ConfigError(f"labels {size}: must be a number of at least 8, or all")
    return found


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
    names = [one.name for one in members]
    if len(names) > 1:
        scores.combine(ENSEMBLE, names, method=method)
    scores.answer(data, members, [one for one in baselines if is_free(one.path)])
    return scores.curve()


def write_curves(folder: Path, curves: Sequence[LabelCurve]) -> None:
    """Write one file for each task into ``label_curves/`` of a run's folder.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    for curve in curves:
        write_json(
            path_below(folder / LABELS_FOLDER, f"{curve.task}.json"),
            curve.model_dump(mode="json"),
        )


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

    def run(self, *, load: Load = load_model) -> tuple[bool, dict[int, list[_Fitted]]]:
        """Encode the rows that are needed; return whether it had learned labels, and the fits on each number."""
        encoder = load(self.member.path) if self.member.encoder is None else self.member.encoder
        pool, test = _pool_and_test(self.data)
        draws = {count: _draws(self.data.labels, pool, count) for count in self.counts}
        fitter: _Lexical | _Dense
        if isinstance(encoder, LexicalModel):
            fitter = _Lexical(encoder, self.data, test)
        else:
            needed = np.unique(
                np.concatenate([test, *(draw for of_size in draws.values() for draw in of_size)])
            )
            encode = stored(encoder, self.member, is_kept=is_pretrained(self.member.path))
            fitter = _Dense(encode, self.data, test, needed)
        return has_learned(encoder, self.data), {
            count: fitter.fit(of_size) for count, of_size in draws.items()
        }


def _pool_and_test(data: TaskData) -> tuple[np.ndarray, np.ndarray]:
    data = divided(data)
    return data.train, np.sort(np.random.default_rng(SEED).permutation(data.test)[:MAX_TEST])


def _draws(labels: np.ndarray, pool: np.ndarray, count: int) -> list[np.ndarray]:
    """Return draws of rows, int64 [labels] each; a draw is the beginning of the same draw of any larger size."""
    num_draws = 1 if count == len(pool) else 5 if count <= 100 else 3 if count <= 300 else 2
    draws = []
    for number in range(num_draws):
        generator = np.random.default_rng((SEED, number))
        draws.append(
            pool[np.argsort(stratified_ranks(labels[pool], generator), kind="stable")[:count]]
        )
    return draws


def _folds(data: TaskData, draw: np.ndarray) -> np.ndarray:
    """Return the fold of each row of a draw, int64 [labels]; rows that belong together are in one."""
    units = data.units[draw] if len(data.units) else data.units
    return folds_of_units(data.labels[draw], NUM_FOLDS, seed=SEED, units=units)


class _Dense:
    """Fits probes on vectors: all draws of a size at once."""

    def __init__(
        self, encoder: Encode, data: TaskData, test: np.ndarray, needed: np.ndarray
    ) -> None:
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
        folds = [_folds(self.data, draw) for draw in draws]
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
                log_probabilities(
                    margins[torch.from_numpy(place), :, problems + index * num_masks]
                ).numpy()
                for index in range(len(STRENGTHS))
            ]
            best = Targets.of(self.data).take(draw).best(candidates, STRENGTHS)
            tested = margins[len(union) :, :, first + NUM_FOLDS + best * num_masks]
            found.append(_Fitted(candidates[best], log_probabilities(tested).numpy()))
        return found


class _Lexical:
    """Fits TF-IDF with logistic regression; words are weighted by the draw alone."""

    def __init__(self, model: LexicalModel, data: TaskData, test: np.ndarray) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - it takes seconds to import, and most commands do without

        options = model.of(data.sentences[0]).vectorizer().get_params()
        names = ("analyzer", "ngram_range", "token_pattern", "preprocessor")
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
        folds = _folds(self.data, draw)
        candidates = []
        for strength in STRENGTHS:
            margins = np.empty(
                (len(draw), 1 if num_classes == 2 else num_classes), dtype=np.float32
            )
            for fold in range(NUM_FOLDS):
                probe = self._probe(
                    features[: len(draw)][folds != fold], labels[folds != fold], strength
                )
                margins[folds == fold] = (
                    features[: len(draw)][folds == fold] @ probe.weights + probe.intercepts
                )
            candidates.append(Probe.log_probabilities_of_margins(margins))
        best = Targets.of(self.data).take(draw).best(candidates, STRENGTHS)
        probe = self._probe(features[: len(draw)], labels, STRENGTHS[best])
        tested = Probe.log_probabilities_of_margins(
            features[len(draw) :] @ probe.weights + probe.intercepts
        )
        return _Fitted(candidates[best], tested)

    def _probe(self, features: sparse.csr_matrix, labels: np.ndarray, strength: float) -> Probe:
        num_classes = len(self.data.label_names)
        if len(np.unique(labels)) < 2:
            outputs = 1 if num_classes == 2 else num_classes
            return Probe(
                np.zeros((features.shape[1], outputs), np.float32),
                np.zeros(outputs, np.float32),
                strength,
            )
        return full_probe(
            fit_classifier(features, labels, strength=strength), num_classes, strength
        )

    def _features(self, draw: np.ndarray) -> sparse.csr_matrix:
        """Return the features of the draw's rows and of the test rows, sparse [rows, features]."""
        from sklearn.preprocessing import normalize  # noqa: PLC0415 - as above

        seen = np.sum([(counts[draw] > 0).sum(axis=0) for counts in self.counts], axis=0).ravel()
        num_texts = len(draw) * len(self.counts)
        known = np.flatnonzero(seen)
        # Other words have no weight in a probe, and count for lengths and cosines as the rarest known ones do.
        num_with_word = np.maximum(seen, seen[known].min())
        idf = sparse.diags_array(
            (np.log((1 + num_texts) / (1 + num_with_word)) + 1).astype(np.float32)
        )
        rows = np.concatenate([draw, self.test])
        whole = [normalize(counts[rows] @ idf, copy=False) for counts in self.counts]
        vectors = [of_column[:, known] for of_column in whole]
        if self.data.kind != "likeness":
            return join_columns(vectors, kind=self.data.kind)
        unknown = [of_column[:, np.flatnonzero(seen == 0)] for of_column in whole]
        unknown_cosines = np.asarray(unknown[0].multiply(unknown[1]).sum(axis=1)).ravel()
        return join_columns(vectors, kind=self.data.kind, unknown_cosines=unknown_cosines)


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
        counts = sorted({len(pool) if size == ALL else int(size) for size in sizes})
        counts = [count for count in counts if count <= len(pool)]
        if not counts:
            raise ConfigError(
                f"labels: {data.task} has {len(pool)} rows to train on; name fewer labels"
            )
        self.draws = {count: _draws(data.labels, pool, count) for count in counts}
        self._data, self._test, self._targets = data, test, Targets.of(data)
        models = [*members, *baselines]
        self._kinds: dict[str, Kind] = {one.name: "member" for one in members}
        self._kinds.update({one.name: "baseline" for one in baselines})
        jobs = [CurveJob(model, data, tuple(counts)) for model in models]

        def report(name: str, done: int) -> None:
            if progress is not None:
                progress(
                    f"{name}: {data.task}, by number of labels" if name else "done",
                    done,
                    len(models),
                )

        report(models[0].name, 0)
        fitted: dict[str, dict[int, list[_Fitted]]] = {}
        self._learned = set[str]()
        for place, (learned, of_model) in run_in_turn(jobs) if map_jobs is None else map_jobs(jobs):
            fitted[models[place].name] = of_model
            self._learned |= {models[place].name} if learned else set()
            report(models[place].name, len(fitted))
        report("", len(models))
        self._fitted = {model.name: fitted[model.name] for model in models}
        self._fitted[CHANCE] = {
            count: [self._most_frequent(draw) for draw in self.draws[count]] for count in counts
        }
        self._kinds[CHANCE] = "baseline"
        self._means: dict[tuple[str, int], Float64] = {}

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
            for place, draw in enumerate(draws):
                fits = [self._fitted[model][count][place] for model in models]
                predictions = MemberPredictions([fit.validation for fit in fits])
                if worth is not None and any(worth):
                    predictions = predictions.with_prior(worth)
                fitted = cross_fit(predictions, self._targets.take(draw), method=method)
                tested = fitted.predict(np.stack([fit.test for fit in fits]))
                combined[count].append(_Fitted(fitted.held_out, tested))
        self._fitted[name], self._kinds[name] = combined, kind
        self._learned |= {name} if self._learned & set(models) else set()

    def answer(self, data: TaskData, members: Sequence[Member], free: Sequence[Member]) -> None:
        """Score what would be taken on each draw, under the name `answer`; see `raysent.ensembles.best`.

        Args:
            data: The task's rows.
            members: The models that were trained, best first; those that learned labels take no part.
            free: Models that need no training.
        """
        unlearned = [one for one in members if one.name not in self._learned]
        trained = [one for one in unlearned if not is_free(one.path)]
        models = [*unlearned, *(one for one in free if one not in unlearned)]
        if len(models) < 2:
            return
        unfit = unread(models, language_of_texts(data.sentences[0]))
        worth = worth_elsewhere([one.path for one in models], unfit=unfit)
        leaders = [place for place in range(len(models)) if worth[place]]
        steps: dict[str, int | None] = {one.name: None for one in models}
        steps[models[leaders[0]].name] = 0
        for step, group in enumerate(groups_of(models, trained), start=1):
            name = f"{ANSWER}:{step}"
            group_worth = [worth[place] for place in group]
            self.combine(name, [models[place].name for place in group], worth=group_worth)
            steps[name] = step if set(leaders) <= set(group) else None
        self._fitted[ANSWER] = {
            count: [self._to_take(steps, count, place, draw) for place, draw in enumerate(draws)]
            for count, draws in self.draws.items()
        }
        self._kinds[ANSWER] = "ensemble"
        for name in list(steps)[len(models) :]:
            del self._fitted[name], self._kinds[name]

    def _to_take(
        self, steps: Mapping[str, int | None], count: int, place: int, draw: np.ndarray
    ) -> _Fitted:
        """Return the fit of the candidate that would be taken on a draw; `steps` are as of `best.Fitted`."""
        fits = [self._fitted[name][count][place] for name in steps]
        targets, rows = self._targets.take(draw), np.arange(len(draw))
        right = [
            np.maximum(calibrated(fit.validation, targets)[rows, targets.labels], LOWEST_FEATURE)
            for fit in fits
        ]
        return fits[to_take(right, [*steps.values()])]

    def validation(self, name: str) -> tuple[float, ...]:
        """Return a model's cross-validated score within the draws at each size, in percent."""
        return tuple(
            100
            * mean(
                self._targets.take(draw).score(fit.validation)
                for draw, fit in zip(draws, fits, strict=True)
            )
            for draws, fits in zip(self.draws.values(), self._fitted[name].values(), strict=True)
        )

    def means(self, name: str, size: int) -> Float64:
        """Return a model's mean test score over draws, in percent, float64 [resamples].

        The first is that of the draws and test rows themselves. Resamples are the same for all models.
        """
        if (name, size) not in self._means:
            targets, all_rows = self._targets.take(self._test), np.arange(len(self._test))
            weights, resamples = _resamples(len(self.draws[size]), len(self._test))
            columns = [
                targets.columns(targets.values(fit.test)) for fit in self._fitted[name][size]
            ]
            scores = map(
                targets.scores_of_means, resamples.means([(all_rows, one) for one in columns])
            )
            # Rounded, so that sums in another order give the same percentages.
            self._means[name, size] = np.round(
                100 * (weights * np.stack(list(scores), axis=1)).sum(axis=1), 9
            )
        return self._means[name, size]

    def curve(self) -> LabelCurve:
        """Return the scores of all models, with intervals."""
        sizes, targets = tuple(self.draws), self._targets.take(self._test)
        names = [*(name for name in self._fitted if name != CHANCE), CHANCE]
        leading = _leaders([name for name in names if name not in self._learned], sizes, self.means)
        curves = {
            name: Curve(
                kind=self._kinds[name],
                points=tuple(_estimate_of(self.means(name, size)) for size in sizes),
                validation=self.validation(name),
                learned=name in self._learned,
            )
            for name in names
        }
        return LabelCurve(
            task=self._data.task,
            metric=self._data.metric,
            sizes=sizes,
            num_draws=tuple(map(len, self.draws.values())),
            num_test=len(self._test),
            chance=100
            * targets.score(self._always(int(np.bincount(targets.labels).argmax()), len(targets))),
            curves=curves,
            sentence=f"{self._data.task}: {leading}",
        )

    def _most_frequent(self, draw: np.ndarray) -> _Fitted:
        label = int(np.bincount(self._data.labels[draw]).argmax())
        return _Fitted(self._always(label, len(draw)), self._always(label, len(self._test)))

    def _always(self, label: int, num_rows: int) -> np.ndarray:
        found = np.full((num_rows, len(self._data.label_names)), -np.inf, dtype=np.float32)
        found[:, label] = 0.0
        return found


def _leaders(names: Sequence[str], sizes: Sequence[int], means: Means) -> str:
    """Return which model is better than all others by an interval, and at how many labels.

    Args:
        names: The models.
        sizes: Numbers of labels.
        means: A model and a number -> its mean score, float64 [resamples].
    """
    best = []
    for size in sizes:
        leader = max(names, key=lambda name: float(means(name, size)[0]))
        others = (
            _estimate_of(means(leader, size) - means(name, size))
            for name in names
            if name != leader
        )
        best.append(
            leader if len(names) > 1 and all(other.interval[0] > 0 for other in others) else None
        )
    if not any(best):
        return "no model is better than all others by an interval"
    last = len(best)
    while last > 0 and best[last - 1] == best[-1]:
        last -= 1
    found = [
        f"{name} at {size:,} labels" for name, size in zip(best[:last], sizes, strict=False) if name
    ]
    if best[-1]:
        found.append(f"{best[-1]} from {sizes[last]:,} labels on")
    return f"best by an interval is {', '.join(found)}"


def _resamples(num_draws: int, num_test: int) -> tuple[Float64, Resamples]:
    """Return the weights of draws [resamples, draws], and the resamples of test rows; the first are the original."""
    generator = np.random.default_rng(SEED)
    draws = generator.multinomial(num_draws, [1 / num_draws] * num_draws, size=NUM_RESAMPLES)
    rows = generator.multinomial(num_test, [1 / num_test] * num_test, size=NUM_RESAMPLES)
    draws[0], rows[0] = 1, 1
    return draws / num_draws, Resamples(rows)


def _estimate_of(means: Float64) -> BootstrapEstimate:
    """Return the estimate of means over draws, float64 [resamples], the first of which is of all rows."""
    return BootstrapEstimate.of(float(means[0]), means[1:])
