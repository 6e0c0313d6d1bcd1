"""The machines of a sweep: what each costs, how many may come, of which type, and when the deadline needs which."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.prices import ANSWER, price_source
from object_store import CREDENTIALS

from raysent.cluster.prices import LiveSpot
from raysent.config import parse_yaml
from raysent.cost import (
    Budget,
    CostConfig,
    Funds,
    Ledger,
    MachineTime,
    Prices,
    bad_entry,
    bill_of,
    machine_charges,
    on_demand_price,
    own_price,
    spot_price,
)
from raysent.errors import ArtifactError, ConfigError
from raysent.storage import Lines
from raysent.sweeps.cost_tracker import CostTracker, read_ledger, spent_usd
from raysent.sweeps.fleet import connect, is_urgent
from raysent.sweeps.layout import Layout, Machines, layout, within_memory
from raysent.sweeps.machines import Workers, num_workers, workers_to_come
from raysent.sweeps.remaining import TrialPace, training_left_s
from raysent.sweeps.space import Limits, parse_space
from raysent.sweeps.trial import Trial

MACHINES = {"g5.xlarge": 1.0, "g4dn.xlarge": 0.5, "m5.xlarge": 0.2}


def _prices(spot: dict[str, tuple[float, str]] | None = None) -> Prices:
    return Prices(CostConfig(machines=MACHINES), spot=None if spot is None else spot.get)


def _labels(name: str, market: str) -> dict[str, str]:
    return {"instance-type": name, "market": market}


@pytest.mark.parametrize(
    ("labels", "usd", "market", "source"),
    [
        (_labels("g4dn.xlarge", "on-demand"), 0.5, "on-demand", "cost.machines"),
        (_labels("g4dn.xlarge", "spot"), 0.2, "spot", "spot price of noon"),
        (_labels("g5.xlarge", "spot"), 1.0, "spot", "unknown, counted as on-demand"),
        (_labels("g4dn.xlarge", ""), 0.5, "on-demand", "cost.machines"),
        (_labels("m5.xlarge", "own"), 0.2, "own", "cost.usd_per_hour"),
        (_labels("p5.big", "spot"), 1.0, "on-demand",
         "type 'p5.big' has no known price; counted as g5.xlarge, the most expensive"),
        ({}, 1.0, "on-demand", "its type is not known; counted as g5.xlarge, the most expensive"),
    ],
)  # fmt: skip
def test_prices_of_a_node_are_those_of_its_type_and_market(labels, usd, market, source):
    """What cannot be read is at its upper bound, and says so."""
    price = _prices({"g4dn.xlarge": (0.2, "spot price of noon")}).of(labels)
    assert (price.usd_per_hour, price.market, price.source) == (usd, market, source)
    assert price.worst_usd_per_hour >= price.usd_per_hour


def test_prices_without_types_are_one_for_all():
    """`usd_per_hour` counts for every machine; both at once are refused."""
    assert Prices(CostConfig(usd_per_hour=2.0)).of(_labels("g5.xlarge", "spot")).usd_per_hour == 2.0
    with pytest.raises(ValueError, match="usd_per_hour and machines exclude each other"):
        CostConfig(usd_per_hour=2.0, machines=MACHINES)


def test_meter_pays_for_each_node_at_its_own_price(tmp_path):
    """Head and workers by type and market, from when they were asked for; a price that moves counts from then on."""
    now, spot = [0.0], {"g4dn.xlarge": (0.2, "then")}
    there = {"head": _labels("m5.xlarge", "on-demand")}
    config = CostConfig(machines=MACHINES, poll="1s", boot="300s")
    with CostTracker(
        tmp_path,
        config,
        nodes=lambda: there,
        prices=Prices(config, spot=spot.get),
        clock=lambda: now[0],
    ) as cost_tracker:
        there["worker"] = _labels("g4dn.xlarge", "spot")
        now[0] = 600.0
        cost_tracker.funds()
        spot["g4dn.xlarge"] = (0.4, "later")
        now[0] = 1200.0
        cost_tracker.funds()
        now[0] = 1800.0
    lines = [line for line in read_ledger(tmp_path) if line["entry"] == "node"]
    of = {name: [line for line in lines if line["node"] == name] for name in there}
    charges = machine_charges(read_ledger(tmp_path))
    assert charges["head"].usd == pytest.approx(0.2 * 2100 / 3600)
    assert charges["worker"].usd == pytest.approx((0.2 * 900 + 0.4 * 600) / 3600)
    told = {(line["node"], line["instance_type"], line["market"]) for line in lines}
    assert told == {("head", "m5.xlarge", "on-demand"), ("worker", "g4dn.xlarge", "spot")}
    assert {line["source"] for line in of["worker"]} == {"then", "later"}


def test_meter_writes_one_entry_for_all_machines_that_run_on(tmp_path):
    """A hundred machines for a day fit into 5 MB; the sums at every poll are as of an entry for each machine."""
    now, num_polls = [0.0], 60
    listed = {f"i-{number:017x}": number for number in range(100)}
    config = CostConfig(machines=MACHINES, poll="15s")
    prices, plain = Prices(config), []
    spot = spot_price(0.4, on_demand_price(1.0, source="list"), source="history")

    def machines() -> dict[str, MachineTime]:
        labels = _labels("g5.xlarge", "spot")
        return {
            name: MachineTime(labels, now[0], is_open=not (number == 7 and now[0] >= 450))
            for name, number in listed.items()
        }

    prices.of = lambda _: spot
    seen = []
    with CostTracker(
        tmp_path, config, nodes=dict, prices=prices, machines=machines, clock=lambda: now[0]
    ) as cost_tracker:
        each = Ledger(plain.append, is_listed=True)
        for now[0] in (75.0 + 15.0 * poll for poll in range(num_polls)):
            begun = (tmp_path / "ledger.jsonl").stat().st_size
            for name, machine in machines().items():
                each.follow(name, spot, machine)
            assert cost_tracker.funds().spent_usd == pytest.approx(each.spent_usd, abs=1e-6)
            assert spent_usd(tmp_path) == pytest.approx(each.spent_usd, abs=1e-6)
            seen.append((tmp_path / "ledger.jsonl").stat().st_size - begun)
    assert sorted(seen)[num_polls // 2] * 86_400 / 15 < 5e6
    entries = read_ledger(tmp_path)
    assert sum(entry["entry"] == "all" for entry in entries) > num_polls // 2
    bill, other = bill_of(entries), bill_of(plain)
    assert bill.usd == pytest.approx(other.usd)
    assert bill.on_demand_usd == pytest.approx(other.on_demand_usd)
    assert bill.machine_s == pytest.approx(other.machine_s)
    charges, others = machine_charges(entries), machine_charges(plain)
    assert charges.keys() == others.keys()
    for name, charge in charges.items():
        assert charge.seconds == pytest.approx(others[name].seconds, abs=0.01)
        assert charge.usd == pytest.approx(others[name].usd, abs=1e-6)


@pytest.mark.parametrize("kept", range(1, 8))
def test_a_crash_between_merged_entries_loses_nothing(tmp_path, kept):
    """Any whole lines may be all that is left: a resume charges what the cloud's list says, and each machine once."""
    now = [0.0]
    config = CostConfig(machines=MACHINES, poll="15s")

    def machines() -> dict[str, MachineTime]:
        return {
            name: MachineTime(_labels("g5.xlarge", "on-demand"), now[0]) for name in ("a", "b", "c")
        }

    given: dict = {"nodes": dict, "machines": machines, "clock": lambda: now[0]}
    cost_tracker = CostTracker(tmp_path, config, **given).__enter__()
    for now[0] in (75.0, 90.0, 105.0, 120.0, 135.0, 150.0, 165.0):
        cost_tracker.funds()
    path = tmp_path / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert any(b'"all"' in line for line in lines)
    path.write_bytes(b"".join(lines[:kept]))
    now[0] = 600.0
    with CostTracker(tmp_path, config, **given) as again:
        again.funds()
    bill = bill_of(read_ledger(tmp_path))
    assert bill.machine_s == pytest.approx(1800, abs=0.02)
    assert bill.usd == pytest.approx(
        1800 / 3600 * Prices(config).of(_labels("g5.xlarge", "on-demand")).usd_per_hour
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"usd": 0.5}, "usd: must be "),
        ({"num": 2}, "num: must be 3 by the entries before it"),
        ({"but": ["stranger"]}, "but: must name machines that run; it names 'stranger'"),
        ({"but": ["a", "a"]}, "but: must be a list of machines, each once"),
        ({"seconds": "long"}, "seconds: must be a finite number"),
    ],
)
def test_an_entry_for_all_machines_is_checked_against_those_before_it(change, message):
    """Its sums follow from the machines that are open, and their prices."""
    entries: list[dict] = []
    ledger, price = Ledger(entries.append, is_listed=True), own_price(3.6)
    for name in ("a", "b", "c"):
        ledger.follow(name, price, MachineTime({}, 60.0))
    one = {"entry": "all", "seconds": 10.0, "num": 3, "usd": 0.03, "on_demand_usd": 0.03, "but": []}
    assert bad_entry([*entries, one]) is None
    place, reason = bad_entry([*entries, one | change])
    assert (place, message in reason) == (3, True), reason


