"""Clusters up and down, with an account simulated by moto and a fake of Ray's launcher."""

from __future__ import annotations

import copy
import datetime
import importlib.util
import json
import re
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from ray.autoscaler._private.util import prepare_config, validate_config
from submissions import CANARY, SHIPPED, own_cluster_file

import raysent
import raysent.cluster.account as account_module
import raysent.cluster.launcher as launcher_module
from raysent.cluster import Account, Launcher, read_cluster, read_token
from raysent.cluster.account import check_inputs, check_ready
from raysent.cluster.gate import AwsProvider
from raysent.cluster.launcher import (
    make_token,
    run_process,
    wheel_version,
    write_constraints,
    write_wheel,
)
from raysent.errors import ArtifactError, CloudError

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def file(tmp_path) -> Path:
    """The shipped file with an image and an operator that need no request."""
    return own_cluster_file(tmp_path / "cluster.yaml")


class FakeRay:
    """A fake of Ray's launcher: records commands, prints one line, and ends with an exit code."""

    def __init__(self, *, line: str = "fine", code: int = 0) -> None:
        self.commands: list[list[str]] = []
        self._line, self._code, self.on_up = line, code, lambda: None

    def __call__(self, command, on_line) -> int:
        """Record a command; of `up`, do what it does."""
        self.commands.append(list(command[3:]))
        on_line(self._line)
        if command[3] == "up":
            self.on_up()
        return self._code


def _start(ec2, *, expires: str, cluster: str = "raysent") -> str:
    """Start a machine with raysent's tags."""
    tags = [
        {"Key": "raysent-cluster", "Value": cluster},
        {"Key": "raysent-expires", "Value": expires},
    ]
    started = ec2.run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="g5.xlarge",
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )  # fmt: skip
    return started["Instances"][0]["InstanceId"]


def _time(hours: float) -> str:
    return (NOW + datetime.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_up_renders_a_valid_file_for_rays_launcher(aws, file):
    """All placeholders are replaced, the file passes Ray's schema, and the gate gets the tags of the sweep."""
    ray, cluster = FakeRay(), read_cluster(file)
    launcher = Launcher(cluster, run=ray)
    launcher.up(sweep="my novels, 1")
    values = json.loads(launcher.file.read_text())
    validate_config(prepare_config(copy.deepcopy(values)))
    assert ray.commands == [["up", "--yes", "--no-config-cache", str(launcher.file)]]
    assert (values["provider"]["type"], values["provider"]["module"]) == (
        "external",
        "raysent.cluster.gate.AwsProvider",
    )
    assert values["provider"]["raysent"].pop("head_key").startswith(str(launcher.folder))
    assert values["provider"]["raysent"] == {
        "folder": "~/raysent-fleet", "time_to_live_s": 86_400, "tags": {"raysent-sweep": "my-novels-1"}
    }  # fmt: skip


def _start_head(ec2) -> str:
    name = _start(ec2, expires=_time(1))
    ec2.create_tags(Resources=[name], Tags=[{"Key": "ray-node-type", "Value": "head"}])
    return name


def test_up_leaves_a_running_head_as_it_is(aws, file):
    """A second `up` for another sweep runs nothing; a changed file is reported, and applied with `update` only."""
    ray, said = FakeRay(), []
    Launcher(read_cluster(file), run=ray).up(sweep="one")
    head = _start_head(aws)
    Launcher(read_cluster(file), run=ray).up(sweep="two", on_line=said.append)
    assert (len(ray.commands), said) == (1, [])
    file.write_text(file.read_text().replace("VolumeSize: 150", "VolumeSize: 200"))
    Launcher(read_cluster(file), run=ray).up(on_line=said.append)
    assert len(ray.commands) == 1
    assert "has changed since the head was launched; it stays as it is" in said[0]
    Launcher(read_cluster(file), run=ray).up(update=True)
    assert len(ray.commands) == 2
    assert [machine.name for machine in Account("us-east-1").machines("raysent")] == [head]


def test_two_ups_at_once_launch_one_head(aws, file):
    """The second one waits for the first, and finds its head."""

    def ray(command, on_line) -> int:
        time.sleep(0.3)
        _start_head(aws)
        return 0

    launchers = [Launcher(read_cluster(file), run=ray) for _ in range(2)]
    launchers[0].account.prepare(launchers[0].cluster)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda one: one.up(sweep="mine"), launchers)) == [False, True]


