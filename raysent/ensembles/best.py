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
        members: Indices of the models that it needs.
        method: How they are combined.
        fold: Log-probabilities of the rows that may choose, out of fold, and of the test rows.
        cost: Of its models together.
        calibrated: Log-probabilities of the rows that may choose, out of fold and scaled to be true; they choose.
        step: Its rank in the order of what is taken first, from 0; None for what rows have to show to be better.
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
    trials: list[Member] = []
    if models:
        trials = expand(models)
    comparisons = []
    for baseline in evaluator.baselines(trials, tasks):
        if baselines or is_free(baseline.path):
            comparisons.append(baseline)
    if pretrained:
        comparisons += expand(pretrained)
    records = choosable(evaluator.records([*trials, *comparisons], tasks))
    trials = [trial for trial in trials if trial in records]
    of_trials = {trial: records[trial] for trial in trials}
    soup = save_soup(of_trials, evaluator, run=run, tasks=tasks)
    if soup is not None:
        soup_member, soup_records = soup
        trials = [*trials, soup_member]
        records = {**records, soup_member: soup_records}
    languages: Mapping[str, str] = {}
    if pretrained:
        languages = evaluator.languages(tasks)
    last_fit: Callable[[Member, Record], Record] = _as_scored
    if keeping.refits:
        last_fit = partial(evaluator.refitted, tasks=evaluator.probed_tasks(tasks))
    num_tasks = len(next(iter(records.values())))
    remove_folder(run / BEST_FOLDER, below=run)
    saved = []
    for task_index in range(num_tasks):
        of_task = {member: of_member[task_index] for member, of_member in records.items()}
        task = next(iter(of_task.values())).task
        folder = run / BEST_FOLDER
        if num_tasks > 1:
            folder = path_below(folder, task)
        unfit = unread(of_task, languages.get(task))
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


