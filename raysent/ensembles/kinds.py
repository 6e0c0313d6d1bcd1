"""The best model of each kind of encoder together: what is saved in `RUN/kinds`, and what each adds to the others.

In: one model of each kind, and what each scored. Out: an ensemble of them in a folder of its own, in which each model
counts by its validation score on a task, and `kinds.json` beside it. What a kind adds is the test score of all of them
minus that of the others, whose weights are then their own; what the combination adds is that score minus the one of the
model that is best on validation. Both are paired by row, and have intervals.

Source: Logeswaran and Lee, 2018, section 4.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.ensembles.combining import Members, ensemble_result
from raysent.ensembles.kept import keep_record, kept
from raysent.ensembles.methods import ENSEMBLE
from raysent.ensembles.result import EnsembleResult, member_cost, write_result
from raysent.ensembles.task_ensemble import score_methods
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import BootstrapEstimate, mean_estimate
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.evaluation.task import Task
from raysent.storage import address_of, read_json, remove_folder, write_json
from raysent.storage.layout import KINDS_FILE, KINDS_FOLDER, MEMBERS_FOLDER

# The paper's rule: log-probabilities, averaged with validation scores as weights.
_METHOD = "validation"


class _KindScore(StrictModel):
    """One kind of encoder.

    Attributes:
        kind: Its label in the search space.
        member: The name of its model.
        has_ended: Whether that came to its end; a model that was stopped stands in where none of its kind did.
        validation: Its score by which it counts, in percent; the mean over tasks.
        test: Its score on test rows, alone.
        adds: Points of test score that all kinds together have above the others; paired.
    """

    kind: str
    member: str
    has_ended: bool
    validation: float
    test: BootstrapEstimate
    adds: BootstrapEstimate


class Kinds(StrictModel):
    """One model of each kind, and all of them together.

    Attributes:
        tasks: The tasks whose mean the scores are.
        kinds: Each kind, by falling validation score.
        together: The test score of all of them.
        over_best: `together` minus the score of the first kind; paired.
        absent: Kinds that have left no model.
    """

    tasks: tuple[str, ...]
    kinds: tuple[_KindScore, ...]
    together: BootstrapEstimate
    over_best: BootstrapEstimate
    absent: tuple[str, ...] = ()

    @property
    def of_tasks(self) -> str:
        """What the scores are of, in words."""
        if len(self.tasks) == 1:
            return self.tasks[0]
        return f"mean of {len(self.tasks)} tasks"

    @property
    def remarks(self) -> list[str]:
        """Lines about kinds that have left no model, or none that came to its end."""
        lines = []
        for score in self.kinds:
            if not score.has_ended:
                lines.append(
                    f"no trial of {score.kind} came to its end: {score.member}, its best, stands for it as it was "
                    "stopped"
                )
        lines += [f"no trial of {kind} has left a model" for kind in self.absent]
        return lines


def save_kinds(
    members: Mapping[str, Member],
    evaluator: Evaluator,
    *,
    run: Path,
    tasks: Sequence[str | Task],
    ended: Mapping[str, bool],
    absent: Sequence[str] = (),
) -> Kinds | None:
    """Combine one model of each kind, and save them in a run's folder with copies of them.

    Args:
        members: Kind -> its model; fewer than two are not combined.
        evaluator: Reads their records, or makes them.
        run: The run's folder.
        tasks: Tasks with a probe.
        ended: Kind -> whether its model came to its end.
        absent: Kinds without a model.

    Returns:
        What was saved; None where it was nothing.

    Raises:
        RaysentError: If a model cannot be read, records cannot be combined, or the folder cannot be written.
    """
    folder = run / KINDS_FOLDER
    remove_folder(folder, below=run)
    records = evaluator.records(list(members.values()), tasks)
    by_kind = {kind: member for kind, member in members.items() if records.get(member)}
    if len(by_kind) < 2:
        return None
    ranked = sorted(by_kind, key=lambda kind: -_validation(records[by_kind[kind]]))
    ranked_records = {by_kind[kind]: records[by_kind[kind]] for kind in ranked}
    keep = partial(kept, members_folder=folder / MEMBERS_FOLDER)
    kept_members: dict[Member, Sequence[Record]] = {}
    costs = {}
    for member, of_member in ranked_records.items():
        for record in of_member:
            keep_record(folder, member, record)
        kept_members[keep(member)] = of_member
        costs[member.name] = member_cost(member, of_member)
    ensemble = ensemble_result(folder, kept_members, method=_METHOD, costs=costs)
    ranked_kinds = {kind: by_kind[kind] for kind in ranked}
    kinds = _kinds(ensemble, ranked_records, ranked_kinds, ended)
    kinds = kinds.model_copy(update={"absent": tuple(absent)})
    write_json(folder / KINDS_FILE, kinds.model_dump(mode="json"))
    write_result(folder, ensemble)
    return kinds


def read_kinds(run: Path) -> Kinds | None:
    """Return what a run's folder says of its kinds; None where it has none.

    Raises:
        ArtifactError: If the file is damaged, or of another version.
    """
    file = run / KINDS_FOLDER / KINDS_FILE
    if not file.is_file():
        return None
    try:
        return Kinds.model_validate(read_json(file), strict=False)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{address_of(file)}: not of this version of raysent ({key}: {first['msg']}); resume the sweep"
        ) from None


def kinds_line(run: Path, kinds: Kinds) -> str:
    """Return where one model of each kind is saved together, and what that is worth."""
    low, high = kinds.over_best.interval
    gain = f"{kinds.over_best.value:+.1f} points ({low:+.1f} to {high:+.1f}) above {kinds.kinds[0].kind}"
    return f"Ensemble of the kinds: {address_of(run / KINDS_FOLDER)} {kinds.together.value:.1f}, {gain}"


def _kinds(
    ensemble: EnsembleResult,
    members: Members,
    by_kind: Mapping[str, Member],
    ended: Mapping[str, bool],
) -> Kinds:
    """Return what each kind and all of them together score, and what each adds."""
    of_tasks = dict(zip(ensemble.tasks, zip(*members.values(), strict=True), strict=True))
    # Correlations have no place in a mean of accuracies; they count where all are.
    counted = [task for task in of_tasks if ensemble.tasks[task].metric != "pearson"]
    counted = counted or list(of_tasks)
    together = mean_estimate([ensemble.tasks[task].scores[ENSEMBLE].tested for task in counted])
    scores = []
    for kind_index, (kind, member) in enumerate(by_kind.items()):
        alone = [ensemble.tasks[task].scores[member.name] for task in counted]
        without = []
        for task in counted:
            records = list(of_tasks[task])
            del records[kind_index]
            without.append(_tested(records))
        score = _KindScore(
            kind=str(kind),
            member=member.name,
            has_ended=ended[kind],
            validation=float(np.mean([of_task.validation for of_task in alone])),
            test=mean_estimate([of_task.tested for of_task in alone]),
            adds=together.minus(mean_estimate(without)),
        )
        scores.append(score)
    return Kinds(
        tasks=tuple(counted),
        kinds=tuple(scores),
        together=together,
        over_best=together.minus(scores[0].test),
    )


def _tested(records: Sequence[Record]) -> BootstrapEstimate:
    """Return the test score of models together on one task."""
    return score_methods(records, [_METHOD])[_METHOD].tested


def _validation(records: Sequence[Record]) -> float:
    return float(np.mean([record.validation for record in records]))