def test_up_rejects_a_name_whose_head_somebody_else_launched(aws, file):
    """The error names the head."""
    head = _start_head(aws)
    with pytest.raises(
        CloudError, match=f"cluster_name: 'raysent' is taken: its head {head} is running since"
    ):
        Launcher(read_cluster(file), run=FakeRay()).up()


def test_up_knows_its_own_head_from_a_later_one_of_the_name(aws, file):
    """The rendered file of an earlier cluster stays on this computer; the rules of the other cluster stay too."""
    ray = FakeRay()
    ray.on_up = lambda: _start_head(aws)
    launcher = Launcher(read_cluster(file), run=ray)
    assert launcher.up()
    assert not launcher.up()
    launcher.down()
    head = _start_head(aws)
    with pytest.raises(
        CloudError, match=f"its head {head} is running since .* was not launched from here"
    ):
        launcher.up()


def test_up_lets_the_machines_read_what_each_sweep_names(aws, file, monkeypatch):
    """Both roles, one policy for each sweep; while the head runs `up` leaves it, and the sweep's end removes it."""
    launcher, iam, s3 = (
        Launcher(read_cluster(file), run=FakeRay()),
        boto3.client("iam"),
        boto3.client("s3"),
    )
    s3.create_bucket(Bucket="texts")
    for key in ("books/one.txt", "songs/two.txt"):
        s3.put_object(Bucket="texts", Key=key, Body=b"x")
    roles = ("raysent-raysent-head", "raysent-raysent-worker")
    launcher.up(
        sweep="none", inputs=["s3://texts/songs/"]
    )  # its head has ended, and nothing followed it to its end
    launcher.up(sweep="first", inputs=["s3://texts/books/"])
    _start_head(aws)
    for role in roles:
        assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [
            "raysent",
            "raysent-inputs-first",
        ]
        policy = iam.get_role_policy(RoleName=role, PolicyName="raysent-inputs-first")[
            "PolicyDocument"
        ]
        assert policy["Statement"][0]["Resource"] == [
            "arn:aws:s3:::texts/books",
            "arn:aws:s3:::texts/books/*",
        ]
    launcher.up(sweep="second", inputs=["s3://texts/songs"])
    launcher.up()
    launcher.forget_inputs("second")
    for role in roles:
        assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [
            "raysent",
            "raysent-inputs-first",
        ]
    launcher.down()
    for role in roles:
        assert iam.list_role_policies(RoleName=role)["PolicyNames"] == ["raysent"]


def test_up_names_the_sweep_that_a_head_is_launched_for(aws, file):
    """Such a head ends with its sweeps; one that is launched for none, or is to be kept, stays."""
    for given, tag in (
        ({"sweep": "a b"}, "a-b"),
        ({"sweep": "a b", "is_kept": True}, ""),
        ({}, ""),
    ):
        launcher = Launcher(read_cluster(file), run=FakeRay())
        assert launcher.up(**given)
        assert (launcher.has_launched, launcher.stays) == (True, not tag)
        assert json.loads(launcher.file.read_text())["provider"]["raysent"]["tags"] == {
            "raysent-sweep": tag
        }
    head = _start_head(aws)
    for tag in ("", "other"):
        aws.create_tags(Resources=[head], Tags=[{"Key": "raysent-sweep", "Value": tag}])
        joined = Launcher(read_cluster(file), run=FakeRay())
        assert not joined.up(sweep="mine")
        assert (joined.has_launched, joined.stays) == (False, not tag)


def test_the_shipped_name_has_the_user_in_it(monkeypatch):
    """Colleagues with one account do not have one cluster by accident."""
    for user, name in (
        ("Jo.Smith", "raysent-jo-smith"),
        ("ubuntu", "raysent-ubuntu"),
        ("", "raysent-user"),
    ):
        monkeypatch.setattr("getpass.getuser", lambda user=user: user)
        assert read_cluster(SHIPPED).name == name


