"""The one model to take on a task: chosen among everything that was scored on it, and saved as an ensemble.

Candidates are the most frequent class, every model alone, trained or not, a soup of trials that began with one model,
and combinations: of the lexical models, of what needs no training, of that and the best trial, of that and all trials,
and of the trials. A combination is the method `answer`: a pool of log-probabilities that leans to what is known to be
good elsewhere, and the more so the fewer the rows: to the pretrained encoder where one reads the language of the text,
else to TF-IDF of parts of words.

Where rows cannot decide, the order comes from what holds elsewhere. First stands the encoder, or TF-IDF, alone; then
the combination of what needs no training, with the best trial, and with all trials: each takes the place of the one
before it if its log loss of out-of-fold predictions is lower. Where a model that began with the encoder has learned the
labels, its combination with what needs no training stands first. Anything else, such as one trial alone, has to be
better by a standard error of the paired difference, of fifty rows or more. Before they are compared, predictions are
scaled so that their probabilities are true. Of rated pairs the correlation decides, and its interval.

A model that learned the task's labels is a member like any other where models of its setting that have not learned a
row predict it (`evaluation.parts`). Where some rows alone are predicted so, the others are fitted and chosen by all
rows, and compared with what has it by those. One that learned all is left out: rows that trained it cannot choose it.

The most frequent class is taken where no candidate is above it by a paired interval, in the metric or the log loss, of
a few hundred rows or more: fewer show no difference that is there. The rows that choose are those that train; test rows
are scored alone.

`RUN/best` holds the answer, or `RUN/best/TASK` with several tasks, and a copy of each model that it needs, so that the
folder can be moved alone. `RUN/encoder` is the best single model that has vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from raysent.ensembles.answer import (
    MAJORITY,
    Answer,
    Candidate,
    CandidateKind,
    answer_card,
)
from raysent.ensembles.answer_rows import AnswerRows, write_answer_rows
from raysent.ensembles.combining import Members, choosable, ensemble_result
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.kept import copied, keep_record, kept, kept_lines
from raysent.ensembles.methods import ANSWER, fit
from raysent.ensembles.pools import LOWEST_FEATURE
from raysent.ensembles.predictions import MemberPredictions, as_predictions
from raysent.ensembles.result import (
    EnsembleResult,
    MemberCost,
    member_cost,
    total_cost,
    write_result,
)
from raysent.ensembles.soup import save_soup
from raysent.ensembles.task_ensemble import compatible, fold_predictions, num_fitted
from raysent.evaluation.baselines import LEXICAL, is_free, is_pretrained, worth_elsewhere
from raysent.evaluation.bootstrap import BootstrapEstimate, Resamples, interval_of
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, Model, expand, model_folder
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record
from raysent.evaluation.refit import NUM_FITTED
from raysent.evaluation.targets import Float64, Targets
from raysent.evaluation.task import Task
from raysent.evaluation.titles import model_title
from raysent.models.files import read_record as read_about
from raysent.models.known import reads_language
from raysent.models.schemes import split_path
from raysent.storage import path_below, remove_folder, write_text
from raysent.storage.layout import (
    BEST_FOLDER,
    CARD_FILE,
    ENCODER_FOLDER,
    MEMBERS_FOLDER,
)

Prefer = Literal["speed", "size"]
# The method of a model alone, whose weight is 1.
ALONE = "uniform"
# Fewer rows than this do not show a difference from the most frequent class.
MIN_MAJORITY_ROWS = 300
# Fewer rows than this do not show that something is better than what holds elsewhere.
MIN_CHOOSING_ROWS = 50
_COSTS: Mapping[Prefer, str] = {"speed": "encode_ms", "size": "num_bytes"}


@dataclass(frozen=True)
class Fitted:
    """A candidate's predictions.

    Attributes:
        members: Places of the models that it needs.
        method: How they are combined.
        fold: Log-probabilities of the rows that may choose, out of fold, and of the test rows.
        cost: Of its models together.
        calibrated: Log-probabilities of the rows that may choose, out of fold and scaled to be true; they choose.
        step: Its place in the order of what is taken first, from 0; None for what rows have to show to be better.
    """

    members: tuple[int, ...]
    method: str
    fold: FoldResult
    cost: MemberCost
    calibrated: Float64
    step: int | None = None

    @property
    def held_out(self) -> Float64:
        """Out-of-fold log-probabilities of the rows that may choose, [rows, classes]."""
        return self.fold.validation_log_probabilities

    def at(self, rows: np.ndarray) -> Fitted:
        """Return its predictions of some of the rows that may choose."""
        scaled = replace(self.fold, validation_log_probabilities=self.calibrated).at(rows)
        return replace(
            self, fold=self.fold.at(rows), calibrated=scaled.validation_log_probabilities
        )


@dataclass(frozen=True)
class Keeping:
    """How an answer is saved.

    Attributes:
        refits: Whether it is fitted on every labelled row, the rows that tested among them; see `refit`.
        copies_hub: Whether pretrained encoders of the hub are copied, which are kept by name and commit else.
    """

    refits: bool = False
    copies_hub: bool = False


_AS_SCORED = Keeping()


def save_best(
    models: Sequence[Model],
    evaluator: Evaluator,
    *,
    run: Path,
    tasks: Sequence[str | Task] | None = None,
    baselines: bool = True,
    pretrained: Sequence[str] = (),
    prefer: Prefer | None = None,
    keeping: Keeping = _AS_SCORED,
) -> list[EnsembleResult]:
    """Choose the model to take on each task, and the best with vectors, and save them into a run's folder.

    Args:
        models: The trials, best first; none where nothing was trained.
        evaluator: Reads their records, or makes them.
        run: The run's folder.
        tasks: As for `Evaluator.records`.
        baselines: Whether those that cost something take part; free ones always do.
        pretrained: Pretrained encoders that take part, as arguments of `load`.
        prefer: Takes the cheapest candidate within one standard error of what is taken else: the fastest, or smallest.
        keeping: How what is chosen is saved.

    Returns:
        What was saved for each task.

    Raises:
        RaysentError: If a model cannot be read, records cannot be combined, or the folder cannot be written.
    """
    trials = expand(models) if models else []
    others = [one for one in evaluator.baselines(trials, tasks) if baselines or is_free(one.path)]
    others += expand(pretrained) if pretrained else []
    records = choosable(evaluator.records([*trials, *others], tasks))
    trials = [trial for trial in trials if trial in records]
    if soup := save_soup({one: records[one] for one in trials}, evaluator, run=run, tasks=tasks):
        trials, records = [*trials, soup[0]], {**records, soup[0]: soup[1]}
    languages = evaluator.languages(tasks) if pretrained else {}
    chosen_tasks = evaluator.probed_tasks(tasks)
    num_tasks = len(next(iter(records.values())))
    remove_folder(run / BEST_FOLDER, below=run)
    saved = []
    for place in range(num_tasks):
        of_task = {member: of_member[place] for member, of_member in records.items()}
        task = next(iter(of_task.values())).task
        folder = run / BEST_FOLDER
        if num_tasks > 1:
            folder = path_below(folder, task)
        unfit = unread(of_task, languages.get(task))
        last_fit = partial(evaluator.refitted, tasks=chosen_tasks) if keeping.refits else _as_scored
        keep = partial(kept, members_folder=folder / MEMBERS_FOLDER, copies_hub=keeping.copies_hub)
        saved.append(
            _save(folder, of_task, trials, prefer, unfit=unfit, last_fit=last_fit, keep=keep)
        )
    save_encoder(run, records)
    return saved


def unread(members: Iterable[Member], language: str | None) -> list[str]:
    """Return the paths of those pretrained encoders among members that do not read a language."""
    paths = [member.path for member in members if is_pretrained(member.path)]
    if language is None:
        return []
    return [path for path in paths if not reads_language(split_path(path)[1] or "", language)]


def starts_from_encoder(member: Member, *, unfit: Collection[str] = ()) -> bool:
    """Return whether a trained model started from a pretrained encoder.

    Args:
        member: The model.
        unfit: Paths of encoders that do not count, as they do not read the language of the text.
    """
    folder = model_folder(Path(member.path))
    if folder is None or member.encoder is not None:
        return False
    start = read_about(folder).config.encoder.tokenizer
    return start is not None and not any(split_path(path)[1] == str(start.path) for path in unfit)


def save_encoder(run: Path, records: Members) -> None:
    """Save the single model with vectors of the best mean validation score into a run's folder.

    Args:
        run: The run's folder.
        records: The models' records on each task, those before first that win among equals.
    """
    remove_folder(run / ENCODER_FOLDER, below=run)
    ranked = sorted(
        records,
        key=lambda one: -float(np.mean([record.validation for record in records[one]] or [0.0])),
    )
    for member in ranked:
        if (
            split_path(member.path)[1] is not None
            and copied(member, run / ENCODER_FOLDER) is not member
        ):
            for record in records[member]:
                keep_record(run / ENCODER_FOLDER, member, record)
            return


def _save(
    folder: Path,
    records: Mapping[Member, Record],
    trials: Sequence[Member],
    prefer: Prefer | None,
    *,
    unfit: Collection[str],
    last_fit: Callable[[Member, Record], Record],
    keep: Callable[[Member], Member],
) -> EnsembleResult:
    members = list(records)
    costs = [member_cost(one, [record]) for one, record in records.items()]
    num_rows = {one: len(record.folds[0].validation_rows) for one, record in records.items()}
    learned = [
        one
        for one, record in records.items()
        if record.score.learned and num_rows[one] < max(num_rows.values())
    ]
    tuned = [one for one in trials if records[one].score.learned and one not in learned]
    from_encoders = [one.path for one in tuned if starts_from_encoder(one, unfit=unfit)]
    worth = worth_elsewhere([one.path for one in members], unfit=unfit, tuned=from_encoders)
    candidates = fit_candidates(
        list(records.values()),
        costs,
        groups=groups_of(members, trials, learned=learned, tuned=tuned),
        worth=worth,
    )
    answer = answer_of(
        candidates, list(records.values()), members, worth=worth, trials=trials, prefer=prefer
    )
    needed = [one for one in members if one.name in answer.answer.members]
    kept_members: dict[Member, Sequence[Record]] = {}
    num_fitted_rows = []
    for member in sorted(needed, key=lambda one: -records[one].validation):
        record = last_fit(member, records[member])
        num_fitted_rows.append(record.about.get(NUM_FITTED))
        keep_record(folder, member, record)
        kept_members[keep(member)] = [record]
    if answer.answer.method != MAJORITY and None not in num_fitted_rows:
        answer = answer.model_copy(update={"num_fitted": num_fitted_rows[0]})
    known = {one.name: cost for one, cost in zip(members, costs, strict=True) if one in needed}
    answer = answer.model_copy(update={"kept": kept_lines(kept_members, folder)})
    worth_of = dict(zip([one.name for one in members], worth, strict=True))
    result = ensemble_result(
        folder,
        kept_members,
        method=answer.answer.method,
        costs=known,
        worth=[worth_of[one.name] for one in kept_members],
    )
    result = result.model_copy(update={"answer": answer})
    _write_rows(folder, candidates, members, answer, next(iter(records.values())))
    write_text(folder / CARD_FILE, answer_card(folder, answer))
    write_result(folder, result)
    return result


def _write_rows(
    folder: Path,
    candidates: Sequence[Fitted],
    members: Sequence[Member],
    answer: Answer,
    record: Record,
) -> None:
    """Write what the answer predicts of each row that did not fit it, of a task with classes."""
    if record.targets.is_scored:
        return
    taken = next(
        candidate
        for candidate in candidates
        if candidate.method == answer.answer.method
        and tuple(members[place].name for place in candidate.members) == answer.answer.members
    )
    write_answer_rows(folder, AnswerRows.of(taken.fold, record.labels))


def _as_scored(member: Member, record: Record) -> Record:
    """Return a record as it was scored, where nothing is fitted again."""
    del member
    return record


def groups_of(
    members: Sequence[Member],
    trials: Sequence[Member],
    *,
    learned: Collection[Member] = (),
    tuned: Collection[Member] = (),
) -> list[tuple[int, ...]]:
    """Return the sets of models that are combined, as places among the members, simple ones first.

    Args:
        members: The models.
        trials: Those of them that were trained, best first.
        learned: Those that learned rows which choose; they come last, and are taken where other rows show it.
        tuned: Those that learned labels, and predict each row by models that had not learned it.
    """
    lexical = [place for place, one in enumerate(members) if one.path in LEXICAL]
    free = [place for place, one in enumerate(members) if is_free(one.path)]
    trained = [place for place, one in enumerate(members) if one in trials]
    unlearned = [place for place in trained if members[place] not in learned]
    best_tuned = [place for place in unlearned if members[place] in tuned][:1]
    sets = [
        lexical,
        free,
        [*free, *best_tuned],
        [*free, *unlearned[:1]],
        [*free, *unlearned],
        unlearned,
    ]
    if len(unlearned) < len(trained):
        sets += [[*free, *trained[:1]], [*free, *trained], trained]
    whole = (tuple(sorted(set(places))) for places in sets)
    return list(dict.fromkeys(places for places in whole if len(places) > 1))


def fit_candidates(
    records: Sequence[Record],
    costs: Sequence[MemberCost],
    *,
    groups: Sequence[Sequence[int]],
    worth: Sequence[float],
) -> list[Fitted]:
    """Return every candidate on one task: each model alone, then the combinations, then the most frequent class.

    Args:
        records: The models' records.
        costs: The models' costs.
        groups: Sets of models to combine, as places among them; see `groups_of`.
        worth: What each model is worth on other tables; see `worth_elsewhere`.
    """
    leading = {place for place in range(len(records)) if worth[place]}
    as_they_are = [place for place in sorted(leading) if not records[place].score.learned]
    free = as_they_are or sorted(leading)
    # What learned the labels leads together with the encoder that it began with, and not alone.
    alone = free[:1] if leading == set(free) else []
    candidates = [
        _fitted(
            [place],
            [record],
            costs,
            worth,
            method=ALONE,
            step=0 if [place] == alone else None,
        )
        for place, record in enumerate(records)
    ]
    for step, group in enumerate(groups, start=1):
        leans = leading <= set(group)
        combined = _combined(group, records, costs, worth, step=step if leans else None)
        if combined is not None:
            candidates.append(combined)
    if all(candidate.step is None for candidate in candidates):
        candidates[free[0]] = replace(candidates[free[0]], step=0)
    if not records[0].targets.is_scored:
        sizes = [
            (-len(one.fold.validation_rows), one.cost.num_bytes, one.cost.encode_ms)
            for one in candidates[: len(records)]
        ]
        cheapest = sizes.index(min(sizes))
        candidates.append(_fitted([cheapest], [records[cheapest]], costs, worth, method=MAJORITY))
    return candidates


def _combined(
    group: Sequence[int],
    records: Sequence[Record],
    costs: Sequence[MemberCost],
    worth: Sequence[float],
    *,
    step: int | None,
) -> Fitted | None:
    """Return the combination of a group, without the models that it gives no weight; None where nothing is left.

    Nor is there one where what is left has more rows that choose: the candidate without the others is fitted on these.
    """
    some = compatible([records[place] for place in group])
    group_worth = [worth[place] for place in group]
    weights = fit(*fold_predictions(some, 0, worth=group_worth), method=ANSWER).weights
    needed = [place for place, weight in zip(group, weights, strict=True) if weight > 0]
    if not needed:
        return None
    if num_fitted(compatible([records[place] for place in needed])) > num_fitted(some):
        return None
    kept = [record for record, weight in zip(some, weights, strict=True) if weight > 0]
    # A row that chooses is predicted without it, by models that were left over without it too.
    crossed = held_out(*fold_predictions(some, 0, worth=group_worth), method=ANSWER)
    return _fitted(needed, kept, costs, worth, method=ANSWER, crossed=crossed, step=step)


def _fitted(
    places: Sequence[int],
    records: Sequence[Record],
    costs: Sequence[MemberCost],
    worth: Sequence[float],
    *,
    method: str,
    crossed: Float64 | None = None,
    step: int | None = None,
) -> Fitted:
    """Return a candidate of some models.

    Args:
        places: The models' places.
        records: Their records, in the same order.
        costs: Of all models.
        worth: Of all models.
        method: How they are combined.
        crossed: Out-of-fold predictions of the rows that choose, where they are known.
        step: As of `Fitted`.
    """
    predictions, targets = fold_predictions(records, 0, worth=[worth[place] for place in places])
    saved = fit(predictions, targets, method=method)
    tested = saved.combination(
        as_predictions([record.folds[0].test_log_probabilities for record in records])
    )
    predicted = held_out(predictions, targets, method=method) if crossed is None else crossed
    fold = replace(
        records[0].folds[0],
        validation_log_probabilities=predicted,
        test_log_probabilities=tested,
    )
    by_weight = sorted(zip(-saved.weights, places, strict=True))
    return Fitted(
        members=tuple(place for _, place in by_weight),
        method=method,
        fold=fold,
        cost=total_cost([costs[place] for place in places]),
        calibrated=calibrated(predicted, targets),
        step=step,
    )


def calibrated(log_probabilities: Float64, targets: Targets) -> Float64:
    """Return out-of-fold predictions of rows, scaled so that their probabilities are true; each row without itself.

    Models that are fitted to few rows are much surer than they are right, some of them more than others: without the
    scale, their log losses would not be compared by what they know.
    """
    if targets.is_scored:
        return log_probabilities
    return held_out(MemberPredictions([log_probabilities]), targets, method=ANSWER)


def to_take(right: Sequence[Float64], steps: Sequence[int | None]) -> int:
    """Return the place of the candidate to take, by what rows say and, where they cannot, by what holds elsewhere.

    Args:
        right: Of each candidate, the log-probability that it gives the right class of each row [candidates][rows].
        steps: Of each candidate, its place in the order of what is taken first; see `Fitted`. One of them is 0.
    """
    in_order = [
        place for _, place in sorted((step, k) for k, step in enumerate(steps) if step is not None)
    ]
    taken = in_order[0]
    for place in in_order[1:]:
        if _mean_gain(right[place], right[taken]) > 0:
            taken = place
    if len(right[taken]) < MIN_CHOOSING_ROWS:
        return taken
    best = max(range(len(right)), key=lambda place: _mean_gain(right[place], right[taken]))
    gains = right[best] - right[taken]
    standard_error = float(gains.std()) / math.sqrt(len(gains))
    return best if _mean_gain(right[best], right[taken]) > standard_error else taken


def _mean_gain(log_probabilities: Float64, others: Float64) -> float:
    """Return a mean paired difference; rounded, as sums in another order differ in their last bits."""
    return round(float((log_probabilities - others).mean()), 9)


def losses_of(candidates: Sequence[Fitted], targets: Targets) -> list[float]:
    """Return the log loss of each candidate in nats; of ratings, minus the correlation."""
    if targets.is_scored:
        return [-targets.score(one.held_out) for one in candidates]
    return [-float(_of_labels(one, targets).mean()) for one in candidates]


def _of_labels(candidate: Fitted, targets: Targets) -> Float64:
    """Return the log-probability that a candidate gives the right class of each row, float64 [rows]."""
    rows = np.arange(len(targets))
    right: Float64 = np.maximum(candidate.calibrated[rows, targets.labels], LOWEST_FEATURE)
    return right


def choose(
    candidates: Sequence[Fitted], targets: Targets, *, task: str, prefer: Prefer | None = None
) -> tuple[int, BootstrapEstimate | None]:
    """Return the place of the candidate to take, and by how much the best one is above the most frequent class.

    Args:
        candidates: The candidates, simple ones first; one of method `majority` where the task has classes.
        targets: Of the rows that choose.
        task: The task's name, which seeds the resamples.
        prefer: As for `save_best`.
    """
    rows = np.arange(len(targets))
    resamples = Resamples.of(task, len(targets))
    estimates = resamples.estimates([(rows, targets, one.held_out) for one in candidates])
    majority = next((place for place, one in enumerate(candidates) if one.method == MAJORITY), None)
    models = [place for place in range(len(candidates)) if place != majority]
    if targets.is_scored:
        best = _best_rated(candidates, estimates)
    else:
        right = [_of_labels(candidates[place], targets) for place in models]
        best = models[to_take(right, [candidates[place].step for place in models])]
    above = None if majority is None else estimates[best].minus(estimates[majority])
    if majority is not None and len(targets) >= MIN_MAJORITY_ROWS:
        of_labels = np.column_stack([_of_labels(one, targets) for one in candidates])
        (drawn,) = resamples.means([(rows, of_labels)])
        gains = (interval_of(drawn[:, place] - drawn[:, majority])[0] for place in models)
        lowest = (estimates[place].minus(estimates[majority]).interval[0] for place in models)
        if not any(low > 0 for low in chain(lowest, gains)):
            return majority, above
    if prefer is None:
        return best, above
    behind = {place: estimates[best].minus(estimates[place]) for place in models}
    near = [place for place, one in behind.items() if one.value <= one.draws.std()]
    cost = _COSTS[prefer]
    return min(
        near, key=lambda place: (getattr(candidates[place].cost, cost), behind[place].value)
    ), above


def _best_rated(candidates: Sequence[Fitted], estimates: Sequence[BootstrapEstimate]) -> int:
    """Return the place of the candidate to take on rated pairs: as `to_take`, by correlations and their intervals."""
    in_order = [
        place
        for _, place in sorted(
            (one.step, k) for k, one in enumerate(candidates) if one.step is not None
        )
    ]
    taken = max(in_order, key=lambda place: round(estimates[place].value, 9))
    best = max(range(len(candidates)), key=lambda place: round(estimates[place].value, 9))
    return best if estimates[best].minus(estimates[taken]).interval[0] > 0 else taken


def answer_of(
    candidates: Sequence[Fitted],
    records: Sequence[Record],
    members: Sequence[Member],
    *,
    worth: Sequence[float],
    trials: Collection[Member] = (),
    prefer: Prefer | None = None,
) -> Answer:
    """Return the answer on one task, with all candidates: it comes first, then the others by rising log loss.

    Args:
        candidates: What `fit_candidates` returned.
        records: The models' records.
        members: The models, in the same order.
        worth: What each of them is worth on other tables.
        trials: Those of them that were trained.
        prefer: As for `save_best`.
    """
    first = compatible(records)[0]
    least, targets = first.folds[0], first.targets
    common, tests = least.validation_rows, targets.take(least.test_rows)
    # What learned labels may have fewer rows than the others.
    whole = max((one.fold.validation_rows for one in candidates), key=len)
    fewer = [
        place for place, one in enumerate(candidates) if len(one.fold.validation_rows) < len(whole)
    ]
    others = [place for place in range(len(candidates)) if place not in fewer]
    chosen, above = choose(
        [candidates[place] for place in others],
        targets.take(whole),
        task=first.task,
        prefer=prefer,
    )
    losses, scores = [], []
    for place, candidate in enumerate(candidates):
        rows = common if place in fewer else whole
        seen = candidate.at(rows)
        losses += losses_of([seen], targets.take(rows))
        scores.append(targets.take(rows).score(seen.held_out))
    taken = others[chosen]
    if fewer:
        best_learned = min(fewer, key=lambda place: round(losses[place], 9))
        if _is_better_at(common, candidates[best_learned], candidates[taken], first):
            taken = best_learned
    order = sorted(
        range(len(candidates)),
        key=lambda place: (place != taken, place in fewer, round(losses[place], 9)),
    )
    tested = Resamples.of(first.task, len(targets)).estimates(
        [(least.test_rows, tests, one.fold.test_log_probabilities) for one in candidates]
    )
    shown = tuple(
        _as_shown(
            candidates[place],
            records,
            members,
            trials,
            validation=100 * float(scores[place]),
            log_loss=None if targets.is_scored else losses[place],
            tested=tested[place],
            behind=tested[taken].minus(tested[place]),
        )
        for place in order
    )
    leader = _leader(worth, members)
    simple = None if leader is None else order.index(leader)
    gain = None
    if leader is not None and not targets.is_scored and taken not in fewer and taken != leader:
        gain = _gain(candidates[taken], candidates[leader], targets.take(whole), task=first.task)
    majority = [place for place, one in enumerate(shown) if one.method == MAJORITY]
    return Answer(
        task=first.task,
        metric="pearson" if targets.is_scored else first.metric,
        num_test=len(tests),
        prefer=prefer,
        taken=order.index(taken),
        simplest=simple,
        majority=next(iter(majority), None),
        over_majority=above,
        gain=gain,
        num_chosen=len(whole),
        candidates=shown,
    )


def _is_better_at(rows: np.ndarray, one: Fitted, other: Fitted, record: Record) -> bool:
    """Return whether a candidate is above another by an interval on some of the rows that choose."""
    targets = record.targets
    resamples = Resamples.of(record.task, len(targets))
    first, second = resamples.estimates(
        [
            (rows, targets.take(rows), candidate.fold.at(rows).validation_log_probabilities)
            for candidate in (one, other)
        ]
    )
    return first.minus(second).interval[0] > 0


def _as_shown(
    candidate: Fitted,
    records: Sequence[Record],
    members: Sequence[Member],
    trials: Collection[Member],
    *,
    validation: float,
    log_loss: float | None,
    tested: BootstrapEstimate,
    behind: BootstrapEstimate,
) -> Candidate:
    """Return what a reader sees of a candidate."""
    needed = [members[place] for place in candidate.members]
    return Candidate(
        members=tuple(member.name for member in needed),
        method=candidate.method,
        kind=_kind_of(needed, trials),
        validation=validation,
        log_loss=log_loss,
        test=tested.value,
        interval=tested.interval,
        behind=behind,
        encode_ms=candidate.cost.encode_ms,
        num_bytes=candidate.cost.num_bytes,
        learned=any(records[place].score.learned for place in candidate.members),
        titles=tuple(model_title(member.path, member.name) for member in needed),
    )


def _kind_of(members: Sequence[Member], trials: Collection[Member]) -> CandidateKind:
    """Return what a candidate is made of, for words about it."""
    if any(member in trials for member in members):
        return "trained"
    if all(member.path in LEXICAL for member in members):
        return "lexical"
    if all(is_pretrained(member.path) for member in members):
        return "pretrained"
    return "free" if all(is_free(member.path) for member in members) else "baseline"


def _leader(worth: Sequence[float], members: Sequence[Member]) -> int | None:
    """Return the place of the simplest thing that could be taken: the model alone that is best elsewhere."""
    able = [place for place, one in enumerate(members) if worth[place] and is_free(one.path)]
    return next(iter(able), None)


def _gain(taken: Fitted, simple: Fitted, targets: Targets, *, task: str) -> BootstrapEstimate:
    """Return by how much the log loss of what is taken is below that of a simpler candidate, in nats a row."""
    differences = _of_labels(taken, targets) - _of_labels(simple, targets)
    rows = np.arange(len(targets))
    (drawn,) = Resamples.of(task, len(targets)).means([(rows, differences[:, None])])
    return BootstrapEstimate.of(float(differences.mean()), drawn[:, 0])
