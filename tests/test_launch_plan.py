"""The step before money: the plan of a launch, its question, and what is refused before anything is paid for."""

from __future__ import annotations

import datetime
import json
import re
import time
from pathlib import Path

import boto3
import pytest
import typer
from botocore.exceptions import ClientError
from command import SPACE
from submissions import SHIPPED, own_cluster_file, toy_space

import raysent as api
import raysent.cluster.account as account_module
from raysent.cli.console import confirm_cost
from raysent.cluster import Account, Launcher, SubmittedSweep, read_cluster
from raysent.cluster.fleet import FleetSettings, make_admission
from raysent.cluster.following import JobRecord, write_record
from raysent.cluster.launch_plan import AccountState, ask_account, plan_launch
from raysent.cluster.prices import price_space
from raysent.config import Document, parse_yaml
from raysent.cost import Funds, Prices
from raysent.errors import ConfigError
from raysent.sweeps import SweepRecord
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

MACHINES = "{p4d.24xlarge: 32.7726, p5.48xlarge: 98.32, g5.xlarge: 1.006, g6.xlarge: 0.8048, m5.xlarge: 0.192}"
BASE = "base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}\n"


@pytest.fixture
def file(tmp_path) -> Path:
    """The shipped file with an image and an operator that need no request."""
    return own_cluster_file(tmp_path / "cluster.yaml")


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """No credentials of AWS are found."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # of an earlier test, with its credentials
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def _space(cost: str = "", limits: str = "{trials: 4}"):
    text = f"{BASE}limits: {limits}\ncost: {{machines: {MACHINES}, boot: 5m, {cost}}}\n"
    return parse_space(parse_yaml(text), name="toy")


def _cluster(file: Path, instance_type: str = ""):
    text = file.read_text()
    if instance_type:  # all workers are of one type
        text = re.sub(r"g6\.xlarge|g5\.xlarge|g4dn\.xlarge", instance_type, text)
    else:
        text = text.replace("g4dn.xlarge", "g5.xlarge")
    file.write_text(text)
    return read_cluster(file)


def _plan(cluster, space, state=None, **more):
    settings = FleetSettings.of(cluster, "toy-1")
    return plan_launch(cluster, space, settings, state or AccountState(), **more)


@pytest.mark.parametrize(
    ("instance_type", "budget", "need"),
    [
        ("p4d.24xlarge", 1, "9.97"),
        ("p4d.24xlarge", 5, "9.97"),
        ("p5.48xlarge", 20, "29.91"),
        ("g5.xlarge", 0.30, "0.31"),
    ],
)
def test_a_budget_that_can_never_pay_one_machine_is_refused(file, instance_type, budget, need):
    """The four cases that waited for hours; also with an accepted bound, and the line says how much is needed."""
    cluster = _cluster(file, instance_type)
    plan = _plan(cluster, _space(f"budget: {budget}usd, accept_bound: true"))
    (refusal,) = plan.refusals
    assert f"one {instance_type} needs {need} usd to start and stop" in refusal
    least = float(re.search(r"at least (\d+\.\d+)usd are needed", refusal)[1])
    assert not _plan(cluster, _space(f"budget: {least}usd, accept_bound: true")).refusals
    assert _plan(cluster, _space(f"budget: {least - 0.02:.2f}usd, accept_bound: true")).refusals
    with pytest.raises(ConfigError, match="must pay for one machine"):
        plan.check()


def test_the_plan_agrees_with_the_admission_of_the_sweep(file):
    """What the plan lets start, the running sweep's own admission launches, and what it refuses, it does not."""
    cluster = _cluster(file)
    settings = FleetSettings.of(cluster, "toy-1")
    for budget in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
        space = _space(f"budget: {budget}usd, accept_bound: true")
        prices, cost = Prices(space.cost), space.cost
        admission = make_admission(
            settings, cost, cost.for_sweep(), prices, slots_of=lambda _: 1, is_listed=True
        )
        head_usd = prices.of(settings.head).worst_usd_per_hour
        funds = Funds(head_usd * cost.boot_s / 3600, head_usd * cost.window_s / 3600, head_usd, 0.0)
        started = admission.plan(now_s=0.0, num_slots=1, funds=funds, running={}).launches
        assert any(started.values()) == (not _plan(cluster, space).refusals), budget