def test_up_allows_the_operator_only(aws, file):
    """SSH from one address and traffic inside the group; `up` removes other rules."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    (group,) = aws.describe_security_groups(GroupNames=["raysent-raysent"])["SecurityGroups"]
    everyone = [
        {
            "IpProtocol": "tcp",
            "FromPort": 8265,
            "ToPort": 8265,
            "IpRanges": [{"CidrIp": "0.0.0.0/0"}],
        }
    ]
    aws.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=everyone)
    launcher.up()
    (group,) = aws.describe_security_groups(GroupNames=["raysent-raysent"])["SecurityGroups"]
    ranges = [
        (rule.get("FromPort"), entry["CidrIp"])
        for rule in group["IpPermissions"]
        for entry in rule["IpRanges"]
    ]
    assert ranges == [(22, "203.0.113.7/32")]
    assert [
        pair["GroupId"] for rule in group["IpPermissions"] for pair in rule["UserIdGroupPairs"]
    ] == [group["GroupId"]]


def test_up_leaves_the_rules_of_a_running_cluster_if_aws_refuses(aws, file, monkeypatch):
    """The new address is allowed before the old one is taken away; what is allowed already is not asked for."""
    Launcher(read_cluster(file), run=FakeRay()).up()
    file.write_text(file.read_text().replace("203.0.113.7/32", "203.0.113.8/32"))
    launcher = Launcher(read_cluster(file), run=FakeRay())
    group = {"GroupNames": ["raysent-raysent"]}
    before = aws.describe_security_groups(**group)["SecurityGroups"][0]["IpPermissions"]
    asked = []

    def refuse(**given) -> None:
        asked.extend(given["IpPermissions"])
        raise ClientError(
            {"Error": {"Code": "RulesPerSecurityGroupLimitExceeded"}},
            "AuthorizeSecurityGroupIngress",
        )

    with monkeypatch.context() as patched:
        patched.setattr(launcher.account.ec2, "authorize_security_group_ingress", refuse)
        with pytest.raises(CloudError, match="RulesPerSecurityGroupLimitExceeded"):
            launcher.up()
    assert aws.describe_security_groups(**group)["SecurityGroups"][0]["IpPermissions"] == before
    assert [one.get("IpRanges") for one in asked] == [[{"CidrIp": "203.0.113.8/32"}]]
    launcher.up()
    rules = aws.describe_security_groups(**group)["SecurityGroups"][0]["IpPermissions"]
    assert [entry["CidrIp"] for rule in rules for entry in rule["IpRanges"]] == ["203.0.113.8/32"]


def test_up_creates_two_roles_of_least_privilege(aws, file, monkeypatch):
    """One profile for each role, with an inline policy; EC2 needs time to know new ones; a second `up` changes nothing."""
    waits = []
    monkeypatch.setattr(account_module, "PROFILE_S", 15.5)
    monkeypatch.setattr(time, "sleep", waits.append)
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    launcher.up()
    assert waits.count(15.5) == 1
    iam = boto3.client("iam")
    for name, num_statements in (("raysent-raysent-head", 11), ("raysent-raysent-worker", 2)):
        (role,) = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
        policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="raysent")[
            "PolicyDocument"
        ]
        assert len(policy["Statement"]) == num_statements
        assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []


def test_up_protects_token_and_file_and_writes_no_credentials(aws, file):
    """Mode 600 in a folder of mode 700; the token stays the same; no file holds a key of AWS."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    token = read_token(launcher.token_file)
    launcher.up()
    assert (read_token(launcher.token_file), len(token)) == (token, 64)
    modes = [
        oct(path.stat().st_mode & 0o777)
        for path in (launcher.folder, launcher.token_file, launcher.file)
    ]
    assert modes == ["0o700", "0o600", "0o600"]
    written = [
        path.read_bytes()
        for path in launcher.folder.rglob("*")
        if path.is_file() and path.name not in ("up.lock", "ray.log")
    ]
    assert len(written) == 8  # token, rendered file, wheel, constraints, two keys and their names
    assert not any(CANARY.encode() in data for data in written)
    assert token not in launcher.file.read_text()


