"""Whether a sweep's journal and ledger are as they were written and agree with each other.

Each line has a hash of all before it, so damage is found where it is. Each also records how much of the other file
existed, and `written.json` how much of both existed at the end of a session, so lines that are missing at an end are
found too. After a killed session, the folders of trials are the witness of both: a trial starts only once its proposal
is in the journal, and makes its next report only once the last one is. Both files cut at one moment are accepted only
if no trial started after it and none reported twice.

What a sweep has spent is the sum of its ledger. If that is damaged, it is at least what the journal recorded last; if
both are damaged, it is unknown. A sweep with damage is not resumed before its owner has restored the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from raysent.cost import bad_entry
from raysent.errors import ArtifactError
from raysent.reading import read_bytes
from raysent.storage import (
    Checked,
    Damage,
    Line,
    address_of,
    check_lines,
    num_lines,
    read_json,
    write_json,
)
from raysent.storage.layout import (
    JOURNAL_FILE,
    LEDGER_FILE,
    REPORTS_FILE,
    TRIALS_FOLDER,
    WRITTEN_FILE,
)
from raysent.sweeps.cost_tracker import machines_usd

# The rounding of amounts in the journal.
_ROUNDING_USD = 1e-5


class Problem(NamedTuple):
    """Damage of a file in a run folder: the first bad line, from 1, or the one after the last; and what is wrong."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        """Return ``file:line: reason``."""
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class RunCheck:
    """What a sweep's files say.

    Attributes:
        problems: The damage, at most one of each file.
        num_events: Events of the journal before its first damage.
        num_entries: Entries of the ledger before its first damage.
        spent_usd: What the sweep has spent: its ledger's sum, or at least that by its journal; None if unknown.
    """

    problems: tuple[Problem, ...]
    num_events: int
    num_entries: int
    spent_usd: float | None


def check_run(folder: Path) -> RunCheck:
    """Check the journal and the ledger of a run folder.

    Raises:
        ArtifactError: If a file cannot be read.
    """
    path = folder / WRITTEN_FILE
    written = read_json(path) if path.exists() else {}
    journal = _content(folder / JOURNAL_FILE)
    found = check_contents(journal, _content(folder / LEDGER_FILE), written=written)
    missing = "" if found.problems else missing_by_trials(folder, check_lines(journal).entries)
    if not missing:
        return found
    # Had the ledger all its lines, it would name more lines of the journal.
    problems = (
        Problem(JOURNAL_FILE, num_lines(folder / JOURNAL_FILE) + 1, missing),
        Problem(
            LEDGER_FILE,
            num_lines(folder / LEDGER_FILE) + 1,
            "missing: it is no longer than the journal",
        ),
    )
    return replace(found, problems=problems, spent_usd=None)


def note_written(folder: Path) -> None:
    """Write down how many lines the files of a run folder have, at the end of a session."""
    values = {file: num_lines(folder / file) for file in (JOURNAL_FILE, LEDGER_FILE)}
    write_json(folder / WRITTEN_FILE, {**values, "spent_usd": check_run(folder).spent_usd})


def check_contents(
    journal: bytes, ledger: bytes, *, written: Mapping[str, Any] | None = None
) -> RunCheck:
    """Check the contents of a journal and a ledger; empty for a file that does not exist.

    Args:
        journal: The journal.
        ledger: The ledger.
        written: What `note_written` wrote.
    """
    written = written or {}
    events, entries = check_lines(journal), _check_ledger(ledger)
    num_seen, usd_seen = next(
        (one.seen["ledger"] for one in reversed(events.lines) if "ledger" in one.seen), (0, 0.0)
    )
    num_events = max((one.seen.get("journal", 0) for one in entries.lines), default=0)
    found = {
        JOURNAL_FILE: events.damage
        or _missing(events, max(num_events, written.get(JOURNAL_FILE, 0))),
        LEDGER_FILE: entries.damage
        or _missing(entries, max(num_seen, written.get(LEDGER_FILE, 0)))
        or _other_sum(entries.lines[:num_seen], usd_seen),
    }
    problems = tuple(
        Problem(file, damage.line, damage.reason)
        for file, damage in found.items()
        if damage is not None
    )
    spent_usd: float | None = round(machines_usd(entries.entries), 6)
    if found[LEDGER_FILE] is not None:
        # `written.json` is later than the journal's last line, which is the last of a session.
        spent_usd = (
            None
            if found[JOURNAL_FILE] is not None
            else max(usd_seen, written.get("spent_usd") or 0.0)
        )
    return RunCheck(problems, len(events.entries), len(entries.entries), spent_usd)


def verify_run(folder: Path) -> None:
    """Check a run folder before it is continued.

    Raises:
        ArtifactError: With the first bad line, what is known of the spending, and the command that checks it.
    """
    found = check_run(folder)
    if found.problems:
        where = address_of(folder)
        spent = (
            "what was spent is unknown"
            if found.spent_usd is None
            else f"{found.spent_usd:.2f} usd were spent"
        )
        raise ArtifactError(f"{where}/{found.problems[0]}; {spent}; see 'raysent doctor {where}'")


def ledger_damage(folder: Path) -> str:
    """Return what is wrong with a sweep's ledger, in one line; empty if nothing is, also while it is written."""
    found = next((one for one in check_run(folder).problems if one.file == LEDGER_FILE), None)
    where = address_of(folder)
    return (
        ""
        if found is None
        else f"{where}/{found}; what was spent is not known from it; see 'raysent doctor {where}'"
    )


def _content(path: Path) -> bytes:
    return read_bytes(path, name=address_of(path)) if path.exists() else b""


def missing_by_trials(folder: Path, events: Sequence[Any]) -> str:
    """Return what the folders of trials have that the journal lacks; empty if it lacks nothing."""
    last_reports: dict[str, int] = {}
    for event in events:
        if event["event"] == "suggested":
            last_reports[event["trial"]] = 0
        elif event["event"] == "report":
            last_reports[event["trial"]] = event["index"]
    ended = {event["trial"] for event in events if event["event"] == "ended"}
    for path in sorted((folder / TRIALS_FOLDER).glob("[0-9]*")):
        if path.name in ended:
            continue
        if path.name not in last_reports:
            return f"missing: trial {path.name} has a folder and no event"
        num = num_lines(path / REPORTS_FILE)
        if num > last_reports[path.name] + 1:
            return f"missing: trial {path.name} made {num} reports; the journal has {last_reports[path.name]}"
    return ""


def _check_ledger(data: bytes) -> Checked:
    """Return the lines of a ledger before the first that is damaged or has an entry that no ledger has."""
    checked = check_lines(data)
    bad = bad_entry(checked.entries)
    if bad is None:
        return checked
    place = [number for number, line in enumerate(checked.lines) for _ in line.entries][bad[0]]
    return Checked(checked.lines[:place], Damage(place + 1, bad[1]))


def _missing(checked: Checked, num: int) -> Damage | None:
    where, reason = len(checked.lines) + 1, f"missing: {num} lines were written"
    return Damage(where, reason) if num >= where else None


def _other_sum(lines: Sequence[Line], usd: float) -> Damage | None:
    """Return that lines sum up to other dollars than the journal has seen of them, if they do."""
    total = machines_usd(entry for line in lines for entry in line.entries)
    if abs(total - usd) <= _ROUNDING_USD * max(1.0, abs(usd)):
        return None
    return Damage(max(1, len(lines)), f"sums up to {total:.6g} usd; the journal says {usd:.6g}")