def test_meter_writes_a_line_for_all_machines_at_each_poll(tmp_path, monkeypatch):
    """In a bucket each line is an object. What could not be written is in the next line, and nothing is charged twice."""
    now, there = [0.0], {f"node-{number}": _labels("g5.xlarge", "spot") for number in range(64)}
    config = CostConfig(machines=MACHINES, poll="15s", boot="0s")
    with CostTracker(tmp_path, config, nodes=lambda: there, clock=lambda: now[0]) as cost_tracker:
        for now[0] in (75.0, 90.0, 105.0, 120.0):  # the first minute is charged at once
            if now[0] == 90.0:
                with monkeypatch.context() as full:
                    full.setattr(Lines, "append", _full)
                    with pytest.raises(ArtifactError, match="full"):
                        cost_tracker.funds()
                    assert _written(tmp_path) == (2, pytest.approx(64 * 75 / 3600))
            cost_tracker.funds()
        assert _written(tmp_path) == (5, pytest.approx(64 * 120 / 3600))
        now[0] = 135.0
    assert _written(tmp_path) == (6, pytest.approx(64 * 135 / 3600))


def _written(folder: Path) -> tuple[int, float]:
    """Return the lines of a ledger and their sum in dollars."""
    return (folder / "ledger.jsonl").read_bytes().count(b"\n"), spent_usd(folder)


