"""The one model to take on a task: chosen among everything that was scored on it, and saved as an ensemble.

Candidates are the most frequent class, every model alone, trained or not, a soup of trials that began with one model,
and combinations: of the lexical models, of what needs no training, of the trials, of both, and of everything, each by
the base rule and by what fits weights of so few or so many rows (see `lexical_method`). The best candidate has the
highest score of out-of-fold predictions in the task's own metric, of equals the lowest log loss. The first of many is
partly the luckiest, so the combination of what needs no training and the best trial is taken unless the best candidate
is above it by a paired interval. Measured on eight tables with 32, 100, 300 and 1,000 labels, five of them with vectors
that know their words, against the better of two TF-IDF on the test rows: -0.0, +0.0, +1.4 and +0.9 points; the best
candidate alone -1.0, -0.9, +0.7 and +0.7. A soup is no part of what is taken first, as nothing was measured with one.
Nor is a model that learned the task's labels, where others were trained: rows that it learned from cannot choose it.
The others are fitted and chosen by all rows, and compared with what has it by those that it did not learn from.

The most frequent class is taken where no candidate is above it by a paired interval, in the metric or the log loss, of
a few hundred rows or more: fewer show no difference that is there. The rows that choose are those that train; test rows
are scored alone.

`RUN/best` holds the answer, or `RUN/best/TASK` with several tasks, and a copy of each model that it needs, so that the
folder can be moved alone. `RUN/encoder` is the best single model that has vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from raysent.ensembles.answer import MAJORITY, Answer, Candidate, answer_card
from raysent.ensembles.combining import Members, ensemble_result
from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.methods import fit, lexical_method
from raysent.ensembles.pools import LOWEST_FEATURE
from raysent.ensembles.predictions import as_predictions
from raysent.ensembles.result import (
    EnsembleResult,
    MemberCost,
    member_cost,
    total_cost,
    write_result,
)
from raysent.ensembles.soup import save_soup
from raysent.ensembles.task_ensemble import compatible, fold_predictions, num_fitted
from raysent.evaluation.baselines import LEXICAL, is_free
from raysent.evaluation.bootstrap import BootstrapEstimate, Resamples, interval_of
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, Model, expand, model_key
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.records import Record, record_folder, write_record
from raysent.evaluation.targets import Float64, Targets, best_of
from raysent.evaluation.task import Task
from raysent.models import SentenceModel
from raysent.models import load as load_model
from raysent.models.schemes import split_path
from raysent.storage import path_below, read_json, remove_folder, write_json, write_text
from raysent.storage.layout import (
    BEST_FOLDER,
    CARD_FILE,
    ENCODER_FOLDER,
    EVALUATION_FOLDER,
    MEMBERS_FOLDER,
    RUN_FILE,
)

Prefer = Literal["speed", "size"]
# The method of a model alone, whose weight is 1.
ALONE = "uniform"
BASE_RULE = "validation"
# Fewer rows than this do not show a difference from the most frequent class.
MIN_MAJORITY_ROWS = 300
_COSTS: Mapping[Prefer, str] = {"speed": "encode_ms", "size": "num_bytes"}


@dataclass(frozen=True)
class Fitted:
    """A candidate's predictions.

    Attributes:
        members: Places of the models that it needs.
        method: How they are combined.
        fold: Log-probabilities of the rows that may choose, out of fold, and of the test rows.
        cost: Of its models together.
        is_first: Whether it is taken unless another is better by an interval.
    """

    members: tuple[int, ...]
    method: str
    fold: FoldResult
    cost: MemberCost
    is_first: bool = False

    @property
    def held_out(self) -> Float64:
        """Out-of-fold log-probabilities of the rows that may choose, [rows, classes]."""
        return self.fold.validation_log_probabilities


def save_best(
    models: Sequence[Model],
    evaluator: Evaluator,
    *,
    run: Path,
    tasks: Sequence[str | Task] | None = None,
    baselines: bool = True,
    prefer: Prefer | None = None,
) -> list[EnsembleResult]:
    """Choose the model to take on each task, and the best with vectors, and save them into a run's folder.

    Args:
        models: The trials, best first.
        evaluator: Reads their records, or makes them.
        run: The run's folder.
        tasks: As for `Evaluator.records`.
        baselines: Whether those that cost something take part; free ones always do.
        prefer: Takes the cheapest candidate within one standard error of what is taken else: the fastest, or smallest.

    Returns:
        What was saved for each task.

    Raises:
        RaysentError: If a model cannot be read, records cannot be combined, or the folder cannot be written.
    """
    trials = expand(models)
    others = [one for one in evaluator.baselines(trials, tasks) if baselines or is_free(one.path)]
    records = evaluator.records([*trials, *others], tasks)
    trials = [trial for trial in trials if trial in records]
    if soup := save_soup({one: records[one] for one in trials}, evaluator, run=run, tasks=tasks):
        trials, records = [*trials, soup[0]], {**records, soup[0]: soup[1]}
    num_tasks = len(next(iter(records.values())))
    remove_folder(run / BEST_FOLDER, below=run)
    found = []
    for place in range(num_tasks):
        of_task = {member: of_member[place] for member, of_member in records.items()}
        task = next(iter(of_task.values())).task
        folder = run / BEST_FOLDER
        if num_tasks > 1:
            folder = path_below(folder, task)
        found.append(_save(folder, of_task, trials, prefer))
    save_encoder(run, records)
    return found


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
                _write_record(run / ENCODER_FOLDER, member, record)
            return


def _save(
    folder: Path, records: Mapping[Member, Record], trials: Sequence[Member], prefer: Prefer | None
) -> EnsembleResult:
    members = list(records)
    costs = [member_cost(one, [record]) for one, record in records.items()]
    learned = [one for one in members if records[one].score.learned]
    candidates = fit_candidates(
        list(records.values()), costs, groups=groups_of(members, trials, learned=learned)
    )
    answer = answer_of(
        candidates, list(records.values()), [one.name for one in members], prefer=prefer
    )
    needed = [one for one in members if one.name in answer.answer.members]
    kept: dict[Member, Sequence[Record]] = {}
    for member in sorted(needed, key=lambda one: -records[one].validation):
        _write_record(folder, member, records[member])
        kept[copied(member, folder / MEMBERS_FOLDER / member.folder)] = [records[member]]
    known = {one.name: cost for one, cost in zip(members, costs, strict=True) if one in needed}
    result = ensemble_result(folder, kept, method=answer.answer.method, costs=known)
    result = result.model_copy(update={"answer": answer})
    write_text(folder / CARD_FILE, answer_card(folder, answer))
    write_result(folder, result)
    return result


def _write_record(folder: Path, member: Member, record: Record) -> None:
    write_record(record_folder(folder / EVALUATION_FOLDER / member.folder, record.protocol), record)


def copied(member: Member, folder: Path) -> Member:
    """Return a member with a copy of its model in a folder; one that a name alone determines, or pretrained, itself."""
    if split_path(member.path)[1] is None:
        return member
    model = load_model(member.path)
    if not isinstance(model, SentenceModel):
        return member
    model.save(folder)
    settings = Path(member.path) / RUN_FILE
    if settings.is_file():  # a training's: what it was trained on
        write_json(folder / RUN_FILE, read_json(settings))
    return replace(member, path=str(folder), key=model_key(str(folder)))


def groups_of(
    members: Sequence[Member], trials: Sequence[Member], *, learned: Collection[Member] = ()
) -> list[tuple[int, ...]]:
    """Return the sets of models that are combined, as places among the members; the one to take first comes first.

    Sets without what learned the task's labels come first: it is taken where rows show that it is better.
    """
    lexical = [place for place, one in enumerate(members) if one.path in LEXICAL]
    free = [place for place, one in enumerate(members) if is_free(one.path)]
    trained = [place for place, one in enumerate(members) if one in trials]
    sets: list[list[int]] = []
    for left_out in (
        (learned, ()) if any(members[place] not in learned for place in trained) else ((),)
    ):
        kept = [place for place in trained if members[place] not in left_out]
        whole = [place for place, one in enumerate(members) if one not in left_out]
        sets += [[*free, *kept[:1]], lexical, free, kept, [*free, *kept], whole]
    return list(
        dict.fromkeys(tuple(sorted(set(places))) for places in sets if len(set(places)) > 1)
    )


def fit_candidates(
    records: Sequence[Record], costs: Sequence[MemberCost], *, groups: Sequence[Sequence[int]]
) -> list[Fitted]:
    """Return every candidate on one task, each model alone first.

    Args:
        records: The models' records.
        costs: The models' costs.
        groups: Sets of models to combine, as places among them; see `groups_of`.
    """
    folds = [record.folds[0] for record in records]
    sizes = [
        (-len(one.validation_rows), of.num_bytes, of.encode_ms)
        for one, of in zip(folds, costs, strict=True)
    ]
    cheapest = sizes.index(min(sizes))
    asked: Iterator[tuple[Sequence[int], str | None]] = chain(
        (((place,), ALONE) for place in range(len(records))),
        ((group, method) for group in groups for method in (None, BASE_RULE)),
        () if records[0].targets.is_scored else [((cheapest,), MAJORITY)],
    )
    found = []
    for group, given in asked:
        some = compatible(
            [records[place] for place in group]
        )  # those without labels learned have more rows
        method = given or lexical_method(num_fitted(some))
        fitted = cross_fit(*fold_predictions(some, 0), method=method)
        # Some methods give most models no weight: they are not needed, and without them the others weigh otherwise.
        places = [
            place for weight, place in zip(fitted.fitted.weights, group, strict=True) if weight > 0
        ]
        needed = compatible([records[place] for place in places])
        if num_fitted(needed) > num_fitted(some):
            continue  # what learned labels has no weight: the candidate without it is fitted on more rows
        saved = fit(*fold_predictions(needed, 0), method=method)
        tested = saved.combination(
            as_predictions([folds[place].test_log_probabilities for place in places])
        )
        # A row that chooses is predicted without it, by models that were left over without it too.
        fold = replace(
            some[0].folds[0],
            validation_log_probabilities=fitted.held_out,
            test_log_probabilities=tested,
        )
        members = tuple(
            place for _, place in sorted(zip(-saved.weights, places, strict=True))
        )  # by weight
        cost = total_cost([costs[place] for place in places])
        found.append(
            Fitted(members, method, fold, cost, is_first=given is None and group == groups[0])
        )
    return found


def choose(
    candidates: Sequence[Fitted], targets: Targets, *, task: str, prefer: Prefer | None = None
) -> tuple[int, BootstrapEstimate | None]:
    """Return the place of the candidate to take, and by how much the best one is above the most frequent class.

    Args:
        candidates: The candidates; one of method `majority` where the task has classes.
        targets: Of the rows that choose.
        task: The task's name, which seeds the resamples.
        prefer: As for `save_best`.
    """
    rows = np.arange(len(targets))
    resamples = Resamples.of(task, len(targets))
    estimates = resamples.estimates([(rows, targets, one.held_out) for one in candidates])
    majority = next((place for place, one in enumerate(candidates) if one.method == MAJORITY), None)
    models = [place for place in range(len(candidates)) if place != majority]
    best = models[best_of(targets.measure([candidates[place].held_out for place in models]))]
    above = None if majority is None else estimates[best].minus(estimates[majority])
    if majority is not None and len(targets) >= MIN_MAJORITY_ROWS:
        right = [
            np.maximum(one.held_out[rows, targets.labels], LOWEST_FEATURE) for one in candidates
        ]
        (drawn,) = resamples.means([(rows, np.column_stack(right))])
        gains = (interval_of(drawn[:, place] - drawn[:, majority])[0] for place in models)
        lowest = (estimates[place].minus(estimates[majority]).interval[0] for place in models)
        if not any(low > 0 for low in chain(lowest, gains)):
            return majority, above
    first = next((place for place in models if candidates[place].is_first), best)
    taken = best if estimates[best].minus(estimates[first]).interval[0] > 0 else first
    if prefer is None:
        return taken, above
    behind = {place: estimates[taken].minus(estimates[place]) for place in models}
    near = [place for place, one in behind.items() if one.value <= one.draws.std()]
    cost = _COSTS[prefer]
    return min(
        near, key=lambda place: (getattr(candidates[place].cost, cost), behind[place].value)
    ), above


def answer_of(
    candidates: Sequence[Fitted],
    records: Sequence[Record],
    names: Sequence[str],
    *,
    prefer: Prefer | None = None,
) -> Answer:
    """Return the answer on one task, with all candidates by falling score of the rows that may choose them."""
    first = compatible(records)[0]
    least, targets = first.folds[0], first.targets
    common, tests = least.validation_rows, targets.take(least.test_rows)
    # What learned labels may have fewer rows than what is taken first.
    whole = next((one.fold for one in candidates if one.is_first), least).validation_rows
    fewer = [
        place for place, one in enumerate(candidates) if len(one.fold.validation_rows) < len(whole)
    ]
    others = [place for place in range(len(candidates)) if place not in fewer]
    seen = [
        replace(one, fold=one.fold.at(common if k in fewer else whole))
        for k, one in enumerate(candidates)
    ]
    chosen, above = choose(
        [seen[place] for place in others], targets.take(whole), task=first.task, prefer=prefer
    )
    scores = [targets.take(one.fold.validation_rows).measure([one.held_out])[0] for one in seen]
    order = sorted(range(len(candidates)), key=lambda place: (place in fewer, *-scores[place]))
    resamples, taken = Resamples.of(first.task, len(targets)), others[chosen]
    if fewer:
        pair = [
            seen[place].fold.at(common).validation_log_probabilities
            for place in (order[len(others)], taken)
        ]
        learned, plain = resamples.estimates([(common, targets.take(common), one) for one in pair])
        taken = order[len(others)] if learned.minus(plain).interval[0] > 0 else taken
    tested = resamples.estimates(
        [(least.test_rows, tests, one.fold.test_log_probabilities) for one in candidates]
    )
    shown = tuple(
        Candidate(
            members=tuple(names[member] for member in candidates[place].members),
            method=candidates[place].method,
            validation=100 * float(scores[place][0]),
            test=tested[place].value,
            interval=tested[place].interval,
            behind=tested[taken].minus(tested[place]),
            encode_ms=candidates[place].cost.encode_ms,
            num_bytes=candidates[place].cost.num_bytes,
            learned=any(records[member].score.learned for member in candidates[place].members),
        )
        for place in order
    )
    alone = [
        place
        for place, one in enumerate(shown)
        if one.method == ALONE and one.members[0] in LEXICAL
    ]
    majority = [place for place, one in enumerate(shown) if one.method == MAJORITY]
    return Answer(
        task=first.task,
        metric="pearson" if targets.is_scored else first.metric,
        num_test=len(tests),
        prefer=prefer,
        taken=order.index(taken),
        simplest=next(iter(alone), None),
        majority=next(iter(majority), None),
        over_majority=above,
        candidates=shown,
    )
