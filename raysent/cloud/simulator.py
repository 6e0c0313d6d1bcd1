"""A whole sweep on an event clock: the real conductor, halving, budget and ledger under made-up machines.

What is billed is counted apart from the ledger, from what happened: so the ledger is tested too. Machines are slow to
come and to go, are taken back with and without notice, and the driver may be killed and taken up again from nothing
but its journal's events and its ledger's lines.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysent.cloud.market import NO_NOTICE_SHARE, NOTICE_S, PRICE_LAG_S, UNREAD_SHARE, Zone, make_zones
from raysent.cloud.workload import TrialModel, World, make_workload
from raysent.cost import Budget, Entry, Funds, Ledger, Price, on_demand_price, own_price, spot_price
from raysent.search_space import SearchSpace
from raysent.sweep import ENDED, BlindProposals, Conductor, Event, Searcher, Trial, budget_values, derived_seed

BOOT_S = (40.0, 150.0)
RETRY_S = 180.0
# How long draining and ending a machine take: median, and spread of the logarithm; now and then far longer.
DRAIN_S, TERMINATE_S, STOP_SIGMA = 10.0, 5.0, 1.0
SLOW_SHARE, SLOW_S = 0.02, (60.0, 300.0)


@dataclass
class Machine:
    """A machine that is billed.

    Attributes:
        name: In the ledger.
        price: What the driver knows of its price.
        zone: Its spot pool; None for own and on-demand machines.
        begin_s: When its billing began.
        trial: What it trains.
        share_begin_s: When the way to the next report began.
        is_ending: Whether it was told to end, or will be taken.
    """

    name: str
    price: Price
    zone: Zone | None
    begin_s: float
    trial: Trial | None = None
    share_begin_s: float = 0.0
    is_ending: bool = False


@dataclass(frozen=True)
class SimulatedSweep:
    """How a simulated sweep went.

    Attributes:
        billed_usd: What its machines were billed, by what happened.
        ledger_usd: The same by the ledger.
        seconds: From its beginning to its end.
        best: The best score of a trial that was not cut off; None where there is none.
        num_interruptions: Machines that were taken back.
        lost_s: Training that had to be done again.
        rungs: Report index -> trials that came to it.
        trials: Every trial.
        events: The journal.
        lines: The ledger.
        scores: Time and dollars at every report, with the best score so far.
    """

    billed_usd: float
    ledger_usd: float
    seconds: float
    best: float | None
    num_interruptions: int
    lost_s: float
    rungs: dict[int, int]
    trials: list[Trial]
    events: list[Event] = field(repr=False)
    lines: list[Entry] = field(repr=False)
    scores: list[tuple[float, float, float]] = field(repr=False)


class _KilledError(Exception):
    """The driver is no more."""


class Simulator:
    """Plays one sweep through. `run` may be called once."""

    def __init__(
        self,
        space: SearchSpace,
        world: World,
        budget: Budget,
        *,
        seed: int,
        workload: Callable[[Trial], TrialModel] | None = None,
        searcher: Callable[[], Searcher] | None = None,
        kill_at: int | None = None,
    ) -> None:
        """Set the clock to zero.

        Args:
            space: What is searched.
            world: Machines, prices and times.
            budget: What the sweep may spend.
            seed: Of everything that happens.
            workload: What trials take and score; None for one drawn from the seed.
            searcher: Makes what proposes trials, anew for every driver; None for blind draws.
            kill_at: The driver is killed once, right after it wrote so many events, and taken up again at once.
        """
        self._space, self._world, self._budget, self._seed = space, world, budget, seed
        self._workload = workload or make_workload(world, seed=seed, mode=space.mode)
        self._searcher = searcher or (lambda: BlindProposals(space, seed=seed))
        self._chance = random.Random(derived_seed(seed, "events"))
        self._zones = make_zones(world.usd_per_hour, num_zones=world.num_zones, seed=derived_seed(seed, "market"))
        self._now = self._jump_s = 0.0
        self._ticked_s = -math.inf
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = self._num_interruptions = 0
        self._machines: dict[str, Machine] = {}
        self._models: dict[str, TrialModel] = {}
        self._saved_s: dict[str, float] = {}
        self._redone_s: dict[str, float] = {}
        self._orphans: list[Trial] = []
        self.events: list[Event] = []
        self.lines: list[Entry] = []
        self._billed_usd = self._lost_s = 0.0
        self._scores: list[tuple[float, float, float]] = []
        self._is_over = False
        self._kill_at = kill_at

    def run(self) -> SimulatedSweep:
        """Play the sweep to its end."""
        self._at(0.0, self._begin_driver)
        if self._chance.random() < self._world.kill_share:
            self._at(self._chance.expovariate(1 / 3600), self._kill_driver)
        while self._heap and not self._is_over:
            self._now, _, happens, arguments = heapq.heappop(self._heap)
            try:
                happens(*arguments)
            except _KilledError:
                self._kill_driver(down_s=0.0)
        self._conductor.abandon()
        trials = list(self._conductor.trials.values())
        signed = [self._conductor.score(trial) for trial in trials if trial.status == "finished"]
        scores = [score for score in signed if score is not None]
        rungs: dict[int, int] = {}
        for trial in trials:
            for index in trial.decisions:
                rungs[index] = rungs.get(index, 0) + 1
        return SimulatedSweep(
            billed_usd=self._billed_usd,
            ledger_usd=self._ledger.spent_usd,
            seconds=self._now,
            best=(max if self._space.mode == "max" else min)(scores, default=None),
            num_interruptions=self._num_interruptions,
            lost_s=self._lost_s,
            rungs=dict(sorted(rungs.items())),
            trials=trials,
            events=self.events,
            lines=self.lines,
            scores=self._scores,
        )

    # -- the driver ---------------------------------------------------------------------------------------------

    def _begin_driver(self) -> None:
        """Take the sweep up from its events and lines, as a driver does that knows nothing else."""
        self._ledger = Ledger(self._note_line, past=list(self.lines), window_s=self._budget.window_s)
        self._conductor = Conductor(
            self._space,
            seed=self._seed,
            write=self._write,
            past=list(self.events),
            budget=self._budget,
            proposals=self._searcher(),
        )
        self._write("session", budget=budget_values(self._budget))
        self._check_token = 0
        self._fill()
        self._finish_if_done()

    def _write(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, "time": self._now, **values})
        if len(self.events) == self._kill_at:
            raise _KilledError

    def _note_line(self, entry: Entry) -> None:
        self.lines.append({**entry, "time": self._now})

    def _kill_driver(self, down_s: float | None = None) -> None:
        """Kill the driver: its machines end themselves when they have heard nothing for long enough."""
        # What is owed was counted up at every poll; nothing hangs on the polls before the last one.
        self._ledger.tick(now_s=self._now - self._chance.uniform(0, self._world.cost.poll_s))
        for machine in list(self._machines.values()):
            alone_s = 0.0 if machine.price.market == "own" else self._world.cost.poll_s
            self._bill(machine, self._now + alone_s + self._drain_s(machine) + self._terminate_s(machine))
        self._machines.clear()
        self._heap.clear()
        self._orphans.clear()
        self._saved_s.clear()
        self._jump_s += self._chance.choice((0.0, 0.0, -3600.0, 3600.0))
        self._at(self._chance.expovariate(1 / 1800) if down_s is None else down_s, self._begin_driver)

    def _funds(self) -> Funds:
        """Return where the sweep stands, as of the last poll."""
        if self._now - self._ticked_s >= self._world.cost.poll_s:
            self._ledger.tick(now_s=self._now)
            self._ticked_s = self._now
        return self._ledger.funds(elapsed_s=max(0.0, self._now + self._jump_s))

    def _check(self, token: int) -> None:
        """Ask whether all training has to stop; if not, ask again when that may have changed."""
        if token != self._check_token:
            return
        funds = self._funds()
        if self._conductor.is_halted(funds):
            for machine in list(self._machines.values()):
                if not machine.is_ending:
                    machine.is_ending = True
                    self._at(self._drain_s(machine), self._terminate, machine)
        else:
            self._check_later(self._budget.seconds_left(funds))

    def _check_later(self, seconds: float) -> None:
        if math.isfinite(seconds):
            self._check_token += 1
            late_s = self._chance.uniform(0, self._world.cost.poll_s)
            self._at(max(0.0, seconds) + late_s, self._check, self._check_token)

    # -- machines -----------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Ask for machines as long as there is work for them and they are admitted."""
        while self._wants_machine():
            found = self._find_machine()
            if found is None:
                self._at(RETRY_S, self._fill)
                return
            zone, price = found
            funds = self._funds()
            need_usd = price.worst_usd(self._budget.window_s + price.minimum_s)
            if not self._budget.fits_hourly(funds.hourly_usd + price.worst_usd_per_hour):
                return
            if self._budget.refusal(funds, need_usd=need_usd):
                self._finish_if_done(no_more=True)
                return
            self._launch(zone, price)

    def _wants_machine(self) -> bool:
        busy = sum(not machine.is_ending for machine in self._machines.values())
        idle = sum(machine.trial is None and not machine.is_ending for machine in self._machines.values())
        return busy < self._world.num_machines and self._work_left() > idle

    def _work_left(self) -> int:
        """Return the trials that wait for a machine."""
        return len(self._orphans) + self._conductor.num_to_start

    def _find_machine(self) -> tuple[Zone | None, Price] | None:
        """Return the cheapest machine that is to be had."""
        world = self._world
        if world.market == "own":
            return None, own_price(world.usd_per_hour)
        if world.market != "on-demand":
            for zone in sorted(self._zones, key=lambda zone: zone.usd_per_hour(self._now)):
                if zone.has_machines():
                    return zone, zone.price(self._now)
        if world.market == "spot":
            return None
        return None, on_demand_price(world.usd_per_hour, source="simulated")

    def _launch(self, zone: Zone | None, price: Price) -> None:
        self._count += 1
        machine = Machine(f"machine-{self._count}", price, zone, self._now)
        self._machines[machine.name] = machine
        self._ledger.open(machine.name, price, now_s=self._now)
        self._check_later(self._budget.seconds_left(self._funds()))
        self._at(0.0 if price.market == "own" else self._chance.uniform(*BOOT_S), self._assign, machine)
        if zone is not None:
            self._watch(machine, zone)
            life_s = zone.life_s()
            is_told = self._chance.random() >= NO_NOTICE_SHARE and life_s > NOTICE_S
            if is_told:
                self._at(life_s - NOTICE_S, self._notice, machine)
            self._at(life_s, self._take_back, machine, is_told)

    def _watch(self, machine: Machine, zone: Zone) -> None:
        """Hear of the next change of a machine's price, some time after it."""
        late_s = self._chance.uniform(0, PRICE_LAG_S)
        self._at(zone.next_change_s(self._now) - self._now + late_s, self._hear_price, machine, zone)

    def _hear_price(self, machine: Machine, zone: Zone) -> None:
        if self._is_here(machine):
            is_unread = self._chance.random() < UNREAD_SHARE
            price = spot_price(None, zone.on_demand, source="") if is_unread else zone.price(self._now)
            machine.price = price
            self._ledger.reprice(machine.name, price, now_s=self._now)
            self._watch(machine, zone)

    def _notice(self, machine: Machine) -> None:
        if self._is_here(machine):
            machine.is_ending = True

    def _take_back(self, machine: Machine, is_told: bool) -> None:
        """The owner takes a machine; its trial goes on elsewhere, from its last checkpoint."""
        if not self._is_here(machine):
            return
        self._num_interruptions += 1
        trial = machine.trial
        if trial is not None and trial.status not in ENDED:
            done_s = self._now - machine.share_begin_s
            every_s = math.sqrt(2 * self._world.save_s * machine.zone.median_life_s) if machine.zone else math.inf
            kept_s = max(0.0, done_s - self._world.save_s) if is_told else done_s - done_s % every_s
            self._saved_s[trial.name] = self._saved_s.get(trial.name, 0.0) + kept_s
            self._redone_s[trial.name] = self._redone_s.get(trial.name, 0.0) + done_s - kept_s
            self._lost_s += done_s - kept_s
            self._orphans.append(trial)
        self._end(machine, is_taken=True)
        self._fill()
        self._finish_if_done()

    def _terminate(self, machine: Machine) -> None:
        """Tell a machine to end; it is billed until it does."""
        machine.is_ending = True
        machine.trial = None
        self._at(self._terminate_s(machine), self._ended, machine)

    def _ended(self, machine: Machine) -> None:
        if self._is_here(machine):
            self._end(machine, is_taken=False)
            self._finish_if_done()

    def _end(self, machine: Machine, *, is_taken: bool) -> None:
        del self._machines[machine.name]
        self._ledger.close(machine.name, now_s=self._now, is_taken=is_taken)
        self._bill(machine, self._now, is_taken=is_taken)

    def _bill(self, machine: Machine, end_s: float, *, is_taken: bool = False) -> None:
        """Count what a machine is billed, by what happened."""
        if is_taken and end_s - machine.begin_s < 3600:
            return
        if machine.zone is not None:
            self._billed_usd += machine.zone.usd(machine.begin_s, end_s)
        else:
            self._billed_usd += machine.price.usd(max(machine.price.minimum_s, end_s - machine.begin_s))

    def _drain_s(self, machine: Machine) -> float:
        if machine.price.market == "own" or machine.trial is None:
            return 0.0
        return min(self._chance.lognormvariate(math.log(DRAIN_S), STOP_SIGMA), self._budget.window_s)

    def _terminate_s(self, machine: Machine) -> float:
        if machine.price.market == "own":
            return 0.0
        if self._chance.random() < SLOW_SHARE:
            return self._chance.uniform(*SLOW_S)
        return self._chance.lognormvariate(math.log(TERMINATE_S), STOP_SIGMA)

    def _is_here(self, machine: Machine) -> bool:
        return machine.name in self._machines

    # -- trials -------------------------------------------------------------------------------------------------

    def _assign(self, machine: Machine) -> None:
        """Give a machine its next trial, or end it."""
        if not self._is_here(machine) or machine.is_ending:
            return
        trial = self._orphans.pop(0) if self._orphans else self._conductor.suggest(self._funds())
        machine.trial = trial
        if trial is None:
            self._terminate(machine)
        elif trial.index:
            # A trial that goes on tells its last report again: whoever listened may not have heard it.
            told = {"metrics": trial.metrics, "seconds": trial.seconds, "usd": trial.usd}
            self._tell(machine, trial, index=trial.index, told=told)
        else:
            self._train(machine, trial)

    def _train(self, machine: Machine, trial: Trial) -> None:
        """Let a trial train to its next report."""
        if trial.name not in self._models:
            self._models[trial.name] = self._workload(trial)
        machine.share_begin_s = self._now
        left_s = self._models[trial.name].report_s - self._saved_s.get(trial.name, 0.0)
        self._at(max(0.0, left_s) + self._world.save_s, self._report, machine, trial, self._now)

    def _report(self, machine: Machine, trial: Trial, begun_s: float) -> None:
        """Hear a trial's report, and let it go on or take the next one."""
        if not self._is_here(machine) or machine.trial is not trial or machine.share_begin_s != begun_s:
            return
        # What was saved on machines that went counts as the trial's time too; what was lost does not.
        index, took_s = trial.index + 1, self._now - begun_s + self._saved_s.pop(trial.name, 0.0)
        score = self._models[trial.name].score(index)
        usd = machine.price.usd(took_s)
        # A made-up step takes a second.
        steps, lost = max(1, round(took_s)), round(self._redone_s.pop(trial.name, 0.0))
        self._ledger.share(
            trial.name, node=machine.name, rung=index, seconds=took_s, usd=usd, steps=steps, steps_lost=lost
        )
        self._note_score(score)
        told = {"metrics": {self._space.metric: score}, "seconds": trial.seconds + took_s, "usd": trial.usd + usd}
        self._tell(machine, trial, index=index, told=told)

    def _tell(self, machine: Machine, trial: Trial, *, index: int, told: dict[str, Any]) -> None:
        """Tell the conductor a report, and do as it says."""
        num_reports = self._world.num_reports
        funds = self._funds()
        goes_on = self._conductor.report(trial.name, index=index, num_reports=num_reports, funds=funds, **told)
        if goes_on and index < num_reports:
            self._train(machine, trial)
            return
        self._conductor.end(trial.name, status="finished" if goes_on else "stopped")
        machine.trial = None
        self._assign(machine)

    def _note_score(self, score: float) -> None:
        """Keep how good the best report was by now."""
        better = max if self._space.mode == "max" else min
        best = better(score, self._scores[-1][2]) if self._scores else score
        self._scores.append((self._now, self._ledger.spent_usd, best))

    # -- the clock ----------------------------------------------------------------------------------------------

    def _at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in so many seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self._now + seconds, self._count, happens, arguments))

    def _finish_if_done(self, *, no_more: bool = False) -> None:
        """End the sweep where no machine is left and none will come."""
        if not self._machines and (no_more or self._work_left() == 0):
            self._is_over = True
