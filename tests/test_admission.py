"""Which machines may run: the planner, the gate in Ray's provider, and the bill from the cloud's own list."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

from raysent.cluster import fleet as fleet_module
from raysent.cluster import permits as permits_module
from raysent.cluster.account import Machine
from raysent.cluster.fleet import (
    AwsMachines,
    Fleet,
    FleetSettings,
    MachineList,
    cluster_held,
    num_slots,
    renew_lease,
)
from raysent.cluster.gate import AwsProvider, LaunchGate, Record
from raysent.cost import (
    Admission,
    Budget,
    CostConfig,
    Funds,
    Ledger,
    MachineTime,
    MachineType,
    Prices,
    spare,
)
from raysent.cost.refusals import refusal_of
from raysent.errors import CloudError, ConfigError
from raysent.sweeps import Layout
from raysent.sweeps.cost_tracker import CostTracker, spent_usd

BIG = MachineType("p4d", 32.77, market="spot", max_machines=8)
G6, G5 = (
    MachineType(name, 1.0, market="spot", priority=rank, max_machines=8)
    for name, rank in (("g6", 30), ("g5", 20))
)
SURE = MachineType("sure", 1.0, market="on-demand", max_machines=2)
RICH = Budget(limit_usd=1e6)


def _plan(admission: Admission, num: int, *, now_s: float = 0.0, running: Any = None, **more: Any):
    return admission.plan(now_s=now_s, num_slots=num, funds=Funds(), running=running or {}, **more)


# -- the planner ------------------------------------------------------------------------------------------------------


def test_plan_admits_what_trials_need_by_priority():
    """Machines that run or are in flight are not admitted again."""
    admission = Admission([SURE, G5, G6], RICH, boot_s=300)
    assert _plan(admission, 3).targets == {"sure": 0, "g5": 0, "g6": 3}
    assert _plan(admission, 3).launches == {"sure": 0, "g5": 0, "g6": 3}
    admission.launched("g6", total=2)
    assert _plan(admission, 4, running={"g6": 2}).launches == {"sure": 0, "g5": 0, "g6": 4}


def test_plan_replaces_a_refused_type_and_tries_it_again_later():
    """The refusal is the reason that is shown while nothing else can come."""
    admission = Admission([G5, G6], RICH, boot_s=300, retry_s=300)
    _plan(admission, 1)
    admission.refused("g6", now_s=10, reason="InsufficientInstanceCapacity")
    assert _plan(admission, 1, now_s=11).targets == {"g5": 1, "g6": 0}
    admission.refused("g5", now_s=12, reason="MaxSpotInstanceCountExceeded")
    waiting = _plan(admission, 1, now_s=50).waiting
    assert (
        waiting
        == "g6: InsufficientInstanceCapacity, 40 s ago; g5: MaxSpotInstanceCountExceeded, 38 s ago"
    )
    assert _plan(admission, 1, now_s=311).targets == {"g5": 0, "g6": 1}


@pytest.mark.parametrize(
    ("reason", "refusal"),
    [
        ("RequestLimitExceeded: Request limit exceeded.", "again"),
        ("InternalError: An internal error has occurred", "again"),
        ("Read timeout on endpoint URL: https://ec2.us-east-1.amazonaws.com/", "again"),
        ("InsufficientInstanceCapacity: none left", "next"),
        ("Unsupported: not in this zone", "next"),
        ("i-1 did not join Ray in 15 minutes", "next"),
        ("UnauthorizedOperation: You are not authorized", "never"),
        ("VcpuLimitExceeded: You have requested more", "never"),
        ("MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "never"),
        ("InvalidParameterValue: wrong", "never"),
    ],
)
def test_refusals_are_of_three_classes(reason, refusal):
    """Again soon, the next type, never."""
    assert refusal_of(reason) == refusal


def test_throttling_buys_no_other_type():
    """Nothing is launched while the cloud has no time; the same type is tried again, later each time."""
    admission = Admission([SURE, G5, G6], RICH, boot_s=300)
    now = 0.0
    for wait in (15, 30, 60, 120, 240, 240):
        assert _plan(admission, 1, now_s=now).targets == {"sure": 0, "g5": 0, "g6": 1}
        admission.refused("g6", now_s=now, reason="RequestLimitExceeded: slow down")
        waiting = _plan(admission, 1, now_s=now + wait - 1)
        assert waiting.targets == {"sure": 0, "g5": 0, "g6": 0}
        assert "g6: RequestLimitExceeded: slow down" in waiting.waiting
        assert "the next launch is tried in 1 s" in waiting.waiting
        now += wait
    admission.launched("g6", total=1)
    admission.refused("g6", now_s=now, reason="RequestLimitExceeded: slow down")
    assert _plan(admission, 2, now_s=now + 15, running={"g6": 1}).targets["g6"] == 2


def test_what_never_heals_is_asked_for_once_and_said():
    """The next type takes its place; where all are refused so, no machine will ever come."""
    admission = Admission([G5, G6], RICH, boot_s=300, retry_s=300)
    _plan(admission, 1)
    admission.refused("g6", now_s=0, reason="UnauthorizedOperation: no")
    assert _plan(admission, 1, now_s=9999).targets == {"g5": 1, "g6": 0}
    assert admission.stuck({}) == ""
    admission.refused("g5", now_s=9999, reason="InvalidParameterValue: no")
    assert _plan(admission, 1, now_s=99999).targets == {"g5": 0, "g6": 0}
    assert admission.stuck({"g5": 1}) == ""
    assert admission.stuck({}) == (
        "AWS will launch no machine: g6: UnauthorizedOperation: no; g5: InvalidParameterValue: no"
    ) or "AWS will launch no machine: g5: InvalidParameterValue: no" in admission.stuck({})


def test_a_quota_that_is_used_up_allows_what_ran_then():
    """Two of three machines run; when one is lost, it is replaced, and no third one is asked for."""
    admission = Admission([G6], RICH, boot_s=300)
    _plan(admission, 3)
    admission.launched("g6", total=2)
    admission.refused("g6", now_s=0, reason="VcpuLimitExceeded: quota")
    assert _plan(admission, 3, now_s=999, running={"g6": 2}).targets == {"g6": 2}
    assert _plan(admission, 3, now_s=1999, running={"g6": 1}).targets == {"g6": 2}
    admission.launched("g6", total=3)
    assert _plan(admission, 3, now_s=2999, running={"g6": 2}).targets == {"g6": 2}


def test_plan_skips_no_type_for_longer_because_the_clock_was_set_back():
    """An hour back, the refusal lies in the future; the type is tried again at once."""
    admission = Admission([G6], RICH, boot_s=300, retry_s=300)
    admission.refused("g6", now_s=3600, reason="InsufficientInstanceCapacity")
    assert _plan(admission, 1, now_s=3601).targets == {"g6": 0}
    assert _plan(admission, 1, now_s=1).targets == {"g6": 1}


def test_plan_takes_on_demand_machines_first_near_the_deadline():
    """Up to their limit; then spot."""
    admission = Admission([SURE, G6], RICH, boot_s=300)
    assert _plan(admission, 3, is_urgent=True).targets == {"sure": 2, "g6": 1}


def test_plan_counts_slots_of_large_machines():
    """Eight GPUs hold eight trials of one GPU; 64 trials need eight machines."""
    admission = Admission(
        [MachineType("p4d", 32.77, max_machines=8, num_slots=8)], RICH, boot_s=300
    )
    assert _plan(admission, 64).targets == {"p4d": 8}
    layout = Layout(64, 1, 4, 1.0, is_nested=True)
    assert num_slots({"CPU": 96, "GPU": 8}, layout) == 8
    assert num_slots({"CPU": 96, "GPU": 4}, Layout(64, 1, 4, 0.25, is_nested=True)) == 16
    assert num_slots({"CPU": 3}, Layout(4, 4, 4, 0.0, is_nested=True)) == 0


def test_plan_keeps_dollars_an_hour():
    """Machines in flight count."""
    admission = Admission([G6], Budget(max_hourly_usd=3.5), boot_s=300)
    plan = _plan(admission, 8)
    assert plan.targets == {"g6": 3}
    assert plan.waiting == "g6: max_hourly is 3.50 usd"


def test_in_flight_machines_are_committed():
    """An admitted launch is billed whether it trains or not, so the budget halts trials for it too."""
    admission = Admission([BIG], RICH, boot_s=300)
    _plan(admission, 8)
    funds = admission.with_in_flight(Funds(spent_usd=1.0))
    assert funds.commitment_usd == pytest.approx(8 * 32.77 * RICH.window_s / 3600)
    assert funds.hourly_usd == pytest.approx(8 * 32.77)
    admission.withdraw()
    assert admission.with_in_flight(Funds()) == Funds()


# -- the planner and the meter: three ways in which money was lost ----------------------------------------------------

BUDGET = Budget(limit_usd=200.0)
POLL_S, BOOT_S = 15.0, 300.0


class Cloud:
    """Machines that are billed from launch to end; the sweep polls, and terminates all when the budget halts it."""

    def __init__(self, *, spent_usd: float, num_machines: int) -> None:
        self.now = 0.0
        self.lines: list[dict[str, Any]] = []
        self.prices = Prices(CostConfig(machines={"p4d": 32.77}))
        self.ledger = Ledger(self.lines.append, window_s=BUDGET.window_s, is_listed=True)
        self.ledger.follow(
            "before",
            self.prices.of(LABELS),
            MachineTime(LABELS, spent_usd / 32.77 * 3600, is_open=False),
        )
        self.admission = Admission([BIG], BUDGET, boot_s=BOOT_S)
        self.machines: dict[str, list[float | None]] = {}
        self.num_launched, self.is_halted = 0, False
        for _ in range(num_machines):
            self.launch()

    def launch(self) -> None:
        """Launch a machine."""
        self.num_launched += 1
        self.machines[f"i-{self.num_launched}"] = [self.now, None]

    def end(self, name: str, *, after_s: float = 0.0) -> None:
        """End a machine."""
        self.machines[name][1] = self.now + after_s

    @property
    def bill_usd(self) -> float:
        """The cloud's own bill."""
        seconds = sum(
            max(60.0, (self.now if end is None else end) - start)
            for start, end in self.machines.values()
        )
        return self.lines[0]["usd"] + seconds / 3600 * 32.77

    def poll(self) -> None:
        """One poll of the sweep, as the driver makes it: bill, halt, admit; then the cloud launches what is admitted."""
        self.now += POLL_S
        for name, (start, end) in self.machines.items():
            ended = end is not None and end <= self.now
            machine = MachineTime(LABELS, (end if ended else self.now) - start, is_open=not ended)
            self.ledger.follow(name, self.prices.of(LABELS), machine)
        funds = self.ledger.funds(elapsed_s=self.now)
        self.admission.launched("p4d", total=self.num_launched)
        running = {"p4d": sum(end is None for _, end in self.machines.values())}
        if BUDGET.refusal(self.admission.with_in_flight(funds)):
            self.is_halted = True
            self.admission.withdraw()
            for name, (_, end) in self.machines.items():
                if end is None:
                    self.end(name, after_s=BUDGET.window_s - POLL_S)
            return
        plan = self.admission.plan(
            now_s=self.now, num_slots=0 if self.is_halted else 8, funds=funds, running=running
        )
        for _ in range(plan.launches["p4d"] - self.num_launched):
            self.launch()

    def finish(self) -> None:
        """Poll until the budget halts the sweep and nothing is billed; without a halt, admit nothing more."""
        while not self.is_halted and any(end is None for _, end in self.machines.values()):
            self.poll()
        self.is_halted = True
        while any(end is None or end > self.now for _, end in self.machines.values()):
            self.poll()
        self.poll()


