"""The report's pages of money: what was spent, lost and would be on demand, and what it bought."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from test_report import SWEEP, figures, prose

from raysent.cost import Entry, Ledger, bill_of, on_demand_price, spot_price, verdict
from raysent.report import write
from raysent.report.blocks import dollars
from raysent.report.run_files import read_run
from raysent.report.sections.score_against_dollars import pareto
from raysent.report.sections.trial_costs import rungs_of

BEGUN = SWEEP["started"]
ON_DEMAND = on_demand_price(3600.0, source="list")
SPOT = spot_price(1800.0, ON_DEMAND, source="told")
NUM_TRIALS, NUM_REPORTS = 6, 9


def ledger_lines() -> list[Entry]:
    """Return the lines of two spot machines of half a dollar a second; one is taken, and 10 steps are lost with it."""
    lines: list[Entry] = []
    now = [0.0]
    ledger = Ledger(lambda entry: lines.append({**entry, "time": BEGUN + now[0]}))
    ledger.open("a", SPOT, now_s=0.0)
    ledger.open("b", SPOT, now_s=0.0)
    for number in range(NUM_TRIALS):
        now[0] = 100.0 * (number + 1)
        ledger.tick(now_s=now[0])
        way = {"node": "a", "rung": 1, "seconds": 40.0, "usd": 10.0 * (number + 1)}
        ledger.record_trial(f"{number:04d}", **way, steps=100, steps_lost=10 * (number == 2))
    ledger.close("a", now_s=now[0], is_interrupted=True)
    ledger.close("b", now_s=now[0])
    return lines


def paid_sweep(folder: Path, *, lines: list[Entry]) -> Path:
    """Write the folder of a sweep whose trials are the better the dearer they are, but for the last."""
    folder.mkdir(exist_ok=True)
    settings = {**SWEEP, "space": {"cost": {"budget": "800usd"}}, "search": {"size": {"randint": [1, 9]}}}
    (folder / "sweep.json").write_text(json.dumps(settings))
    events = []
    for number in range(NUM_TRIALS):
        told = {"trial": f"{number:04d}", "time": BEGUN + 100.0 * (number + 1)}
        score = 0.01 * (number + 1) if number < NUM_TRIALS - 1 else 0.005
        usd = 10.0 * (number + 1)
        events += [{"event": "suggested", **told, "params": {"size": number + 1}}]
        report = {"index": 1, "num_reports": NUM_REPORTS, "metrics": {"context_accuracy": score}, "seconds": 40.0}
        events += [{"event": "report", **told, **report, "usd": usd}]
        events += [{"event": "ended", **told, "status": "finished", "metrics": {}, "seconds": 40.0, "usd": usd}]
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "estimate.json").write_text(json.dumps({"usd": {"p10": 100.0, "p50": 200.0, "p90": 250.0}}))
    return folder


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was paid for."""
    return paid_sweep(tmp_path_factory.mktemp("paid"), lines=ledger_lines())


@pytest.fixture(scope="module")
def page(paid: Path) -> str:
    """Its page."""
    return write(paid).read_text(encoding="utf-8")


def test_bill_counts_refunds_lost_work_and_the_same_on_demand():
    """600 s of two machines at 0.5 a second; the one that was taken in its first hour is free."""
    bill = bill_of(ledger_lines())
    assert (bill.usd, bill.refunded_usd, bill.on_demand_usd) == (300.0, 300.0, 1200.0)
    assert (bill.machine_s, bill.num_interruptions, bill.num_unknown) == (1200.0, 1, 0)
    assert bill.lost_usd == pytest.approx(30.0 * 10 / 100)
    assert bill.outside_usd == pytest.approx(600.0 - 210.0)


def test_bill_of_unknown_losses_says_how_many():
    """What nobody knows is counted as unknown, not as nothing."""
    lines = [{**line, "steps_lost": None} if line["entry"] == "trial" else line for line in ledger_lines()]
    assert (bill_of(lines).lost_usd, bill_of(lines).num_unknown) == (0.0, NUM_TRIALS)


def test_bill_of_own_machines_has_no_price_on_demand():
    """There is no other price to hold one's own against."""
    assert bill_of([{**line, "market": "own"} for line in ledger_lines()]).on_demand_usd is None


