"""What every cell has to end in: a finished sweep or one clear line, and nothing lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulation import replay
from chaos.moments import NUM_REPORTS
from chaos.stage import NUM_TRIALS, Ending, Stage
from raysent.cost import Entry
from raysent.storage import open_folder, read_json
from raysent.sweeps import load_record, read_events, read_ledger

KILLED, MISTAKE = -9, 2
HOW = {0: "finished", KILLED: "killed, resumed", MISTAKE: "one line, resumed"}
# Of what was used, the ledger may lack what is cut off by its figures' rounding.
_ROUNDING_USD = 0.02


@dataclass(frozen=True)
class Found:
    """A finished sweep, as its run folder has it.

    Attributes:
        trials: Trial -> how it ended and its last figures.
        decisions: Trial and report -> what was said.
        members: Of the ensemble, and its score.
        ledger: Its lines.
    """

    trials: Mapping[str, tuple[str, Any]]
    decisions: Mapping[tuple[str, int], str]
    members: Any
    ledger: list[Entry]

    @property
    def spent_usd(self) -> float:
        """What its machines cost by the ledger."""
        return float(sum(line["usd"] for line in self.ledger if line["entry"] != "trial"))


def check_ending(ending: Ending) -> None:
    """A driver ends well, or by a kill, or with one line and exit code 2."""
    assert "Traceback" not in ending.errors, ending.errors
    assert ending.code in (0, KILLED, MISTAKE), f"exit code {ending.code}: {ending.errors}"
    said = [line for line in ending.errors.splitlines() if line.startswith("error:")]
    assert len(said) == (ending.code == MISTAKE), ending.errors
    if ending.code == MISTAKE:
        assert ending.errors.rstrip().splitlines()[-1] == said[0]


def go_on_to_the_end(stage: Stage, ending: Ending) -> Found:
    """Check how a driver ended, resume what it left unfinished, and return what came of it."""
    check_ending(ending)
    stage.calm()
    before = list(read_events(open_folder(stage.run)))
    if ending.code:
        resumed = stage.resume()
        check_ending(resumed)
        assert resumed.code == 0, resumed.errors
    return look(stage, before=before)


def look(stage: Stage, *, before: list[dict[str, Any]] | None = None) -> Found:
    """Check a finished sweep, seen from a machine that never saw it; `before`: events that there were already."""
    folder = open_folder(stage.run)
    events = check_events(folder, before=before)
    _check_shares(folder, events)
    assert (folder / "report.html").is_file()
    ensemble = read_json(folder / "ensemble.json")
    return Found(
        trials={e["trial"]: (e["status"], e["metrics"]) for e in events if e["event"] == "ended"},
        decisions={
            (e["trial"], e["index"]): e["decision"] for e in events if e["event"] == "decision"
        },
        members=_told(ensemble),
        ledger=read_ledger(folder),
    )


def check_events(
    folder: Path, *, before: list[dict[str, Any]] | None = None, num_trials: int = NUM_TRIALS
) -> list[dict[str, Any]]:
    """Check that nothing of a finished sweep is lost or there twice, and that it can be replayed; returns its events."""
    events = list(read_events(folder))
    if before is not None:
        assert events[: len(before)] == before, "events were lost"
    ended = Counter(event["trial"] for event in events if event["event"] == "ended")
    assert ended == {f"{number:04d}": 1 for number in range(num_trials)}
    reports = Counter(
        (event["trial"], event["index"]) for event in events if event["event"] == "report"
    )
    assert set(reports.values()) == {1}
    assert replay(load_record(folder).space, seed=0, events=events).difference == ""
    return events


def check_same(found: Found, undisturbed: Found) -> None:
    """What was decided, trained and judged is what comes out where nothing goes wrong, to the last bit."""
    assert found.trials == undisturbed.trials
    assert found.decisions == undisturbed.decisions
    assert found.members == undisturbed.members


def check_ledger(stage: Stage, found: Found, *, killed_s: float) -> None:
    """The ledger is never below what was used: every machine's time while a session trained."""
    used_usd = 0.0
    for path in stage.folder.glob("session-*.json"):
        begun_s, ended_s = [*json.loads(path.read_text()), killed_s][:2]
        for machine in stage.machines:
            until_s = min(ended_s, stage.lost_s.get(machine, ended_s))
            used_usd += stage.usd(machine, begun_s, until_s)
    assert found.spent_usd >= used_usd - _ROUNDING_USD, (
        f"{found.spent_usd:.3f} in the ledger, {used_usd:.3f} used"
    )


def _check_shares(folder: Path, events: list[dict[str, Any]]) -> None:
    """Every report has its share in the ledger."""
    told = {
        (line["trial"], line["rung"]) for line in read_ledger(folder) if line["entry"] == "trial"
    }
    assert told == {
        (event["trial"], event["index"]) for event in events if event["event"] == "report"
    }


def _told(ensemble: dict[str, Any]) -> Any:
    """Return what an ensemble says, without what names folders or times."""
    return {
        key: value
        for key, value in ensemble.items()
        if key in ("members", "weights", "scores", "tasks")
    }


__all__ = [
    "HOW",
    "KILLED",
    "MISTAKE",
    "NUM_REPORTS",
    "Found",
    "check_ending",
    "check_events",
    "check_ledger",
    "check_same",
    "look",
]
