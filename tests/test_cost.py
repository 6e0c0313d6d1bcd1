"""Prices, ledger and budget: what is owed is exact, never reset, and never under the truth."""

from __future__ import annotations

import datetime
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.config import parse_yaml
from raysent.cost import (
    Budget,
    CostConfig,
    Funds,
    Ledger,
    on_demand_price,
    own_price,
    parse_duration,
    parse_money,
    price_list,
    spot_price,
)
from raysent.cost.config import parse_deadline
from raysent.errors import ArtifactError, BudgetError, ConfigError
from raysent.storage import read_json_lines
from raysent.storage.layout import LEDGER_FILE
from raysent.sweeps.cost_tracker import CostTracker, metered, read_ledger, spent_usd
from raysent.sweeps.space import parse_space
from raysent.sweeps.trial import Trial

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5 h", 5400)])
def test_parse_duration_reads_units(text, seconds):
    """Durations carry their unit."""
    assert parse_duration(text) == seconds
    with pytest.raises(ConfigError, match="a duration must look like"):
        parse_duration(text + "x")


@pytest.mark.parametrize("written", ["40usd", "$40", "40", 40, "40.00 USD"])
def test_parse_money_reads_dollars(written):
    """An amount is in dollars, with or without saying so."""
    assert parse_money(written) == 40


@pytest.mark.parametrize("written", ["40eur", "-3", "0usd", "", "nan", "1e3"])
def test_parse_money_refuses_what_is_no_amount(written):
    """Other currencies, nothing, and less than nothing are mistakes."""
    with pytest.raises(ConfigError, match=r"must look like 40usd or 0.50usd and be above 0"):
        parse_money(written)


def test_parse_deadline_takes_durations_and_times():
    """A time without a zone is UTC; one that has passed is a mistake."""
    assert parse_deadline("6h", start=NOON) == 6 * 3600
    assert parse_deadline("2026-01-01T13:00", start=NOON) == 3600
    assert parse_deadline("2026-01-01T13:00+01:00", start=NOON - datetime.timedelta(hours=1)) == 3600
    with pytest.raises(ConfigError, match="must be in the future"):
        parse_deadline("2026-01-01T11:00", start=NOON)
    with pytest.raises(ConfigError, match="must look like 6h or 2026-11-21T18:00; given 'soon'"):
        parse_deadline("soon", start=NOON)


def test_cost_section_is_checked_where_it_stands():
    """A wrong amount is named with its file and line."""
    text = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\ncost:\n  budget: lots\n"
    with pytest.raises(ConfigError, match=r"space.yaml:3: cost.budget: .*must look like 40usd"):
        parse_space(parse_yaml(text, source="space.yaml"), name="toy")


def test_snapshot_says_its_day_and_refuses_what_it_does_not_know():
    """List prices carry their date; an unknown type or region is no free one."""
    listed = price_list()
    price = listed.on_demand("g4dn.xlarge", "us-east-1")
    assert (price.usd_per_hour, price.minimum_s, price.source) == (0.526, 60.0, f"list price of {listed.as_of}")
    with pytest.raises(ConfigError, match=r"g4dn.xlarg: no list price in us-east-1 .* did you mean 'g4dn.xlarge'"):
        listed.on_demand("g4dn.xlarg", "us-east-1")
    with pytest.raises(ConfigError, match=r"us-east-9: no list prices of this region"):
        listed.on_demand("g4dn.xlarge", "us-east-9")
    assert all(usd > 0 for region in listed.regions.values() for usd in region.values())


@pytest.mark.parametrize("told", [None, 0.0, -1.0, math.nan, math.inf])
def test_spot_price_that_cannot_be_read_counts_as_on_demand(told):
    """Never as nothing."""
    price = spot_price(told, on_demand_price(1.0, source="list"), source="history")
    assert (price.usd_per_hour, price.source) == (1.0, "unknown, counted as on-demand")


def test_spot_price_is_never_above_on_demand():
    """AWS does not bill more than on demand; the worst is on demand in any case."""
    price = spot_price(3.0, on_demand_price(1.0, source="list"), source="history")
    assert (price.usd_per_hour, price.worst_usd_per_hour) == (1.0, 1.0)
    assert spot_price(0.3, on_demand_price(1.0, source="list"), source="history").worst_usd(3600) == 1.0