def test_a_cluster_has_keys_of_its_own_and_the_heads_stays_here(aws, file, monkeypatch):
    """Ray copies the workers' key to the head; the head is reached by another one, which only this computer has."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    values = json.loads(launcher.file.read_text())
    copied = Path(values["auth"]["ssh_private_key"])
    head_key = Path(values["provider"]["raysent"]["head_key"])
    assert {copied.parent, head_key.parent} == {launcher.folder}
    assert copied.read_text() != head_key.read_text()
    names = {
        name: kind["node_config"]["KeyName"]
        for name, kind in values["available_node_types"].items()
    }
    assert names["head"].startswith("raysent-raysent-head-")
    assert {name for kind, name in names.items() if kind != "head"} == {names["spot-g6"]}
    assert names["spot-g6"].startswith("raysent-raysent-workers-")
    assert {pair["KeyName"] for pair in aws.describe_key_pairs()["KeyPairs"]} == set(names.values())
    assert [oct(path.stat().st_mode & 0o777) for path in (copied, head_key)] == ["0o600"] * 2
    launcher.up()  # uses them again
    assert json.loads(launcher.file.read_text()) == values
    provider = AwsProvider.__new__(AwsProvider)
    runner = {"cluster_name": "raysent", "process_runner": subprocess, "use_internal_ip": False}
    provider.provider_config = values["provider"]
    for kind, key in (("head", head_key), ("worker", copied)):
        monkeypatch.setattr(provider, "node_tags", lambda _, kind=kind: {"ray-node-type": kind})
        assert provider.get_command_runner(
            "", "i-1", values["auth"], **runner
        ).ssh_private_key == str(key)


def test_up_raises_the_last_line_of_rays_launcher(aws, file):
    """A failure is an error of one line."""
    launcher = Launcher(read_cluster(file), run=FakeRay(line="Failed to  launch", code=3))
    with pytest.raises(
        CloudError, match="^raysent: 'ray up' ended with exit code 3: Failed to launch; its log: "
    ):
        launcher.up()


def test_up_without_a_default_network_names_the_fix(aws, file):
    """An error of one line."""
    account = Account("us-east-1")
    with (
        Stubber(account.ec2) as stubber,
        pytest.raises(Exception, match="has no default network; create one with 'aws"),
    ):
        stubber.add_response("describe_security_groups", {"SecurityGroups": []})
        stubber.add_response("describe_vpcs", {"Vpcs": []})
        account.prepare(read_cluster(file))


def test_image_is_read_from_a_public_parameter(aws):
    """A parameter that AWS does not know is an error of one line."""
    account, cluster = Account("us-east-1"), read_cluster(SHIPPED)
    with Stubber(account.ssm) as stubber:
        stubber.add_response(
            "get_parameter", {"Parameter": {"Value": "ami-5"}}, {"Name": cluster.settings.image}
        )
        assert account.image(cluster) == "ami-5"
        stubber.add_client_error("get_parameter", "ParameterNotFound", "none")
        with pytest.raises(
            CloudError, match="metadata.raysent.image: /aws/service/.*ParameterNotFound"
        ):
            account.image(cluster)


def test_down_terminates_all_machines_of_the_cluster_even_if_ray_fails(aws, file):
    """Machines are found by their tag; machines of other clusters stay."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    _start(aws, expires=_time(1))
    other = _start(aws, expires=_time(1), cluster="other")
    failing = Launcher(read_cluster(file), run=FakeRay(line="no such key", code=1))
    with pytest.raises(CloudError, match="'ray down' ended with exit code 1: no such key"):
        failing.down()
    assert [machine.name for machine in launcher.account.machines()] == [other]


def test_orphans_are_listed_and_removed(aws, file, raysent):
    """Machines of any cluster past their time to live, or without a readable one; others stay."""
    late, odd = _start(aws, expires=_time(-1), cluster="other"), _start(aws, expires="tomorrow")
    kept = _start(aws, expires=_time(1))
    shown = json.loads(raysent("cluster", "status", file, "--json").out)
    assert {machine["name"] for machine in shown["machines"] if machine["is_orphan"]} == {late, odd}
    assert raysent("cluster", "down", file, "--orphans").code == 0
    assert [machine.name for machine in Account("us-east-1").machines()] == [kept]


def test_status_shows_machines_and_their_list_price(aws, file, raysent):
    """One row for each machine."""
    assert raysent("cluster", "status", file).out == "raysent: no machines\n"
    name = _start(aws, expires=_time(1))
    shown = raysent("cluster", "status", file).out
    assert name in shown
    assert "on-demand  running" in shown
    assert "1.0060" in shown
    assert (
        json.loads(raysent("cluster", "status", file, "--json").out)["machines"][0]["instance_type"]
        == "g5.xlarge"
    )


def test_make_token_never_replaces_one(tmp_path):
    """A second call keeps the first token."""
    make_token(tmp_path / "token")
    before = read_token(tmp_path / "token")
    make_token(tmp_path / "token")
    assert read_token(tmp_path / "token") == before
    with pytest.raises(ArtifactError, match="no token to read"):
        read_token(tmp_path / "none")