LABELS = {"instance-type": "p4d", "market": "on-demand"}


@pytest.mark.parametrize("spent_usd", [0.0, 120.0, 150.0, 165.0, 172.0])
def test_eight_machines_replaced_at_once_stay_inside_the_budget(spent_usd):
    """Eight machines of 32.77 usd an hour are interrupted together, again and again: their boots are paid before."""
    cloud = Cloud(spent_usd=spent_usd, num_machines=8)
    for _ in range(3):
        for _ in range(20):
            cloud.poll()
        for name, (_, end) in cloud.machines.items():
            if end is None:
                cloud.end(name)
    cloud.finish()
    assert cloud.bill_usd <= BUDGET.training_usd + 1e-6
    assert cloud.ledger.spent_usd == pytest.approx(cloud.bill_usd, abs=0.01)


def test_machines_that_never_join_are_billed_and_stay_inside_the_budget():
    """No Ray node ever appears; the cloud's list alone has them."""
    cloud = Cloud(spent_usd=150.0, num_machines=0)
    cloud.poll()
    cloud.finish()
    assert cloud.num_launched > 0
    assert cloud.bill_usd <= BUDGET.training_usd + 1e-6
    assert cloud.ledger.spent_usd == pytest.approx(cloud.bill_usd, abs=0.01)