def test_own_price_without_a_figure_is_free_and_says_so():
    """One's own machine costs what one says, else nothing."""
    assert own_price(1.5).usd(7200) == 3.0
    assert own_price(None).usd(7200) == 0.0
    assert "counted as free" in own_price(None).source


def test_ledger_bills_a_minute_at_least_and_then_by_the_second():
    """Ten seconds cost a minute; ninety cost ninety."""
    for seconds, billed in ((10, 60), (90, 90)):
        ledger = Ledger(lambda entry: None)
        ledger.open("a", on_demand_price(36.0, source="list"), now_s=0)
        ledger.close("a", now_s=seconds)
        assert ledger.spent_usd == pytest.approx(billed * 0.01)


def test_ledger_takes_back_what_aws_does_not_bill():
    """A spot machine that is taken back in its first hour is free; one that was ended by us, or later, is not."""
    spot = spot_price(36.0, on_demand_price(72.0, source="list"), source="history")
    for seconds, is_interrupted, usd in ((1800, True, 0.0), (1800, False, 18.0), (7200, True, 72.0)):
        ledger = Ledger(lambda entry: None)
        ledger.open("a", spot, now_s=0)
        ledger.tick(now_s=100)
        ledger.close("a", now_s=seconds, is_interrupted=is_interrupted)
        assert ledger.spent_usd == pytest.approx(usd)


def test_ledger_charges_each_price_for_its_time():
    """A price that changes counts from then on."""
    ledger = Ledger(lambda entry: None)
    ledger.open("a", own_price(3600.0), now_s=0)
    ledger.reprice("a", own_price(7200.0), now_s=10)
    ledger.close("a", now_s=15)
    assert ledger.spent_usd == pytest.approx(10 + 2 * 5)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=8), st.integers(0, 8))
def test_ledger_taken_up_again_never_forgets(gaps, kept):
    """Whatever line the driver was killed after, spend is what was written, and the worst for what was not."""
    lines: list[dict] = []
    ledger = Ledger(lines.append)
    ledger.open("a", own_price(3600.0), now_s=0)
    now = 0.0
    for gap in gaps:
        now += gap
        ledger.tick(now_s=now)
    past = lines[: kept + 1]
    again = Ledger(lambda entry: None, past=past, window_s=50)
    assert again.spent_usd == pytest.approx(sum(line["usd"] for line in past) + 50)
    assert again.nodes == {}


def test_meter_survives_a_torn_line_and_a_kill(tmp_path):
    """The half line of a killed writer is cut; the open machine is charged for as long as stopping takes."""
    clock = Clock()
    config = CostConfig(usd_per_hour=3600.0, poll="1s", drain="4s", terminate="5s")
    cost_tracker = CostTracker(tmp_path, config, nodes=lambda: {"here": {}}, clock=clock).__enter__()
    clock.now += 7
    assert cost_tracker.funds().spent_usd == 7
    with (tmp_path / LEDGER_FILE).open("a") as stream:
        stream.write('{"entry": "no')
    with CostTracker(tmp_path, config, nodes=lambda: {"here": {}}, clock=clock) as again:
        assert again.funds() == Funds(17.0, 10.0, 3600.0, 0.0)
        clock.now += 3
    assert sum(entry["usd"] for entry in read_json_lines(tmp_path / LEDGER_FILE)) == pytest.approx(20)


def test_meter_follows_machines_that_come_and_go(tmp_path):
    """Each machine is paid for while it is there, and a trial costs its share of them."""
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
            report = {"index": index, "seconds": 9.0, "step": 30 * index, "steps_lost": lost, "node": "b"}
            cost_tracker.note_share(trial, report)
    shares = [entry for entry in read_ledger(tmp_path) if entry["entry"] == "trial"]
    assert [(share["node"], share["steps"], share["steps_lost"]) for share in shares] == [("b", 30, 5), ("b", 30, 0)]
    assert (shares[0]["seconds"], shares[0]["usd"]) == (4.0, 1.0)


