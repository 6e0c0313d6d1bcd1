"""The ledger of a running sweep, on its clock: what has been spent, and each trial's share of it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysent.cost import CostConfig, Entry, Funds, Ledger, MachineTime, Prices, bad_entry
from raysent.cost.merging import ALL, NODE, OpenMachines, merged
from raysent.errors import ArtifactError, BudgetError, RaysentError
from raysent.storage import Lines, address_of, read_json, read_json_lines, with_seal
from raysent.storage.layout import LEDGER_FILE
from raysent.sweeps.journal import Event
from raysent.sweeps.trial import Trial

# What was owed when nothing could be written to the ledger any more; stays on the driver's machine.
OWED_FILE = ".owed.json"
# The rounding of amounts in the journal.
_ROUNDING_USD = 1e-5

# The machines that are there now: name -> the labels that tell what each costs.
Nodes = Callable[[], Mapping[str, Mapping[str, str]]]


# The machines in the cloud's own list, by id: all that are billed, and those that ended; None before its first answer.
ListMachines = Callable[[], Mapping[str, MachineTime] | None]


# Raises BudgetError once the budget and its bound are spent; with `leaves_rest`, once half of the reserve is left.
CheckBudget = Callable[..., None]


class CostTracker:
    """Pays for every machine of a sweep from its coming to its going. Use as a context manager.

    Time between sessions is not billed; where the last driver was killed, the ledger assumes the worst.
    """

    def __init__(
        self,
        folder: Path,
        config: CostConfig,
        *,
        nodes: Nodes,
        prices: Prices | None = None,
        machines: ListMachines | None = None,
        elapsed_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take up the ledger of a run folder.

        Args:
            folder: The run folder.
            config: What machines cost.
            nodes: Names the machines that are there.
            prices: Knows what each costs; None for what `config` alone says.
            machines: Returns the cloud's own list of machines, which are charged instead of the nodes; None if there is
                no list.
            elapsed_s: Seconds since the sweep was begun.
            clock: Seconds that never go back, whatever is done to the machine's time of day.
        """
        self.prices = prices or Prices(config)
        self.num_slots = 1
        self.on_tick: Callable[[Funds], object] = lambda _: None
        self.with_in_flight: Callable[[Funds], Funds] = lambda funds: funds
        self._path, self._owed_path = folder / LEDGER_FILE, folder / OWED_FILE
        self._owed: list[Entry] | None = None
        self._lines = Lines(self._path)
        # Entries of machines are collected, and written as one line: in a bucket, each line is an object.
        self._collected: list[Entry] = []
        # What the ledger did not answer to: it may have it, so that the same is written before anything else.
        self._unanswered: list[Entry] = []
        self._is_collecting = False
        self._write_debt()
        past = read_ledger(folder)
        self._known = {entry["node"] for entry in past if entry["entry"] == "node"}
        self._boot_s = config.boot_s
        self._steps = _sums(past, "steps")
        self._steps_lost = _sums(past, "steps_lost")
        self._machines = machines
        # The machines by what is written; what is collected comes after it.
        self._written = OpenMachines()
        for entry in past:
            self._written.add(entry)
        with self._one_line():
            self.ledger = Ledger(
                self._append, past=past, window_s=config.window_s, is_listed=machines is not None
            )
        self._nodes, self._clock, self._poll_s = nodes, clock, config.poll_s
        self._elapsed_s, self._begun_s = elapsed_s, clock()
        self._ticked_s = self._begun_s - config.poll_s

    def __enter__(self) -> CostTracker:
        self._tick()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._close()
        except RaysentError:
            self._keep_debt()
            raise

    def funds(self) -> Funds:
        """Return where the sweep stands; what is owed is counted up where that is due."""
        is_due = self._clock() - self._ticked_s >= self._poll_s
        if is_due:
            self._tick()
        self._write_collected()  # of a poll that could not write them
        if is_due:
            self.on_tick(self._funds())
        return self.with_in_flight(self._funds())

    def _funds(self) -> Funds:
        return self.ledger.funds(elapsed_s=self._elapsed_s + self._clock() - self._begun_s)

    def trial_usd(self, trial: Trial, seconds: float) -> float:
        """Return what a trial has cost when it has trained for so many seconds: its share of the machines' time."""
        hours = max(0.0, seconds - trial.seconds) / 3600
        return trial.usd + hours * self.ledger.usd_per_hour / self.num_slots

    def note_share(self, trial: Trial, report: dict[str, Any]) -> None:
        """Write a trial's way to a report into the ledger.

        Args:
            trial: As it stood at the report before.
            report: `index`, `seconds`, `step` and `steps_lost` of the run up to here, and the `node` it came from.
        """
        steps, lost = self._steps.get(trial.name, 0), self._steps_lost.get(trial.name, 0)
        self._steps[trial.name], self._steps_lost[trial.name] = report["step"], report["steps_lost"]
        self.ledger.record_trial(
            trial.name,
            node=report["node"],
            rung=report["index"],
            seconds=report["seconds"] - trial.seconds,
            usd=self.trial_usd(trial, report["seconds"]) - trial.usd,
            steps=report["step"] - steps,
            steps_lost=report["steps_lost"] - lost,
        )

    def _tick(self) -> None:
        with self._one_line():
            self._charge()

    def _charge(self) -> None:
        now = self._ticked_s = self._clock()
        if self._machines is not None:
            machines = self._machines()
            if machines is not None:
                for name, machine in machines.items():
                    self.ledger.follow(name, self.prices.of(machine.labels), machine)
                for name, price in self.ledger.unlisted(machines.keys()).items():
                    self.ledger.follow(
                        name, price, MachineTime({}, 0.0, is_open=False, is_end_known=False)
                    )
            return
        there = {node: self.prices.of(labels) for node, labels in self._nodes().items()}
        for node in self.ledger.nodes.keys() - there.keys():
            self.ledger.close(node, now_s=now)
        for node in there.keys() - self.ledger.nodes.keys():
            # One that has only just come has been billed since it was asked for.
            boot_s = 0.0 if node in self._known else self._boot_s
            self._known.add(node)
            self.ledger.open(node, there[node], now_s=now - boot_s)
        for node, price in there.items():
            self.ledger.reprice(node, price, now_s=now)

    def _close(self) -> None:
        with self._one_line():
            if self._machines is not None:
                self._charge()
            for node in list(self.ledger.nodes):
                if self._machines is not None:
                    self.ledger.drop(node)
                else:
                    self.ledger.close(node, now_s=self._clock())

    def _keep_debt(self) -> None:
        """Keep on this machine what cannot be written to the ledger, for the next session here."""
        self._owed = []
        self._write_collected()
        self._close()
        with contextlib.suppress(OSError):
            text = json.dumps(with_seal({"entries": self._owed}))
            self._owed_path.write_text(text, encoding="utf-8")

    def _write_debt(self) -> None:
        """Write what an earlier session here owed; where the ledger refuses it still, it stays owed."""
        entries: list[Entry] = []
        # None, or a damaged one: the ledger assumes the worst.
        with contextlib.suppress(ArtifactError):
            owed = read_json(self._owed_path)
            entries = owed["entries"] if isinstance(owed, dict) else owed  # of version 0.2.0
        if entries:
            self._lines.append(*entries)
        self._owed_path.unlink(missing_ok=True)

    def _append(self, entry: Entry) -> None:
        self._collected.append({**entry, "time": round(time.time(), 3)})
        if not self._is_collecting:
            self._write_collected()

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False
        self._write_collected()

    def _write_collected(self) -> None:
        if self._owed is not None:
            self._owed += [*self._unanswered, *self._collected]
            self._unanswered, self._collected = [], []
            return
        while self._unanswered or self._collected:
            if not self._unanswered:
                self._unanswered = merged(self._collected, self._written)
                self._collected = []
            self._lines.append(*self._unanswered)
            for entry in self._unanswered:
                self._written.add(entry)
            self._unanswered = []