@pytest.mark.parametrize(("spent", "where"), [(0.9, "below"), (1.0, "inside"), (3.0, "inside"), (3.1, "above")])
def test_verdict_says_where_a_bill_lies(spent, where):
    """Both ends of the range are inside."""
    assert verdict({"p10": 1.0, "p50": 2.0, "p90": 3.0}, spent_usd=spent) == where


def test_spending_says_it_in_words(page):
    """Spent, taken back, lost, on demand, and the estimate beside the bill."""
    text = unescape(prose(page))
    assert "$300.00 for 20 min 00 s of machines, $390.00 of it outside trials' reports" in text
    assert "1 machine taken back by the owner. $300.00 came back" in text
    assert "lost with machines and done again cost about $3.00" in text
    assert "On demand the same machine hours would have cost $1,200.00" in text
    assert "this is 75 % less" in text
    assert "put at $100.00 to $250.00 (P10 to P90), median $200.00: the bill is above, 1.50 times the median" in text


def test_spending_over_time_marks_interruptions(page):
    """The line ends at the bill, a cross stands where the machine went, and lost work has a line of its own."""
    figure = next(one for one in figures(page) if one["data"][0].get("name") == "spent")
    spent, lost, taken = figure["data"]
    assert (spent["y"][-1], lost["y"][-1]) == (300.0, pytest.approx(3.0))
    assert taken["x"] == [10.0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "minutes since the beginning, pauses included"
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["budget $800.00", "expected $200.00"]


def test_cost_by_trial_stacks_what_the_ledger_says(page):
    """The bars of all ways sum to the trials' shares and to what was lost."""
    figure = next(one for one in figures(page) if one["layout"].get("barmode") == "stack")
    assert sum(sum(bar["x"]) for bar in figure["data"]) == pytest.approx(210.0 + 3.0)
    ways = ["report 1", "reports 2 to 3", "reports 4 to 9"]
    assert [bar["name"] for bar in figure["data"]] == [*ways, "lost and done again"]


def test_rungs_are_those_of_the_scheduler(paid):
    """Powers of the reduction factor, and the end; a sweep without halving is cut in four."""
    run = read_run(paid)
    assert rungs_of(run) == [1, 3, 9]
    run.settings["space"]["limits"] = {"scheduler": {"type": "none"}}
    assert rungs_of(run) == [3, 6, 9]


def test_pareto_front_leaves_out_what_is_dearer_and_worse(paid):
    """The last trial is the dearest and worst."""
    run = read_run(paid)
    assert [trial.name for trial in pareto(run, run.trials)] == ["0000", "0001", "0002", "0003", "0004"]


def test_score_against_the_sweeps_dollars_never_gets_worse(page):
    """The best score so far, at what all machines had cost by then."""
    figure = next(one for one in figures(page) if "whole sweep" in str(one["layout"]["xaxis"]["title"].get("text")))
    assert figure["data"][0]["y"] == sorted(figure["data"][0]["y"])
    assert figure["data"][0]["x"][-1] == 300.0


def test_importance_for_dollars_says_what_costs(page):
    """One name decides what a report costs."""
    assert "Which searched names cost" in prose(page)
    figure = next(one for one in figures(page) if "log dollars" in str(one["layout"]["xaxis"]["title"].get("text")))
    assert figure["data"][0]["y"] == ["size"]


def test_a_sweep_that_cost_nothing_says_so_in_one_line(tmp_path):
    """No empty plots."""
    lines = [{**line, "usd": 0.0} for line in ledger_lines()]
    page = write(paid_sweep(tmp_path, lines=lines)).read_text()
    assert "This sweep cost nothing: its machines count as free." in prose(page)
    assert not any(title in page for title in ("Cost by trial", "Score against dollars", "Which searched names cost"))


def test_dollars_keep_figures_that_say_something():
    """Cents, and two figures below a dollar."""
    told = [dollars(value) for value in (0.0, 1234.5, 0.0123, -0.5, None)]
    assert told == ["$0.00", "$1,234.50", "$0.012", "−$0.50", "–"]
