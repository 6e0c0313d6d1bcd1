"""Derive every decision of a sweep again from its journal: what was proposed, who went on, where the money ended.

The journal's reports, endings and funds are taken as they happened; everything else is asked of a new conductor, call
by call, and must come out the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raysent.cost import Budget, Funds
from raysent.sweeps.controller import SweepController
from raysent.sweeps.journal import Event, finite
from raysent.sweeps.samplers.optuna_samplers import Sampler
from raysent.sweeps.space import SearchSpace

# What nobody decided.
_BETWEEN = ("interrupted", "completed")


@dataclass(frozen=True)
class Replayed:
    """How a journal compares with what is derived from it.

    Attributes:
        num_events: Events of the journal.
        num_derived: Those of them that came out of the conductor again.
        num_sittings: Times that a driver took the sweep up.
        difference: Where the first event that came out otherwise stands, and what came; empty where all are the same.
    """

    num_events: int
    num_derived: int
    num_sittings: int
    difference: str = ""


def replay(
    space: SearchSpace, *, seed: int, events: Sequence[Event], searcher: Callable[[], Sampler] | None = None
) -> Replayed:
    """Derive a sweep's decisions again.

    Args:
        space: What was searched.
        seed: The sweep's seed.
        events: Its journal.
        searcher: Makes what proposes trials; None for the space's sampler.
    """
    said: list[Event] = []

    def write(event: str, **values: Any) -> None:
        said.append({"event": event, **finite(values)})

    controller: SweepController | None = None
    derived = sittings = at = 0
    while at < len(events):
        event = events[at]
        if event["event"] == "session":
            budget = Budget(**event["budget"]) if event.get("budget") else None
            proposals = None if searcher is None else searcher()
            controller = SweepController(
                space, seed=seed, write=write, past=events[:at], budget=budget, proposals=proposals
            )
            sittings += 1
        if controller is None or event["event"] in ("session", *_BETWEEN):
            at += 1
            continue
        said.clear()
        _CALLS[event["event"]](controller, events, at)
        for answer in said or [{"event": "nothing"}]:
            if at == len(events) or events[at]["event"] == "session":
                break  # the driver was killed before it wrote the rest
            if not _is_same(events[at], answer):
                told = {key: value for key, value in events[at].items() if key != "time"}
                return Replayed(len(events), derived, sittings, f"event {at + 1}: {told}; derived: {answer}")
            derived, at = derived + 1, at + 1
    return Replayed(len(events), derived, sittings)


def budget_values(budget: Budget) -> dict[str, Any]:
    """Return a budget as a session's event keeps it."""
    return asdict(budget)


def _is_same(written: Event, said: Event) -> bool:
    """Compare what the journal says; an older one may say less."""
    return all(said.get(key) == value for key, value in written.items() if key != "time")


def _suggest(controller: SweepController, events: Sequence[Event], at: int) -> None:
    following = events[at : at + 2]
    funds = next((event.get("funds") for event in following if event["event"] in ("started", "refused")), None)
    # A driver that was killed between the two events had funds that nobody kept; none were refused.
    controller.suggest(Funds.from_values(funds))


def _report(controller: SweepController, events: Sequence[Event], at: int) -> None:
    event = events[at]
    trial = controller.trials[event["trial"]]
    is_told_again = event["event"] == "decision"
    following = events[at : at + 2]
    funds = next((one.get("funds") for one in following if one["event"] == "decision"), None)
    controller.report(
        trial.name,
        index=event["index"],
        num_reports=trial.num_reports if is_told_again else event["num_reports"],
        metrics=dict(trial.metrics if is_told_again else event["metrics"]),  # type: ignore[arg-type]
        seconds=trial.seconds if is_told_again else event["seconds"],
        usd=trial.usd if is_told_again else event.get("usd", 0.0),
        funds=Funds.from_values(funds),
    )


def _halt(controller: SweepController, events: Sequence[Event], at: int) -> None:
    controller.is_halted(Funds(**events[at]["funds"]))


def _end(controller: SweepController, events: Sequence[Event], at: int) -> None:
    event = events[at]
    usd = event.get("usd", 0.0)
    controller.end(event["trial"], status=event["status"], seconds=event["seconds"], usd=usd, error=event["error"])


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
