"""A sweep's decisions are a function of its seed and its journal: derived again bit for bit, killed anywhere or not."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Simulator, replay
from benchmarks.simulation.workload import Scenario
from raysent.config import parse_yaml
from raysent.cost import Budget, CostConfig
from raysent.sweeps import RandomSampler
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.space import parse_space

TEXT = """
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search:
  encoder.bidirectional: {choice: [false, true]}
  training.learning_rate: {loguniform: [1e-4, 1e-2]}
limits: {trials: 9, seeds: %d}
"""
SPACE = parse_space(parse_yaml(TEXT % 1), name="toy")


def _world(**changes) -> Scenario:
    plain = {
        "usd_per_hour": 1.0,
        "num_machines": 3,
        "market": "auto",
        "num_reports": 9,
        "trial_s": 3600.0,
    }
    return Scenario(**{**plain, "cost": CostConfig(), "kill_share": 0.0, **changes})


def _decisions(events: list[dict]) -> list:
    """Return what was decided, without what a kill does to money and time."""
    kept = []
    for event in events:
        match event["event"]:
            case "suggested":
                kept.append((event["trial"], json.dumps(event["params"]), event["seed"]))
            case "decision":
                kept.append((event["trial"], event["index"], event["decision"], event["reason"]))
            case "ended":
                kept.append((event["trial"], event["status"], json.dumps(event["metrics"])))
    return kept


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    limit_usd=st.one_of(st.none(), st.floats(1, 10)),
    on_budget=st.sampled_from(["stop", "finish-rung"]),
    kill_at=st.one_of(st.none(), st.integers(1, 120)),
)
@example(seed=4510, limit_usd=1.125, on_budget="stop", kill_at=58)  # while it ends the last trials
def test_replay_derives_every_decision_of_a_simulated_sweep(seed, limit_usd, on_budget, kill_at):
    """Interruptions, refusals, halts and kills included; through JSON and back."""
    budget = Budget(limit_usd=limit_usd, on_budget=on_budget)
    swept = Simulator(SPACE, _world(), budget, seed=seed, kill_at=kill_at).run()
    events = json.loads(json.dumps(swept.events))
    found = replay(SPACE, seed=seed, events=events, sampler=lambda: RandomSampler(SPACE, seed=seed))
    assert found.difference == ""
    assert found.num_derived == sum(event["event"] != "session" for event in events)


def _space_of(*, sampler: str, scheduler: str, seeds: int = 1):
    """Return a small space that is searched in this way."""
    text = (
        TEXT.replace("limits: {trials: 9, ", f"limits: {{trials: 6, sampler: {sampler}, ") % seeds
    )
    text = text.replace("seeds:", f"scheduler: {{type: {scheduler}}}, seeds:")
    return parse_space(parse_yaml(text + "cost: {usd_per_hour: 1.0}\n"), name="toy")


def _swept(space, *, kill_at: int | None) -> list[dict]:
    """Return the journal of a simulated sweep by one machine, with the space's own sampler."""
    world = _world(num_machines=1, market="own")
    sampler = lambda: make_sampler(space, seed=7)  # noqa: E731 - one line says it
    return Simulator(space, world, Budget(), seed=7, sampler=sampler, kill_at=kill_at).run().events


WAYS = [
    *({"sampler": sampler, "scheduler": "asha"} for sampler in ("random", "tpe", "qmc", "gp")),
    {"sampler": "tpe", "scheduler": "none"},
    {"sampler": "tpe", "scheduler": "asha", "seeds": 3},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@settings(max_examples=3, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_kill_at_any_event_changes_no_decision(way, share):
    """Whatever event the driver is killed after, proposals and decisions come out as without a kill, in every way."""
    space = _space_of(**way)
    whole = _swept(space, kill_at=None)
    killed = _swept(space, kill_at=1 + int(share * len(whole)))
    assert _decisions(killed) == _decisions(whole)
    assert replay(space, seed=7, events=killed).difference == ""


def test_a_kill_at_every_event_changes_no_decision():
    """After each and every event of a sweep, one after the other."""
    space = _space_of(sampler="random", scheduler="asha")
    whole = _swept(space, kill_at=None)
    assert {event["decision"] for event in whole if event["event"] == "decision"} == {
        "continue",
        "stop",
    }
    for kill_at in range(1, len(whole) + 1):
        killed = _swept(space, kill_at=kill_at)
        assert sum(event["event"] == "session" for event in killed) == 2, kill_at
        assert _decisions(killed) == _decisions(whole), kill_at


def test_replay_takes_the_budget_of_each_sitting():
    """A budget that was raised between sittings is the one that a sitting's decisions were made by."""
    first = Simulator(SPACE, _world(), Budget(limit_usd=1.0), seed=3).run().events
    ended = [event for event in first if event["event"] != "ended"]
    raised = {"event": "session", "budget": asdict(Budget(limit_usd=100.0))}
    found = replay(
        SPACE, seed=3, events=[*ended, raised], sampler=lambda: RandomSampler(SPACE, seed=3)
    )
    assert any(event["event"] in ("refused", "halted") for event in first)
    assert (found.difference, found.num_sessions) == ("", 2)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("decision", {"decision": "stop"}),
        ("suggested", {"seed": 1}),
        ("suggested", {"params": {"training.learning_rate": 5e-4}}),
    ],
)
def test_replay_names_the_first_event_that_comes_out_otherwise(kind, changed):
    """Decisions, and seeds and parameters to the last bit; the line has what comes out now."""
    events = Simulator(SPACE, _world(), Budget(), seed=3).run().events
    at = next(place for place, event in enumerate(events) if event["event"] == kind)
    if "params" in changed:
        changed = {"params": {**events[at]["params"], **changed["params"]}}
    events[at] = {**events[at], **changed}
    found = replay(SPACE, seed=3, events=events, sampler=lambda: RandomSampler(SPACE, seed=3))
    assert found.difference.startswith(f"event {at + 1}: {{'event': '{kind}'")
    assert kind != "decision" or "'decision': 'continue'" in found.difference