def test_run_process_passes_on_every_line_and_the_exit_code():
    """Output and errors are in their order."""
    lines: list[str] = []
    code = run_process(
        [sys.executable, "-c", "import sys; print('one'); sys.exit('two')"], lines.append
    )
    assert (code, lines) == (1, ["one", "two"])


def test_wheel_holds_the_running_code_and_installs(tmp_path):
    """It is reproducible, and pip installs it."""
    path = write_wheel(tmp_path)
    before = path.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == before
    target = tmp_path / "installed"
    arguments = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(target),
        str(path),
    ]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True)
    assert (target / "raysent" / "cost" / "on_demand.json").is_file()
    metadata = zipfile.ZipFile(path).read(f"raysent-{wheel_version()}.dist-info/METADATA").decode()
    assert "Requires-Dist: torch" in metadata
    assert f"\nVersion: {wheel_version()}\n" in metadata
    assert wheel_version().startswith(f"{raysent.__version__}+")


def test_wheel_version_names_its_content(monkeypatch):
    """Another line of code is another version, so that pip replaces the wheel on a machine that is kept."""
    before = wheel_version()
    monkeypatch.setattr(
        launcher_module, "_package_files", lambda: {"raysent/__init__.py": b"changed"}
    )
    assert wheel_version() != before


def test_constraints_lock_every_dependency_without_local_versions(tmp_path):
    """Torch 2.13.0+cpu here is 2.13.0 there; what the extra `cluster` needs is included."""
    pins = dict(line.split("==") for line in write_constraints(tmp_path).read_text().splitlines())
    assert {"torch", "ray", "boto3", "numpy", "optuna"} <= pins.keys()
    assert pins["torch"] == version("torch").partition("+")[0]
    assert not any("+" in number for number in pins.values())


@pytest.fixture(scope="module")
def account():
    """An account whose clients need answers from a script."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, CANARY)
        made = Account("us-east-1")
        assert made.s3
        yield made


@pytest.fixture
def launched(account, file, tmp_path, monkeypatch) -> Launcher:
    """The launcher of a cluster that was launched from this computer."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    launcher = Launcher(read_cluster(file), account=account, run=FakeRay())
    launcher.folder.mkdir(parents=True)
    make_token(launcher.token_file)
    launcher.file.write_text(
        json.dumps({"setup_commands": [f"pip install {launcher_module.wheel_name()}"]})
    )
    return launcher


def test_a_ray_without_the_classes_that_launch_is_an_error_of_one_line(monkeypatch):
    """It names what is missing and the versions that have it."""
    monkeypatch.setitem(sys.modules, "ray.autoscaler._private.aws.node_provider", None)
    name = "raysent.cluster.gate"
    source = importlib.util.find_spec(name)
    with pytest.raises(
        CloudError,
        match=r"^Ray [\d.]+: must have the classes that launch machines \(.*\); 2.56 to 2.60",
    ):
        source.loader.exec_module(importlib.util.module_from_spec(source))


def test_keep_renews_the_lease_of_a_running_head(launched, account, file, monkeypatch, raysent):
    """It writes the seconds on the head; the time to live stays the limit."""
    ray, machines = FakeRay(), []
    monkeypatch.setattr(launcher_module, "run_process", ray)
    monkeypatch.setattr(
        launcher_module, "Account", lambda _: SimpleNamespace(machines=lambda _: machines)
    )
    monkeypatch.setattr(launcher_module.Launcher, "up", lambda self, **_: None)
    ran = raysent("cluster", "up", file, "--keep", "4h", "--yes")
    assert (ran.code, ran.err) == (
        2,
        "error: raysent: no head is running; 'raysent cluster up' launches one\n",
    )
    machines.append(SimpleNamespace(is_head=True, expires=NOW + datetime.timedelta(hours=1)))
    ran = raysent("cluster", "up", file, "--keep", "4h", "--yes")
    assert ran.code == 0
    lease = "~/raysent-fleet/lease"
    command = f"mkdir -p ~/raysent-fleet && echo 14400 > {lease}.new && mv {lease}.new {lease}"
    assert ray.commands == [["exec", str(launched.file), command]]
    assert ran.err.startswith("the head is kept until ")
    assert "its time to live ends it at " in ran.err
    launched.token_file.unlink()
    assert (
        "was not launched from this computer"
        in raysent("cluster", "up", file, "--keep", "4h", "--yes").err
    )


