"""Prices, the ledger and the budget: spending is exact, never reset, and never below the true cost."""

from __future__ import annotations

import datetime
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.config import parse_yaml
from raysent.cost import (
    Budget,
    CostConfig,
    Funds,
    Ledger,
    PlannedWork,
    on_demand_price,
    own_price,
    parse_duration,
    parse_money,
    price_list,
    spot_price,
)
from raysent.cost.config import parse_deadline
from raysent.cost.merging import OpenMachines
from raysent.errors import ArtifactError, BudgetError, ConfigError
from raysent.storage import Lines, read_json_lines
from raysent.storage.layout import LEDGER_FILE
from raysent.sweeps import SweepController
from raysent.sweeps.cost_tracker import (
    OWED_FILE,
    CostTracker,
    metered,
    read_ledger,
    spent_usd,
)
from raysent.sweeps.space import parse_space
from raysent.sweeps.trial import Trial

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5 h", 5400)]
)
def test_parse_duration_reads_units(text, seconds):
    """Durations have units."""
    assert parse_duration(text) == seconds
    with pytest.raises(ConfigError, match="a duration must look like"):
        parse_duration(text + "x")


@pytest.mark.parametrize("written", ["40usd", "$40", "40", 40, "40.00 USD"])
def test_parse_money_reads_dollars(written):
    """An amount is in dollars, with or without a unit."""
    assert parse_money(written) == 40


@pytest.mark.parametrize("written", ["40eur", "-3", "0usd", "", "nan", "1e3"])
def test_parse_money_rejects_other_texts(written):
    """Other currencies, empty texts, zero and negative amounts are errors."""
    with pytest.raises(ConfigError, match=r"must look like 40usd or 0.50usd and be above 0"):
        parse_money(written)


def test_parse_deadline_reads_durations_and_times():
    """A time without a time zone is UTC; a time in the past is an error."""
    assert parse_deadline("6h", start=NOON) == 6 * 3600
    assert parse_deadline("2026-01-01T13:00", start=NOON) == 3600
    assert (
        parse_deadline("2026-01-01T13:00+01:00", start=NOON - datetime.timedelta(hours=1)) == 3600
    )
    with pytest.raises(ConfigError, match="must be in the future"):
        parse_deadline("2026-01-01T11:00", start=NOON)
    with pytest.raises(ConfigError, match="must look like 6h or 2026-11-21T18:00; given 'soon'"):
        parse_deadline("soon", start=NOON)


def test_parse_space_rejects_an_invalid_cost_section():
    """The error names file and line."""
    text = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\ncost:\n  budget: lots\n"
    with pytest.raises(ConfigError, match=r"space.yaml:3: cost.budget: .*must look like 40usd"):
        parse_space(parse_yaml(text, source="space.yaml"), name="toy")


def test_price_list_has_a_date_and_rejects_unknown_types():
    """An unknown type or region is an error, not a price of zero."""
    listed = price_list()
    price = listed.on_demand("g4dn.xlarge", "us-east-1")
    assert (price.usd_per_hour, price.minimum_s, price.source) == (
        0.526,
        60.0,
        f"list price of {listed.as_of}",
    )
    with pytest.raises(
        ConfigError, match=r"g4dn.xlarg: no list price in us-east-1 .* did you mean 'g4dn.xlarge'"
    ):
        listed.on_demand("g4dn.xlarg", "us-east-1")
    with pytest.raises(ConfigError, match=r"us-east-9: no list prices of this region"):
        listed.on_demand("g4dn.xlarge", "us-east-9")
    assert all(usd > 0 for region in listed.regions.values() for usd in region.values())


@pytest.mark.parametrize("usd", [None, 0.0, -1.0, math.nan, math.inf])
def test_spot_price_is_the_on_demand_price_if_unreadable(usd):
    """An unreadable price is never zero."""
    price = spot_price(usd, on_demand_price(1.0, source="list"), source="history")
    assert (price.usd_per_hour, price.source) == (1.0, "unknown, counted as on-demand")


def test_spot_price_is_never_above_on_demand():
    """AWS bills at most the on-demand price, which is always the worst case."""
    price = spot_price(3.0, on_demand_price(1.0, source="list"), source="history")
    assert (price.usd_per_hour, price.worst_usd_per_hour) == (1.0, 1.0)
    assert (
        spot_price(0.3, on_demand_price(1.0, source="list"), source="history").worst_usd_per_hour
        == 1.0
    )


