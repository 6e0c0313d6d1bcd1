"""The sections of the report about costs: what was spent, lost and would be on demand, and what it bought."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import STARTED, RecordedDriver
from test_report import figures, prose

from raysent.cost import Entry, Ledger, bill_of, on_demand_price, spot_price
from raysent.report import write
from raysent.report.blocks import dollars
from raysent.storage import write_json_lines
from raysent.storage.layout import LEDGER_FILE

ON_DEMAND = on_demand_price(3600.0, source="list")
SPOT = spot_price(1800.0, ON_DEMAND, source="told")
NUM_TRIALS, NUM_REPORTS = 6, 9
SPACE = """
base:
  encoder: {type: gru, hidden_size: 8}
  objective: {type: context_prediction}
search: {training.learning_rate: {uniform: [0.001, 0.1]}, training.batch_size: {choice: [50, 100]}}
limits: {trials: 6, sampler: random, scheduler: %s}
cost: {usd_per_hour: 1800, budget: 800usd}
"""


def ledger_lines() -> list[Entry]:
    """Return the lines of two spot machines of half a dollar a second; one is interrupted, and 10 steps are lost."""
    lines: list[Entry] = []
    now = [0.0]
    ledger = Ledger(lambda entry: lines.append({**entry, "time": STARTED + now[0]}))
    ledger.open("a", SPOT, now_s=0.0)
    ledger.open("b", SPOT, now_s=0.0)
    for number in range(NUM_TRIALS):
        now[0] = 100.0 * (number + 1)
        for node in ("a", "b"):
            ledger.reprice(node, SPOT, now_s=now[0])
        cost = {"node": "a", "rung": 1, "seconds": 40.0, "usd": 10.0 * (number + 1)}
        ledger.record_trial(f"{number:04d}", **cost, steps=100, steps_lost=10 * (number == 2))
    ledger.close("a", now_s=now[0], is_interrupted=True)
    ledger.close("b", now_s=now[0])
    return lines


def paid_sweep(folder: Path, *, lines: list[Entry], scheduler: str = "{}") -> Path:
    """Write the folder of a sweep in which more expensive trials are better, except for the last one."""
    folder.mkdir(exist_ok=True)
    driver = RecordedDriver(folder, SPACE % scheduler)
    for number in range(NUM_TRIALS):
        trial = driver.controller.suggest()
        driver.now = STARTED + 100.0 * (number + 1)
        metrics = {"context_accuracy": 0.01 * (number + 1) if number < NUM_TRIALS - 1 else 0.005}
        cost = {"seconds": 40.0, "usd": 10.0 * (number + 1)}
        driver.controller.report(
            trial.name, index=1, num_reports=NUM_REPORTS, metrics=metrics, **cost
        )
        driver.controller.end(trial.name, status="finished")
    write_json_lines(folder / LEDGER_FILE, lines)

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
    """600 s of two machines at 0.5 dollars a second; the one that was interrupted in its first hour is free."""
    bill = bill_of(ledger_lines())
    assert (bill.usd, bill.refunded_usd, bill.on_demand_usd) == (300.0, 300.0, 1200.0)
    assert (bill.machine_s, bill.num_interruptions, bill.num_unknown) == (1200.0, 1, 0)
    assert bill.lost_usd == pytest.approx(30.0 * 10 / 100)
    assert bill.outside_usd == pytest.approx(600.0 - 210.0)


def test_bill_of_unknown_losses_says_how_many():
    """A loss that is unknown is not zero."""
    lines = [
        {**line, "steps_lost": None} if line["entry"] == "trial" else line
        for line in ledger_lines()
    ]
    assert (bill_of(lines).lost_usd, bill_of(lines).num_unknown) == (0.0, NUM_TRIALS)


def test_bill_of_own_machines_has_no_price_on_demand():
    """Your own machines have no other price."""
    assert bill_of([{**line, "market": "own"} for line in ledger_lines()]).on_demand_usd is None


def test_spending_in_words(page):
    """Spent, interrupted, lost, and on demand."""
    text = prose(page)
    assert "$300.00 for 20 min 00 s of machine time, $390.00 of it outside trials" in text
    assert "1 spot interruption. $300.00 refunded" in text
    assert "lost in interruptions and repeated cost about $3.00" in text
    assert "On demand, the same machine time would have cost $1,200.00" in text
    assert ": the bill is 75 % lower." in text


def test_spending_over_time_marks_interruptions(page):
    """The line ends at the bill, a cross marks the interruption, and lost work has a line."""
    figure = next(one for one in figures(page) if one["data"][0].get("name") == "spent")
    spent, lost, interrupted = figure["data"]
    assert (spent["y"][-1], lost["y"][-1]) == (300.0, pytest.approx(3.0))
    assert interrupted["x"] == [10.0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "minutes since the start, pauses included"
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["budget $800.00"]


def test_a_sweep_that_cost_nothing_says_so_in_one_line(tmp_path):
    """No empty plots."""
    lines = [{**line, "usd": 0.0} for line in ledger_lines()]
    page = write(paid_sweep(tmp_path, lines=lines)).read_text()
    assert "This sweep cost nothing, because its machines have no price." in prose(page)
    assert "Dollars spent against" not in page


def test_dollars_have_two_digits_below_a_dollar():
    """Cents otherwise."""
    texts = [dollars(value) for value in (0.0, 1234.5, 0.0123, -0.5, None)]
    assert texts == ["$0.00", "$1,234.50", "$0.012", "−$0.50", "–"]