def test_up_launches_nothing_for_a_keep_that_is_no_duration(raysent, file, monkeypatch):
    """It is read before the head is launched, not after."""
    launches = []
    monkeypatch.setattr(launcher_module.Launcher, "up", lambda self, **_: launches.append(self))
    ran = raysent("cluster", "up", file, "--keep", "4hours", "--yes")
    assert (ran.code, launches) == (2, [])
    assert "a duration must look like 90s, 30m, 2h or 1h30m; given '4hours'" in ran.err


# -- what keeps a cluster from being launched -------------------------------------------------------------------------


def test_policies_are_printed_for_an_administrator(aws, file, raysent):
    """Both are one JSON object with the account's id; nothing is launched."""
    shown = json.loads(raysent("cluster", "up", file, "--print-policies").out)
    assert "arn:aws:iam::123456789012:role/raysent-raysent-worker" in json.dumps(shown["head"])
    assert len(shown["worker"]["Statement"]) == 2
    allowed = json.dumps([statement["Action"] for statement in shown["operator"]["Statement"]])
    for action in (
        "ec2:RunInstances",
        "ec2:TerminateInstances",
        "ec2:CreateKeyPair",
        "ec2:CreateSecurityGroup",
        "ec2:AuthorizeSecurityGroupIngress",
        "iam:CreateRole",
        "iam:PassRole",
        "iam:AddRoleToInstanceProfile",
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
        "ssm:GetParameter",
        "s3:PutObject",
    ):
        assert f'"{action}"' in allowed
    assert boto3.client("iam").list_roles()["Roles"] == []


def test_up_refuses_without_a_bucket(aws, file, raysent):
    """Exit code 2, one line with the command that creates it, and nothing is created."""
    boto3.client("s3").delete_bucket(Bucket="my-bucket")
    ran = raysent("cluster", "up", file, "--yes")
    assert ran.code == 2
    assert ran.err.startswith("error: s3://my-bucket/raysent: ")
    assert ran.err.endswith(
        "if there is no such bucket: aws s3 mb s3://my-bucket --region us-east-1\n"
    )
    assert boto3.client("iam").list_roles()["Roles"] == []


def test_up_refuses_an_input_that_is_not_there(aws, file):
    """With the command that uploads it."""
    boto3.client("s3").create_bucket(Bucket="texts")
    launcher = Launcher(read_cluster(file), run=FakeRay())
    with pytest.raises(
        CloudError,
        match="s3://texts/books: nothing is there; 'aws s3 cp --recursive FOLDER s3://texts",
    ):
        launcher.up(inputs=["s3://texts/books"])
    with pytest.raises(CloudError, match="'aws s3 ls s3://none/books' must work here"):
        check_inputs(launcher.account, ["s3://none/books"])


def test_up_refuses_if_no_quota_allows_a_machine(aws, file, monkeypatch):
    """New accounts have no GPU machines; the line holds the command that requests them. One type is enough."""
    cluster, account = read_cluster(file), Account("us-east-1")
    monkeypatch.setattr(Account, "quota", lambda self, code: 0.0)
    with pytest.raises(
        CloudError,
        match="no type of worker can be launched: .*--quota-code L-3819A6DF --desired-value 32",
    ):
        check_ready(cluster, account)
    for allowed in (lambda self, code: 4.0 * (code == "L-DB2E81BA"), lambda self, code: None):
        monkeypatch.setattr(Account, "quota", allowed)
        check_ready(cluster, account)


IMAGE = {
    "ImageId": "ami-12c6146b", "Name": "Deep Learning Base", "State": "available", "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 75}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            None,
            "ami-12c6146b: no such image in us-east-1; AWS lists its images: aws ssm get-parameters-by-path",
        ),
        ({"State": "disabled"}, "ami-12c6146b: no such image in us-east-1"),
    ],
)
def test_up_refuses_an_image_that_does_not_fit(aws, file, monkeypatch, changes, text):
    """It must exist."""
    monkeypatch.setattr(
        Account, "describe_image", lambda *_: None if changes is None else {**IMAGE, **changes}
    )
    with pytest.raises(CloudError, match=re.escape(text)):
        check_ready(read_cluster(file), Account("us-east-1"))


def test_up_refuses_a_token_that_others_can_read(aws, file):
    """With the command that mends it."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    launcher.token_file.chmod(0o644)
    with pytest.raises(
        ArtifactError, match=r"must be readable by its owner only \(mode 600\); given 644"
    ):
        launcher.up()