def test_a_bound_above_a_quarter_of_the_budget_must_be_accepted(file):
    """1 usd whose bill may be 2.4; the line names the budget that is enough and the setting."""
    cluster = _cluster(file)
    plan = _plan(cluster, _space("budget: 1usd"))
    assert "its bound must be at most a quarter of it" in plan.refusals[0]
    assert "--set cost.accept_bound=true" in plan.refusals[0]
    least = re.search(r"give at least (\d+\.\d+)usd", plan.refusals[0])[1]
    assert not _plan(cluster, _space(f"budget: {least}usd")).refusals
    assert not _plan(cluster, _space("budget: 1usd, accept_bound: true")).refusals


def test_a_deadline_beyond_the_time_to_live_of_the_head_is_refused(file):
    """Of a new head, and of one that runs; the time of a search likewise."""
    cluster = _cluster(file)
    assert (
        "must be over before the head ends itself"
        in _plan(cluster, _space("deadline: 36h")).refusals[0]
    )
    assert "cost.deadline 24h" in _plan(cluster, _space("deadline: 24h")).refusals[0]
    assert "limits.time 30h" in _plan(cluster, _space(limits="{time: 30h}")).refusals[0]
    assert not _plan(cluster, _space("deadline: 20h")).refusals
    now = datetime.datetime.now(datetime.UTC)
    head = account_module.Machine(
        "i-1", "head", {}, now.timestamp(), is_head=True, expires=now + datetime.timedelta(hours=3)
    )
    refused = _plan(cluster, _space("deadline: 4h"), AccountState(head)).refusals
    assert "its head keeps its end" in refused[0]


def test_without_a_budget_yes_alone_is_no_answer_above_five_dollars_an_hour(file):
    """The question names the dollars of an hour and a day."""
    cluster = _cluster(file)
    plan = _plan(cluster, _space())
    assert re.search(r"up to \d+\.\d\d usd an hour, \d+\.\d\d a day", plan.question())
    assert "give --budget, or --set cost.accept_bound=true" in plan.unanswered
    few = cluster.limited(num_workers=3)
    assert not _plan(few, _space()).unanswered
    assert not _plan(cluster, _space("accept_bound: true")).unanswered
    assert not _plan(cluster, _space("budget: 40usd")).unanswered


def test_a_resumed_sweep_counts_what_it_has_spent(file):
    """40 usd that are spent pay for no machine."""
    plan = _plan(_cluster(file), _space("budget: 40usd"), spent_usd=37.9)
    assert "37.90 are spent" in plan.refusals[0]