@contextmanager
def metered(
    folder: Path,
    config: CostConfig,
    *,
    what: str,
    nodes: Nodes | None = None,
    prices: Prices | None = None,
    machines: ListMachines | None = None,
    on_tick: Callable[[Funds], object] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[CheckBudget]:
    """Pay for machines while the block runs, counted up by a thread at every poll; nothing where they are free.

    The block gets a function to call now and then. It raises BudgetError where the budget would be spent before the
    next call, as long as that comes no later than the last ones did.

    Args:
        folder: The run folder.
        config: What machines cost.
        what: What is done meanwhile, for the ledger.
        nodes: Names the machines that are there; None for this one alone.
        prices: As for a `CostTracker`.
        machines: As for a `CostTracker`.
        on_tick: Called with the spending at every poll.
        clock: As for a `CostTracker`.
    """
    if not config.is_priced:
        yield lambda **_: None
        return
    is_over, turn = threading.Event(), threading.Lock()
    budget = config.for_sweep()
    checked_s, longest_s = clock(), config.poll_s

    def count_up(cost_tracker: CostTracker) -> None:
        while not is_over.wait(config.poll_s):
            # What cannot be written now is added at the next poll; only the final failure is raised.
            with contextlib.suppress(RaysentError), turn:
                cost_tracker.funds()

    def check_budget(*, leaves_rest: bool = False) -> None:
        nonlocal checked_s, longest_s
        now_s = clock()
        longest_s, checked_s = max(longest_s, now_s - checked_s), now_s
        with turn:
            funds = cost_tracker.funds()
        if budget.is_exhausted(funds, seconds=longest_s, leaves_rest=leaves_rest):
            raise BudgetError(
                f"{what}: must stay within {budget.limit_usd:.2f} usd; {funds.spent_usd:.2f} are spent"
            )

    with CostTracker(
        folder,
        config,
        nodes=nodes or (lambda: {what: {}}),
        prices=prices,
        machines=machines,
        clock=clock,
    ) as cost_tracker:
        cost_tracker.on_tick = on_tick
        thread = threading.Thread(target=count_up, args=(cost_tracker,), daemon=True)
        thread.start()
        try:
            yield check_budget
        finally:
            is_over.set()
            thread.join()


def spent_usd(folder: Path) -> float:
    """Return what the machines of a run folder have cost."""
    return round(machines_usd(read_ledger(folder)), 6)


def read_ledger(folder: Path) -> list[Entry]:
    """Return the lines of a run folder's ledger; none where nothing has been spent.

    Raises:
        ArtifactError: If a line is not as it was written, or is none that a ledger has.
    """
    path = folder / LEDGER_FILE
    entries = read_json_lines(path) if path.exists() else []
    problem = bad_entry(entries)
    if problem is not None:
        raise ArtifactError(
            f"{address_of(path)}:{problem[0] + 1}: {problem[1]}; another program changed the file"
        )
    return entries


def check_ledger(folder: Path, events: Iterable[Event]) -> None:
    """Check that the ledger of a run folder has all that its journal has seen spent.

    A machine's refund lowers what was spent after the journal has seen it, so only charges are summed up.

    Raises:
        ArtifactError: As `read_ledger`, or if lines of the ledger are missing.
    """
    seen_usd = max((_seen_usd(event) for event in events), default=0.0)
    charged_usd = sum(
        max(0.0, entry["usd"]) for entry in read_ledger(folder) if entry["entry"] in (NODE, ALL)
    )
    if charged_usd < seen_usd - _ROUNDING_USD * max(1.0, seen_usd):
        raise ArtifactError(
            f"{address_of(folder / LEDGER_FILE)}: must have all that was spent; it sums up to {charged_usd:.6g} usd, "
            f"and the journal says {seen_usd:.6g}; restore it"
        )


def _seen_usd(event: Event) -> float:
    """Return what a sweep had spent when an event was written, as far as the event says so."""
    funds = event.get("funds") or {}
    return float(event.get("spent_usd", 0.0) or funds.get("spent_usd", 0.0))


def machines_usd(entries: Iterable[Entry]) -> float:
    """Return what the machines of a ledger's lines have cost."""
    return float(sum(entry["usd"] for entry in entries if entry["entry"] in (NODE, ALL)))


def _sums(entries: Iterable[Entry], name: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for entry in entries:
        if entry["entry"] == "trial":
            sums[entry["trial"]] = sums.get(entry["trial"], 0) + (entry[name] or 0)
    return sums
