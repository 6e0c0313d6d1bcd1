"""The processor time of one decision in a sweep of 10,000 trials on 512 GPUs, without Ray.

A sweep is simulated in plain values: the production controller (ASHA), its budget, its ledger and the admission of
machines, with 64 machines of 8 GPUs and, but for `--samplers`, the cheapest sampler. Events are discarded, and nothing
is trained. Measured, by processor time, for the trials at the end, when everything that grows has grown:

    start      the controller draws a trial and asks the budget; with `--samplers`, mostly the proposal of each
    report     a report is recorded; scheduler and budget decide
    end        a trial ends
    charge     at a poll, every machine is charged
    left       at a poll of a sweep with a deadline, the time that all training left takes
    machines   at a poll, launches are admitted

    python -m benchmarks.decisions [--trials 10000] [--gpus 512] [--last 1000] [--samplers tpe,qmc] [--json]
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import parsed, show
from raysent.config import parse_yaml
from raysent.cost import Admission, Budget, Funds, Ledger, MachineType, Price
from raysent.sweeps import RandomSampler, SweepController
from raysent.sweeps.fleet import is_urgent
from raysent.sweeps.remaining import training_left_s
from raysent.sweeps.space import parse_space

SPACE = """
base: {{encoder: {{type: gru, hidden_size: 300}}, objective: {{type: context_prediction}}}}
search:
  encoder.hidden_size: {{choice: [150, 300, 600, 1200]}}
  training.learning_rate: {{loguniform: [1.0e-4, 1.0e-2]}}
limits: {{trials: {trials}, sampler: {sampler}, scheduler: {{type: asha}}}}
cost: {{usd_per_hour: 0.5}}
"""
GPUS_PER_MACHINE, NUM_REPORTS, REPORT_S, POLL_S = 8, 9, 60.0, 15.0
TYPES = tuple(
    MachineType(
        f"{market}-{name}",
        usd,
        market=market,
        priority=priority,
        max_machines=64,
        num_slots=GPUS_PER_MACHINE,
    )
    for market, priority in (("spot", 10), ("on-demand", 0))
    for name, usd in (("p4d", 32.8), ("g5", 16.3))
)


class Timer:
    """Processor seconds of each kind of decision, by the number of trials that were drawn."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[tuple[int, float]]] = {}

    def __call__(self, kind: str, num_trials: int, function: Callable[[], Any]) -> Any:
        """Call a function, and note how long it took."""
        started = time.process_time()
        result = function()
        self.seconds.setdefault(kind, []).append((num_trials, time.process_time() - started))
        return result

    def table(self, *, since: int) -> dict[str, dict[str, float]]:
        """Return mean, 99 % quantile and maximum in milliseconds, of decisions after so many trials."""
        found = {}
        for kind, timed in self.seconds.items():
            late = 1e3 * np.array([seconds for num, seconds in timed if num >= since])
            found[kind] = {
                "decisions": len(late),
                "mean_ms": round(float(late.mean()), 3),
                "p99_ms": round(float(np.quantile(late, 0.99)), 3),
                "max_ms": round(float(late.max()), 3),
            }
        return found


def simulate(
    *, num_trials: int, num_gpus: int, last: int, on_budget: str = "stop", sampler: str = ""
) -> dict[str, dict[str, float]]:
    """Run a sweep in plain values; return the times of its last trials' decisions, by kind."""
    space = parse_space(
        parse_yaml(SPACE.format(trials=num_trials, sampler=sampler or "random")), name="decisions"
    )
    budget = Budget(limit_usd=1e9, deadline_s=1e9, on_budget=on_budget)  # type: ignore[arg-type]
    proposes = None if sampler else RandomSampler(space, seed=1)
    controller = SweepController(space, seed=1, write=_forget, budget=budget, sampler=proposes)
    admission = Admission(TYPES, budget, boot_s=300.0)
    ledger, chance, timer = Ledger(_forget), random.Random(1), Timer()
    running: list[tuple[float, str]] = []
    now, next_poll = 0.0, 0.0
    num_machines = 0

    def charge() -> None:
        for name, node in ledger.nodes.items():
            ledger.reprice(name, node.price, now_s=now)

    def poll() -> None:
        nonlocal num_machines
        trials, num_drawn = controller.trials.values(), len(controller.trials)
        timer("charge", num_drawn, charge)
        funds = ledger.funds(elapsed_s=now)
        left = partial(
            training_left_s, trials, num_to_draw=num_trials - num_drawn, num_slots=num_gpus
        )
        urgent = is_urgent(budget, funds, left_s=timer("left", num_drawn, left), boot_s=300.0)
        alive = {TYPES[0].name: num_machines}
        admit = partial(
            admission.plan,
            now_s=now,
            num_slots=num_gpus,
            funds=funds,
            running=alive,
            is_urgent=urgent,
        )
        plan = timer("machines", num_drawn, admit)
        for _ in range(plan.targets[TYPES[0].name] - num_machines):
            ledger.open(f"i-{num_machines}", Price(32.8, 32.8, "spot", "list"), now_s=now)
            num_machines += 1
        admission.launched(TYPES[0].name, total=num_machines)

    def funds() -> Funds:
        return admission.with_in_flight(ledger.funds(elapsed_s=now))

    def start() -> bool:
        trial = timer("start", len(controller.trials), lambda: controller.suggest(funds()))
        if trial is not None:
            heapq.heappush(running, (now + REPORT_S * chance.uniform(0.5, 1.5), trial.name))
        return trial is not None

    def report(name: str, values: dict[str, Any]) -> bool:
        return controller.report(name, **values, funds=funds())

    poll()
    while len(running) < num_gpus and start():
        pass
    while running:
        now, name = heapq.heappop(running)
        if now >= next_poll:
            next_poll = now + POLL_S
            poll()
        trial, score = controller.trials[name], {space.metric: chance.random()}
        index, seconds = trial.index + 1, trial.seconds + REPORT_S
        values = {
            "index": index,
            "num_reports": NUM_REPORTS,
            "metrics": score,
            "seconds": seconds,
            "usd": seconds / 900,
        }
        keeps = timer("report", len(controller.trials), partial(report, name, values))
        if keeps and index < NUM_REPORTS:
            heapq.heappush(running, (now + REPORT_S * chance.uniform(0.5, 1.5), name))
            continue
        status = "finished" if index == NUM_REPORTS else "stopped"
        timer("end", len(controller.trials), partial(controller.end, name, status=status))
        start()
    assert len(controller.trials) == num_trials
    return timer.table(since=num_trials - last)


def _forget(*_: Any, **__: Any) -> None:
    """Discard an event."""


def main() -> None:
    """Print the times of both ways to end a budget, and of further samplers."""
    options = parsed(__doc__, trials=10_000, gpus=512, last=1000, samplers="")
    ways = [{"on_budget": "stop"}, {"on_budget": "finish-rung"}]
    ways += [{"sampler": name} for name in filter(None, options.samplers.split(","))]
    sizes = {"num_trials": options.trials, "num_gpus": options.gpus, "last": options.last}
    found = {", ".join(way.values()): simulate(**sizes, **way) for way in ways}
    show(found, options)


if __name__ == "__main__":
    main()
