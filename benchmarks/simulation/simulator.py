"""`Simulator`: one sweep with the real controller and ledger, on simulated machines and trials."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.simulation.machines import (
    HEAD,
    NO_NOTICE_SHARE,
    NOTICE_S,
    PRICE_LAG_S,
    UNREAD_SHARE,
    Machine,
    Machines,
    Zone,
)
from benchmarks.simulation.workload import Scenario, SimulatedTrial, make_workload
from raysent.cost import Admission, Budget, Entry, Funds, Ledger, MachineType, Price
from raysent.cost.budget import ALONE_S, CHECK_S, GRACE_S, LEASE_S
from raysent.sweeps import (
    ENDED,
    Event,
    RandomSampler,
    Sampler,
    SweepController,
    Trial,
    derived_seed,
)
from raysent.sweeps.ranking import best_trial
from raysent.sweeps.space import SearchSpace

BOOT_S = (40.0, 150.0)
# Time from an admission to the cloud's answer, and the time after which a refused type is tried again.
LAUNCH_S, RETRY_S = (1.0, 30.0), 180.0
# Fractions of launches whose set-up fails, and whose Ray node never joins; such machines end after these times.
FAILED_SHARE, FAILED_S = 0.03, (120.0, 300.0)
UNJOINED_SHARE, UNJOINED_S = 0.02, 900.0
# Time from the launch of the head to the start of the driver.
HEAD_BOOT_S = (120.0, 300.0)
# The longest boot that the budget expects: what is admitted pays for it.
MAX_BOOT_S = BOOT_S[1]


@dataclass(frozen=True)
class SimulatedSweep:
    """The result of a simulated sweep.

    Attributes:
        billed_usd: The bill of its machines, computed from the events.
        held_usd_per_hour: The most that the machines that were billed at once cost an hour, at their highest prices.
        ledger_usd: Spending according to the ledger.
        seconds: Duration of the sweep.
        best: The best score of a trial that was not stopped; None if there is none.
        faults: Kind of fault -> how often it happened.
        rungs: Report index -> number of trials that reached it.
        trials: All trials.
        events: The journal.
        lines: The ledger.
    """

    billed_usd: float
    held_usd_per_hour: float
    ledger_usd: float
    seconds: float
    best: float | None
    faults: dict[str, int]
    rungs: dict[int, int]
    trials: list[Trial]
    events: list[Event] = field(repr=False)
    lines: list[Entry] = field(repr=False)


class Simulator:
    """Simulates one sweep. Call `run` once."""

    def __init__(
        self,
        space: SearchSpace,
        scenario: Scenario,
        budget: Budget,
        *,
        seed: int,
        workload: Callable[[Trial], SimulatedTrial] | None = None,
        sampler: Callable[[], Sampler] | None = None,
        kill_at: int | None = None,
    ) -> None:
        """Prepare a sweep.

        Args:
            space: The search space.
            scenario: Machines, prices and times.
            budget: What the sweep may spend.
            seed: Seed of all events.
            workload: Times and scores of the trials; None to draw them from the seed.
            sampler: Makes a new sampler for every driver, also after a restart; None for random sampling.
            kill_at: Kill the driver once, right after it has written this many events; it resumes at once.
        """
        self._space, self._scenario, self._budget, self._seed = space, scenario, budget, seed
        self._sampler = sampler or (lambda: RandomSampler(space, seed=seed))
        self._generator = random.Random(derived_seed(seed, "events"))
        self._queue = _EventQueue()
        self._machines = Machines(
            scenario, seed=seed, generator=self._generator, max_drain_s=budget.window_s
        )
        workload = workload or make_workload(scenario, seed=seed, mode=space.mode)
        self._progress = _Progress(workload, save_s=scenario.save_s)
        self._jump_s = 0.0
        self._ticked_s = -math.inf
        self._faults: Counter[str] = Counter()
        self._launched: Counter[str] = Counter()
        self._is_polling = self._is_halted = False
        self._orphans: list[Trial] = []
        self.events: list[Event] = []
        self.lines: list[Entry] = []
        self._is_over = False
        self._kill_at = kill_at

    def run(self) -> SimulatedSweep:
        """Simulate the sweep to its end."""
        boot_s = self._prepare_head()
        self._schedule(boot_s, self._start_driver)
        if self._generator.random() < self._scenario.kill_share:
            self._schedule(boot_s + self._generator.expovariate(1 / 3600), self._kill_driver)
        has_ended = False
        while not has_ended:
            try:
                while self._queue.has_more() and not self._is_over:
                    self._queue.step()
                self._controller.abandon()
                has_ended = True
            except _KilledError:
                self._kill_driver(down_s=0.0)
        for head in list(self._machines.running.values()):
            ends_s = (
                self._now
                + GRACE_S
                + self._generator.uniform(0, CHECK_S)
                + self._machines.terminate_s(head)
            )
            self._machines.end(head, now_s=ends_s, is_interrupted=False)
        return self._result()

    def _result(self) -> SimulatedSweep:
        trials = list(self._controller.trials.values())
        best = best_trial(self._controller.space, self._controller.trials.values())
        rungs = Counter(index for trial in trials for index in trial.decisions)
        return SimulatedSweep(
            billed_usd=self._machines.billed_usd,
            held_usd_per_hour=self._machines.held_usd_per_hour,
            ledger_usd=self._ledger.spent_usd,
            seconds=self._now,
            best=self._controller.score(best)
            if best is not None and best.status == "finished"
            else None,
            faults=dict(sorted(self._faults.items())),
            rungs=dict(sorted(rungs.items())),
            trials=trials,
            events=self.events,
            lines=self.lines,
        )

    # -- the driver ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Start a driver again, on a new head if there is none that lives."""
        self._schedule(self._prepare_head(), self._start_driver)

    def _prepare_head(self) -> float:
        """Launch a head if one is needed; return the seconds until a driver can start."""
        head = next(
            (one for one in self._machines.running.values() if one.name.startswith(HEAD)), None
        )
        if (
            head is not None
            and not head.is_ending
            and (head.end_s is None or head.end_s > self._now)
        ):
            head.end_s = None  # the driver renews its lease
            return 0.0
        if self._is_cloud and self._scenario.head_usd_per_hour:
            self._machines.start_head(now_s=self._now)
            return self._generator.uniform(*HEAD_BOOT_S)
        return 0.0

    def _start_driver(self) -> None:
        """Start or resume the sweep from its events and ledger lines alone, as a new driver process does."""
        self._ledger = Ledger(
            self._write_line,
            past=list(self.lines),
            window_s=self._budget.window_s,
            is_listed=self._is_cloud,
        )
        for machine in self._machines.ended_alone(now_s=self._now):
            if self._is_cloud:
                self._ledger.follow(machine.name, machine.price, machine.time(self._now))
        for machine in self._machines.running.values():
            if machine.end_s is not None:
                self._schedule(machine.end_s - self._now, self._terminated, machine)
        self._in_flight: Counter[str] = Counter()
        self._admission = Admission(
            _types(self._scenario),
            self._budget,
            boot_s=self._boot_s,
            max_machines=self._scenario.num_machines,
            retry_s=RETRY_S,
            alone_s=ALONE_S + CHECK_S if self._is_cloud else 0.0,
            head_usd=self._head_usd,
        )
        for name, total in self._launched.items():
            self._admission.launched(name, total=total)
        self._is_polling = self._is_halted = False
        self._controller = SweepController(
            self._space,
            seed=self._seed,
            write=self._write,
            past=list(self.events),
            budget=self._budget,
            sampler=self._sampler(),
        )
        self._write("session", budget=asdict(self._budget))
        self._check_token, self._ticked_s = 0, -math.inf
        self._start_machines()
        self._finish_if_done()

    def _write(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, "time": self._now, **values})
        if len(self.events) == self._kill_at:
            raise _KilledError

    def _write_line(self, entry: Entry) -> None:
        self.lines.append({**entry, "time": self._now})

    def _kill_driver(self, down_s: float | None = None) -> None:
        """Kill the driver, perhaps with its head. Machines end on their own, and it resumes after a while."""
        has_head = self._is_cloud and self._scenario.head_usd_per_hour > 0
        is_head_dead = has_head and self._generator.random() < self._scenario.head_share
        self._faults["head killed" if is_head_dead else "killed"] += 1
        # The ledger is updated at every poll; only the time since the last poll is missing.
        polled_s = self._now - self._generator.uniform(0, self._scenario.cost.poll_s)
        self._tick(polled_s)
        self._machines.abandon(polled_s=polled_s, now_s=self._now, is_head_dead=is_head_dead)
        self._queue.clear()
        self._orphans.clear()
        self._is_over = False
        self._progress.forget_saved()
        self._jump_s += self._generator.choice((0.0, 0.0, -3600.0, 3600.0))
        self._schedule(
            self._generator.expovariate(1 / 1800) if down_s is None else down_s, self._resume
        )

    def _funds(self) -> Funds:
        """Return the spending as of the last poll."""
        if self._now - self._ticked_s >= self._scenario.cost.poll_s:
            self._tick(self._now)
            self._admission.not_joined(self._machines.not_joined() if self._is_cloud else {})
            self._ticked_s = self._now
        return self._admission.with_in_flight(self._billed())

    def _tick(self, now_s: float) -> None:
        """Charge every machine until now: a cloud's by its list."""
        if not self._is_cloud:
            for node, held in self._ledger.nodes.items():
                self._ledger.reprice(node, held.price, now_s=now_s)
            return
        for machine in self._machines.running.values():
            self._ledger.follow(machine.name, machine.price, machine.time(now_s))

    def _billed(self) -> Funds:
        """Return the spending without the machines in flight."""
        return self._ledger.funds(elapsed_s=max(0.0, self._now + self._jump_s))

    def _check(self, token: int) -> None:
        """Stop all training if the budget requires it, else check again when that may have changed."""
        if token != self._check_token:
            return
        funds = self._funds()
        if self._controller.is_halted(funds):
            self._is_halted = True
            self._finish_if_done()
            self._admission.withdraw()
            for machine in self._machines.workers:
                if not machine.is_ending:
                    machine.is_ending = True
                    self._schedule(self._machines.drain_s(machine), self._terminate, machine)
        else:
            self._check_later(self._budget.seconds_left(funds))

    def _check_later(self, seconds: float) -> None:
        if math.isfinite(seconds):
            self._check_token += 1
            late_s = self._generator.uniform(0, self._scenario.cost.poll_s)
            self._schedule(max(0.0, seconds) + late_s, self._check, self._check_token)

    # -- machines -----------------------------------------------------------------------------------------------

    @property
    def _boot_s(self) -> float:
        """The longest that a machine is billed before it trains."""
        return MAX_BOOT_S if self._is_cloud else 0.0

    @property
    def _head_usd(self) -> float:
        """What the head costs until its lease has run out."""
        usd_per_hour = self._scenario.head_usd_per_hour
        if not self._is_cloud or not usd_per_hour:
            return 0.0
        return (usd_per_hour + self._scenario.attached_usd_per_hour) * (LEASE_S + CHECK_S) / 3600

    @property
    def _is_cloud(self) -> bool:
        """Whether machines are launched by a cloud, which bills them from the launch to the end."""
        return self._scenario.market != "own"

    def _start_machines(self) -> None:
        """Admit machines for waiting trials: your own at once, a cloud's at the next poll."""
        if not self._is_cloud:
            self._admit()
        elif not self._is_polling:
            self._is_polling = True
            self._schedule(self._generator.uniform(0, self._scenario.cost.poll_s), self._admit)

    def _admit(self) -> None:
        """Plan as a running sweep does at each poll, and send the launches to the cloud."""
        self._is_polling = False
        self._funds()
        training = sum(
            one.trial is not None and not one.is_ending for one in self._machines.workers
        )
        plan = self._admission.plan(
            now_s=self._now,
            num_slots=min(self._scenario.num_machines, training + self._num_waiting()),
            funds=self._billed(),
            running=self._machines.running_types(),
        )
        for name, total in plan.launches.items():
            for _ in range(total - self._launched[name] - self._in_flight[name]):
                self._in_flight[name] += 1
                delay_s = self._generator.uniform(*LAUNCH_S) if self._is_cloud else 0.0
                self._schedule(delay_s, self._launch, name)
        if plan.waiting:
            stuck = self._admission.stuck(self._machines.running_types())
            if stuck:
                self._faults["no machine can come"] += 1
                self._controller.halt(stuck, self._funds())
                self._is_halted = True
            if stuck or self._budget.refusal(self._funds(), need_usd=self._least_usd()):
                self._finish_if_done(no_more=True)
            self._schedule(RETRY_S, self._start_machines)

    def _least_usd(self) -> float:
        """Return the least that one more machine has to be admitted for."""
        return min(self._admission.need_usd(kind) for kind in self._admission.types.values())

    def _launch(self, name: str) -> None:
        """Launch a machine, as the gate and the cloud do: only if its admission was not withdrawn, or refuse it."""
        self._in_flight[name] -= 1
        if self._admission.num_left(name) < 1:
            return
        refusal = self._machines.launch_refusal() if self._is_cloud else ""
        if refusal:
            self._faults[f"launch refused: {refusal.partition(':')[0]}"] += 1
            self._admission.refused(name, now_s=self._now, reason=refusal)
            self._start_machines()
            return
        found = self._machines.offer(name, self._now)
        if found is None:
            self._faults["refused"] += 1
            self._admission.refused(name, now_s=self._now, reason="InsufficientInstanceCapacity")
            self._start_machines()
            return
        self._launched[name] += 1
        self._admission.launched(name, total=self._launched[name])
        self._start_machine(*found)

    def _num_waiting(self) -> int:
        """Return the number of trials that wait for a machine; none does once the budget has ended the training."""
        return 0 if self._is_halted else len(self._orphans) + self._controller.num_to_start

    def _start_machine(self, zone: Zone | None, price: Price) -> None:
        machine = self._machines.start(zone, price, now_s=self._now)
        if self._is_cloud:
            self._ledger.follow(machine.name, price, machine.time(self._now))
            self._admission.not_joined(self._machines.not_joined())
        else:
            self._ledger.open(machine.name, price, now_s=self._now)
        self._check_later(self._budget.seconds_left(self._funds()))
        draw = self._generator.random() if self._is_cloud else 1.0
        if draw < FAILED_SHARE:
            self._faults["set-up failed"] += 1
            self._schedule(self._generator.uniform(*FAILED_S), self._give_up, machine)
        elif draw < FAILED_SHARE + UNJOINED_SHARE:
            self._faults["never joined"] += 1
            self._schedule(UNJOINED_S, self._give_up, machine)
        else:
            boot_s = self._generator.uniform(*BOOT_S) if self._is_cloud else 0.0
            self._schedule(boot_s, self._assign, machine)
        if zone is not None:
            self._watch_price(machine, zone)
            life_s = zone.life_s()
            has_notice = self._generator.random() >= NO_NOTICE_SHARE and life_s > NOTICE_S
            if has_notice:
                self._schedule(life_s - NOTICE_S, self._notice, machine)
            self._schedule(life_s, self._interrupt, machine, has_notice)

    def _give_up(self, machine: Machine) -> None:
        """Terminate a machine that did not join; its type is skipped for a while."""
        if self._machines.has(machine) and not machine.is_ending:
            self._admission.refused(
                machine.price.market, now_s=self._now, reason="did not join Ray"
            )
            self._terminate(machine)
            self._start_machines()

    def _watch_price(self, machine: Machine, zone: Zone) -> None:
        """Schedule the driver's next look at a machine's price, some time after the price has changed."""
        late_s = self._generator.uniform(0, PRICE_LAG_S)
        self._schedule(
            zone.next_change_s(self._now) - self._now + late_s, self._update_price, machine, zone
        )

    def _update_price(self, machine: Machine, zone: Zone) -> None:
        if self._machines.has(machine):
            self._ledger.follow(machine.name, machine.price, machine.time(self._now))
            is_read = self._generator.random() >= UNREAD_SHARE
            machine.price = self._machines.price(zone, self._now, is_read=is_read)
            self._ledger.follow(machine.name, machine.price, machine.time(self._now))
            self._watch_price(machine, zone)

    def _notice(self, machine: Machine) -> None:
        if self._machines.has(machine):
            machine.is_ending = True

    def _interrupt(self, machine: Machine, has_notice: bool) -> None:
        """Interrupt a machine; its trial continues on another one from its last checkpoint."""
        if not self._machines.has(machine):
            return
        self._faults["interrupted"] += 1
        trial = machine.trial
        if trial is not None and trial.status not in ENDED:
            done_s = self._now - machine.segment_start_s
            self._progress.interrupt(trial, done_s=done_s, zone=machine.zone, has_notice=has_notice)
            self._orphans.append(trial)
        self._end(machine, is_interrupted=True)
        self._start_machines()
        self._finish_if_done()

    def _terminate(self, machine: Machine) -> None:
        """Terminate a machine; it is billed until it has ended. A refused order is repeated at the next poll."""
        if not self._machines.has(machine):
            return
        machine.is_ending = True
        machine.trial = None
        if self._is_cloud and self._machines.is_refused():
            self._faults["end refused"] += 1
            if not self._is_halted:
                self._schedule(self._scenario.cost.poll_s, self._terminate, machine)
                return
            machine.end_s = self._machines.watched_end_s(
                machine, self._now
            )  # its permit is not renewed
        else:
            machine.end_s = self._now + self._machines.terminate_s(machine)
        self._schedule(machine.end_s - self._now, self._terminated, machine)

    def _terminated(self, machine: Machine) -> None:
        if self._machines.has(machine):
            self._end(machine, is_interrupted=False)
            if self._num_waiting():
                self._start_machines()
            self._finish_if_done()

    def _end(self, machine: Machine, *, is_interrupted: bool) -> None:
        self._machines.end(machine, now_s=self._now, is_interrupted=is_interrupted)
        if self._is_cloud:
            machine.end_s = self._now
            self._ledger.follow(
                machine.name, machine.price, machine.time(self._now, is_interrupted=is_interrupted)
            )
        else:
            self._ledger.close(machine.name, now_s=self._now, is_interrupted=is_interrupted)

    # -- trials -------------------------------------------------------------------------------------------------

    def _assign(self, machine: Machine) -> None:
        """Give a machine its next trial, or terminate it."""
        if not self._machines.has(machine) or machine.is_ending:
            return
        machine.has_joined = True
        trial = self._orphans.pop(0) if self._orphans else self._controller.suggest(self._funds())
        machine.trial = trial
        if trial is None:
            self._terminate(machine)
        elif trial.index:
            # A trial that continues repeats its last report, as the driver may not have received it.
            values = {"metrics": trial.metrics, "seconds": trial.seconds, "usd": trial.usd}
            self._report(machine, trial, index=trial.index, values=values)
        else:
            self._train(machine, trial)

    def _train(self, machine: Machine, trial: Trial) -> None:
        """Train a trial until its next report."""
        machine.segment_start_s = self._now
        self._schedule(
            self._progress.seconds_left(trial), self._complete, machine, trial, self._now
        )

    def _complete(self, machine: Machine, trial: Trial, start_s: float) -> None:
        """Report the segment of training that started at `start_s`, unless it was interrupted."""
        if (
            not self._machines.has(machine)
            or machine.trial is not trial
            or machine.segment_start_s != start_s
        ):
            return
        index = trial.index + 1
        took_s, repeated_s = self._progress.complete(trial, done_s=self._now - start_s)
        score = self._progress.score(trial, index)
        usd = machine.price.usd(took_s)
        # A simulated step takes one second.
        steps, lost = max(1, round(took_s)), round(repeated_s)
        self._ledger.record_trial(
            trial.name,
            node=machine.name,
            rung=index,
            seconds=took_s,
            usd=usd,
            steps=steps,
            steps_lost=lost,
        )
        values = {
            "metrics": {self._space.metric: score},
            "seconds": trial.seconds + took_s,
            "usd": trial.usd + usd,
        }
        self._report(machine, trial, index=index, values=values)

    def _report(
        self, machine: Machine, trial: Trial, *, index: int, values: dict[str, Any]
    ) -> None:
        """Report to the controller, and continue or stop the trial as it decides."""
        num_reports = self._scenario.num_reports
        funds = self._funds()
        should_continue = self._controller.report(
            trial.name, index=index, num_reports=num_reports, funds=funds, **values
        )
        if should_continue and index < num_reports:
            self._train(machine, trial)
            return
        self._controller.end(trial.name, status="finished" if should_continue else "stopped")
        machine.trial = None
        self._assign(machine)

    # -- the event queue ----------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._queue.now_s

    def _schedule(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back in `seconds`."""
        self._queue.schedule(seconds, callback, *arguments)

    def _finish_if_done(self, *, no_more: bool = False) -> None:
        """End the sweep if no machine is running and none will be started."""
        if not self._machines.workers and (no_more or self._num_waiting() == 0):
            self._is_over = True


def _types(scenario: Scenario) -> list[MachineType]:
    """Return the types of machine of a scenario: one for each market, spot first."""
    usd, most = scenario.usd_per_hour, scenario.num_machines
    priorities = {"own": 0, "on-demand": 0, "spot": 1}
    markets = ("spot", "on-demand") if scenario.market == "auto" else (scenario.market,)
    return [
        MachineType(name, usd, market=name, priority=priorities[name], max_machines=most)
        for name in markets
    ]


class _KilledError(Exception):
    """The driver was killed."""


class _EventQueue:
    """Future events, in order of time.

    Attributes:
        now_s: The time of the last event, in seconds from the start of the sweep.
    """

    def __init__(self) -> None:
        """Start at time zero without events."""
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def schedule(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back in `seconds`; events at the same time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + seconds, self._count, callback, arguments))

    def has_more(self) -> bool:
        """Return whether any event is left."""
        return bool(self._heap)

    def step(self) -> None:
        """Advance to the next event and run it."""
        self.now_s, _, callback, arguments = heapq.heappop(self._heap)
        callback(*arguments)

    def clear(self) -> None:
        """Drop all events."""
        self._heap.clear()


class _Progress:
    """The progress of trials towards their next reports, and the time that interruptions cost."""

    def __init__(self, workload: Callable[[Trial], SimulatedTrial], *, save_s: float) -> None:
        """Start without trials.

        Args:
            workload: Times and scores of the trials.
            save_s: Seconds to save a checkpoint.
        """
        self._workload, self._save_s = workload, save_s
        self._trials: dict[str, SimulatedTrial] = {}
        self._saved_s: dict[str, float] = {}
        self._repeated_s: dict[str, float] = {}

    def seconds_left(self, trial: Trial) -> float:
        """Return the seconds to a trial's next report, its checkpoint included."""
        if trial.name not in self._trials:
            self._trials[trial.name] = self._workload(trial)
        left_s = self._trials[trial.name].report_s - self._saved_s.get(trial.name, 0.0)
        return max(0.0, left_s) + self._save_s

    def interrupt(
        self, trial: Trial, *, done_s: float, zone: Zone | None, has_notice: bool
    ) -> None:
        """Interrupt a trial. It keeps what its last checkpoint holds: after a notice, almost everything."""
        every_s = math.sqrt(2 * self._save_s * zone.median_life_s) if zone else math.inf
        kept_s = max(0.0, done_s - self._save_s) if has_notice else done_s - done_s % every_s
        self._saved_s[trial.name] = self._saved_s.get(trial.name, 0.0) + kept_s
        self._repeated_s[trial.name] = self._repeated_s.get(trial.name, 0.0) + done_s - kept_s

    def complete(self, trial: Trial, *, done_s: float) -> tuple[float, float]:
        """Return the seconds of training for a report, and the seconds that were repeated.

        Saved work of interrupted machines counts towards the first; lost work does not.
        """
        return done_s + self._saved_s.pop(trial.name, 0.0), self._repeated_s.pop(trial.name, 0.0)

    def score(self, trial: Trial, index: int) -> float:
        """Return the score of a trial at a report."""
        return self._trials[trial.name].score(index)

    def forget_saved(self) -> None:
        """Drop all saved progress, as after the death of the driver."""
        self._saved_s.clear()
