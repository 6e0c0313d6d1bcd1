"""The whole path on a cloud of this computer: kills of the command, errors of AWS, a colleague with the same file.

After each case the cloud lists no machine that nothing uses, and none was ended that somebody uses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.lab import SPEED, Command, Lab, can_run, cloud_lab, wait_for
from raysent.cost import machine_charges
from raysent.cost.budget import ALONE_S, FIRST_LEASE_S, GRACE_S
from raysent.storage import read_json_lines

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.cluster,
    pytest.mark.skipif(not can_run(), reason="needs namespaces, which root has on Linux"),
]
# The processor of this computer is shared by all machines of the lab.
PATIENCE_S = 600.0
# Machines look every minute whether they end, and take a while.
LOOK_S = 120.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A cloud without machines."""
    with cloud_lab(Path(tempfile.mkdtemp(prefix="lab", dir="/tmp"))) as running:
        yield running


def _has_report(lab: Lab) -> bool:
    return any('"report"' in line for line in lab.events("one"))


# Stage of a launch and a sweep -> whether it has come.
STAGES: dict[str, Callable[[Lab, Command], Any]] = {
    "head asked for": lambda lab, _: lab.calls("RunInstances"),
    "head runs": lambda lab, _: (lab.folder / "machines.log").read_text(),
    "lease seen": lambda lab, _: list(lab.folder.glob("machines/*/home/raysent-fleet/lease")),
    "set-up": lambda _, command: "stage 6 of 7" in command.text,
    "Ray up": lambda _, command: "Ray runs on the head" in command.text,
    "submitted": lambda lab, _: list(lab.folder.glob("machines/*/home/raysent-fleet/holders/*")),
    "first worker asked for": lambda lab, _: len(lab.instances()) > 1,
    "first event": lambda lab, _: lab.events("one"),
    "first report": lambda lab, _: _has_report(lab),
    "end": lambda lab, _: lab.job("one").get("code") is not None,
}
BEFORE_SUBMISSION = list(STAGES)[: list(STAGES).index("submitted")]
QUICK = ("head runs", "Ray up", "first report")


def _cells() -> list[Any]:
    return [
        pytest.param(stage, marks=[] if stage in QUICK else [pytest.mark.cloud]) for stage in STAGES
    ]


@pytest.mark.parametrize("stage", _cells())
def test_a_killed_command_leaves_no_machine_that_nothing_uses(lab: Lab, stage: str) -> None:
    """Before the submission the head ends by its lease or without Ray; afterwards the sweep ends it."""
    command = lab.sweep("one")
    reached = STAGES[stage]
    wait_for(lambda: reached(lab, command), within_s=PATIENCE_S, what=stage)
    command.kill()
    if stage in BEFORE_SUBMISSION:
        longest_s = max(ALONE_S, FIRST_LEASE_S) / SPEED + LOOK_S
        wait_for(lambda: not lab.alive(), within_s=longest_s, what="no machine is left")
        return
    wait_for(
        lambda: lab.job("one").get("code") is not None, within_s=PATIENCE_S, what="the sweep's end"
    )
    assert lab.job("one")["code"] == 0
    wait_for(lambda: not lab.alive(), within_s=GRACE_S / SPEED + LOOK_S, what="no machine is left")
    attached = lab.start("attach", f"s3://runs/{lab.remote('one')}", cwd=lab.folder / "home")
    assert attached.end(within_s=PATIENCE_S) == 0, attached.text
    _check_bill(lab, next((lab.folder / "home" / "runs").iterdir()))


def _check_bill(lab: Lab, run: Path) -> None:
    """The ledger has what the machines ran, to 2 %; the head to the end of its sweep."""
    charges = machine_charges(read_json_lines(run / "ledger.jsonl"))
    assert charges
    heads = {
        instance["InstanceId"]
        for instance in lab.instances()
        if {"Key": "ray-node-type", "Value": "head"} in instance["Tags"]
    }
    for name, charge in charges.items():
        seconds = max(60.0, lab.seconds_billed(name))
        if name in heads:
            assert charge.seconds <= seconds + 2
        else:
            assert charge.seconds == pytest.approx(seconds, rel=0.02, abs=5.0), name


def test_a_colleagues_cluster_is_left_alone(lab: Lab) -> None:
    """`sweep`, `down` and `up --update` with the same file, in a data folder that did not launch it."""
    machines = {lab.launch_idle(kind, sweep="theirs") for kind in ("head", "worker")}
    for command in (
        lab.sweep("one"),
        lab.start("cluster", "down", "cluster.yaml"),
        lab.start("cluster", "up", "cluster.yaml", "--update", "--yes"),
    ):
        assert command.end(within_s=PATIENCE_S) == 2, command.text
        assert "was not launched from here" in command.text
    assert set(lab.alive()) == machines


@pytest.mark.parametrize(
    "code",
    [
        "InsufficientInstanceCapacity",
        "UnauthorizedOperation",
        "VcpuLimitExceeded",
        "RequestExpired",
    ],
)
def test_a_head_that_aws_refuses_is_one_line_and_leaves_nothing(lab: Lab, code: str) -> None:
    """Exit code 2 with AWS's reason."""
    lab.fault({"action": "RunInstances", "code": code})
    command = lab.sweep("one")
    assert command.end(within_s=PATIENCE_S) == 2, command.text
    assert command.text.strip().splitlines()[-1].startswith("error: ")
    assert lab.alive() == []


def test_throttled_workers_are_asked_for_again_and_none_is_bought_on_demand(lab: Lab) -> None:
    """Each refusal waits longer; when the cloud has time again, the first type comes."""
    command = lab.sweep("one")
    wait_for(lambda: lab.job("one"), within_s=PATIENCE_S, what="submitted")
    lab.fault({"action": "RunInstances", "who": "head", "code": "RequestLimitExceeded"})
    refused = lambda: [call for call in lab.calls("RunInstances") if call[4]]  # noqa: E731
    wait_for(refused, within_s=PATIENCE_S, what="a refusal")
    lab.fault()
    assert command.end(within_s=PATIENCE_S) == 0, command.text
    asked = {call[3] for call in lab.calls("RunInstances") if call[1] == "HEAD"}
    assert asked == {"c6i.xlarge"}
    wait_for(lambda: not lab.alive(), within_s=LOOK_S, what="no machine is left")


@pytest.mark.cloud
@pytest.mark.parametrize("action", ["DescribeInstances", "GET *", "PUT *"])
def test_a_cloud_that_hangs_ends_no_worker(lab: Lab, action: str) -> None:
    """EC2 or S3 do not answer the head for a minute; the workers stay, and the sweep ends as it would have."""
    command = lab.sweep("one")
    wait_for(lambda: _has_report(lab), within_s=PATIENCE_S, what="first report")
    workers = set(lab.alive())
    lab.fault({"action": action, "who": "head", "delay_s": 60.0})
    with pytest.raises(AssertionError, match="not within"):
        wait_for(lambda: workers - set(lab.alive()), within_s=60, what="a worker has ended")
    lab.fault()
    assert command.end(within_s=PATIENCE_S) == 0, command.text
