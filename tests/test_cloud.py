"""Prices from AWS, read through stubs; and simulated sweeps, in which budget and ledger must hold."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from botocore.stub import ANY
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Simulator, check_cap
from benchmarks.simulation.machines import make_zones
from benchmarks.simulation.workload import Scenario
from raysent.cluster import prices as cluster_prices
from raysent.cluster import read_cluster
from raysent.cluster.prices import list_price
from raysent.config import parse_yaml
from raysent.cost import Budget, CostConfig, Price
from raysent.errors import ConfigError
from raysent.sweeps import RandomSampler
from raysent.sweeps.space import parse_space

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def _space(trials: int = 8):
    text = f"""
base: {{encoder: {{type: gru, hidden_size: 8}}, objective: {{type: context_prediction}}}}
search:
  encoder.bidirectional: {{choice: [false, true]}}
  training.batch_size: {{quniform: [10, 30, 10]}}
  training.learning_rate: {{loguniform: [1e-4, 1e-2]}}
limits: {{trials: {trials}}}
"""
    return parse_space(parse_yaml(text), name="toy")


def _scenario(**changes) -> Scenario:
    given_ = {
        "usd_per_hour": 1.0,
        "num_machines": 3,
        "market": "auto",
        "num_reports": 9,
        "trial_s": 3600.0,
    }
    return Scenario(**{**given_, "cost": CostConfig(), **changes})


def _product(usd: str) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    return json.dumps({"terms": {"OnDemand": {"offer": {"priceDimensions": {"rate": dimension}}}}})


def _spot_page(rows, **more):
    history = [
        {"AvailabilityZone": zone, "SpotPrice": usd, "Timestamp": at} for zone, usd, at in rows
    ]
    return {"SpotPriceHistory": history, **more}


def test_spot_history_reads_every_page_and_the_latest_of_each_zone(ec2):
    """All pages are read; an older price of a zone does not replace a newer one."""
    client, stubber = ec2
    wanted = {
        "InstanceTypes": ["g5.xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": ANY,
    }
    later = NOW + datetime.timedelta(hours=1)
    first = _spot_page([("a", "0.40", later), ("b", "0.50", NOW)], NextToken="more")
    stubber.add_response("describe_spot_price_history", first, wanted)
    second = _spot_page([("a", "0.30", NOW), ("c", "what", NOW)])
    stubber.add_response("describe_spot_price_history", second, {**wanted, "NextToken": "more"})
    found = cluster_prices.spot_history(client, "g5.xlarge")
    assert {zone: usd for zone, (usd, _) in found.items()} == {"a": 0.4, "b": 0.5, "c": None}


def test_on_demand_usd_reads_the_price_list(pricing):
    """The responses contain JSON texts; free and unreadable offers are skipped."""
    client, stubber = pricing
    products = {
        "PriceList": [_product("0.0000000000"), _product("1.0060000000"), _product("no"), "{}"]
    }
    stubber.add_response("get_products", products, {"ServiceCode": "AmazonEC2", "Filters": ANY})
    assert cluster_prices.on_demand_usd(client, "g5.xlarge", "us-east-1") == 1.006


def test_list_price_without_aws_is_that_of_the_package(pricing):
    """A type that is not in the list is an error, which says why AWS was not asked."""
    for _ in range(2):
        pricing[1].add_client_error("get_products", "AccessDeniedException", "not allowed")
    found = list_price("g5.xlarge", "us-east-1", pricing=pricing[0])
    assert found.usd_per_hour == 1.006
    assert found.source.startswith("list price of 20")
    with pytest.raises(
        ConfigError, match="q9.huge: no list price in us-east-1 is known.*; AWS: .*not allowed"
    ):
        list_price("q9.huge", "us-east-1", pricing=pricing[0])


def test_prices_that_the_space_sets_stay(monkeypatch, tmp_path):
    """Of disks and addresses, and of the start of a machine; the region is that of the cluster."""
    monkeypatch.setattr(
        cluster_prices, "list_price", lambda *_: Price(1.0, 1.0, "on-demand", "AWS")
    )
    base = "base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}\n"
    costs = []
    for given_ in ("{}", "{attached: 0.5, boot: 90s}"):
        (tmp_path / "space.yaml").write_text(f"{base}cost: {given_}\n")
        costs.append(
            cluster_prices.price_space(tmp_path / "space.yaml", [], read_cluster(SHIPPED))[0].cost
        )
    assert 0 < costs[0].attached < 0.5
    assert [(cost.attached, cost.boot, cost.region) for cost in costs[1:]] == [
        (0.5, "90s", "us-east-1")
    ]


def test_market_has_the_statistics_of_its_traces():
    """Half of a zone's machines end before its median life; prices are at most the on-demand price."""
    for zone in make_zones(1.0, num_zones=4, seed=5):
        lives = [zone.life_s() < zone.median_life_s for _ in range(4000)]
        assert sum(lives) / 4000 == pytest.approx(0.5, abs=0.04)
        prices = [zone.usd_per_hour(hour * 3600.0) for hour in range(200)]
        assert 0 < min(prices) < max(prices) <= 1.0
        assert zone.usd(0, 10) == zone.usd(0, 60)