def test_own_price_is_free_without_a_price():
    """The source says so."""
    assert own_price(1.5).usd(7200) == 3.0
    assert own_price(None).usd(7200) == 0.0
    assert "counted as free" in own_price(None).source


def test_ledger_bills_a_minute_at_least_and_then_by_the_second():
    """Ten seconds cost a minute, ninety seconds cost ninety."""
    for seconds, billed in ((10, 60), (90, 90)):
        ledger = Ledger(lambda entry: None)
        ledger.open("a", on_demand_price(36.0, source="list"), now_s=0)
        ledger.close("a", now_s=seconds)
        assert ledger.spent_usd == pytest.approx(billed * 0.01)


def test_ledger_says_what_a_trial_has_cost():
    """To the thousandth of a second and the millionth of a dollar; it spends nothing."""
    entries: list[dict[str, Any]] = []
    ledger = Ledger(entries.append)
    ledger.record_trial("0001", node="a", rung=2, seconds=1.23456, usd=0.12345678, steps=5)
    ledger.record_trial("0002", node="b", rung=0, seconds=2.0, usd=0.0, steps=0, steps_lost=3)
    expected = {"entry": "trial", "trial": "0001", "node": "a", "rung": 2, "seconds": 1.235}
    assert entries[0] == expected | {"usd": 0.123457, "steps": 5, "steps_lost": None}
    assert (entries[1]["trial"], entries[1]["steps_lost"]) == ("0002", 3)
    assert ledger.spent_usd == 0.0


def test_ledger_refunds_what_aws_does_not_bill():
    """Only a spot machine that AWS interrupts in its first hour is free."""
    spot = spot_price(36.0, on_demand_price(72.0, source="list"), source="history")
    for seconds, is_interrupted, usd in (
        (1800, True, 0.0),
        (1800, False, 18.0),
        (7200, True, 72.0),
    ):
        ledger = Ledger(lambda entry: None)
        ledger.open("a", spot, now_s=0)
        ledger.reprice("a", spot, now_s=100)
        ledger.close("a", now_s=seconds, is_interrupted=is_interrupted)
        assert ledger.spent_usd == pytest.approx(usd)


def test_ledger_charges_a_new_price_from_its_change_on():
    """Ten seconds at the old price, five at the new one."""
    ledger = Ledger(lambda entry: None)
    ledger.open("a", own_price(3600.0), now_s=0)
    ledger.reprice("a", own_price(7200.0), now_s=10)
    ledger.close("a", now_s=15)
    assert ledger.spent_usd == pytest.approx(10 + 2 * 5)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=8), st.integers(0, 8))
def test_ledger_keeps_its_spending_after_a_kill(gaps, kept):
    """After any line: the written spending, and the worst case for the machine that was left open."""
    lines: list[dict] = []
    ledger = Ledger(lines.append)
    ledger.open("a", own_price(3600.0), now_s=0)
    now = 0.0
    for gap in gaps:
        now += gap
        ledger.reprice("a", own_price(3600.0), now_s=now)
    past = lines[: kept + 1]
    again = Ledger(lambda entry: None, past=past, window_s=50)
    assert again.spent_usd == pytest.approx(sum(line["usd"] for line in past) + 50)
    assert again.nodes == {}


def test_cost_tracker_survives_a_torn_line_and_a_kill(tmp_path):
    """The incomplete line is removed; the open machine is charged for the time that stopping takes."""
    clock = Clock()
    config = CostConfig(usd_per_hour=3600.0, poll="1s", drain="4s", terminate="5s")
    cost_tracker = CostTracker(
        tmp_path, config, nodes=lambda: {"here": {}}, clock=clock
    ).__enter__()
    clock.now += 7
    assert cost_tracker.funds().spent_usd == 7
    with (tmp_path / LEDGER_FILE).open("a") as stream:
        stream.write('{"entry": "no')
    with CostTracker(tmp_path, config, nodes=lambda: {"here": {}}, clock=clock) as again:
        assert again.funds() == Funds(17.0, 10.0, 3600.0, 0.0)
        clock.now += 3
    assert sum(entry["usd"] for entry in read_json_lines(tmp_path / LEDGER_FILE)) == pytest.approx(
        20
    )


