"""Damage journals and ledgers, and count what is found and what is harmless.

It writes the journal and the ledger of a small simulated sweep with the classes that a real one uses. Then it damages
one of the files, or both, by a flipped bit, a cut at a byte or at a line's end, or a line that is doubled, moved,
swapped with another or removed, and compares what is read with what was written. Damage is

    found      an error names the file and the line
    harmless   what is read is what was written, or all but an incomplete last line that no other line has seen
    ACCEPTED   something else is read without an error, or another spending: there must be none

`benchmarks/kills.py` damages every file of a run, the cache and a model, and reads it by commands.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from raysent.config import parse_yaml
from raysent.cost import CostConfig
from raysent.storage import check_lines
from raysent.storage.layout import JOURNAL_FILE, LEDGER_FILE
from raysent.sweeps import SweepController
from raysent.sweeps.cost_tracker import CostTracker
from raysent.sweeps.integrity import RunCheck, check_contents, note_written
from raysent.sweeps.journal import Journal
from raysent.sweeps.space import parse_space

SPACE = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search: {encoder.hidden_size: {randint: [10, 100]}}
limits: {trials: 4, sampler: random}
"""
NUM_REPORTS = 3
Files = tuple[bytes, bytes]


def write_sweep(folder: Path) -> Files:
    """Write the journal and the ledger of a sweep that has ended, and return their contents."""
    now = [0.0]
    journal = Journal(folder)
    config = CostConfig(usd_per_hour=3600.0, poll="1s")
    with CostTracker(
        folder,
        config,
        nodes=lambda: {"a": {}},
        clock=lambda: now[0],
        num_events=lambda: journal.num_lines,
    ) as cost_tracker:
        journal.follow(cost_tracker.written)
        space = parse_space(parse_yaml(SPACE), name="toy")
        controller = SweepController(space, seed=1, write=journal.write, one_line=journal.one_line)
        journal.write("session", trials=4, spent_usd=0.0, budget=None)
        while (trial := controller.suggest(cost_tracker.funds())) is not None:
            for index in range(1, NUM_REPORTS + 1):
                now[0] += 2
                cost_tracker.funds()
                metrics = {"context_accuracy": 0.1 * index + 0.01 * trial.number}
                values = {"seconds": 2.0 * index, "usd": 2.0 * index, "funds": cost_tracker.funds()}
                if not controller.report(
                    trial.name, index=index, num_reports=NUM_REPORTS, metrics=metrics, **values
                ):
                    break
            controller.end(trial.name, status="finished" if index == NUM_REPORTS else "stopped")
    journal.write("completed", reason="")
    journal.close()
    note_written(folder)
    return (folder / JOURNAL_FILE).read_bytes(), (folder / LEDGER_FILE).read_bytes()


def _flip(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _on_lines(
    change: Callable[[list[bytes], random.Random], list[bytes]],
) -> Callable[[bytes, random.Random], bytes]:
    return lambda data, chance: b"".join(change(data.splitlines(keepends=True), chance))


def _cut_lines(lines: list[bytes], chance: random.Random) -> list[bytes]:
    return lines[: chance.randrange(len(lines))]


def _double(lines: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(lines))
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def _copy(lines: list[bytes], chance: random.Random) -> list[bytes]:
    to = chance.randrange(len(lines) + 1)
    return [*lines[:to], chance.choice(lines), *lines[to:]]


def _swap(lines: list[bytes], chance: random.Random) -> list[bytes]:
    first, second = chance.sample(range(len(lines)), 2)
    lines[first], lines[second] = lines[second], lines[first]
    return lines


def _remove(lines: list[bytes], chance: random.Random) -> list[bytes]:
    start = chance.randrange(len(lines))
    return lines[:start] + lines[start + chance.randint(1, 3) :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip a bit": _flip,
    "cut at a byte": _cut,
    "cut at a line's end": _on_lines(_cut_lines),
    "double a line": _on_lines(_double),
    "copy a line elsewhere": _on_lines(_copy),
    "swap two lines": _on_lines(_swap),
    "remove lines": _on_lines(_remove),
}


def check(written: Files, damaged: Files) -> RunCheck:
    """Check damaged files, given what the session wrote down at its end."""
    counts = {
        file: data.count(b"\n")
        for file, data in zip((JOURNAL_FILE, LEDGER_FILE), written, strict=True)
    }
    return check_contents(*damaged, written=counts)


def outcome(written: Files, damaged: Files) -> str:
    """Return what becomes of damaged files, given what was written: `found`, `harmless` or `ACCEPTED`."""
    found = check(written, damaged)
    if found.problems:
        return (
            "found" if found.spent_usd in (None, check(written, written).spent_usd) else "ACCEPTED"
        )
    events, entries = (
        (check_lines(data).entries, check_lines(bad).entries)
        for data, bad in zip(written, damaged, strict=True)
    )
    # Lines at an end that no line of the other file has seen: as if the writer had been killed before them.
    is_prefix = all(read == whole[: len(read)] for whole, read in (events, entries))
    is_whole_ledger = len(entries[1]) == len(entries[0])
    return (
        "harmless" if is_prefix and is_whole_ledger and found.spent_usd is not None else "ACCEPTED"
    )


def run(num: int, *, seed: int) -> dict[str, Counter[str]]:
    """Damage files `num` times; return how often each damage had each outcome."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        written = write_sweep(Path(folder))
    outcomes: dict[str, Counter[str]] = {}
    for number in range(num):
        name = list(DAMAGES)[number % len(DAMAGES)]
        which = chance.choice(["journal", "ledger", "both"])
        journal, ledger = (
            DAMAGES[name](data, chance) if which in (file, "both") else data
            for file, data in zip(("journal", "ledger"), written, strict=True)
        )
        ended = outcome(written, (journal, ledger))
        counts = outcomes.setdefault(f"{name}, {which}", Counter())
        counts[ended] += 1
        if ended == "found":
            found = check(written, (journal, ledger))
            counts["spend known"] += found.spent_usd is not None
    return outcomes