def test_zone_bills_each_price_for_its_time():
    """The bill is the integral of the price curve."""
    zone = make_zones(1.0, num_zones=1, seed=2)[0]
    summed = sum(zone.usd_per_hour(second + 0.5) / 3600 for second in range(1000, 41000))
    assert zone.usd(1000, 41000) == pytest.approx(summed, rel=1e-3)


def test_random_sampler_stays_inside_the_space():
    """Every draw is valid and a function of its number."""
    space = _space()
    drawn = [RandomSampler(space, seed=1).ask(number)[0] for number in range(30)]
    assert drawn == [RandomSampler(space, seed=1).ask(number)[0] for number in range(30)]
    assert {params["training.batch_size"] for params in drawn} == {10, 20, 30}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    market=st.sampled_from(["own", "spot", "auto", "on-demand"]),
    limit_usd=st.floats(3, 60),
    trial_s=st.floats(60, 90_000),
    kill_share=st.sampled_from([0.0, 1.0]),
    on_budget=st.sampled_from(["stop", "finish-rung"]),
)
def test_simulated_sweep_keeps_its_budget(seed, market, limit_usd, trial_s, kill_share, on_budget):
    """With varying prices, interruptions, slow stops, kills and clock jumps, the bill stays within its bound."""
    budget = Budget(limit_usd=limit_usd, on_budget=on_budget)
    scenario = _scenario(market=market, trial_s=trial_s, kill_share=kill_share)
    swept = Simulator(_space(), scenario, budget, seed=seed).run()
    assert swept.billed_usd <= budget.training_usd + max(0.01 * limit_usd, 0.50)
    # Slow stops and late prices may hide a small part of the bill from the ledger.
    assert swept.ledger_usd >= swept.billed_usd - 0.25
    assert all(trial.status in ("finished", "stopped") for trial in swept.trials)


def test_simulated_sweep_on_own_machines_has_an_exact_ledger():
    """Without interruptions and kills, ledger and bill are equal."""
    swept = Simulator(_space(), _scenario(market="own", kill_share=0.0), Budget(), seed=3).run()
    assert swept.ledger_usd == pytest.approx(swept.billed_usd)
    assert sum(trial.usd for trial in swept.trials) == pytest.approx(swept.billed_usd, rel=1e-5)
    assert swept.rungs[1] == 8


def test_simulated_sweep_is_a_function_of_its_seed():
    """Equal seeds give equal journals, different seeds different ones."""
    events = [
        Simulator(_space(), _scenario(), Budget(limit_usd=5.0), seed=seed).run().events
        for seed in (1, 1, 2)
    ]
    assert events[0] == events[1] != events[2]


def test_finish_rung_ends_trials_at_rungs():
    """A trial ends if the budget cannot cover its next rung; with `stop` it can end anywhere."""
    scenario = _scenario(market="own", kill_share=0.0, trial_s=20_000.0)
    halted = {}
    for on_budget in ("stop", "finish-rung"):
        sweeps = [
            Simulator(
                _space(), scenario, Budget(limit_usd=9.0, on_budget=on_budget), seed=seed
            ).run()
            for seed in range(12)
        ]
        halted[on_budget] = sum(
            event["event"] == "halted" for swept in sweeps for event in swept.events
        )
    assert halted["finish-rung"] < halted["stop"]


def test_check_cap_includes_sweeps_that_exceed_the_budget():
    """Half of the sweeps would cost more than the budget, and none violates it."""
    found = check_cap(_space(), _scenario(), Budget(limit_usd=10.0), num_sweeps=60, seed=2)
    assert (found.violations, found.sweeps) == (0, 60)
    assert 15 < found.num_capped < 45
