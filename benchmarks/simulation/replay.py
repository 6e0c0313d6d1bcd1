"""Every decision of a sweep derived again from its journal: proposals, seeds, which trials continued, the budget's end.

Reports, ends and funds are taken as they happened. A new controller makes everything else, call by call, and it must be
the same to the last bit; only the wording of reasons may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raysent.cost import Budget, Funds
from raysent.sweeps.controller import SweepController
from raysent.sweeps.journal import Event, finite
from raysent.sweeps.samplers import Sampler, make_sampler
from raysent.sweeps.space import SearchSpace

# Events that are no decision.
_BETWEEN = ("interrupted", "completed")
_NOT_COMPARED = ("time", "reason", "memory_bytes")


@dataclass(frozen=True)
class Replayed:
    """How a journal compares with what is derived from it.

    Attributes:
        num_events: Events of the journal.
        num_derived: Those that were derived and are the same.
        num_sessions: Sessions of the sweep.
        difference: The first event that differs and what was derived in its place; empty where all are the same.
    """

    num_events: int
    num_derived: int
    num_sessions: int
    difference: str = ""


def replay(
    space: SearchSpace,
    *,
    seed: int,
    events: Sequence[Event],
    sampler: Callable[[], Sampler] | None = None,
) -> Replayed:
    """Derive a sweep's decisions again.

    Args:
        space: What was searched.
        seed: The sweep's seed.
        events: Its journal.
        sampler: Makes what proposes trials, once for each session; None for the space's own.
    """
    make = sampler or (lambda: make_sampler(space, seed=seed))
    derived: list[Event] = []

    def write(event: str, **values: Any) -> None:
        derived.append({"event": event, **finite(values)})

    controller: SweepController | None = None
    num_derived = sessions = at = 0
    while at < len(events):
        event = events[at]
        if event["event"] == "session":
            budget = Budget(**event["budget"]) if event.get("budget") else None
            controller = SweepController(
                space, seed=seed, write=write, past=events[:at], budget=budget, sampler=make()
            )
            sessions += 1
        if controller is None or event["event"] in ("session", *_BETWEEN):
            at += 1
            continue
        derived.clear()
        _CALLS[event["event"]](controller, events, at)
        for one in derived or [{"event": "nothing"}]:
            if at == len(events) or events[at]["event"] == "session":
                break  # the driver was killed before it wrote the rest
            # An older version may have recorded less.
            if any(
                one.get(key) != value
                for key, value in events[at].items()
                if key not in _NOT_COMPARED
            ):
                recorded = {key: value for key, value in events[at].items() if key != "time"}
                return Replayed(
                    len(events),
                    num_derived,
                    sessions,
                    f"event {at + 1}: {recorded}; derived: {one}",
                )
            num_derived, at = num_derived + 1, at + 1
    return Replayed(len(events), num_derived, sessions)


def _suggest(controller: SweepController, events: Sequence[Event], at: int) -> None:
    following = events[at : at + 2]
    funds = next(
        (event.get("funds") for event in following if event["event"] in ("started", "refused")),
        None,
    )
    # Of a driver that was killed between the two events the funds are lost; they were not refused.
    controller.suggest(funds and Funds(**funds))


def _report(controller: SweepController, events: Sequence[Event], at: int) -> None:
    event = events[at]
    trial = controller.trials[event["trial"]]
    metrics: dict[str, Any] = dict(event.get("metrics", trial.metrics))
    is_repeated = event["event"] == "decision"
    following = events[at : at + 2]
    funds = next((one.get("funds") for one in following if one["event"] == "decision"), None)
    controller.report(
        trial.name,
        index=event["index"],
        num_reports=trial.num_reports if is_repeated else event["num_reports"],
        metrics=metrics,
        seconds=trial.seconds if is_repeated else event["seconds"],
        usd=trial.usd if is_repeated else event.get("usd", 0.0),
        funds=funds and Funds(**funds),
    )


def _halt(controller: SweepController, events: Sequence[Event], at: int) -> None:
    event = events[at]
    if event.get("by") == "machines":
        controller.halt(event["reason"], Funds(**event["funds"]))
    else:
        controller.is_halted(Funds(**event["funds"]))


def _end(controller: SweepController, events: Sequence[Event], at: int) -> None:
    event = events[at]
    values = {key: event[key] for key in ("status", "seconds", "error")}
    controller.end(
        event["trial"], usd=event.get("usd", 0.0), metrics=event.get("metrics"), **values
    )


# The first event that a call writes -> the call.
_CALLS: dict[str, Callable[[SweepController, Sequence[Event], int], None]] = {
    "suggested": _suggest,
    "started": _suggest,
    "refused": _suggest,
    "report": _report,
    "decision": _report,
    "halted": _halt,
    "ended": _end,
}
