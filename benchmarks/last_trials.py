"""What it saves that machines end as fewer trials are left, and what fewer machines from the start would.

    python -m benchmarks.last_trials [--sweeps 60]

The times of trials are those of `benchmarks.simulation`: the real controller and scheduler, on as many machines of one
trial as there are places. Here the same trials are placed on machines of several places, in the order in which they
started, on the fullest machine with a free place; a machine takes `BOOT_S` to start. Three ways in which machines end:

    idle        five minutes after their last trial, as Ray's autoscaler ends them
    released    as `raysent.cost.spare` says: at the next poll without trials, else when theirs have moved, each of
                which goes on `MOVE_S` later; they move only if the longest has more than five minutes left
    packed      as many machines at any moment as the trials of that moment fill: no way does better at this speed

Then the dollars of whole simulated sweeps with fewer machines from the start, as a plan for a late deadline has them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.budget import SPACE
from benchmarks.common import parsed, show
from benchmarks.simulation import Simulator, scenario_for
from raysent.cluster.fleet import MOVE_DRAINS
from raysent.config import parse_yaml
from raysent.cost import Budget, parse_duration, spare
from raysent.sweeps.space import SearchSpace, parse_space

# Seconds: a start, a move of a trial, the time between polls, Ray's idle time, the drain, the shortest tail to move in.
BOOT_S, MOVE_S, POLL_S, IDLE_S = 95.0, 45.0, 15.0, 300.0
SHAPES = ((8, 1), (4, 2), (2, 4), (4, 4), (8, 4))
TRIALS = (24, 60, 200)


@dataclass
class _Trial:
    machine: int
    start_s: float
    end_s: float


def placed(seconds: list[float], machines: int, slots: int, *, releases: bool) -> tuple[list[_Trial], dict[int, float]]:
    """Return trials in their places, and machine -> its end."""
    drain_s = parse_duration("60s")
    trials: list[_Trial] = []
    ended: dict[int, float] = {}
    now, waiting = 0.0, list(seconds)
    while True:
        running = [one for one in trials if one.end_s > now]
        taken = {number: sum(one.machine == number for one in running) for number in range(machines)}
        alive = [number for number in range(machines) if ended.get(number, math.inf) > now]
        while waiting and (free := [one for one in alive if taken[one] < slots]):
            number = max(free, key=lambda one: (taken[one], -one))
            trials.append(_Trial(number, now, now + waiting.pop(0)))
            taken[number] += 1
        running = [one for one in trials if one.end_s > now]
        if not running:
            break
        if releases and not waiting:
            staying = [one for one in alive if one not in ended]
            longest = max(one.end_s for one in running) - now
            shape, trials_of = {str(one): slots for one in staying}, {str(one): taken[one] for one in staying}
            for name in spare(shape, trials_of, num_needed=len(running), may_move=longest > MOVE_DRAINS * drain_s):
                number = int(name)
                ended[number] = now + POLL_S + (drain_s if taken[number] else 0.0)
                others = [one for one in staying if one not in ended]
                for one in [trial for trial in running if trial.machine == number and trial.end_s > ended[number]]:
                    to = max((other for other in others if taken[other] < slots), key=taken.__getitem__)
                    taken[to] += 1
                    one.machine, one.end_s = to, one.end_s + MOVE_S
        now = min(one.end_s for one in running)
    for number in range(machines):
        last = max((one.end_s for one in trials if one.machine == number), default=0.0)
        if last or number in ended:
            ended.setdefault(number, last + (POLL_S if releases else IDLE_S))
    return trials, ended


def machine_s(ended: dict[int, float]) -> float:
    """Return the seconds that all machines are paid for."""
    return sum(ended.values()) + BOOT_S * len(ended)


def packed_s(trials: list[_Trial], slots: int, num_machines: int) -> float:
    """Return the seconds of as many machines at any moment as its trials fill."""
    times = sorted({at for one in trials for at in (one.start_s, one.end_s)})
    total = BOOT_S * num_machines
    for since, until in itertools.pairwise(times):
        running = sum(one.start_s <= since < one.end_s for one in trials)
        total += (until - since) * math.ceil(running / slots)
    return total


def _space(trials: int) -> SearchSpace:
    return parse_space(parse_yaml(SPACE.replace("trials: 24", f"trials: {trials}")), name="last_trials")


def _simulated(space: SearchSpace, machines: int, market: str, *, seed: int, head_usd: float = 0.0) -> Any:
    scenario = scenario_for(space, usd_per_hour=0.526, num_machines=machines, market=market)  # type: ignore[arg-type]
    scenario = replace(scenario, head_usd_per_hour=head_usd, attached_usd_per_hour=0.02, kill_share=0.0)
    return Simulator(space, scenario, Budget(), seed=seed).run()


def tails(num_sweeps: int) -> dict[str, Any]:
    """Return machine-hours of the three ways, as a part of `idle`, and how much longer a sweep with moves takes."""
    found = {}
    for trials in TRIALS:
        space = _space(trials)
        for machines, slots in SHAPES:
            sums = dict.fromkeys(("idle", "released", "packed", "length", "length, released"), 0.0)
            for seed in range(num_sweeps):
                swept = _simulated(space, machines * slots, "on-demand", seed=seed)
                seconds = [one.seconds for one in sorted(swept.trials, key=lambda one: one.number) if one.seconds]
                plain, ended = placed(seconds, machines, slots, releases=False)
                moved, early = placed(seconds, machines, slots, releases=True)
                sums["idle"] += machine_s(ended)
                sums["released"] += machine_s(early)
                sums["packed"] += packed_s(plain, slots, len(ended))
                sums["length"] += max(one.end_s for one in plain)
                sums["length, released"] += max(one.end_s for one in moved)
            found[f"{trials} trials on {machines} machines of {slots}"] = {
                "machine-hours, idle": round(sums["idle"] / num_sweeps / 3600, 2),
                "released": round(sums["released"] / sums["idle"], 3),
                "packed": round(sums["packed"] / sums["idle"], 3),
                "hours, idle": round(sums["length"] / num_sweeps / 3600, 2),
                "released, of its hours": round(sums["length, released"] / sums["length"], 3),
            }
    return found


def fewer(num_sweeps: int) -> dict[str, Any]:
    """Return dollars and hours of whole sweeps of 24 and 60 trials with 8, 4, 2 machines or 1 of one place each."""
    found = {}
    for trials in TRIALS[:2]:
        space = _space(trials)
        for market in ("on-demand", "auto"):
            for machines in (8, 4, 2, 1):
                swept = [_simulated(space, machines, market, seed=seed, head_usd=0.192) for seed in range(num_sweeps)]
                found[f"{trials} trials, {market}, {machines} machines"] = {
                    "usd": round(sum(one.billed_usd for one in swept) / num_sweeps, 2),
                    "hours": round(sum(one.seconds for one in swept) / num_sweeps / 3600, 2),
                }
    return found


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, sweeps=60)
    show({**tails(options.sweeps), **fewer(options.sweeps)}, options)


if __name__ == "__main__":
    main()