def test_machines_of_a_dead_head_are_billed_by_the_next_session_and_launch_nothing():
    """The driver dies with eight machines, which end themselves after 15 minutes; the permit runs out before."""
    cloud = Cloud(spent_usd=40.0, num_machines=8)
    for _ in range(4):
        cloud.poll()
    num_launched = cloud.num_launched
    for name in list(cloud.machines):
        cloud.end(name, after_s=900.0)
    cloud.now += 3600.0  # nothing polls, and nothing is admitted
    past = [
        line for line in cloud.lines if line["node"] == "before"
    ]  # the rest of the ledger is lost too
    cloud.lines = list(past)
    cloud.ledger = Ledger(cloud.lines.append, past=past, window_s=BUDGET.window_s, is_listed=True)
    cloud.is_halted = True
    cloud.poll()
    assert cloud.num_launched == num_launched
    assert cloud.ledger.spent_usd == pytest.approx(cloud.bill_usd, abs=0.01)
    assert cloud.bill_usd <= BUDGET.training_usd


# -- the gate ---------------------------------------------------------------------------------------------------------


class _Machines:
    """A provider that counts what it launches."""

    launched = 0
    refuses = False

    def __init__(self, folder: Path) -> None:
        self.provider_config = {"raysent": {"folder": str(folder)}}

    def create_node_with_resources_and_labels(
        self, node_config, tags, count, resources, labels
    ) -> dict[str, Any]:
        """Launch, or refuse as AWS does."""
        if self.refuses:
            raise NodeLaunchException("InsufficientInstanceCapacity", "not available", None)
        names = {f"i-{self.launched + number}": None for number in range(count)}
        self.launched += count
        return names


class _Gated(LaunchGate, _Machines):
    """With the gate."""


def _permit(folder: Path, *, until: float = 9e9, **launches: int) -> None:
    Record(folder).permit_path.parent.mkdir(exist_ok=True)
    Record(folder).permit_path.write_text(json.dumps({"until": until, "launches": launches}))


def _launch(provider: _Gated, kind: str = "g6", count: int = 1) -> bool:
    try:
        provider.create_node_with_resources_and_labels(
            {}, {"ray-user-node-type": kind}, count, {}, {}
        )
    except NodeLaunchException:
        return False
    return True


def test_gate_launches_nothing_without_a_valid_permit(tmp_path):
    """No permit, one that has run out, another type, too many at once."""
    gate = _Gated(tmp_path)
    assert not _launch(gate)
    _permit(tmp_path, until=1.0, g6=1)
    assert not _launch(gate)
    _permit(tmp_path, g5=1)
    assert not _launch(gate)
    _permit(tmp_path, g6=1)
    assert not _launch(gate, count=2)
    assert gate.launched == 0
    assert {line["event"] for line in Record(tmp_path, "").lines()} == {"not admitted"}


def test_gate_counts_launches_over_the_whole_sweep(tmp_path):
    """A machine that has ended is not replaced without a new admission; a new gate process counts on."""
    _permit(tmp_path, g6=2)
    assert [_launch(_Gated(tmp_path)) for _ in range(4)] == [True, True, False, False]
    _permit(tmp_path, g6=3)
    assert [_launch(_Gated(tmp_path)) for _ in range(2)] == [True, False]


def test_gate_admits_no_more_under_ten_threads(tmp_path):
    """Ray launches from several threads."""
    gate, results = _Gated(tmp_path), []
    _permit(tmp_path, g6=7)
    threads = [threading.Thread(target=lambda: results.append(_launch(gate))) for _ in range(40)]
    for start in range(0, 40, 10):
        for thread in threads[start : start + 10]:
            thread.start()
        for thread in threads[start : start + 10]:
            thread.join()
    assert (sum(results), gate.launched) == (7, 7)