def test_cost_tracker_follows_machines_that_start_and_end(tmp_path):
    """Each machine is charged while it exists, and a trial is charged its part of all machines."""
    clock, there = Clock(), {"a": {}}
    config = CostConfig(usd_per_hour=3600.0, poll="1s")
    with CostTracker(tmp_path, config, nodes=lambda: there, clock=clock) as cost_tracker:
        cost_tracker.num_slots = 4
        clock.now += 10
        there["b"] = {}
        assert cost_tracker.funds().spent_usd == 10
        clock.now += 10
        del there["a"]
        assert cost_tracker.funds().spent_usd == 30
        trial = Trial("0000", 0, {}, 0, seconds=5.0, usd=1.0)
        assert cost_tracker.trial_usd(trial, 9.0) == 1.0 + 4 / 4
        for index, lost in ((1, 5), (2, 5)):
            report = {
                "index": index,
                "seconds": 9.0,
                "step": 30 * index,
                "steps_lost": lost,
                "node": "b",
            }
            cost_tracker.note_share(trial, report)
    shares = [entry for entry in read_ledger(tmp_path) if entry["entry"] == "trial"]
    assert [(share["node"], share["steps"], share["steps_lost"]) for share in shares] == [
        ("b", 30, 5),
        ("b", 30, 0),
    ]
    assert (shares[0]["seconds"], shares[0]["usd"]) == (4.0, 1.0)


def _refuse(*_: Any) -> None:
    raise ArtifactError("runs: gone")


def _owing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pay for a machine whose last 140 seconds the ledger refuses."""
    clock = Clock()
    config = CostConfig(usd_per_hour=3600.0, poll="1s")
    with (
        monkeypatch.context() as gone,
        pytest.raises(ArtifactError, match="runs: gone"),
        CostTracker(folder, config, nodes=lambda: {"here": {}}, clock=clock) as cost_tracker,
    ):
        clock.now += 10
        cost_tracker.funds()
        gone.setattr(Lines, "append", _refuse)
        clock.now += 140
    assert spent_usd(folder) == 10.0


def test_what_the_ledger_refuses_at_the_end_is_owed_and_paid_once(tmp_path, monkeypatch):
    """By the next session on this machine, also where the ledger refuses it once more."""
    _owing(tmp_path, monkeypatch)
    config = CostConfig(usd_per_hour=3600.0)
    with monkeypatch.context() as gone, pytest.raises(ArtifactError, match="runs: gone"):
        gone.setattr(Lines, "append", _refuse)
        CostTracker(tmp_path, config, nodes=dict)
    for _ in range(2):
        assert CostTracker(tmp_path, config, nodes=dict).ledger.spent_usd == 150.0
    assert spent_usd(tmp_path) == 150.0
    assert not read_ledger(tmp_path)[-1]["is_open"]
    assert not (tmp_path / OWED_FILE).exists()


def test_what_is_owed_is_not_believed_if_it_is_damaged(tmp_path, monkeypatch):
    """The machine is charged as one that a killed driver left open."""
    _owing(tmp_path, monkeypatch)
    owed = tmp_path / OWED_FILE
    assert '"usd": 140.0' in owed.read_text()
    owed.write_text(owed.read_text().replace('"usd": 140.0', '"usd": 1.0'))
    config = CostConfig(usd_per_hour=3600.0)
    window_s = config.window_s
    assert CostTracker(tmp_path, config, nodes=dict).ledger.spent_usd == 10.0 + window_s


def test_what_version_2_owed_is_paid(tmp_path, monkeypatch):
    """It wrote a list."""
    _owing(tmp_path, monkeypatch)
    owed = tmp_path / OWED_FILE
    owed.write_text(json.dumps(json.loads(owed.read_text())["entries"]))
    config = CostConfig(usd_per_hour=3600.0)
    assert CostTracker(tmp_path, config, nodes=dict).ledger.spent_usd == 150.0


def test_metered_charges_work_after_training(tmp_path):
    """Evaluation is in the same ledger; a free machine leaves no lines."""
    with metered(tmp_path, CostConfig(), what="evaluation"):
        pass
    assert read_ledger(tmp_path) == []
    with metered(tmp_path, CostConfig(usd_per_hour=3600.0, poll="0.01s"), what="evaluation"):
        time.sleep(0.05)
    assert spent_usd(tmp_path) >= 0.05
    lines = read_ledger(tmp_path)
    assert {line["node"] for line in lines} == {"evaluation"}
    assert [line["is_open"] for line in lines[-2:]] == [True, False]


def test_metered_stops_work_that_exceeds_the_budget(tmp_path):
    """The budget is the bound, however small it is."""
    clock, price = Clock(), 36.0
    with CostTracker(
        tmp_path, CostConfig(usd_per_hour=price), nodes=lambda: {"here": {}}, clock=clock
    ) as cost_tracker:
        clock.now += 200
        cost_tracker.funds()
    enough, too_little = (
        CostConfig(usd_per_hour=price, budget=budget, poll="0.1s") for budget in ("9usd", "2usd")
    )
    with metered(tmp_path, enough, what="evaluation") as check_budget:
        check_budget()
    error = r"^evaluation: must stay within 2\.00 usd; 2\.\d\d are spent$"
    with (
        metered(tmp_path, too_little, what="evaluation") as check_budget,
        pytest.raises(BudgetError, match=error),
    ):
        check_budget()


def test_metered_work_looks_ahead_by_its_longest_step(tmp_path):
    """After a step of 100 s there is no money for another one, though there is for a poll."""
    clock = Clock()
    config = CostConfig(usd_per_hour=3600.0, budget="250usd", poll="10s")
    with metered(tmp_path, config, what="evaluation", clock=clock) as check_budget:
        check_budget()
        clock.now += 100
        check_budget()
        clock.now += 60
        with pytest.raises(
            BudgetError, match="^evaluation: must stay within 250.00 usd; 160.00 are spent$"
        ):
            check_budget()


def test_exhausted_budget_is_the_limit_itself():
    """A cluster's workers leave half of the reserve to its head."""
    budget, funds = Budget(limit_usd=0.10, reserve=0.2), Funds(spent_usd=0.05, hourly_usd=1.0)
    assert not budget.is_exhausted(funds, seconds=0.049 * 3600)
    assert budget.is_exhausted(funds, seconds=0.051 * 3600)
    assert not budget.is_exhausted(funds, seconds=0.039 * 3600, leaves_rest=True)
    assert budget.is_exhausted(funds, seconds=0.041 * 3600, leaves_rest=True)