def _full(*_: Any) -> None:
    raise ArtifactError("disk: full")


def test_meter_bills_the_start_of_a_machine_once(tmp_path):
    """A node that an earlier sitting paid for has started already."""
    config = CostConfig(machines=MACHINES, boot="300s")
    for _ in range(2):
        with CostTracker(
            tmp_path,
            config,
            nodes=lambda: {"head": _labels("m5.xlarge", "on-demand")},
            clock=lambda: 0.0,
        ):
            pass
    seconds = sum(line["seconds"] for line in read_ledger(tmp_path))
    assert seconds == 300 + 60  # the second time, its minute


def test_meter_that_could_not_write_its_end_settles_it_in_the_next_sitting(tmp_path, monkeypatch):
    """What a machine cost while the ledger could not be written is in it once it can be."""
    now, config = [0.0], CostConfig(usd_per_hour=3600.0, poll="1s")

    def refuse(*_: Any) -> None:
        raise ArtifactError("runs: gone")

    with (
        monkeypatch.context() as gone,
        pytest.raises(ArtifactError, match="runs: gone"),
        CostTracker(
            tmp_path, config, nodes=lambda: {"one": {}}, clock=lambda: now[0]
        ) as cost_tracker,
    ):
        now[0] = 10.0
        cost_tracker.funds()
        gone.setattr(Lines, "append", refuse)
        now[0] = 150.0
    assert spent_usd(tmp_path) == 10.0
    for _ in range(2):
        assert CostTracker(tmp_path, config, nodes=dict).ledger.spent_usd == 150.0
    assert not read_ledger(tmp_path)[-1]["is_open"]


def test_ledger_assumes_the_price_of_the_type_that_was_left_open():
    """A killed driver's machine keeps its type."""
    lines: list[dict[str, Any]] = []
    Ledger(lines.append).open("a", _prices().of(_labels("g5.xlarge", "spot")), now_s=0)
    Ledger(lines.append, past=list(lines))
    assert [(line["instance_type"], line["market"]) for line in lines] == [
        ("g5.xlarge", "spot")
    ] * 2


def _page(*rows: tuple[str, str]) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return {
        "SpotPriceHistory": [
            {"AvailabilityZone": zone, "SpotPrice": usd, "Timestamp": at} for zone, usd in rows
        ]
    }


