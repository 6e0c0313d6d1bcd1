"""`Simulator`: the driver of one sweep between the real conductor and ledger, and made-up machines and trials."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from raysent.cost import Budget, Entry, Funds, Ledger, Price, spot_price
from raysent.simulation.machines import Clock, Machine, Machines, SimulatedSweep
from raysent.simulation.market import NO_NOTICE_SHARE, NOTICE_S, PRICE_LAG_S, UNREAD_SHARE, Zone
from raysent.simulation.workload import Training, TrialModel, World, make_workload
from raysent.sweeps import ENDED, Event, RandomSampler, Sampler, SweepController, Trial, budget_values, derived_seed
from raysent.sweeps.space import SearchSpace

BOOT_S = (40.0, 150.0)
RETRY_S = 180.0


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
        searcher: Callable[[], Sampler] | None = None,
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
        self._searcher = searcher or (lambda: RandomSampler(space, seed=seed))
        self._chance = random.Random(derived_seed(seed, "events"))
        self._clock = Clock()
        self._machines = Machines(world, seed=seed, chance=self._chance, most_drain_s=budget.window_s)
        self._training = Training(workload or make_workload(world, seed=seed, mode=space.mode), save_s=world.save_s)
        self._jump_s = 0.0
        self._ticked_s = -math.inf
        self._num_interruptions = 0
        self._orphans: list[Trial] = []
        self.events: list[Event] = []
        self.lines: list[Entry] = []
        self._scores: list[tuple[float, float, float]] = []
        self._is_over = False
        self._kill_at = kill_at

    def run(self) -> SimulatedSweep:
        """Play the sweep to its end."""
        self._at(0.0, self._begin_driver)
        if self._chance.random() < self._world.kill_share:
            self._at(self._chance.expovariate(1 / 3600), self._kill_driver)
        while self._clock.has_more() and not self._is_over:
            try:
                self._clock.step()
            except _KilledError:
                self._kill_driver(down_s=0.0)
        self._conductor.abandon()
        return self._outcome()

    def _outcome(self) -> SimulatedSweep:
        trials = list(self._conductor.trials.values())
        best = self._conductor.best
        rungs = Counter(index for trial in trials for index in trial.decisions)
        return SimulatedSweep(
            billed_usd=self._machines.billed_usd,
            ledger_usd=self._ledger.spent_usd,
            seconds=self._clock.now_s,
            best=self._conductor.score(best) if best is not None and best.status == "finished" else None,
            num_interruptions=self._num_interruptions,
            lost_s=self._training.lost_s,
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
        self._conductor = SweepController(
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
        self._machines.abandon(now_s=self._now)
        self._clock.clear()
        self._orphans.clear()
        self._training.forget_saved()
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
            for machine in self._machines.alive_nodes.values():
                if not machine.is_ending:
                    machine.is_ending = True
                    self._at(self._machines.drain_s(machine), self._terminate, machine)
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
            found = self._machines.cheapest(self._now)
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
        machines = self._machines
        return machines.num_busy < self._world.num_machines and self._work_left() > machines.num_idle

    def _work_left(self) -> int:
        """Return the trials that wait for a machine."""
        return len(self._orphans) + self._conductor.num_to_start

    def _launch(self, zone: Zone | None, price: Price) -> None:
        machine = self._machines.begin(zone, price, now_s=self._now)
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
        if self._machines.has(machine):
            is_unread = self._chance.random() < UNREAD_SHARE
            price = spot_price(None, zone.on_demand, source="") if is_unread else zone.price(self._now)
            machine.price = price
            self._ledger.reprice(machine.name, price, now_s=self._now)
            self._watch(machine, zone)

    def _notice(self, machine: Machine) -> None:
        if self._machines.has(machine):
            machine.is_ending = True

    def _take_back(self, machine: Machine, is_told: bool) -> None:
        """The owner takes a machine; its trial goes on elsewhere, from its last checkpoint."""
        if not self._machines.has(machine):
            return
        self._num_interruptions += 1
        trial = machine.trial
        if trial is not None and trial.status not in ENDED:
            done_s = self._now - machine.share_begin_s
            self._training.interrupt(trial, done_s=done_s, zone=machine.zone, is_told=is_told)
            self._orphans.append(trial)
        self._end(machine, is_taken=True)
        self._fill()
        self._finish_if_done()

    def _terminate(self, machine: Machine) -> None:
        """Tell a machine to end; it is billed until it does."""
        machine.is_ending = True
        machine.trial = None
        self._at(self._machines.terminate_s(machine), self._ended, machine)

    def _ended(self, machine: Machine) -> None:
        if self._machines.has(machine):
            self._end(machine, is_taken=False)
            self._finish_if_done()

    def _end(self, machine: Machine, *, is_taken: bool) -> None:
        self._machines.end(machine, now_s=self._now, is_taken=is_taken)
        self._ledger.close(machine.name, now_s=self._now, is_taken=is_taken)

    # -- trials -------------------------------------------------------------------------------------------------

    def _assign(self, machine: Machine) -> None:
        """Give a machine its next trial, or end it."""
        if not self._machines.has(machine) or machine.is_ending:
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
        machine.share_begin_s = self._now
        self._at(self._training.seconds_left(trial), self._report, machine, trial, self._now)

    def _report(self, machine: Machine, trial: Trial, begun_s: float) -> None:
        """Hear a trial's report, and let it go on or take the next one."""
        if not self._machines.has(machine) or machine.trial is not trial or machine.share_begin_s != begun_s:
            return
        index = trial.index + 1
        took_s, redone_s = self._training.finish_share(trial, done_s=self._now - begun_s)
        score = self._training.score(trial, index)
        usd = machine.price.usd(took_s)
        # A made-up step takes a second.
        steps, lost = max(1, round(took_s)), round(redone_s)
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
        should_continue = self._conductor.report(trial.name, index=index, num_reports=num_reports, funds=funds, **told)
        if should_continue and index < num_reports:
            self._train(machine, trial)
            return
        self._conductor.end(trial.name, status="finished" if should_continue else "stopped")
        machine.trial = None
        self._assign(machine)

    def _note_score(self, score: float) -> None:
        """Keep how good the best report was by now."""
        better = max if self._space.mode == "max" else min
        best = better(score, self._scores[-1][2]) if self._scores else score
        self._scores.append((self._now, self._ledger.spent_usd, best))

    # -- the clock ----------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._clock.now_s

    def _at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in so many seconds."""
        self._clock.at(seconds, happens, *arguments)

    def _finish_if_done(self, *, no_more: bool = False) -> None:
        """End the sweep where no machine is left and none will come."""
        if not self._machines.alive_nodes and (no_more or self._work_left() == 0):
            self._is_over = True