def test_budget_admits_work_that_fits():
    """Spending, commitment, need and reserve together are at most the budget."""
    budget = Budget(limit_usd=100.0, reserve=0.05)
    assert budget.refusal(Funds(spent_usd=90.0, commitment_usd=4.0), need_usd=1.0) == ""
    reason = budget.refusal(Funds(spent_usd=90.0, commitment_usd=4.0), need_usd=1.01)
    assert reason == "90.00 usd spent, 5.01 committed; 95.00 of 100.00 are for training"
    assert Budget().refusal(Funds(spent_usd=1e9)) == ""


def test_budget_reserves_time_to_stop_before_the_deadline():
    """Work is refused as long as there is time to stop what runs."""
    budget = Budget(deadline_s=1000.0, window_s=100.0)
    assert budget.refusal(Funds(elapsed_s=900.0)) == ""
    assert budget.refusal(Funds(elapsed_s=901.0)) == "the deadline is 99 s away"


@given(st.floats(0, 200), st.floats(0, 20), st.floats(0.01, 100))
def test_budget_refuses_nothing_while_seconds_are_left(spent, committed, hourly):
    """A check before the seconds are over would not refuse; one after them does."""
    budget = Budget(limit_usd=100.0)
    left = budget.seconds_left(Funds(spent, committed, hourly))
    if left > 0:
        later = Funds(spent + 0.999 * left / 3600 * hourly, committed, hourly)
        assert budget.refusal(later) == ""
    assert budget.refusal(Funds(spent + (left + 1) / 3600 * hourly, committed, hourly)) != ""


def test_budget_limits_dollars_an_hour():
    """Machines fit if the sum of their prices does."""
    assert Budget(max_hourly_usd=12.0).fits_hourly(12.0)
    assert not Budget(max_hourly_usd=12.0).fits_hourly(12.1)
    assert Budget().fits_hourly(1e6)


def test_a_trial_gets_its_share_of_each_limit():
    """Ray's start is nobody's; one trial gets 80 % of the time at most; the money is paid for each machine."""
    budget = Budget(limit_usd=10.0, reserve=0.1, deadline_s=1030.0, time_s=430.0)
    work = PlannedWork(num_trials=5, part=1.0, at_once=2, num_machines=1, usd_per_hour=0.0)
    assert budget.shares(work) == {"time": 400 / 3, "deadline": 1000 / 3}
    stopped = PlannedWork(num_trials=10, part=0.6, at_once=4, num_machines=2, usd_per_hour=9.0)
    assert budget.shares(stopped) == pytest.approx(
        {"time": 400 / 1.5, "deadline": 1000 / 1.5, "budget": (3600 - 60) * 4 / 2 / 6}
    )
    single = PlannedWork(num_trials=1, part=1.0, at_once=1, num_machines=1, usd_per_hour=0.0)
    assert budget.shares(single)["time"] == pytest.approx(320)
    assert Budget().shares(work) == {}