def test_live_spot_tells_the_dearest_zone_and_asks_again_in_time(ec2):
    """Within five minutes the same answer; then whatever AWS says, which may be nothing."""
    now = [0.0]
    ec2[1].add_response("describe_spot_price_history", _page(("a", "0.3"), ("b", "0.4")))
    ec2[1].add_client_error("describe_spot_price_history")
    ec2[1].add_response("describe_spot_price_history", _page(("a", "0.3"), ("b", "what")))
    ask = LiveSpot("us-east-1", ec2=ec2[0], clock=lambda: now[0])
    assert ask("g5.xlarge") == (0.4, "spot price of 2026-01-01T00:00+00:00")
    now[0] = 299.0
    assert ask("g5.xlarge") is not None
    now[0] = 301.0
    assert ask("g5.xlarge") is None
    now[0] = 700.0
    assert ask("g5.xlarge") is None  # one zone cannot be read: it may be the dearest
    ec2[1].assert_no_pending_responses()


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        "<html></html>",
        ANSWER.format(entries="<item><spotPrice>0.1</spotPrice></item>"),
        ANSWER.format(entries="<item><timestamp>noon</timestamp></item>"),
    ],
)
def test_live_spot_takes_nonsense_for_no_answer(text, monkeypatch):
    """What cannot be read, or lacks what an answer has, is no price and ends no sweep."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with price_source("g5.xlarge", usd_per_hour=0.4) as source:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", source.url)
        now = [0.0]
        ask = LiveSpot("us-east-1", clock=lambda: now[0])
        assert ask("g5.xlarge") == (0.4, "spot price of 2026-01-01T00:00+00:00")
        now[0] = 301.0
        source.say(text)
        assert ask("g5.xlarge") is None


def _space(**cost: Any):
    text = "base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}\n"
    return parse_space(parse_yaml(text + f"cost: {json.dumps(cost)}\n"), name="toy")


def test_num_workers_fit_into_dollars_an_hour_beside_the_head():
    """The head and each worker at its worst price; as many as may come where nothing limits dollars."""
    assert (
        num_workers(
            _space(machines=MACHINES, max_hourly="3usd"), most=8, head_usd=0.3, each_usd=0.9
        )
        == 3
    )
    assert num_workers(_space(machines=MACHINES), most=8, head_usd=0.2, each_usd=1.0) == 8
    assert (
        num_workers(
            _space(machines=MACHINES, max_hourly="3.2usd"), most=8, head_usd=0.2, each_usd=1.0
        )
        == 3
    )
    assert (
        num_workers(
            _space(machines=MACHINES, max_hourly="30usd"), most=8, head_usd=0.2, each_usd=1.0
        )
        == 8
    )
    with pytest.raises(
        ConfigError,
        match="must allow for the head and one worker, 1.20 usd an hour at most; given 1.10",
    ):
        num_workers(
            _space(machines=MACHINES, max_hourly="1.1usd"), most=8, head_usd=0.2, each_usd=1.0
        )


def test_workers_are_told_through_the_environment(monkeypatch):
    """Nothing, what the launcher says, with the names of GPUs where they are known, or one clear line."""
    monkeypatch.delenv("RAYSENT_WORKERS", raising=False)
    assert workers_to_come() is None
    for told in (Workers(8, 4, 1.0), Workers(8, 4, 1.0, ("L4",))):
        for name, value in told.environment().items():
            monkeypatch.setenv(name, value)
        assert workers_to_come() == told
    monkeypatch.setenv("RAYSENT_WORKERS", "8")
    with pytest.raises(
        ConfigError, match='RAYSENT_WORKERS: must look like {"num": 8, "CPU": 4, "GPU": 1}; given 8'
    ):
        workers_to_come()


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("num_trials", [1, 2, 4, 7, 40])
@pytest.mark.parametrize(
    ("cpus", "gpus", "gpus_per_worker"), [(3, 0.0, 0.0), (4, 1.0, 0.4), (8, 2.0, 1.0)]
)
def test_layout_asks_for_no_more_nodes_than_may_come(
    num_nodes, num_trials, cpus, gpus, gpus_per_worker
):
    """Workers packed node by node, as the autoscaler does, never need one more."""
    limits = Limits(trials=num_trials, gpus_per_worker=gpus_per_worker)
    machines = Machines(cpus * num_nodes, gpus * num_nodes, cpus, num_nodes=num_nodes)
    plan = layout(limits, machines, num_trials=num_trials)
    fit = cpus // plan.cpus_per_worker
    if gpus_per_worker:
        fit = min(fit, int(gpus / gpus_per_worker))
    assert -(-plan.concurrent // fit) <= num_nodes


def _trial(number: int, *, index: int, status: str = "running") -> Trial:
    trial = Trial(f"{number:04d}", number, {}, 0)
    trial.index, trial.num_reports, trial.seconds, trial.status = index, 10, 60.0 * index, status
    return trial


def test_training_left_counts_what_runs_and_what_is_to_come():
    """At the pace so far; trials to come fare as those that have ended, and the longest one is not shared."""
    assert training_left_s([], num_to_draw=4, num_slots=2) is None
    trials = [_trial(0, index=2, status="stopped"), _trial(1, index=5)]
    assert training_left_s(trials, num_to_draw=4, num_slots=2) == pytest.approx(
        (5 + 4 * 2) / 2 * 60
    )
    assert training_left_s(trials, num_to_draw=0, num_slots=8) == pytest.approx(5 * 60)


def test_the_longest_trial_ends_at_its_own_pace_and_one_without_a_report_at_that_of_all():
    """What watches a sweep knows more than reports: parts of them, and how fast a trial trains at the moment."""
    slow, fast = _trial(0, index=5), _trial(1, index=5)
    slow.seconds = 3000.0
    assert training_left_s([slow, fast], num_to_draw=0, num_slots=8) == pytest.approx(3000)
    silent = _trial(2, index=0)
    report_s = 3300 / 10
    assert training_left_s([slow, fast, silent], num_to_draw=0, num_slots=8) == pytest.approx(
        10 * report_s
    )
    paces = {"0000": TrialPace(5.5, 3300.0, 100.0), "0001": TrialPace(5.0, 300.0, 50.0)}
    left_s = training_left_s(
        [slow, fast],
        num_to_draw=0,
        num_slots=2,
        pace_of=lambda trial: paces[trial.name],
        least_part=0.5,
    )
    assert left_s == pytest.approx(3600 / 10.5 * 9.5 / 2)
    assert training_left_s([slow, fast], num_to_draw=9, num_slots=2, least_part=0.2) is None


def test_fleet_is_given_the_tail_once_nothing_is_left_to_start():
    """The longest running trial at its own pace; a trial that has ended or has not reported does not count."""
    given: list[float | None] = []
    fleet = SimpleNamespace(
        update=lambda _, tail_s, **__: given.append(tail_s) or "", with_in_flight=None, stuck=""
    )
    trials = [
        _trial(0, index=2),
        _trial(1, index=9),
        _trial(2, index=0),
        _trial(3, index=1, status="stopped"),
    ]
    trials[1].seconds = 5400.0
    controller = SimpleNamespace(
        space=SimpleNamespace(cost=CostConfig(), limits=Limits(trials=4)),
        trials={trial.name: trial for trial in trials}, exhausted=False, closed="", num_to_start=1,
    )  # fmt: skip
    cost_tracker = SimpleNamespace(num_slots=2, funds=Funds)
    connect(fleet, cost_tracker, controller, Budget(), lambda _: None)
    cost_tracker.on_tick(Funds())
    controller.num_to_start = 0
    cost_tracker.on_tick(Funds())
    trials[1].status = "finished"
    cost_tracker.on_tick(Funds())
    assert given == [None, None, 600.0, 480.0]


def test_deadline_is_urgent_only_when_what_is_left_just_fits():
    """Slack: spot. None left: on demand. Later less is left: spot again."""
    budget = Budget(deadline_s=10_000, window_s=0)
    cases = ((0, None), (0, 7000), (1000, 6721), (2000, 6000), (2000, 5919))
    urgent = [
        is_urgent(budget, Funds(elapsed_s=now), left_s=left_s, boot_s=300) for now, left_s in cases
    ]
    assert urgent == [False, False, True, True, False]
    assert not is_urgent(Budget(), Funds(elapsed_s=1e9), left_s=1e9, boot_s=300)


def test_trials_at_once_fit_into_the_memory_of_the_head(capsys):
    """64 GPUs and a head of 16 GiB: no more trials than it can drive; a trial without workers of its own needs none."""
    found = Layout(64, 1, 4, 1.0, is_nested=True)
    assert within_memory(found, 11 * 2**30).concurrent == 14
    said = "14 trials at once instead of 64: each needs 0.8 GiB on the head, which has 11.0 GiB for them"
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert within_memory(found, 64 * 2**30) == within_memory(found, None) == found
    assert within_memory(found, 1.0).concurrent == 1
    reused = Layout(64, 1, 4, 1.0, is_nested=False)
    assert within_memory(reused, 1.0) == reused
    assert capsys.readouterr().err.count("instead of") == 1


def test_layout_keeps_a_worker_on_one_machine():
    """Three machines of three cores hold no four workers of two cores; a machine of eight GPUs is filled."""
    limits = Limits(trials=1, workers_per_trial=4)
    plan = layout(limits, Machines(9, 0.0, 3, shapes=((3, 0.0),) * 3), num_trials=1)
    assert (plan.concurrent, plan.cpus_per_worker) == (1, 1)
    with pytest.raises(ConfigError, match="one trial needs 4 cores and 0 GPUs; there are 3 cores"):
        layout(limits, Machines(3, 0.0, 3, shapes=((3, 0.0),)), num_trials=1)
    p4d = layout(Limits(trials=100), Machines(8 * 96, 64.0, 96, num_nodes=8), num_trials=100)
    assert (p4d.concurrent, p4d.cpus_per_worker, p4d.gpus_per_worker) == (64, 12, 1.0)