def _starts_from_encoder(member: Member, *, unfit: Collection[str] = ()) -> bool:
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

    def validation(member: Member) -> float:
        return float(np.mean([record.validation for record in records[member]] or [0.0]))

    for member in sorted(records, key=lambda member: -validation(member)):
        # A scheme's name alone, such as `hash:50`, has no files to copy.
        has_files = split_path(member.path)[1] is not None
        if has_files and copied(member, run / ENCODER_FOLDER) is not member:
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
    """Choose what to take on one task, and save it with copies of the models that it needs."""
    members = list(records)
    costs = [member_cost(member, [record]) for member, record in records.items()]
    num_rows = {member: len(record.folds[0].validation_rows) for member, record in records.items()}
    most_rows = max(num_rows.values())
    # Those that learned rows which choose have fewer rows left; the tuned ones are predicted out of fold.
    learned = []
    tuned = []
    for member, record in records.items():
        if record.score.learned and num_rows[member] < most_rows:
            learned.append(member)
    for trial in trials:
        if records[trial].score.learned and trial not in learned:
            tuned.append(trial)
    from_encoders = [member.path for member in tuned if _starts_from_encoder(member, unfit=unfit)]
    worth = worth_elsewhere([member.path for member in members], unfit=unfit, tuned=from_encoders)
    candidates = fit_candidates(
        list(records.values()),
        costs,
        groups=groups_of(members, trials, learned=learned, tuned=tuned),
        worth=worth,
    )
    answer = answer_of(
        candidates, list(records.values()), members, worth=worth, trials=trials, prefer=prefer
    )
    needed = [member for member in members if member.name in answer.answer.members]
    kept_members: dict[Member, Sequence[Record]] = {}
    num_fitted_rows = []
    for member in sorted(needed, key=lambda member: -records[member].validation):
        record = last_fit(member, records[member])
        num_fitted_rows.append(record.about.get(NUM_FITTED))
        keep_record(folder, member, record)
        kept_members[keep(member)] = [record]
    if answer.answer.method != MAJORITY and None not in num_fitted_rows:
        answer = answer.model_copy(update={"num_fitted": num_fitted_rows[0]})
    answer = answer.model_copy(update={"kept": kept_lines(kept_members, folder)})
    names = [member.name for member in members]
    cost_of = dict(zip(names, costs, strict=True))
    worth_of = dict(zip(names, worth, strict=True))
    ensemble = ensemble_result(
        folder,
        kept_members,
        method=answer.answer.method,
        costs={member.name: cost_of[member.name] for member in needed},
        # By name, as a copy has another path than the model that it is of.
        worth=[worth_of[member.name] for member in kept_members],
    )
    ensemble = ensemble.model_copy(update={"answer": answer})
    _write_rows(folder, candidates, members, answer, next(iter(records.values())))
    write_text(folder / CARD_FILE, answer_card(folder, answer))
    write_result(folder, ensemble)
    return ensemble


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

    def is_answer(candidate: Fitted) -> bool:
        names = tuple(members[index].name for index in candidate.members)
        return candidate.method == answer.answer.method and names == answer.answer.members

    saved = next(filter(is_answer, candidates))
    write_answer_rows(folder, AnswerRows.of(saved.fold, record.labels))


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
    """Return the sets of models that are combined, as indices of the members, simple ones first.

    Args:
        members: The models.
        trials: Those of them that were trained, best first.
        learned: Those that learned rows which choose; they come last, and are taken where other rows show it.
        tuned: Those that learned labels, and predict each row by models that had not learned it.
    """
    lexical = [index for index, member in enumerate(members) if member.path in LEXICAL]
    free = [index for index, member in enumerate(members) if is_free(member.path)]
    trained = [index for index, member in enumerate(members) if member in trials]
    unlearned = [index for index in trained if members[index] not in learned]
    best_tuned = [index for index in unlearned if members[index] in tuned][:1]
    groups = [
        lexical,
        free,
        [*free, *best_tuned],
        [*free, *unlearned[:1]],
        [*free, *unlearned],
        unlearned,
    ]
    if len(unlearned) < len(trained):
        groups += [[*free, *trained[:1]], [*free, *trained], trained]
    distinct: dict[tuple[int, ...], None] = {}
    for group in groups:
        indices = tuple(sorted(set(group)))
        if len(indices) > 1:
            distinct[indices] = None
    return list(distinct)


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
        groups: Sets of models to combine, as their indices; see `groups_of`.
        worth: What each model is worth on other tables; see `worth_elsewhere`.
    """
    leading = [index for index in range(len(records)) if worth[index]]
    untrained = [index for index in leading if not records[index].score.learned] or leading
    candidates = []
    for index, record in enumerate(records):
        candidates.append(_fitted([index], [record], costs, worth, method=ALONE))
    # What learned the labels leads together with the encoder that it began with, and not alone.
    if untrained == leading and leading:
        candidates[leading[0]] = replace(candidates[leading[0]], step=0)
    for step, group in enumerate(groups, start=1):
        combined = _combined(group, records, costs, worth)
        if combined is not None and set(leading) <= set(group):
            combined = replace(combined, step=step)
        if combined is not None:
            candidates.append(combined)
    if all(candidate.step is None for candidate in candidates):
        candidates[untrained[0]] = replace(candidates[untrained[0]], step=0)
    if not records[0].targets.is_scored:
        # The most frequent class needs no model; the cheapest one with all rows stands for it.
        sizes = []
        for candidate in candidates[: len(records)]:
            cost = candidate.cost
            num_rows = len(candidate.fold.validation_rows)
            sizes.append((-num_rows, cost.num_bytes, cost.encode_ms))
        cheapest = sizes.index(min(sizes))
        candidates.append(_fitted([cheapest], [records[cheapest]], costs, worth, method=MAJORITY))
    return candidates


def _combined(
    group: Sequence[int],
    records: Sequence[Record],
    costs: Sequence[MemberCost],
    worth: Sequence[float],
) -> Fitted | None:
    """Return the combination of a group, without the models that it gives no weight; None where nothing is left.

    Nor is there one where what is left has more rows that choose: the candidate without the others is fitted on these.
    """
    group_records = compatible([records[index] for index in group])
    group_worth = [worth[index] for index in group]
    predictions, targets = fold_predictions(group_records, 0, worth=group_worth)
    weights = fit(predictions, targets, method=ANSWER).weights
    needed = []
    needed_records = []
    for index, record, weight in zip(group, group_records, weights, strict=True):
        if weight > 0:
            needed.append(index)
            needed_records.append(record)
    if not needed:
        return None
    without_others = compatible([records[index] for index in needed])
    if num_fitted(without_others) > num_fitted(group_records):
        return None
    # A row that chooses is predicted without it, by models that were left over without it too.
    crossed = held_out(predictions, targets, method=ANSWER)
    return _fitted(needed, needed_records, costs, worth, method=ANSWER, crossed=crossed)


def _fitted(
    indices: Sequence[int],
    records: Sequence[Record],
    costs: Sequence[MemberCost],
    worth: Sequence[float],
    *,
    method: str,
    crossed: Float64 | None = None,
) -> Fitted:
    """Return a candidate of some models.

    Args:
        indices: The models' indices.
        records: Their records, in the same order.
        costs: Of all models.
        worth: Of all models.
        method: How they are combined.
        crossed: Out-of-fold predictions of the rows that choose, where they are known.
    """
    predictions, targets = fold_predictions(records, 0, worth=[worth[index] for index in indices])
    fitted = fit(predictions, targets, method=method)
    test_predictions = as_predictions(
        [record.folds[0].test_log_probabilities for record in records]
    )
    if crossed is None:
        crossed = held_out(predictions, targets, method=method)
    fold = replace(
        records[0].folds[0],
        validation_log_probabilities=crossed,
        test_log_probabilities=fitted.combination(test_predictions),
    )
    by_weight = sorted(zip(-fitted.weights, indices, strict=True))
    return Fitted(
        members=tuple(index for _, index in by_weight),
        method=method,
        fold=fold,
        cost=total_cost([costs[index] for index in indices]),
        calibrated=calibrated(crossed, targets),
    )


def calibrated(log_probabilities: Float64, targets: Targets) -> Float64:
    """Return out-of-fold predictions of rows, scaled so that their probabilities are true; each row without itself.

    Models that are fitted to few rows are much surer than they are right, some of them more than others: without the
    scale, their log losses would not be compared by what they know.
    """
    if targets.is_scored:
        return log_probabilities
    return held_out(MemberPredictions([log_probabilities]), targets, method=ANSWER)


def to_take(label_logs: Sequence[Float64], steps: Sequence[int | None]) -> int:
    """Return the index of the candidate to take, by what rows say and, where they cannot, by what holds elsewhere.

    Args:
        label_logs: Of each candidate, the log-probability that it gives the right class of each row
            [candidates][rows].
        steps: Of each candidate, its rank in the order of what is taken first; see `Fitted`. One of them is 0.
    """
    first, *later = _in_order(steps)
    preferred = first
    for index in later:
        if _mean_gain(label_logs[index], label_logs[preferred]) > 0:
            preferred = index
    if len(label_logs[preferred]) < MIN_CHOOSING_ROWS:
        return preferred
    gains = [_mean_gain(of_candidate, label_logs[preferred]) for of_candidate in label_logs]
    best = gains.index(max(gains))
    differences = label_logs[best] - label_logs[preferred]
    standard_error = float(differences.std()) / math.sqrt(len(differences))
    if gains[best] > standard_error:
        return best
    return preferred


def _in_order(steps: Sequence[int | None]) -> list[int]:
    """Return the indices of the candidates that have a step, by rising steps."""
    ordered = sorted((step, index) for index, step in enumerate(steps) if step is not None)
    return [index for _, index in ordered]


def _mean_gain(label_logs: Float64, than_label_logs: Float64) -> float:
    """Return a mean paired difference; rounded, as sums in another order differ in their last bits."""
    return round(float((label_logs - than_label_logs).mean()), 9)


def _loss_of(candidate: Fitted, targets: Targets) -> float:
    """Return the log loss of a candidate in nats; of ratings, minus the correlation."""
    if targets.is_scored:
        return -targets.score(candidate.held_out)
    return -float(_of_labels(candidate, targets).mean())


def _of_labels(candidate: Fitted, targets: Targets) -> Float64:
    """Return the log-probability that a candidate gives the right class of each row, float64 [rows]."""
    rows = np.arange(len(targets))
    label_logs: Float64 = np.maximum(candidate.calibrated[rows, targets.labels], LOWEST_FEATURE)
    return label_logs


def choose(
    candidates: Sequence[Fitted], targets: Targets, *, task: str, prefer: Prefer | None = None
) -> tuple[int, BootstrapEstimate | None]:
    """Return the index of the candidate to take, and by how much the best one is above the most frequent class.

    Args:
        candidates: The candidates, simple ones first; one of method `majority` where the task has classes.
        targets: Of the rows that choose.
        task: The task's name, which seeds the resamples.
        prefer: As for `save_best`.
    """
    rows = np.arange(len(targets))
    resamples = Resamples.of(task, len(targets))
    estimates = resamples.estimates(
        [(rows, targets, candidate.held_out) for candidate in candidates]
    )
    majority = None
    models = []
    for index, candidate in enumerate(candidates):
        if candidate.method == MAJORITY:
            majority = index
        else:
            models.append(index)
    if targets.is_scored:
        best = _best_rated(candidates, estimates)
    else:
        label_logs = [_of_labels(candidates[index], targets) for index in models]
        best = models[to_take(label_logs, [candidates[index].step for index in models])]
    above = None
    if majority is not None:
        above = estimates[best].minus(estimates[majority])
        if len(targets) >= MIN_MAJORITY_ROWS:
            all_label_logs = [_of_labels(candidate, targets) for candidate in candidates]
            (drawn,) = resamples.means([(rows, np.column_stack(all_label_logs))])
            intervals = [estimates[index].minus(estimates[majority]).interval for index in models]
            intervals += [interval_of(drawn[:, index] - drawn[:, majority]) for index in models]
            if not any(low > 0 for low, _ in intervals):
                return majority, above
    if prefer is not None:
        best = _cheapest_near(best, candidates, estimates, models=models, prefer=prefer)
    return best, above


def _cheapest_near(
    best: int,
    candidates: Sequence[Fitted],
    estimates: Sequence[BootstrapEstimate],
    *,
    models: Sequence[int],
    prefer: Prefer,
) -> int:
    """Return the index of the cheapest model within one standard error of the best; of equal ones the better one."""
    behind = {index: estimates[best].minus(estimates[index]) for index in models}
    near = [index for index, estimate in behind.items() if estimate.value <= estimate.draws.std()]

    def cost_and_loss(index: int) -> tuple[float, float]:
        return getattr(candidates[index].cost, _COSTS[prefer]), behind[index].value

    return min(near, key=cost_and_loss)


def _best_rated(candidates: Sequence[Fitted], estimates: Sequence[BootstrapEstimate]) -> int:
    """Return the index of the candidate to take on rated pairs: as `to_take`, by correlations and their intervals."""
    correlations = [round(estimate.value, 9) for estimate in estimates]
    in_order = _in_order([candidate.step for candidate in candidates])
    preferred = max(in_order, key=lambda index: correlations[index])
    best = max(range(len(candidates)), key=lambda index: correlations[index])
    if estimates[best].minus(estimates[preferred]).interval[0] > 0:
        return best
    return preferred


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
    # The record with the fewest rows that choose, which all candidates have.
    first = compatible(records)[0]
    targets = first.targets
    common_rows = first.folds[0].validation_rows
    all_rows = max((candidate.fold.validation_rows for candidate in candidates), key=len)
    # What learned labels may have fewer rows than the others, and is compared with them by the rows of both.
    with_all_rows = []
    with_fewer_rows = []
    for index, candidate in enumerate(candidates):
        if len(candidate.fold.validation_rows) < len(all_rows):
            with_fewer_rows.append(index)
        else:
            with_all_rows.append(index)
    best, above = choose(
        [candidates[index] for index in with_all_rows],
        targets.take(all_rows),
        task=first.task,
        prefer=prefer,
    )
    answer_index = with_all_rows[best]
    losses = []
    scores = []
    for index, candidate in enumerate(candidates):
        rows = all_rows
        if index in with_fewer_rows:
            rows = common_rows
        at_rows = candidate.at(rows)
        losses.append(_loss_of(at_rows, targets.take(rows)))
        scores.append(targets.take(rows).score(at_rows.held_out))
    if with_fewer_rows:
        best_learned = min(with_fewer_rows, key=lambda index: round(losses[index], 9))
        if _is_better_at(common_rows, candidates[best_learned], candidates[answer_index], first):
            answer_index = best_learned

    def rank(index: int) -> tuple[bool, bool, float]:
        return index != answer_index, index in with_fewer_rows, round(losses[index], 9)

    order = sorted(range(len(candidates)), key=rank)
    test_rows = first.folds[0].test_rows
    test_targets = targets.take(test_rows)
    test_parts = [
        (test_rows, test_targets, candidate.fold.test_log_probabilities) for candidate in candidates
    ]
    tested = Resamples.of(first.task, len(targets)).estimates(test_parts)
    shown = []
    for index in order:
        log_loss = losses[index]
        shown.append(
            _as_shown(
                candidates[index],
                records,
                members,
                trials,
                validation=100 * float(scores[index]),
                log_loss=None if targets.is_scored else log_loss,
                tested=tested[index],
                behind=tested[answer_index].minus(tested[index]),
            )
        )
    simplest = None
    gain = None
    leader = _leader(worth, members)
    if leader is not None:
        simplest = order.index(leader)
        has_losses = not targets.is_scored and answer_index not in with_fewer_rows
        if has_losses and answer_index != leader:
            of_all = targets.take(all_rows)
            gain = _gain(candidates[answer_index], candidates[leader], of_all, task=first.task)
    majority = None
    for index, shown_candidate in enumerate(shown):
        if shown_candidate.method == MAJORITY:
            majority = index
    return Answer(
        task=first.task,
        metric="pearson" if targets.is_scored else first.metric,
        num_test=len(test_targets),
        prefer=prefer,
        taken=order.index(answer_index),
        simplest=simplest,
        majority=majority,
        over_majority=above,
        gain=gain,
        num_chosen=len(all_rows),
        candidates=tuple(shown),
    )


def _is_better_at(rows: np.ndarray, candidate: Fitted, rival: Fitted, record: Record) -> bool:
    """Return whether a candidate is above another by an interval on some of the rows that choose."""
    targets = record.targets.take(rows)
    parts = []
    for fitted in (candidate, rival):
        parts.append((rows, targets, fitted.fold.at(rows).validation_log_probabilities))
    resamples = Resamples.of(record.task, len(record.targets))
    of_candidate, of_rival = resamples.estimates(parts)
    return of_candidate.minus(of_rival).interval[0] > 0


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
    needed = [members[index] for index in candidate.members]
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
        learned=any(records[index].score.learned for index in candidate.members),
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
    if all(is_free(member.path) for member in members):
        return "free"
    return "baseline"


def _leader(worth: Sequence[float], members: Sequence[Member]) -> int | None:
    """Return the index of the simplest thing that could be taken: the model alone that is best elsewhere."""
    for index, member in enumerate(members):
        if worth[index] and is_free(member.path):
            return index
    return None


def _gain(taken: Fitted, simple: Fitted, targets: Targets, *, task: str) -> BootstrapEstimate:
    """Return by how much the log loss of what is taken is below that of a simpler candidate, in nats a row."""
    differences = _of_labels(taken, targets) - _of_labels(simple, targets)
    rows = np.arange(len(targets))
    (drawn,) = Resamples.of(task, len(targets)).means([(rows, differences[:, None])])
    return BootstrapEstimate.of(float(differences.mean()), drawn[:, 0])