def test_time_ends_a_sweep_beside_money_and_deadline():
    """A journal keeps what decisions are made by, which the time is no part of."""
    budget = Budget(deadline_s=1000.0, window_s=100.0, time_s=500.0)
    assert not budget.is_over(500.0)
    assert budget.is_over(500.1)
    assert not Budget().is_over(1e9)
    assert budget.with_time_as_deadline().deadline_s == 600.0
    assert (
        Budget(deadline_s=550.0, window_s=100.0, time_s=500.0).with_time_as_deadline().deadline_s
        == 550.0
    )
    assert Budget(deadline_s=550.0).with_time_as_deadline().deadline_s == 550.0
    assert Budget(**budget.values()) == Budget(deadline_s=1000.0, window_s=100.0)
    assert budget.may_halt
    assert not Budget(time_s=1.0).may_halt


def test_ledger_charges_time_of_a_failed_write_with_the_next_line():
    """A line that could not be written does not count."""
    lines, is_full = [], [False]

    def write(entry):
        if is_full[0]:
            raise ArtifactError("the disk is full")
        lines.append(entry)

    ledger = Ledger(write)
    ledger.open("one", own_price(3600.0), now_s=0.0)
    is_full[0] = True
    with pytest.raises(ArtifactError, match="the disk is full"):
        ledger.reprice("one", own_price(3600.0), now_s=10.0)
    is_full[0] = False
    ledger.close("one", now_s=15.0)
    assert sum(line["usd"] for line in lines) == pytest.approx(15.0)
    assert ledger.spent_usd == pytest.approx(15.0)


def test_budget_that_starts_no_trial_is_said_and_which_does():
    """As the controller decides: it draws no trial within the first, and one within the second."""
    space = (
        "base: {encoder: {type: bag}, objective: {type: context_prediction}}\nlimits: {trials: 1}"
    )
    config = CostConfig(usd_per_hour=60.0, budget="0.8usd")
    funds = Funds(0.0, 60.0 * config.window_s / 3600, 60.0, 0.0)

    def starts(cost: CostConfig) -> bool:
        parsed, budget = parse_space(parse_yaml(space), name="x"), cost.for_sweep(NOON)
        controller = SweepController(parsed, seed=0, write=lambda *_, **__: None, budget=budget)
        return controller.suggest(funds) is not None

    assert not starts(config)
    assert (
        "no trial can start: 0.00 usd spent, 2.25 committed; 0.76 of 0.80 are for training"
        in config.too_small
    )
    least = config.too_small.split("at least ")[1].split(" ")[0]
    enough = CostConfig(usd_per_hour=60.0, budget=least)
    assert starts(enough)
    assert enough.too_small == ""
    assert (
        CostConfig(machines={"m5.large": 30.0}, attached=30.0, budget="0.8usd").too_small
        == config.too_small
    )
    assert CostConfig(usd_per_hour=60.0).too_small == CostConfig(budget="1usd").too_small == ""


def test_what_a_machine_was_charged_has_the_time_of_entries_for_all():
    """By hand: an hour of its own, half an hour with all others, and half an hour that it has no part in."""
    machines = OpenMachines()
    for node in ("a", "b"):
        machines.add(
            {
                "entry": "node",
                "node": node,
                "is_open": True,
                "seconds": 3600.0,
                "usd": 2.0,
                "usd_per_hour": 2.0,
                "worst_usd_per_hour": 2.0,
                "attached_usd_per_hour": 0.5,
            }
        )
    machines.add({"entry": "all", "seconds": 1800.0, "but": []})
    machines.add({"entry": "all", "seconds": 1800.0, "but": ["a"]})
    charged = {node: (charge.seconds, charge.usd) for node, charge in machines.charges().items()}
    assert charged == {"a": (5400.0, 3.0), "b": (7200.0, 4.0)}
    assert machines.charge("b").refundable_usd == pytest.approx(4.0 - 2 * 0.5)