def test_gate_records_the_reason_of_the_cloud(tmp_path):
    """And passes the refusal on to Ray."""
    gate = _Gated(tmp_path)
    gate.refuses = True
    _permit(tmp_path, g6=1)
    assert not _launch(gate)
    (line,) = Record(tmp_path).lines()
    assert (line["event"], line["reason"]) == (
        "refused",
        "InsufficientInstanceCapacity: not available",
    )


def test_aws_provider_adds_the_tags_that_change_at_launch(tmp_path, monkeypatch):
    """One specification for each kind of resource; AWS rejects two."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        AWSNodeProvider, "create_node", lambda self, config, tags, count: given.update(config)
    )
    provider = AwsProvider.__new__(AwsProvider)
    provider.provider_config = {
        "raysent": {"folder": "x", "time_to_live_s": 3600, "tags": {"raysent-sweep": "novels"}}
    }
    own = {"ResourceType": "instance", "Tags": [{"Key": "raysent-cluster", "Value": "c"}]}
    provider.create_node({"TagSpecifications": [own]}, {}, 1)
    kinds = {
        spec["ResourceType"]: {tag["Key"]: tag["Value"] for tag in spec["Tags"]}
        for spec in given["TagSpecifications"]
    }
    assert kinds["instance"].keys() == {"raysent-cluster", "raysent-sweep", "raysent-expires"}
    assert kinds["volume"]["raysent-sweep"] == "novels"
    assert len(given["TagSpecifications"]) == 2


# -- the fleet of a sweep ---------------------------------------------------------------------------------------------

LAYOUT = Layout(4, 1, 4, 1.0, is_nested=True)
COST = CostConfig(
    machines={"g6.xlarge": 1.0, "g5.xlarge": 1.0, "m5.xlarge": 0.2}, budget="100usd", boot="300s"
)
TYPES = {
    name: {
        "resources": {"CPU": 4, "GPU": 1},
        "labels": {"market": "spot", "instance-type": f"{name}.xlarge"},
        "priority": priority,
        "max_workers": 8,
    }
    for name, priority in (("g6", 30), ("g5", 20))
}


class _Listed:
    """A provider with a list."""

    def __init__(self) -> None:
        self.now, self.listed, self.terminated = 1000.0, [], []
        self.is_down = False

    def instances(self):
        """Return the list."""
        if self.is_down:
            raise CloudError("AWS: down")
        return self.now, list(self.listed)

    def terminate(self, names):
        """Record the names."""
        if self.is_down:
            raise CloudError("AWS: down")
        self.terminated += names


def _settings(folder: Path, types: Any = None) -> FleetSettings:
    types = types or TYPES
    (folder / "config.json").write_text(
        json.dumps({"available_node_types": {name: {"max_workers": 8} for name in types}})
    )
    return FleetSettings(
        "c", "us-east-1", types, 8, str(folder / "fleet"), str(folder / "config.json")
    )


def _fleet(folder: Path, provider: _Listed, *, types: Any = None, layout: Layout = LAYOUT) -> Fleet:
    settings = _settings(folder, types)
    budget = Budget(limit_usd=100.0)
    return Fleet(
        settings, COST, budget, Prices(COST), layout, provider=provider, clock=lambda: provider.now
    )


def _most(folder: Path) -> dict[str, int]:
    values = json.loads((folder / "config.json").read_text())["available_node_types"]
    return {name: kind["max_workers"] for name, kind in values.items()}


def test_fleet_writes_permit_and_limits_and_replaces_a_refused_type(tmp_path, monkeypatch):
    """What the gate records is taken up at the next poll; at the end nothing is admitted."""
    monkeypatch.setattr(fleet_module, "joined_instances", set)
    provider = _Listed()
    fleet = _fleet(tmp_path, provider)
    record = Record(tmp_path / "fleet")
    fleet.machines()
    assert fleet.update(Funds(), num_trials=2) == ""
    assert _most(tmp_path) == {"g6": 2, "g5": 0}
    assert record.permit()["launches"] == {"g6": 2, "g5": 0}
    record.write("refused", "g6", reason="InsufficientInstanceCapacity: none")
    monkeypatch.setattr(provider, "now", record.lines()[-1]["time"] + 1)
    fleet.update(Funds(), num_trials=2)
    assert _most(tmp_path) == {"g6": 0, "g5": 2}
    record.write("launched", "g5", instance="i-1")
    fleet.update(Funds(), num_trials=2)
    assert _most(tmp_path) == {"g6": 0, "g5": 2}
    fleet.close()
    assert (_most(tmp_path), record.permit()["until"]) == ({"g6": 0, "g5": 0}, 0.0)


def test_fleet_is_stuck_where_aws_will_never_launch(tmp_path, monkeypatch):
    """It says so at the next poll; what an earlier process met is tried again."""
    monkeypatch.setattr(fleet_module, "joined_instances", set)
    provider = _Listed()
    fleet = _fleet(tmp_path, provider)
    record = Record(tmp_path / "fleet")
    fleet.machines()
    fleet.update(Funds(), num_trials=2)
    for kind in ("g6", "g5"):
        record.write("refused", kind, reason="UnauthorizedOperation: no")
    monkeypatch.setattr(provider, "now", record.lines()[-1]["time"] + 1)
    fleet.update(Funds(), num_trials=2)
    assert "AWS will launch no machine: " in fleet.stuck
    provider.now = time.time() + 10
    again = _fleet(tmp_path, provider)
    again.machines()
    again.update(Funds(), num_trials=2)
    assert again.stuck == ""


def test_permits_are_renewed_while_the_cloud_does_not_answer(monkeypatch):
    """By a thread that asks no cloud, for as long as the last poll allows, and no longer than the process wants."""
    renewals, now = [], [0.0]
    monkeypatch.setattr(permits_module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(
        permits_module.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="head:1")
    )
    monkeypatch.setattr(
        permits_module,
        "renew_permit",
        lambda address, name, machines, *, seconds: renewals.append((machines, seconds)),
    )
    permits = permits_module.Permits(clock=lambda: now[0])
    permits.grant(["i-1"], seconds=0.03, for_s=100.0)
    _wait_for(lambda: len(renewals) >= 5)  # nothing polls meanwhile
    assert set(map(str, renewals)) == {str((["i-1"], 0.03))}
    now[0] = 101.0
    time.sleep(0.05)
    renewals.clear()
    time.sleep(0.05)
    assert renewals == []
    permits.grant(["i-2"], seconds=0.03, for_s=100.0)
    _wait_for(lambda: len(renewals) >= 3)
    permits.close()
    time.sleep(0.05)
    renewals.clear()
    time.sleep(0.05)
    assert renewals == []


def _wait_for(condition) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_budget_that_may_be_spent_meanwhile_renews_no_permit(tmp_path, monkeypatch):
    """The thread goes on only while what the last poll knew leaves no doubt."""
    monkeypatch.setattr(fleet_module, "joined_instances", set)
    provider, granted = _Listed(), []
    fleet = _fleet(tmp_path, provider)
    monkeypatch.setattr(
        fleet._permits, "grant", lambda machines, *, seconds, for_s: granted.append(for_s)
    )
    fleet.machines()
    fleet.update(Funds(), num_trials=0)
    fleet.update(Funds(spent_usd=94.9, hourly_usd=36.0), num_trials=0)
    fleet.update(Funds(spent_usd=96.0, hourly_usd=36.0), num_trials=0)
    fleet.keep()
    assert granted == [600.0, pytest.approx(10.0), 0.0, 100.0]


def test_fleet_keeps_the_cheapest_workers_that_evaluations_need(tmp_path, monkeypatch):
    """Without a list nothing is changed; machines that end are not replaced; after the end a late poll changes nothing."""
    monkeypatch.setattr(fleet_module, "joined_instances", set)
    provider = _Listed()
    settings = _settings(tmp_path)
    layout = Layout(1, 1, 1, 0.0, is_nested=False)
    config = CostConfig(machines={"g6.xlarge": 0.8, "g5.xlarge": 1.0})
    fleet = Fleet(
        settings,
        config,
        Budget(),
        Prices(config),
        layout,
        provider=provider,
        clock=lambda: provider.now,
    )
    record = Record(tmp_path / "fleet")
    provider.is_down = True
    fleet.machines()
    fleet.keep()
    assert _most(tmp_path) == {"g6": 8, "g5": 8}
    provider.is_down = False
    types = ["g6", "g6", "g5", "g5"]
    provider.listed = [
        Machine(f"i-{place}", name, TYPES[name]["labels"], 0.0) for place, name in enumerate(types)
    ]
    fleet.machines()
    fleet.keep()
    assert (_most(tmp_path), record.permit()["until"]) == ({"g6": 2, "g5": 2}, 0.0)
    fleet.keep(9)  # four cores on each machine
    assert _most(tmp_path) == {"g6": 2, "g5": 1}
    del provider.listed[0]
    fleet.machines()
    fleet.keep()
    assert _most(tmp_path) == {"g6": 1, "g5": 1}
    fleet.close()
    fleet.keep()
    assert _most(tmp_path) == {"g6": 0, "g5": 0}


@pytest.mark.parametrize(
    ("taken", "num_needed", "may_move", "gone"),
    [
        ([4, 0, 2], 6, True, ["b"]),
        ([4, 0, 2], 6, False, ["b"]),
        ([1, 1, 2], 4, True, ["a", "b"]),
        ([1, 1, 2], 4, False, []),
        ([1, 1, 2], 5, True, ["a"]),  # one trial has no place at the moment
        ([2, 2, 2], 6, True, ["a"]),
        ([4, 4, 1], 9, True, []),
        ([0, 0, 0], 0, True, ["a", "b"]),
    ],
)
def test_machines_that_the_last_trials_do_not_need(taken, num_needed, may_move, gone):
    """Those with the fewest trials go, as long as the others hold all; one stays."""
    names = "abc"
    found = spare(
        dict.fromkeys(names, 4),
        dict(zip(names, taken, strict=True)),
        num_needed=num_needed,
        may_move=may_move,
    )
    assert found == gone


def test_fleet_releases_what_the_last_trials_do_not_need(tmp_path, monkeypatch):
    """Trials get the time of a notice, no limit falls below what runs, and what AWS takes meanwhile is replaced."""
    nodes, drained = {}, []
    monkeypatch.setattr(fleet_module, "joined_instances", lambda: set(nodes))
    monkeypatch.setattr(fleet_module, "open_nodes", lambda _: nodes)
    monkeypatch.setattr(
        fleet_module, "drain_node", lambda _, node, **more: drained.append((node, more["left_s"]))
    )
    monkeypatch.setattr(fleet_module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(
        fleet_module.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here")
    )
    provider = _Listed()
    provider.listed = [
        Machine(f"i-{number}", "g6", TYPES["g6"]["labels"], 900.0) for number in range(3)
    ]
    fleet = _fleet(tmp_path, provider, layout=Layout(6, 1, 2, 0.5, is_nested=True))

    def poll(*free: int, seconds: float = 15.0, **more: Any) -> None:
        provider.now += seconds
        fleet.machines()
        for number, cores in enumerate(free):
            nodes[f"i-{number}"] = (
                f"node-{number}",
                {"CPU": 4.0, "GPU": 1.0},
                {"CPU": float(cores), "GPU": cores / 4},
            )
        fleet.update(Funds(), **more)

    poll(0, 2, 4, num_trials=6)
    poll(0, 2, 4, num_trials=3, tail_s=0.0)
    assert (drained, provider.terminated) == ([("node-2", 0.0)], [])
    del nodes["i-2"]
    poll(2, 2, num_trials=2, tail_s=300.0)
    assert (len(drained), provider.terminated) == (1, ["i-2"]), "a move would not pay"
    provider.listed.pop()
    poll(2, 2, num_trials=2, tail_s=301.0)
    assert drained[1:] == [("node-0", 60.0)]
    assert _most(tmp_path) == {"g6": 2, "g5": 0}
    del nodes["i-0"]
    fleet = Fleet(
        fleet._settings,
        COST,
        Budget(),
        Prices(COST),
        fleet._layout,
        provider=provider,
        clock=lambda: provider.now,
    )
    poll(seconds=45.0, num_trials=2, tail_s=301.0)  # of a process that resumes the sweep
    assert provider.terminated == ["i-2"]
    provider.is_down = True
    poll(seconds=15.0, num_trials=2, tail_s=301.0)
    provider.is_down = False
    poll(num_trials=2, tail_s=301.0)
    assert provider.terminated == ["i-2", "i-0"]
    provider.listed = []  # AWS has taken the last one
    poll(num_trials=2, tail_s=301.0)
    assert _most(tmp_path) == {"g6": 1, "g5": 0}
    lines = [line for line in Record(tmp_path / "fleet").lines() if line["event"] == "released"]
    assert [(line["instance"], line["trials"]) for line in lines] == [("i-2", 0), ("i-0", 1)]


def test_fleet_releases_nothing_of_a_cluster_with_another_sweep(tmp_path, monkeypatch):
    """The other's trials may be on any machine, but for one that was released before it came."""
    monkeypatch.setattr(fleet_module, "joined_instances", lambda: {"i-0", "i-1"})
    monkeypatch.setattr(fleet_module, "open_nodes", lambda _: pytest.fail("was asked"))
    monkeypatch.setattr(fleet_module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(
        fleet_module.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here")
    )
    provider = _Listed()
    provider.listed = [
        Machine(f"i-{number}", "g6", TYPES["g6"]["labels"], 900.0) for number in range(2)
    ]
    fleet = _fleet(tmp_path, provider)
    fleet.machines()
    fleet._released["i-1"] = provider.now
    with cluster_held(
        replace(_settings(tmp_path), sweep="other"), is_kept=True, provider=_Listed()
    ):
        fleet.update(Funds(), num_trials=1, tail_s=9e9)
    assert provider.terminated == ["i-1"]


def test_end_of_the_cluster_terminates_workers_and_shortens_the_lease(tmp_path):
    """The head itself stays for those who follow the sweep; a cloud that does not answer is no error."""
    provider, folder = _Listed(), tmp_path / "fleet"
    labels = TYPES["g6"]["labels"]
    provider.listed = [Machine("i-head", "head", labels, 0.0), Machine("i-1", "g6", labels, 0.0)]
    provider.listed.append(Machine("i-2", "g6", labels, 0.0, ended=5.0))
    with cluster_held(_settings(tmp_path), is_kept=False, provider=provider):
        assert (folder / "lease").read_text() == "3600"
    assert provider.terminated == ["i-1"]
    assert (folder / "lease").read_text() == "120"
    assert Record(folder).permit() == {"until": 0.0, "launches": {}}
    provider.is_down = True
    with cluster_held(_settings(tmp_path), is_kept=False, provider=provider):
        pass


def test_the_last_of_two_sweeps_ends_the_cluster(tmp_path):
    """The first to end terminates its own workers; lease, permit and workers of the other stay, whoever launched it."""
    provider, folder, labels = _Listed(), tmp_path / "fleet", TYPES["g6"]["labels"]
    one, two = (replace(_settings(tmp_path), sweep=name) for name in ("one", "two"))
    provider.listed = [
        Machine(f"i-{name}", "g6", labels, 0.0, sweep=name) for name in ("one", "two", "dead")
    ]
    Record(folder, "two").permit_path.parent.mkdir(parents=True)
    Record(folder, "two").permit_path.write_text('{"until": 9e9, "launches": {"g6": 3}}')
    with cluster_held(two, is_kept=False, provider=provider):
        with cluster_held(one, is_kept=False, provider=provider):
            pass
        assert provider.terminated == ["i-one"]
        assert (folder / "lease").read_text() == "3600"
        assert Record(folder, "two").num_admitted("g6", now=0.0) == 3
        with cluster_held(
            two, is_kept=False, provider=provider
        ):  # a second process of a sweep ends nothing
            pass
        assert provider.terminated == ["i-one"]
    assert provider.terminated[1:] == ["i-one", "i-two", "i-dead"]
    assert (folder / "lease").read_text() == "120"


def test_two_sweeps_have_a_permit_each(tmp_path, monkeypatch):
    """A launch counts for the sweep that admits it and is tagged with it; the limits are those of both together."""
    monkeypatch.setattr(fleet_module, "joined_instances", set)
    provider, folder = _Listed(), tmp_path / "fleet"
    settings = [replace(_settings(tmp_path), sweep=name) for name in ("one", "two")]
    fleets = [
        Fleet(
            one,
            COST,
            Budget(limit_usd=100.0),
            Prices(COST),
            LAYOUT,
            provider=provider,
            clock=lambda: provider.now,
        )
        for one in settings
    ]
    provider.now = time.time()
    with ExitStack() as stack:
        for one, fleet, num_trials in zip(settings, fleets, (1, 2), strict=True):
            stack.enter_context(cluster_held(one, is_kept=False, provider=provider))
            fleet.machines()
            fleet.update(Funds(), num_trials=num_trials)
        fleets[0].update(Funds(), num_trials=1)
        assert _most(tmp_path)["g6"] == 3
        gate = _Gated(folder)
        assert _launch(gate, count=3)
        assert not _launch(gate)
        assert [len(Record(folder, name).lines()) for name in ("one", "two")] == [1, 2]
        fleets[1].close()
        assert _most(tmp_path)["g6"] == 1
        assert [Record(folder, name).permit()["until"] > 0 for name in ("one", "two")] == [
            True,
            False,
        ]


def test_the_head_is_paid_once_by_one_sweep_after_the_other(tmp_path):
    """The second goes on where the first ended, without a gap; other sweeps' workers are not charged."""
    provider, labels = _Listed(), TYPES["g6"]["labels"]
    one, two = (replace(_settings(tmp_path), sweep=name) for name in ("one", "two"))
    lists = [MachineList(each, provider, clock=lambda: provider.now) for each in (one, two)]
    provider.listed = [Machine("i-head", "head", labels, 900.0, sweep="one", is_head=True)]
    provider.listed += [
        Machine(f"i-{name}", "g6", labels, 950.0, sweep=name) for name in ("one", "two")
    ]
    with cluster_held(two, is_kept=True, provider=provider):
        with cluster_held(one, is_kept=True, provider=provider):
            for provider.now in (1000.0, 1100.0):
                paid = [_seconds(each.times()) for each in lists]
        assert paid == [{"i-head": (200, True), "i-one": (150, True)}, {"i-two": (150, True)}]
        provider.now = 1130.0
        assert _seconds(lists[1].times())["i-head"] == (30, True)
        assert _seconds(lists[0].times())["i-head"] == (200, False)


def test_sweep_renews_the_lease_and_never_shortens_it(tmp_path):
    """What `raysent cluster up --keep` has written stays until an hour of it is left."""
    path = tmp_path / "lease"
    renew_lease(tmp_path, now=1000.0)
    assert path.read_text() == "3600"
    path.write_text("14400")
    os.utime(path, (1000.0, 1000.0))
    renew_lease(tmp_path, now=1000.0 + 14400 - 3601)
    assert path.read_text() == "14400"
    renew_lease(tmp_path, now=1000.0 + 14400 - 3599)
    assert path.read_text() == "3600"


def test_sweeps_that_renew_the_lease_at_the_same_time_do_not_fail(tmp_path):
    """Each writes a temporary file of its own, and the lease is whole at any moment."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: renew_lease(tmp_path, now=time.time() + 60), range(300)))
    assert (tmp_path / "lease").read_text() == "3600"
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


def test_fleet_terminates_machines_that_do_not_join(tmp_path, monkeypatch):
    """After 15 minutes; the type is skipped, and the reason is shown."""
    monkeypatch.setattr(fleet_module, "joined_instances", lambda: {"i-2"})
    provider = _Listed()
    fleet = _fleet(tmp_path, provider, types={"g6": TYPES["g6"]})
    provider.listed = [
        Machine(name, "g6", TYPES["g6"]["labels"], 1000.0) for name in ("i-1", "i-2")
    ]
    provider.now = 1901.0
    fleet.machines()
    waiting = fleet.update(Funds(), num_trials=4)
    assert provider.terminated == ["i-1"]
    assert waiting == "g6: i-1 did not join Ray in 15 minutes, 0 s ago"


def test_fleet_rejects_a_trial_that_fits_on_no_machine(tmp_path):
    """Before anything is paid, with the shapes."""
    settings = _settings(tmp_path)
    with pytest.raises(
        ConfigError, match="must hold a worker of 8 cores and 0 GPUs; g6 has 4 cores and 1 GPUs; g5"
    ):
        Fleet(settings, COST, Budget(), Prices(COST), Layout(1, 1, 8, 0.0, is_nested=True))


# -- the bill ---------------------------------------------------------------------------------------------------------


def _seconds(times: dict[str, MachineTime]) -> dict[str, tuple[float, bool]]:
    return {name: (round(one.seconds), one.is_open) for name, one in times.items()}


def test_machine_list_bills_unlisted_machines_until_they_were_last_seen(tmp_path):
    """One that is new is billed until now; one that no sweep has seen, for as long as such a machine lives at most.

    While the cloud does not answer, the last list holds, and time passes; before its first answer nothing is known.
    """
    provider = _Listed()
    provider.is_down = True
    found = MachineList(_settings(tmp_path), provider, clock=lambda: provider.now)
    assert found.times() is None
    provider.is_down = False
    record = Record(tmp_path / "fleet")
    record.write("launched", "g5", instance="i-2")
    launched = record.lines()[-1]["time"]
    for provider.now, provider.is_down, seconds, is_open in (
        (launched + 50, False, 50, True),
        (launched + 60, True, 60, True),
        (launched + 900, False, 900, False),
        (launched + 9000, False, 1020, False),
    ):
        assert _seconds(found.times()) == {"i-2": (seconds, is_open)}


# A dollar for each second.
BY_SECOND = CostConfig(machines={"g6.xlarge": 3600.0}, poll="15s")


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_machine_that_aws_lists_no_more_stays_as_it_was_charged(tmp_path, has_record, is_killed):
    """AWS drops a machine from its list after an hour; the evaluation, and a sweep that resumes, make a new list.

    One that ended stays closed. One without a closing line, of a killed driver, is charged as long as stopping takes
    beyond its last line, once. Without the record of launches, the head is another one.
    """
    provider, settings = _Listed(), _settings(tmp_path)
    provider.now = time.time()
    launched = provider.now - 2400
    if has_record:
        Record(tmp_path / "fleet").write("launched", "g6", instance="i-1")
    ended = None if is_killed else provider.now
    provider.listed = [Machine("i-1", "g6", TYPES["g6"]["labels"], launched, ended=ended)]
    for hours in (0, 6, 40):
        provider.now += hours * 3600
        machines = MachineList(settings, provider, since=launched - 300, clock=lambda: provider.now)
        tracker = CostTracker(
            tmp_path, BY_SECOND, nodes=dict, machines=machines.times, clock=lambda: provider.now
        )
        if is_killed and not hours:
            tracker.funds()  # and no more lines
            beyond_s = 0.0
        else:
            with tracker:
                tracker.funds()
            beyond_s = BY_SECOND.window_s if is_killed else 0.0
        assert spent_usd(tmp_path) == pytest.approx(2400 + beyond_s, abs=0.01)
        provider.listed = []


@pytest.mark.parametrize("off_s", [-3600.0, 0.0, 3600.0])
def test_a_wrong_clock_of_the_head_charges_no_machine_less(tmp_path, off_s):
    """The head is an hour behind or ahead of the cloud; its machines are billed from their launch."""
    provider = _Listed()
    provider.now = cloud_s = 100_000.0
    head_s = cloud_s + off_s
    found = MachineList(
        _settings(tmp_path), provider, since=head_s - 300, clock=lambda: provider.now + off_s
    )
    provider.listed = [Machine("i-1", "g6", TYPES["g6"]["labels"], cloud_s + 10)]
    provider.now += 200
    assert _seconds(found.times()) == {"i-1": (190, True)}
    provider.listed = []
    line = {"time": head_s + 100, "event": "launched", "type": "g6", "instance": "i-2"}
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "launches.jsonl").write_text(json.dumps(line) + "\n")
    assert _seconds(found.times())["i-2"][0] >= min(100, 100 - off_s)


@mock_aws
def test_aws_machines_are_billed_to_the_second(monkeypatch, tmp_path):
    """Running, ended and forgotten machines, by launch time and the time of their end; other clusters are not."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    ec2 = boto3.client("ec2", region_name="us-east-1")

    def start(cluster: str) -> str:
        tags = [
            {"Key": "raysent-cluster", "Value": cluster},
            {"Key": "ray-user-node-type", "Value": "g6"},
        ]
        specs = [{"ResourceType": "instance", "Tags": tags}]
        (one,) = ec2.run_instances(
            ImageId="ami-12c6146b",
            MinCount=1,
            MaxCount=1,
            InstanceType="g6.xlarge",
            TagSpecifications=specs,
        )["Instances"]
        return str(one["InstanceId"])

    running, ended, _ = start("c"), start("c"), start("other")
    ec2.terminate_instances(InstanceIds=[ended])
    now, instances = AwsMachines("c", "us-east-1", ec2=ec2).instances()
    by_name = {one.name: one for one in instances}
    assert by_name.keys() == {running, ended}
    assert by_name[running].ended is None
    assert by_name[ended].ended is not None
    assert by_name[ended].node_type == "g6"
    assert abs(now - by_name[running].launched) < 3600
    assert now > datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_cut_ledger_changes_nothing(kept):
    """The lines of a machine sum to its bill, whichever of them were lost, in this session or the next."""
    price, lines = Prices(COST).of({"instance-type": "g6.xlarge", "market": "on-demand"}), []
    labels = {"instance-type": "g6.xlarge", "market": "on-demand"}
    ledger = Ledger(lines.append, is_listed=True)
    for seconds in (10.0, 100.0, 400.0):
        ledger.follow("i-1", price, MachineTime(labels, seconds))
    after = lines[:kept]
    ledger = Ledger(after.append, past=list(after), is_listed=True)
    for _ in range(3):
        ledger.follow("i-1", price, MachineTime(labels, 1000.0, is_open=False))
    assert ledger.spent_usd == pytest.approx(1000 / 3600)
    assert sum(line["usd"] for line in after) == pytest.approx(1000 / 3600)


def test_ledger_follows_the_minimum_and_refunds_an_interruption_in_the_first_hour():
    """A minute at least; a spot machine that AWS ends in its first hour is free, also if a later session learns it."""
    labels = {"instance-type": "g6.xlarge", "market": "spot"}
    price, lines = Prices(COST).of(labels), []
    ledger = Ledger(lines.append, is_listed=True)
    ledger.follow("i-1", price, MachineTime(labels, 5.0))
    assert ledger.spent_usd == pytest.approx(60 / 3600)
    ledger = Ledger(lines.append, past=list(lines), is_listed=True)
    for _ in range(2):
        ledger.follow("i-1", price, MachineTime(labels, 600.0, is_open=False, is_interrupted=True))
    assert ledger.spent_usd == pytest.approx(0.0)