def test_money_is_confirmed_on_a_terminal_or_by_yes(monkeypatch):
    """A bare Enter is no; without a terminal it is one line; what --yes does not answer is asked all the same."""
    asked = []

    def confirm(question, *, default, **_) -> None:
        asked.append((question, default))

    monkeypatch.setattr(typer, "confirm", confirm)
    confirm_cost("Start?", yes=True)
    with pytest.raises(ConfigError, match="add --yes"):
        confirm_cost("Start?", yes=False)
    with pytest.raises(ConfigError, match="give --budget"):
        confirm_cost("Start?", yes=True, unanswered="give --budget")
    assert asked == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    confirm_cost("Start?", yes=False)
    confirm_cost("Start?", yes=True, unanswered="give --budget")
    assert asked == [("Start?", False), ("Start?", False)]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Sweeps that were started; nothing is launched."""
    seen = []

    def run(_, submitted, **__):
        seen.append(submitted)
        return SubmittedSweep(0)

    monkeypatch.chdir(tmp_path)
    toy_space(tmp_path)
    monkeypatch.setattr("raysent.cluster.sweeps.run_submission", run)
    return seen


@pytest.mark.usefixtures("no_credentials")
def test_a_dry_run_on_a_cluster_needs_no_credentials(raysent, started):
    """It prints shipped prices with their date, names what could not be asked, and launches nothing."""
    options = ["--cluster", SHIPPED, "--budget", "20usd", "--dry-run"]
    ran = raysent("sweep", "toy.yaml", *options)
    assert (ran.code, started) == (0, []), ran.err
    for text in (
        "a head (m5.xlarge on demand",
        "workers: at most 8",
        "usd an hour",
        "of 20.00 usd, 19.00 are for training",
        "the head and the first worker need",
        "prices on demand: list price of 2025-06-01",
        "AWS was not asked (Unable to locate credentials)",
    ):
        assert text in ran.out
    values = json.loads(raysent("sweep", "toy.yaml", *options, "--json").out)
    assert (values["max_workers"], values["budget_usd"], values["refusals"]) == (8, 20.0, [])
    refused = raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--budget", "1usd", "--dry-run")
    assert refused.code == 2
    assert "its bound must be at most a quarter" in refused.err
    # A launch is refused where AWS cannot be asked.
    ran = raysent("sweep", "toy.yaml", "--cluster", SHIPPED, "--budget", "20usd", "--yes")
    assert (ran.code, started) == (2, [])
    assert "Unable to locate credentials" in ran.err


@pytest.mark.usefixtures("aws")
def test_a_sweep_on_a_cluster_starts_only_when_it_is_confirmed(raysent, started, file):
    """Without a terminal --yes is needed; what cannot work is refused also with it."""
    command = ["sweep", "toy.yaml", "--cluster", file, "--run", "mine"]
    ran = raysent(*command, "--budget", "20usd")
    assert (ran.code, "add --yes" in ran.err, started) == (2, True, [])
    ran = raysent(*command, "--yes")
    assert (ran.code, "--yes starts machines of at most 5 usd" in ran.err, started) == (2, True, [])
    ran = raysent(*command, "--budget", "0.2usd", "--yes", "--set", "cost.accept_bound=true")
    assert (ran.code, "must pay for one machine" in ran.err, started) == (2, True, [])
    ran = raysent(*command, "--budget", "20usd", "--deadline", "36h", "--yes")
    assert (ran.code, "before the head ends itself" in ran.err, started) == (2, True, [])
    with pytest.raises(ConfigError, match="give --budget"):
        api.sweep_on_cluster("toy.yaml", file)
    assert raysent(*command, "--budget", "20usd", "--yes").code == 0
    assert len(started) == 1


@pytest.mark.usefixtures("aws")
def test_a_resume_on_a_cluster_is_planned_as_a_sweep(raysent, started, file):
    """Its spending counts; the bound is accepted by the machine that resumes it."""
    space = parse_space(parse_yaml(SPACE + "cost: {budget: 1usd}\n"), name="toy")
    priced = price_space(Path("toy.yaml"), [], read_cluster(file))[0].cost
    values = {**space.document.values, "cost": {"machines": priced.machines, "budget": "1usd"}}
    run = Path("stored").absolute()
    save_record(run, SweepRecord(parse_space(Document(values), name="toy"), 0, started=time.time()))
    record = JobRecord("job", "raysent", "us-east-1", {"name": "toy", "values": values}, code=1)
    write_record(str(run), record)
    with pytest.raises(ConfigError, match="accept it with --set accept_bound=true"):
        api.resume_on_cluster(run, file)
    ran = raysent("resume", run, "--cluster", file, "--set", "accept_bound=true")
    assert (ran.code, "add --yes" in ran.err, started) == (2, True, [])
    api.resume_on_cluster(run, file, accept_bound=True, as_json=True)
    (submission,) = started
    assert submission.is_resumed
    assert not submission.space.cost.accept_bound


def test_the_plan_names_missing_permissions_quotas_and_a_strangers_head(aws, file, monkeypatch):
    """AWS is asked by trial requests that change nothing."""
    cluster = read_cluster(file)
    launcher = Launcher(cluster)

    def refuse(**given):
        assert given["DryRun"]
        raise ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "RunInstances")

    monkeypatch.setattr(launcher.account.ec2, "run_instances", refuse)
    monkeypatch.setattr(Account, "quota", lambda self, code: {"L-3819A6DF": 8.0}.get(code))
    state = ask_account(cluster, launcher, is_dry_run=False)
    assert "must have ec2:RunInstances" in state.problems[-1]
    assert "quota L-3819A6DF allows 8 vCPUs: 2 of 8 g6.xlarge (spot-g6)" in state.notes
    assert any("servicequotas:GetServiceQuota" in note for note in state.notes)
    assert (
        aws.describe_security_groups(
            Filters=[{"Name": "group-name", "Values": ["raysent-raysent"]}]
        )["SecurityGroups"]
        == []
    )
    tags = [
        {"Key": "raysent-cluster", "Value": "raysent"},
        {"Key": "ray-node-type", "Value": "head"},
    ]
    aws.run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    (problem,) = ask_account(cluster, launcher, is_dry_run=False).problems
    assert "is taken: its head i-" in problem
