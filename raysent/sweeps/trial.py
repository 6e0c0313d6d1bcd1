"""One trial of a sweep, as the events of the journal describe it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raysent.sweeps.space import Params

Status = Literal["waiting", "running", "finished", "stopped", "failed", "nan"]
ENDED: tuple[Status, ...] = ("finished", "stopped", "failed", "nan")
BROKEN: tuple[Status, ...] = ("failed", "nan")


@dataclass(frozen=True)
class TrialReport:
    """One report of a trial.

    Attributes:
        index: Counted from 1; a whole run makes `Trial.num_reports`.
        metrics: The figures of validation by name; None for what is not a number.
        seconds: Time spent training so far, over all resumes.
        usd: What that time cost.
        time: When the journal recorded it, in seconds since 1970; None for a report of this session.
        memory_bytes: Physical memory of the trial's process; None if it is not known.
    """

    index: int
    metrics: Mapping[str, float | None]
    seconds: float
    usd: float = 0.0
    time: float | None = None
    memory_bytes: int | None = None


@dataclass
class Trial:
    """One trial.

    Attributes:
        name: Four digits, the name of the trial's folder.
        number: Counted from 0.
        params: Searched name -> value; a name that did not apply is absent.
        seed: Seed of its run.
        status: `waiting` and `running`; `finished`, `stopped` early, `failed`, or `nan` (diverged).
        index: Index of its last report, 0 before the first.
        num_reports: Reports of a whole run, 0 before the first.
        metrics: Those of the last report; once it has ended, those of its model.
        seconds: Time spent training, over all resumes.
        usd: What that time cost.
        reports: All its reports.
        decisions: Report index -> whether it continued.
        is_outranked: Whether the scheduler stopped it, because others were better at the same report; a clock or a
            budget does not say so.
        error: One line, where it failed.
    """

    name: str
    number: int
    params: Params
    seed: int
    status: Status = "waiting"
    index: int = 0
    num_reports: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    usd: float = 0.0
    reports: list[TrialReport] = field(default_factory=list)
    decisions: dict[int, bool] = field(default_factory=dict)
    is_outranked: bool = False
    error: str | None = None

    def take(self, report: TrialReport, *, num_reports: int) -> None:
        """Add the next report of `num_reports`."""
        self.reports.append(report)
        self.num_reports = num_reports
        self.index, self.metrics, self.seconds, self.usd = (
            report.index,
            report.metrics,
            report.seconds,
            report.usd,
        )


def trials_of(events: Iterable[Mapping[str, Any]]) -> dict[str, Trial]:
    """Return the trials that a journal's events describe, by name."""
    trials: dict[str, Trial] = {}
    for event in events:
        apply_event(trials, event)
    return trials


def apply_event(trials: dict[str, Trial], event: Mapping[str, Any]) -> None:
    """Change the trials as an event says; an event of no trial changes nothing."""
    kind = event["event"]
    if kind == "suggested":
        trials[event["trial"]] = Trial(
            event["trial"], event["number"], dict(event["params"]), event["seed"]
        )
    elif "trial" in event:
        trial = trials[event["trial"]]
        match kind:
            case "started":
                trial.status = "running"
            case "report":
                usd, time, memory_bytes = (
                    event.get("usd", 0.0),
                    event.get("time"),
                    event.get("memory_bytes"),
                )
                report = TrialReport(
                    event["index"], event["metrics"], event["seconds"], usd, time, memory_bytes
                )
                trial.take(report, num_reports=event["num_reports"])
            case "decision":
                trial.decisions[event["index"]] = event["decision"] == "continue"
                trial.is_outranked = event["decision"] == "stop" and event.get("by") != "budget"
            case "ended":
                trial.status, trial.error = event["status"], event["error"]
                trial.metrics = event.get("metrics", trial.metrics)
                trial.seconds, trial.usd = event["seconds"], event.get("usd", 0.0)


def trial_name(number: int) -> str:
    """Return the name of the trial with this number."""
    return f"{number:04d}"


def derived_seed(*parts: int | str) -> int:
    """Return a seed of 31 bits that depends on every part and on nothing else."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
