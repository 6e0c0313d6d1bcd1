"""The command line of `raysent cost`: tables, one JSON object, errors of one line."""

from __future__ import annotations

import json

from command import SPACE

from raysent import bill
from raysent.config import parse_yaml
from raysent.cost import CostConfig, Ledger, own_price
from raysent.storage import Lines
from raysent.sweeps.cost_tracker import CostTracker
from raysent.sweeps.record import SweepRecord, save_record
from raysent.sweeps.space import parse_space
from raysent.sweeps.trial import Trial


def _swept(folder) -> None:
    """Write the record and the ledger of a sweep of one trial on a machine that costs a dollar a second."""
    text = SPACE + "cost: {usd_per_hour: 3600, budget: 100usd, poll: 1s}\n"
    space = parse_space(parse_yaml(text), name="toy")
    save_record(folder, SweepRecord(space, seed=0, started=1.0))
    now = [0.0]
    with CostTracker(
        folder,
        CostConfig(usd_per_hour=3600.0, poll="1s"),
        nodes=lambda: {"a": {}},
        clock=lambda: now[0],
    ) as cost_tracker:
        now[0] = 8.0
        report = {"index": 1, "seconds": 6.0, "step": 12, "steps_lost": 0, "node": "a"}
        cost_tracker.note_share(Trial("0000", 0, {}, 0), report)
        cost_tracker.funds()


def test_cost_report_sums_the_ledger(raysent, tmp_path):
    """Spending, the part outside trials, and the cost of each trial."""
    _swept(tmp_path / "run")
    found = json.loads(raysent("cost", "report", "run", "--json").out)
    assert (found["spent_usd"], found["outside_trials_usd"], found["budget_usd"]) == (
        8.0,
        2.0,
        100.0,
    )
    assert found["trials"] == {"0000": {"rung": 1, "seconds": 6.0, "usd": 6.0, "steps": 12}}
    ran = raysent("cost", "report", "run")
    assert (
        "spent 8.00 usd of 100.00 on 0.00 machine hours; 2.00 of it outside trials' reports"
        in ran.out
    )


def test_cost_report_shows_the_cost_of_a_killed_driver(raysent, tmp_path):
    """Time without a closing line is charged at worst, and shown."""
    _swept(tmp_path / "run")
    lines = Lines(tmp_path / "run" / "ledger.jsonl")
    ledger = Ledger(lines.append)
    ledger.open("b", own_price(3600.0), now_s=0)
    past = [{**entry, "entry": "node"} for entry in map(json.loads, _lines(ledger))]
    Ledger(lines.append, past=past, window_s=5.0)
    assert (
        "assumed 5.00 usd for machines that a killed driver left"
        in raysent("cost", "report", "run").out
    )


def test_cost_report_shows_a_small_cost_of_a_killed_driver(raysent, tmp_path, monkeypatch):
    """Two significant digits begin as nothing does."""
    _swept(tmp_path / "run")
    found = bill(tmp_path / "run")
    for assumed, is_shown in ((0.004, True), (0.0, False)):
        monkeypatch.setattr("raysent.bill", lambda _, usd=assumed: found | {"assumed_usd": usd})
        assert ("assumed 0.004 usd" in raysent("cost", "report", "run").out) == is_shown


def _lines(ledger: Ledger) -> list[str]:
    node = ledger.nodes["b"]
    price = {"market": node.price.market, "worst_usd_per_hour": node.price.worst_usd_per_hour}
    return [json.dumps({"entry": "node", "node": "b", "usd": 0.0, "is_open": True, **price})]


def test_cost_report_without_a_ledger_is_an_error(raysent, tmp_path):
    """One line, not an empty table."""
    space = parse_space(parse_yaml(SPACE), name="toy")
    save_record(tmp_path / "run", SweepRecord(space, seed=0))
    ran = raysent("cost", "report", "run")
    assert (ran.code, ran.out) == (2, "")
    assert "holds no ledger.jsonl" in ran.err
