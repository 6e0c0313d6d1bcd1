"""Machines whose sweep or head has died: they end themselves, and the bound of the budget holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from machines import INSTANCE_ID, metadata_service

from benchmarks import budget as benchmark
from benchmarks.simulation import check_cap, scenario_for
from benchmarks.simulation import machines as simulated
from raysent.cluster import fleet as fleet_module
from raysent.cluster.cluster_file import read_cluster, self_destruct
from raysent.config import parse_yaml, shipped_path
from raysent.cost import (
    Admission,
    Budget,
    CostConfig,
    Funds,
    Ledger,
    MachineTime,
    MachineType,
    Prices,
    price_list,
)
from raysent.cost.budget import ALONE_S, BOUND_S, CHECK_S, LEASE_S, SLOW_STOP_S, WATCH_S, permit_s
from raysent.cost.config import parse_duration
from raysent.cost.ledger import bad_entry
from raysent.preemption.agent import FIRST_PERMIT_S, Watch
from raysent.preemption.ray_nodes import DrainError
from raysent.sweeps.space import parse_space

SHIPPED = CostConfig()


# -- the bound --------------------------------------------------------------------------------------------------------


def test_bound_covers_what_admission_does_not_reserve():
    """With the shipped times a machine is billed for less than ten minutes beyond what is set aside for it."""
    window_s = SHIPPED.window_s
    halted_s = (
        SHIPPED.poll_s + 60 + permit_s(SHIPPED.poll_s) + WATCH_S + SLOW_STOP_S - window_s
    )  # its end was refused
    alone_s = permit_s(SHIPPED.poll_s) + WATCH_S + SLOW_STOP_S - window_s  # the head died at a poll
    handed_over_s = fleet_module.HANDOVER_S + WATCH_S + SLOW_STOP_S - window_s
    uncovered_s = (
        permit_s(SHIPPED.poll_s) + WATCH_S + SLOW_STOP_S - parse_duration(SHIPPED.terminate)
    )
    assert max(halted_s, alone_s, handed_over_s) <= uncovered_s <= BOUND_S
    assert permit_s(SHIPPED.poll_s) <= 2 * SHIPPED.poll_s


@pytest.mark.parametrize(("limit", "held", "bound"), [(4.0, 4.4, 4.4 / 6), (200.0, 6.0, 4.0)])
def test_bound_is_the_larger_of_two_per_cent_and_ten_minutes(limit, held, bound):
    """The sentence of the plan names the same figure."""
    budget = Budget(limit_usd=limit)
    assert budget.bound_usd(held) == pytest.approx(bound)
    assert (
        f"by at most {bound:.2f}: the larger of 2% of the budget and 10 minutes"
        in budget.bound_sentence(held)
    )


def _faulty(market: str = "on-demand", usd_per_hour: float = 32.77):
    space = parse_space(parse_yaml(benchmark.SPACE), name="budget")
    scenario = scenario_for(space, usd_per_hour=usd_per_hour, num_machines=8, market=market)
    faults = {**benchmark.FAULTS, "kill_share": 1.0, "head_share": 1.0}
    return space, replace(scenario, head_usd_per_hour=0.192, attached_usd_per_hour=0.02, **faults)


def test_bound_holds_with_dead_heads_slow_stops_and_refused_ends():
    """In every scenario of the benchmark; each fault occurs."""
    found = dict(benchmark.measure(80, seed=3, num_processes=1))
    assert [check["violations"] for check in found.values()] == [0, 0, 0, 0]
    for check in found.values():
        assert {"head killed", "killed", "end refused", "never joined"} <= check["faults"].keys()
        assert check["max_overshoot_share"] <= 1


def test_bound_breaks_if_machines_do_not_watch_their_permits(monkeypatch):
    """As before: 15 minutes without Ray, a minute for the script, and slow stops; the check sees it."""
    space, scenario = _faulty()
    held = check_cap(
        space, scenario, Budget(limit_usd=200.0), num_sweeps=120, seed=1, num_processes=1
    )
    monkeypatch.setattr(simulated, "permit_s", lambda _: ALONE_S + CHECK_S)
    broken = check_cap(
        space, scenario, Budget(limit_usd=200.0), num_sweeps=120, seed=1, num_processes=1
    )
    assert held.violations == 0 < broken.violations


def test_admission_sets_aside_what_a_dead_head_costs():
    """Machines that have not joined live on for a quarter of an hour, and the head for an hour."""
    kind = MachineType("g5", 1.0, max_machines=8)
    alone_s, head_usd = ALONE_S + CHECK_S, 0.2
    admission = Admission(
        [kind], Budget(limit_usd=2.0), boot_s=300, alone_s=alone_s, head_usd=head_usd
    )
    assert admission.with_in_flight(Funds()).commitment_usd == pytest.approx(head_usd)
    admission.plan(now_s=0.0, num_slots=8, funds=Funds(), running={})
    each = (alone_s + 135) / 3600
    assert admission.num_in_flight == int((2.0 * 0.95 - head_usd) / each)
    admission.launched("g5", total=2)
    admission.refused("g5", now_s=0.0, reason="none left")
    admission.not_joined({"g5": 2})
    assert admission.with_in_flight(Funds()).commitment_usd == pytest.approx(
        head_usd + 2 * alone_s / 3600
    )
    admission.not_joined({"g5": 0})
    assert admission.with_in_flight(Funds()).commitment_usd == pytest.approx(head_usd)


def test_shipped_cluster_sets_the_times_that_are_simulated():
    """The script of every machine, the agent's command, and the head's lease."""
    cluster = read_cluster(shipped_path("cluster.yaml"))
    script = self_destruct(cluster)
    assert f"-lt {ALONE_S:.0f} ]" in script
    assert "* * * * * root" in script  # CHECK_S
    assert LEASE_S == 3600
    commands = cluster.document.values["worker_start_ray_commands"]
    assert "--end-without-permit" in commands[-1]


# -- the watch of a machine -------------------------------------------------------------------------------------------


class _Head:
    """Permits that a test renews, and a clock."""

    def __init__(self) -> None:
        self.now, self.permits, self.is_dead, self.num_ends = 0.0, {}, False, 0

    def read(self):
        if self.is_dead:
            raise DrainError("no cluster")
        return self.permits

    def end(self) -> None:
        self.num_ends += 1

    def watch(self) -> Watch:
        return Watch(self.read, self.end, clock=lambda: self.now)


@pytest.mark.parametrize("is_head_dead", [False, True])
def test_watch_ends_the_machine_of_a_dead_sweep(is_head_dead):
    """Renewals count, not their number; a head that does not answer renews nothing; a failed end is repeated."""
    head = _Head()
    watch = head.watch()
    for number in range(10):
        head.permits = {"a": (str(number), 30.0)}
        watch.poll()
        head.now += 15
    head.is_dead = is_head_dead
    while not head.num_ends:
        watch.poll()
        head.now += 5
    assert head.now == 9 * 15 + 30 + 5
    watch.poll()
    assert head.num_ends == 2


def test_watch_waits_for_the_first_permit_and_heeds_every_sweep():
    """A machine that no sweep names ends too; one that a second sweep names lives."""
    head = _Head()
    watch = head.watch()
    head.now = FIRST_PERMIT_S - 1
    watch.poll()
    head.permits = {"a": ("1", 30.0)}
    watch.poll()
    head.now += 25
    head.permits = {"a": ("1", 30.0), "b": ("1", 30.0)}
    watch.poll()
    head.now += 25
    watch.poll()
    assert not head.num_ends
    head.now += 10
    watch.poll()
    assert head.num_ends == 1


def test_agent_shuts_the_machine_down_when_its_head_dies(tmp_path):
    """With Ray's own control service, which is killed; `sudo` is a script that writes what it was asked for."""
    sudo, asked = tmp_path / "sudo", tmp_path / "asked"
    sudo.write_text(f'#!/bin/sh\necho sudo "$@" >> {asked}\n')
    sudo.chmod(0o755)
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, INSTANCE_ID], stdout=subprocess.PIPE, text=True, env=QUIET
    )
    assert head.stdout is not None
    address = next(line for line in head.stdout if line.startswith("address ")).split()[1]
    with metadata_service() as service:
        agent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "raysent.preemption",
                "--address",
                address,
                "--poll-s",
                "1",
                "--end-without-permit",
            ],
            env={
                **QUIET,
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url,
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while service.num_requests < 3:  # it has read permits once or twice
                assert agent.poll() is None
                time.sleep(0.1)
            service_of_head = [
                one
                for one in psutil.Process(head.pid).children(recursive=True)
                if "gcs_server" in one.name()
            ]
            for one in service_of_head:
                one.kill()
            assert service_of_head
            while not asked.exists():
                assert agent.poll() is None
                time.sleep(0.1)
            assert asked.read_text().splitlines()[0] == "sudo -n /sbin/shutdown -P now"
        finally:
            agent.send_signal(signal.SIGTERM)
            print(agent.communicate(timeout=600)[1])
            head.kill()
            head.communicate(timeout=600)


QUIET = {**os.environ, "RAY_AUTH_MODE": "disabled"}
HEAD = """
import sys, time, ray
from raysent.preemption import renew_permit
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
address = ray.get_runtime_context().gcs_address
renew_permit(address, "sweep", [sys.argv[1]], seconds=5)
print("address", address, flush=True)
while True:
    time.sleep(0.5)
    renew_permit(address, "sweep", [sys.argv[1]], seconds=5)
"""


# -- disks and addresses ----------------------------------------------------------------------------------------------


def test_prices_contain_disks_and_addresses():
    """150 GiB of gp3 and a public address are two cents an hour, for every machine of a cloud, at spot prices too."""
    attached = price_list().attached_usd("us-east-1", disk_gib=150)
    assert attached == pytest.approx(150 * 0.08 / 730 + 0.005)
    assert price_list().attached_usd("nowhere-1", disk_gib=150) >= attached
    config = CostConfig(machines={"g5.xlarge": 1.0, "g6.xlarge": 0.8}, attached=attached)
    prices = Prices(config, spot=lambda _: (0.3, "a test"))
    spot, own = (
        prices.of({"instance-type": "g5.xlarge", "market": market}) for market in ("spot", "own")
    )
    assert (spot.usd_per_hour, spot.worst_usd_per_hour) == pytest.approx(
        (0.3 + attached, 1.0 + attached)
    )
    assert own.usd_per_hour == 1.0
    assert prices.most_expensive.worst_usd_per_hour == pytest.approx(1.0 + attached)
    assert prices.of({}).usd_per_hour == pytest.approx(1.0 + attached)


def test_disk_of_an_interrupted_machine_is_not_refunded():
    """AWS does not bill the machine in its first hour, but its disk; the ledger's check accepts that refund alone."""
    config = CostConfig(machines={"g5.xlarge": 1.0}, attached=0.02)
    price = Prices(config, spot=lambda _: (0.3, "a test")).of(
        {"instance-type": "g5.xlarge", "market": "spot"}
    )
    lines: list = []
    ledger = Ledger(lines.append, is_listed=True)
    ledger.follow("i-1", price, MachineTime({}, 1000.0))
    ledger.follow("i-1", price, MachineTime({}, 1800.0, is_open=False, is_interrupted=True))
    assert ledger.spent_usd == pytest.approx(0.02 / 2)
    assert bad_entry(lines) is None
    lines[-1]["usd"] -= 0.001
    assert bad_entry(lines) is not None
