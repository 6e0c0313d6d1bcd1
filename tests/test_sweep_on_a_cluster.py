"""`raysent sweep --cluster`: prices, workers and errors, with nothing launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from submissions import SHIPPED, toy_space

from raysent.cluster import SubmittedSweep
from raysent.cluster.launch_plan import AccountState
from raysent.sweeps import Workers
from raysent.sweeps.ray_tune import _driver_place

ACCEPTED = ["--set", "cost.accept_bound=true", "--yes"]


@pytest.fixture(autouse=True)
def space(monkeypatch, tmp_path):
    """A search space in the working folder."""
    monkeypatch.chdir(tmp_path)
    toy_space(tmp_path)


@pytest.fixture
def submitted(monkeypatch):
    """Cluster file and submission of each sweep on a cluster; nothing is launched."""
    seen = []
    # A session that an earlier test left has the credentials of that test.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("raysent.cluster.sweeps.Launcher", lambda file: file)

    def run(file, submitted, **_):
        seen.append((file, submitted))
        return SubmittedSweep(0)

    monkeypatch.setattr("raysent.cluster.sweeps.run_submission", run)
    monkeypatch.setattr("raysent.cluster.sweeps.ask_account", lambda *_, **__: AccountState())
    return seen


def test_sweep_on_a_cluster_sets_the_prices_of_its_machines(raysent, submitted):
    """List prices by type, unless the space sets a price; a message names their source if AWS is not available."""
    ran = raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--run", "a", "--seed", 4, *ACCEPTED)
    assert ran.code == 0, ran.err
    assert "\nprices on demand: list price of 20" in ran.err
    assert "AWS was not available (Unable to locate credentials)" in ran.err
    assert (
        raysent(
            "sweep",
            "toy.yaml",
            "--cluster",
            SHIPPED,
            "--run",
            "b",
            "--set",
            "cost.usd_per_hour=0.5",
            "--yes",
        ).code
        == 0
    )
    costs = [submission.space.cost for _, submission in submitted]
    assert costs[0].machines == {
        "g4dn.xlarge": 0.526,
        "g5.xlarge": 1.006,
        "g6.xlarge": 0.8048,
        "m5.xlarge": 0.192,
    }
    assert (costs[0].region, costs[0].boot_s, costs[0].usd_per_hour) == ("us-east-1", 300, None)
    assert (costs[1].machines, costs[1].usd_per_hour) == ({}, 0.5)
    first = submitted[0][1]
    assert first.options == ["--seed", "4"]
    assert first.remote.startswith("s3://my-bucket/raysent/a-")
    assert json.loads(Path("a/remote.json").read_text())["remote"] == first.remote


@pytest.mark.parametrize(
    ("options", "num", "gpus"),
    [
        ([], 8, ("T4", "A10G", "L4")),
        (["--set", "cost.max_hourly=3.3usd"], 3, ("T4", "A10G", "L4")),
        (
            ["--set", "cost.max_hourly=3usd", "--set", "cost.usd_per_hour=0.5"],
            5,
            ("T4", "A10G", "L4"),
        ),
        (["--set", "cost.market=on-demand"], 2, ("T4",)),
    ],
)
def test_sweep_on_a_cluster_limits_its_workers(raysent, submitted, options, num, gpus):
    """The most machines that the sweep's process adds; the head counts too, and the cluster file stays as it is."""
    options = [*options, *ACCEPTED]
    assert raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--run", "a", *options).code == 0
    [(file, submission)] = submitted
    assert submission.workers == Workers(num, 4, 1.0, gpus)
    assert submission.fleet.max_workers == num
    assert file.max_workers == 8


def test_workers_of_a_sweep_are_those_of_its_market(raysent, submitted):
    """A machine on demand changes neither what a worker on a spot machine has nor how many there are."""
    kind = "  on-demand-g4dn:"
    before, _, after = SHIPPED.read_text().partition(kind)
    for old, new in (("{CPU: 4, GPU: 1}", "{CPU: 2}"), ("g4dn.xlarge", "g4dn.8xlarge")):
        after = after.replace(old, new)
    Path("cluster.yaml").write_text(before + kind + after)
    options = [
        "--set",
        "cost.market=spot",
        "--set",
        "cost.max_hourly=3.3usd",
        "--run",
        "a",
        "--yes",
    ]
    ran = raysent("sweep", "toy.yaml", "--cluster", "cluster.yaml", *options)
    assert ran.code == 0, ran.err
    [(_, submission)] = submitted
    assert submission.workers == Workers(3, 4, 1.0, ("T4", "A10G", "L4"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--cluster", "none.yaml"], "error: none.yaml: no such file"),
        (
            ["--cluster", SHIPPED, "--address", "auto"],
            "error: --cluster: must not stand beside --address",
        ),
        (["--cluster", SHIPPED, "--run", "."], "error: .: must be empty; name another run folder"),
        (
            ["--cluster", SHIPPED, "--set", "cost.max_hourly=1usd"],
            "error: --set cost.max_hourly=1usd: must allow for the head and one worker, 1.24 usd an hour at most; given 1.00",
        ),
    ],
)
def test_sweep_on_a_cluster_rejects(raysent, options, error):
    """Errors of one line with exit code 2, before anything costs money."""
    ran = raysent("sweep", "toy.yaml", *options)
    assert (ran.code, ran.out, ran.err.strip()) == (2, "", error)


def test_driver_place_prefers_machines_that_are_not_interrupted():
    """Machines with `raysent_driver`, else the head, else any node."""
    assert _driver_place({"CPU": 4, "raysent_driver": 64, "node:__internal_head__": 1}) == {
        "raysent_driver": 1.0
    }
    assert _driver_place({"CPU": 4, "node:__internal_head__": 1}) == {
        "node:__internal_head__": 0.001
    }
    assert _driver_place({"CPU": 4}) == {}
