"""Which trials of a sweep are worth judging: the best of each kind first, then the best of all."""

from __future__ import annotations

from collections.abc import Sequence

from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import Trial


def select_members(space: SearchSpace, trials: Sequence[Trial], *, num_members: int | None = None) -> list[Trial]:
    """Return the trials that may join an ensemble, best first.

    The best trial of each value of the searched name `judge.each` comes first, so that every kind of encoder is
    there; the rest is filled by the metric. Whole runs come before those that were stopped early.

    Args:
        space: Says the metric, and `judge`.
        trials: The sweep's trials.
        num_members: How many; None for `judge.members`, but never fewer than there are kinds.
    """
    sign = -1 if space.mode == "max" else 1
    usable = [
        trial
        for trial in trials
        if trial.status in ("finished", "stopped", "nan") and trial.metrics.get(space.metric) is not None
    ]
    ranked = sorted(usable, key=lambda trial: (trial.status != "finished", sign * (trial.metrics[space.metric] or 0.0)))
    chosen: list[Trial] = []
    if space.judge.each is not None:
        kinds: set[str] = set()
        for trial in ranked:
            kind = repr(trial.params.get(space.judge.each))
            if kind not in kinds:
                kinds.add(kind)
                chosen.append(trial)
    wanted = max(space.judge.members if num_members is None else num_members, len(chosen))
    chosen += [trial for trial in ranked if trial not in chosen][: wanted - len(chosen)]
    return sorted(chosen, key=ranked.index)