def test_metered_pays_for_what_is_done_after_training(tmp_path):
    """Judging stands in the same ledger; a free machine leaves none."""
    with metered(tmp_path, CostConfig(), what="judging"):
        pass
    assert read_ledger(tmp_path) == []
    with metered(tmp_path, CostConfig(usd_per_hour=3600.0, poll="0.01s"), what="judging"):
        time.sleep(0.05)
    assert spent_usd(tmp_path) >= 0.05
    lines = read_ledger(tmp_path)
    assert {line["node"] for line in lines} == {"judging"}
    assert [line["is_open"] for line in lines[-2:]] == [True, False]


def test_metered_ends_what_the_money_does_not_suffice_for(tmp_path):
    """Half a dollar above the budget is the bound, whatever it was spent on."""
    clock, price = Clock(), 3600.0
    with CostTracker(tmp_path, CostConfig(usd_per_hour=price), nodes=lambda: {"here": {}}, clock=clock) as cost_tracker:
        clock.now += 2
        cost_tracker.funds()
    enough, too_little = (CostConfig(usd_per_hour=price, budget=budget, poll="0.1s") for budget in ("9usd", "1usd"))
    with metered(tmp_path, enough, what="judging") as check_budget:
        check_budget()
    said = r"^judging: must stay within 1\.00 usd; 2\.\d\d are spent$"
    with metered(tmp_path, too_little, what="judging") as check_budget, pytest.raises(BudgetError, match=said):
        check_budget()


def test_budget_admits_while_everything_fits():
    """Spent, committed, needed and the reserve together are at most the budget."""
    budget = Budget(limit_usd=100.0, reserve=0.05)
    assert budget.refusal(Funds(spent_usd=90.0, commitment_usd=4.0), need_usd=1.0) == ""
    said = budget.refusal(Funds(spent_usd=90.0, commitment_usd=4.0), need_usd=1.01)
    assert said == "90.00 usd spent, 5.01 committed; 95.00 of 100.00 are for training"
    assert Budget().refusal(Funds(spent_usd=1e9)) == ""


def test_budget_keeps_time_to_stop_before_the_deadline():
    """Work is refused while there still is time to end what runs."""
    budget = Budget(deadline_s=1000.0, window_s=100.0)
    assert budget.refusal(Funds(elapsed_s=900.0)) == ""
    assert budget.refusal(Funds(elapsed_s=901.0)) == "the deadline is 99 s away"


@given(st.floats(0, 200), st.floats(0, 20), st.floats(0.01, 100))
def test_budget_needs_no_question_before_its_seconds_are_over(spent, committed, hourly):
    """As long as nothing is asked, nothing can have been refused."""
    budget = Budget(limit_usd=100.0)
    left = budget.seconds_left(Funds(spent, committed, hourly))
    if left > 0:
        later = Funds(spent + 0.999 * left / 3600 * hourly, committed, hourly)
        assert budget.refusal(later) == ""
    assert budget.refusal(Funds(spent + (left + 1) / 3600 * hourly, committed, hourly)) != ""


def test_budget_bounds_dollars_an_hour():
    """Machines fit as long as their prices together do."""
    assert Budget(max_hourly_usd=12.0).fits_hourly(12.0)
    assert not Budget(max_hourly_usd=12.0).fits_hourly(12.1)
    assert Budget().fits_hourly(1e6)


def test_ledger_charges_what_could_not_be_written_with_the_next_line():
    """A refused line is no time that was paid for."""
    lines, is_full = [], [False]

    def write(entry):
        if is_full[0]:
            raise ArtifactError("the disk is full")
        lines.append(entry)

    ledger = Ledger(write)
    ledger.open("one", own_price(3600.0), now_s=0.0)
    is_full[0] = True
    with pytest.raises(ArtifactError, match="the disk is full"):
        ledger.tick(now_s=10.0)
    is_full[0] = False
    ledger.close("one", now_s=15.0)
    assert sum(line["usd"] for line in lines) == pytest.approx(15.0)
    assert ledger.spent_usd == pytest.approx(15.0)
