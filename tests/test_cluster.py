"""Clusters up and down, with an account simulated by moto and a fake of Ray's launcher."""

from __future__ import annotations

import copy
import datetime
import importlib.util
import json
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.stub import Stubber
from command import CommandLine
from moto import mock_aws
from ray.autoscaler._private.util import prepare_config, validate_config

import raysent
import raysent.cluster.doctor as doctoring
import raysent.cluster.launcher as launcher_module
from raysent.cluster import Account, Launcher, check_token_required, diagnose, read_cluster, read_token
from raysent.cluster.launcher import make_token, run_process, wheel_version, write_constraints, write_wheel
from raysent.cluster.policies import input_policy
from raysent.errors import ArtifactError, CloudError

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
CANARY = "AKIACANARYCANARYCANA"
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """An empty account in memory, keys that must not leak, and a separate data folder."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY + "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with mock_aws():
        yield boto3.client("ec2", region_name="us-east-1")


@pytest.fixture
def file(tmp_path) -> Path:
    """The shipped file with an image and an operator that need no request."""
    text = SHIPPED.read_text(encoding="utf-8").replace("operator: auto", "operator: 203.0.113.7/32")
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace("image: /aws", "image: ami-12c6146b  # /aws"), encoding="utf-8")
    return path


class FakeRay:
    """A fake of Ray's launcher: records commands, prints one line, and ends with an exit code."""

    def __init__(self, *, line: str = "fine", code: int = 0) -> None:
        self.commands: list[list[str]] = []
        self._line, self._code = line, code

    def __call__(self, command, on_line) -> int:
        """Record a command."""
        self.commands.append(list(command[3:]))
        on_line(self._line)
        return self._code


def _start(ec2, *, expires: str, cluster: str = "raysent") -> str:
    """Start a machine with raysent's tags."""
    tags = [{"Key": "raysent-cluster", "Value": cluster}, {"Key": "raysent-expires", "Value": expires}]
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


def test_up_rejects_a_name_whose_head_somebody_else_launched(aws, file):
    """The error names the head."""
    head = _start_head(aws)
    with pytest.raises(CloudError, match=f"cluster_name: 'raysent' is taken: its head {head} is running since"):
        Launcher(read_cluster(file), run=FakeRay()).up()


def test_up_lets_the_machines_read_what_the_sweep_names(aws, file):
    """Both roles; the next sweep's addresses replace these."""
    launcher, iam = Launcher(read_cluster(file), run=FakeRay()), boto3.client("iam")
    launcher.up(inputs=["s3://texts/books/"])
    for role in ("raysent-raysent-head", "raysent-raysent-worker"):
        policy = iam.get_role_policy(RoleName=role, PolicyName="raysent-inputs")["PolicyDocument"]
        assert policy["Statement"][0]["Resource"] == ["arn:aws:s3:::texts/books", "arn:aws:s3:::texts/books/*"]
    launcher.up()
    assert iam.list_role_policies(RoleName="raysent-raysent-head")["PolicyNames"] == ["raysent"]


def test_up_allows_the_operator_only(aws, file):
    """SSH from one address and traffic inside the group; `up` removes other rules."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    (group,) = aws.describe_security_groups(GroupNames=["raysent-raysent"])["SecurityGroups"]
    everyone = [{"IpProtocol": "tcp", "FromPort": 8265, "ToPort": 8265, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    aws.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=everyone)
    assert launcher.account.open_rules(launcher.cluster) == ["0.0.0.0/0 reaches ports 8265 to 8265"]
    launcher.up()
    (group,) = aws.describe_security_groups(GroupNames=["raysent-raysent"])["SecurityGroups"]
    ranges = [(rule.get("FromPort"), entry["CidrIp"]) for rule in group["IpPermissions"] for entry in rule["IpRanges"]]
    assert ranges == [(22, "203.0.113.7/32")]
    assert [pair["GroupId"] for rule in group["IpPermissions"] for pair in rule["UserIdGroupPairs"]] == [
        group["GroupId"]
    ]
    assert launcher.account.open_rules(launcher.cluster) == []


def test_up_creates_two_roles_of_least_privilege(aws, file):
    """One profile for each role, with an inline policy; a second `up` changes nothing."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    launcher.up()
    iam = boto3.client("iam")
    for name, num_statements in (("raysent-raysent-head", 11), ("raysent-raysent-worker", 2)):
        (role,) = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
        policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="raysent")["PolicyDocument"]
        assert len(policy["Statement"]) == num_statements
        assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []


def test_up_protects_token_and_file_and_writes_no_credentials(aws, file):
    """Mode 600 in a folder of mode 700; the token stays the same; no file holds a key of AWS."""
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    token = read_token(launcher.token_file)
    launcher.up()
    assert (read_token(launcher.token_file), len(token)) == (token, 64)
    modes = [oct(path.stat().st_mode & 0o777) for path in (launcher.folder, launcher.token_file, launcher.file)]
    assert modes == ["0o700", "0o600", "0o600"]
    written = [path.read_bytes() for path in launcher.folder.rglob("*") if path.is_file()]
    assert len(written) == 4  # token, rendered file, wheel, constraints
    assert not any(CANARY.encode() in data for data in written)
    assert token not in launcher.file.read_text()


def test_up_raises_the_last_line_of_rays_launcher(aws, file):
    """A failure is an error of one line."""
    launcher = Launcher(read_cluster(file), run=FakeRay(line="Failed to  launch", code=3))
    with pytest.raises(CloudError, match="^raysent: 'ray up' ended with exit code 3: Failed to launch$"):
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
        stubber.add_response("get_parameter", {"Parameter": {"Value": "ami-5"}}, {"Name": cluster.settings.image})
        assert account.image(cluster) == "ami-5"
        stubber.add_client_error("get_parameter", "ParameterNotFound", "none")
        with pytest.raises(CloudError, match="metadata.raysent.image: /aws/service/.*ParameterNotFound"):
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


def test_orphans_are_listed_and_removed(aws, file, monkeypatch, capsys):
    """Machines of any cluster past their time to live, or without a readable one; others stay."""
    late, odd = _start(aws, expires=_time(-1), cluster="other"), _start(aws, expires="tomorrow")
    kept = _start(aws, expires=_time(1))
    raysent = CommandLine(monkeypatch, capsys)
    shown = json.loads(raysent("cluster", "orphans", file, "--json").out)
    assert {machine["name"] for machine in shown["orphans"]} == {late, odd}
    assert "--remove terminates them" in raysent("cluster", "orphans", file).err
    assert raysent("cluster", "orphans", file, "--remove").code == 0
    assert [machine.name for machine in Account("us-east-1").machines()] == [kept]
    assert raysent("cluster", "orphans", file).out == "no orphans in us-east-1\n"


def test_status_shows_machines_and_their_list_price(aws, file, monkeypatch, capsys):
    """One row for each machine."""
    raysent = CommandLine(monkeypatch, capsys)
    assert raysent("cluster", "status", file).out == "raysent: no machines\n"
    name = _start(aws, expires=_time(1))
    shown = raysent("cluster", "status", file).out
    assert name in shown
    assert "on-demand  running" in shown
    assert "1.0060" in shown
    assert json.loads(raysent("cluster", "status", file, "--json").out)["machines"][0]["instance_type"] == "g5.xlarge"


def _examined(launcher, **reach) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.verdict, finding.text) for finding in diagnose(launcher, **reach)}


def test_doctor_finds_open_ports_and_orphans(aws, file, monkeypatch):
    """A port that answers from here fails, and so does a machine past its time to live."""
    monkeypatch.setattr(doctoring, "_prices", lambda _: iter(()))
    monkeypatch.setattr(doctoring, "_capacity", lambda *_: iter(()))
    launcher = Launcher(read_cluster(file), run=FakeRay())
    assert _examined(launcher)["ports"] == ("unknown", "no machine is running")
    launcher.up()
    _start(aws, expires=_time(-1))
    found = _examined(launcher, reach=lambda _, port: port == 8265)
    assert found["port 8265"][0] == "failed"
    assert "dashboard and job API answers at" in found["port 8265"][1]
    assert (found["port 6379"][0], found["port 10001"][0], found["orphans"][0]) == ("ok", "ok", "failed")
    assert (found["credentials"], found["security group"][0]) == (("ok", "account 123456789012"), "ok")


def test_doctor_tells_the_time_to_the_first_trial(aws, file, monkeypatch):
    """Of the last sweep from this computer; nothing is made up where none is known."""
    for name in ("_prices", "_capacity"):
        monkeypatch.setattr(doctoring, name, lambda *_: iter(()))
    launcher = Launcher(read_cluster(file), run=FakeRay())
    verdict, text = _examined(launcher)["time to first trial"]
    assert (verdict, "5m of boot are assumed" in text) == ("unknown", True)
    launcher.up()
    launcher.keep_first_trial(200.4)
    verdict, text = _examined(launcher)["time to first trial"]
    assert verdict == "ok"
    assert text.startswith("3m20s from the launch to the first trial of the sweep of 20")
    launcher.first_trial_file.write_text("[1]")
    assert _examined(launcher)["time to first trial"][0] == "unknown"


def test_doctor_fails_without_credentials(file, monkeypatch, capsys, tmp_path):
    """Exit code 1; checks that need credentials are unknown, not ok."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ran = CommandLine(monkeypatch, capsys)("cluster", "doctor", file, "--json")
    verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(ran.out)["findings"]}
    assert ran.code == 1
    assert (verdicts["credentials"], verdicts["prices"], verdicts["machines"]) == ("failed", "unknown", "unknown")


def test_doctor_fails_on_a_token_that_others_can_read(aws, file, monkeypatch):
    """The finding names the fix, and `read_token` rejects the token."""
    monkeypatch.setattr(doctoring, "_prices", lambda _: iter(()))
    monkeypatch.setattr(doctoring, "_capacity", lambda *_: iter(()))
    launcher = Launcher(read_cluster(file), run=FakeRay())
    launcher.up()
    launcher.token_file.chmod(0o644)
    assert _examined(launcher)["token"] == (
        "failed", f"{launcher.token_file}: must have mode 600; given 644; 'chmod 600 {launcher.token_file}'",
    )  # fmt: skip
    with pytest.raises(ArtifactError, match=r"must be readable by its owner only \(mode 600\); given 644"):
        read_token(launcher.token_file)


def test_doctor_is_unsure_about_a_dashboard_that_does_not_answer():
    """No answer does not mean that the dashboard is safe."""
    assert check_token_required("http://127.0.0.1:9").verdict == "unknown"


def test_make_token_never_replaces_one(tmp_path):
    """A second call keeps the first token."""
    make_token(tmp_path / "token")
    before = read_token(tmp_path / "token")
    make_token(tmp_path / "token")
    assert read_token(tmp_path / "token") == before
    with pytest.raises(ArtifactError, match="no token to read"):
        read_token(tmp_path / "none")


def test_policies_are_printed_for_an_administrator(file, monkeypatch, capsys):
    """Both are one JSON object; an account id has 12 digits."""
    raysent = CommandLine(monkeypatch, capsys)
    shown = json.loads(raysent("cluster", "policies", file, "--account", "210987654321").out)
    assert "arn:aws:iam::210987654321:role/raysent-raysent-worker" in json.dumps(shown["head"])
    assert len(shown["worker"]["Statement"]) == 2
    assert (
        raysent("cluster", "policies", file, "--account", "me").err
        == "error: --account: must be 12 digits; given 'me'\n"
    )


def test_run_process_passes_on_every_line_and_the_exit_code():
    """Output and errors are in their order."""
    lines: list[str] = []
    code = run_process([sys.executable, "-c", "import sys; print('one'); sys.exit('two')"], lines.append)
    assert (code, lines) == (1, ["one", "two"])


def test_wheel_holds_the_running_code_and_installs(tmp_path):
    """It is reproducible, and pip installs it."""
    path = write_wheel(tmp_path)
    before = path.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == before
    target = tmp_path / "installed"
    arguments = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(path)]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True)
    assert (target / "raysent" / "cost" / "on_demand.json").is_file()
    metadata = zipfile.ZipFile(path).read(f"raysent-{wheel_version()}.dist-info/METADATA").decode()
    assert "Requires-Dist: torch" in metadata
    assert f"\nVersion: {wheel_version()}\n" in metadata
    assert wheel_version().startswith(f"{raysent.__version__}+")


def test_wheel_version_names_its_content(monkeypatch):
    """Another line of code is another version, so that pip replaces the wheel on a machine that is kept."""
    before = wheel_version()
    monkeypatch.setattr(launcher_module, "_package_files", lambda: {"raysent/__init__.py": b"changed"})
    assert wheel_version() != before


def test_constraints_lock_every_dependency_without_local_versions(tmp_path):
    """Torch 2.13.0+cpu here is 2.13.0 there; what the extra `cluster` needs is included."""
    pins = dict(line.split("==") for line in write_constraints(tmp_path).read_text().splitlines())
    assert {"torch", "ray", "boto3", "numpy", "optuna"} <= pins.keys()
    assert pins["torch"] == version("torch").partition("+")[0]
    assert not any("+" in number for number in pins.values())


@pytest.mark.parametrize(("allowed", "verdict"), [(0.0, "failed"), (4.0, "ok"), (None, "unknown")])
def test_doctor_compares_quotas_with_what_the_file_needs(file, monkeypatch, aws, allowed, verdict):
    """New accounts have no GPU machines; the finding holds the command that requests them."""
    monkeypatch.setattr(Account, "quota", lambda self, code: allowed)
    found = list(doctoring._quotas(read_cluster(file), Account("us-east-1")))
    assert [one.check for one in found] == [
        "quota of spot-g6", "quota of spot-g5", "quota of spot-g4dn", "quota of on-demand-g4dn"
    ]  # fmt: skip
    assert {one.verdict for one in found} == {verdict}
    if allowed == 0.0:
        assert found[0].text.endswith("--service-code ec2 --quota-code L-3819A6DF --desired-value 32")
        assert "--quota-code L-DB2E81BA --desired-value 8" in found[3].text


IMAGE = {
    "ImageId": "ami-12c6146b", "Name": "Deep Learning Base", "State": "available", "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 75}}],
}  # fmt: skip


@pytest.fixture(scope="module")
def account():
    """An account whose clients need answers from a script."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, CANARY)
        made = Account("us-east-1")
        assert made.s3
        yield made


def test_doctor_checks_the_image_and_its_disk(file, account):
    """It exists, and the disk of the file replaces its own one."""
    cases = [
        ({}, "ok", "ami-12c6146b: Deep Learning Base"),
        (
            None,
            "failed",
            "ami-12c6146b: no such image in us-east-1; AWS lists its images: aws ssm get-parameters-by-path",
        ),
        ({"State": "disabled"}, "failed", "ami-12c6146b: no such image in us-east-1"),
        ({"RootDeviceName": "/dev/xvda"}, "failed", "its disk is /dev/xvda; set DeviceName of head to it"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200}}]},
            "failed",
            "ami-12c6146b: needs 200 GiB; head has 150: raise its VolumeSize",
        ),
    ]
    cluster = read_cluster(file)
    for changes, verdict, text in cases:
        with Stubber(account.ec2) as stubber:
            if changes is None:
                stubber.add_client_error("describe_images", "InvalidAMIID.NotFound", "none")
            else:
                answer = {"Images": [{**IMAGE, **changes}]}
                stubber.add_response("describe_images", answer, {"ImageIds": ["ami-12c6146b"]})
            found = doctoring._image(cluster, account)
        assert found.verdict == verdict
        assert text in found.text


def _scores(account: Account, *scores: int) -> Stubber:
    """Return EC2 with a spot score for each type of the file."""
    stubber = Stubber(account.ec2)
    for kind, score in zip(("g6", "g5", "g4dn"), scores, strict=True):
        stubber.add_response(
            "get_spot_placement_scores",
            {"SpotPlacementScores": [{"Region": "us-east-1", "Score": score}]},
            {"InstanceTypes": [f"{kind}.xlarge"], "TargetCapacity": 8, "RegionNames": ["us-east-1"]},
        )
    return stubber


def test_doctor_reports_scores_of_spot_capacity(file, account):
    """A low score is a warning while another type is likely; if none is, the finding holds the command."""
    with _scores(account, 9, 3, 1):
        found = list(doctoring._capacity(read_cluster(file), account))
    assert [(one.check, one.verdict) for one in found] == [
        ("capacity of spot-g6", "ok"), ("capacity of spot-g5", "unknown"), ("capacity of spot-g4dn", "unknown"),
    ]  # fmt: skip
    assert found[0].text == "score 9 of 10 for 8 spot machines g6.xlarge"
    with _scores(account, 3, 3, 1):
        last = list(doctoring._capacity(read_cluster(file), account))[-1]
    assert last.verdict == "failed"
    assert last.text.endswith(
        "aws ec2 get-spot-placement-scores --instance-types g4dn.xlarge g5.xlarge g6.xlarge --target-capacity 8"
    )
    with Stubber(account.ec2) as stubber:
        for _ in range(3):
            stubber.add_client_error("get_spot_placement_scores", "UnauthorizedOperation", "not allowed")
        found = list(doctoring._capacity(read_cluster(file), account))
    assert {one.verdict for one in found} == {"unknown"}


def _decision(action: str, decision: str) -> dict[str, object]:
    return {"EvaluationResults": [{"EvalActionName": action, "EvalResourceName": "*", "EvalDecision": decision}]}


def _stub_reading(account: Account, s3: Stubber, iam: Stubber, *, num_objects: int, key: str, decision: str) -> None:
    """Answer what the doctor asks about s3://texts/books; without a decision there are no roles."""
    s3.add_response("list_objects_v2", {"KeyCount": num_objects}, {"Bucket": "texts", "Prefix": "books", "MaxKeys": 1})
    rule = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key} if key else {"SSEAlgorithm": "AES256"}
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]}
    s3.add_response("get_bucket_encryption", {"ServerSideEncryptionConfiguration": rules})
    for name in ("head", "worker"):
        if not decision:
            iam.add_client_error("get_role", "NoSuchEntity", "no role")
            continue
        role = f"raysent-raysent-{name}"
        arn = f"arn:aws:iam::123456789012:role/{role}"
        about = {"Path": "/", "RoleName": role, "RoleId": "A" * 16, "Arn": arn, "CreateDate": NOW}
        iam.add_response("get_role", {"Role": about})
        given = {"PolicySourceArn": arn, "PolicyInputList": [json.dumps(input_policy(["s3://texts/books"]))]}
        context = [{"ContextKeyName": "s3:prefix", "ContextKeyValues": ["books"], "ContextKeyType": "string"}]
        listing = {"ActionNames": ["s3:ListBucket"], "ResourceArns": ["arn:aws:s3:::texts"], "ContextEntries": context}
        reading = {"ActionNames": ["s3:GetObject"], "ResourceArns": ["arn:aws:s3:::texts/books"]}
        for asked, answer in ((listing, "allowed"), (reading, decision)):
            decided = {"EvalActionName": asked["ActionNames"][0], "EvalResourceName": "*", "EvalDecision": answer}
            iam.add_response("simulate_principal_policy", {"EvaluationResults": [decided]}, {**given, **asked})


def test_doctor_checks_that_the_roles_may_read_the_corpus(file, account):
    """IAM simulates each role; a missing role, an empty address and a customer's key are findings with a command."""
    cluster = read_cluster(file)
    for num_objects, key, decision, verdict, text in [
        (1, "", "allowed", "ok", "both roles may read it"),
        (0, "", "allowed", "failed", "nothing is there; 'aws s3 cp --recursive FOLDER s3://texts/books' uploads it"),
        (1, "", "explicitDeny", "failed", "raysent-raysent-head may not s3:GetObject"),
        (1, "", "", "unknown", "'raysent cluster up' creates the roles"),
        (1, "arn:aws:kms:k", "allowed", "unknown", "--key-id arn:aws:kms:k --operations Decrypt GenerateDataKey"),
    ]:
        with Stubber(account.s3) as s3, Stubber(account.iam) as iam:
            _stub_reading(account, s3, iam, num_objects=num_objects, key=key, decision=decision)
            (found,) = doctoring._input("s3://texts/books", cluster, account)
        assert found.verdict == verdict
        assert text in found.text
    assert next(doctoring._input("books.txt", cluster, account)).verdict == "ok"


def test_doctor_checks_the_storage(file, account):
    """A bucket that does not exist fails with the command that creates it."""
    cluster = read_cluster(file)
    with Stubber(account.s3) as stubber:
        stubber.add_client_error("list_objects_v2", "NoSuchBucket", "none")
        found = doctoring._storage(cluster, account)
        assert found.verdict == "failed"
        assert found.text.endswith("if there is no such bucket: aws s3 mb s3://my-bucket --region us-east-1")
        stubber.add_response("list_objects_v2", {"KeyCount": 0})
        stubber.add_client_error("get_bucket_encryption", "AccessDenied", "none")
        assert doctoring._storage(cluster, account).verdict == "ok"


@pytest.fixture
def launched(account, file, tmp_path, monkeypatch) -> Launcher:
    """The launcher of a cluster that was launched from this computer."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    launcher = Launcher(read_cluster(file), account=account, run=FakeRay())
    launcher.folder.mkdir(parents=True)
    make_token(launcher.token_file)
    launcher.file.write_text(json.dumps({"setup_commands": [f"pip install {launcher_module.wheel_name()}"]}))
    return launcher


@pytest.mark.parametrize(
    ("ray", "verdict", "text"), [("2.51.1", "failed", "does not support tokens"), ("2.61.0", "unknown", "is 2.60")]
)
def test_doctor_names_the_versions_of_ray_that_were_tried(launched, monkeypatch, ray, verdict, text):
    """An older one fails; a newer one is a finding."""
    monkeypatch.setattr(doctoring, "version", lambda _: ray)
    found = doctoring._versions(launched)
    assert found.verdict == verdict
    assert text in found.text


def test_a_ray_without_the_classes_that_launch_is_an_error_of_one_line(monkeypatch):
    """It names what is missing and the versions that have it."""
    monkeypatch.setitem(sys.modules, "ray.autoscaler._private.aws.node_provider", None)
    name = "raysent.cluster.gate"
    source = importlib.util.find_spec(name)
    with pytest.raises(
        CloudError, match=r"^Ray [\d.]+: must have the classes that launch machines \(.*\); 2.52 to 2.60"
    ):
        source.loader.exec_module(importlib.util.module_from_spec(source))


def test_doctor_compares_the_last_head_with_this_raysent(launched, monkeypatch):
    """Another wheel is a finding with the command that applies this one."""
    assert doctoring._versions(launched).verdict == "ok"
    monkeypatch.setattr(doctoring, "wheel_name", lambda: "raysent-0.0+other.whl")
    found = doctoring._versions(launched)
    assert found.verdict == "unknown"
    assert found.text.endswith(f"raysent cluster up {launched.cluster.path} --update")


def test_keep_renews_the_lease_of_a_running_head(launched, account, file, monkeypatch, capsys):
    """It writes the seconds on the head; the time to live stays the limit."""
    ray, raysent, machines = FakeRay(), CommandLine(monkeypatch, capsys), []
    monkeypatch.setattr(launcher_module, "run_process", ray)
    monkeypatch.setattr(launcher_module, "Account", lambda _: SimpleNamespace(machines=lambda _: machines))
    ran = raysent("cluster", "keep", file)
    assert (ran.code, ran.err) == (2, "error: raysent: no head is running; 'raysent cluster up' launches one\n")
    machines.append(SimpleNamespace(is_head=True, expires=NOW + datetime.timedelta(hours=1)))
    ran = raysent("cluster", "keep", file, "--for", "4h")
    assert ran.code == 0
    lease = "~/raysent-fleet/lease"
    command = f"mkdir -p ~/raysent-fleet && echo 14400 > {lease}.new && mv {lease}.new {lease}"
    assert ray.commands == [["exec", str(launched.file), command]]
    assert ran.err.startswith("the head is kept until ")
    assert "its time to live ends it before, at " in ran.err
    launched.token_file.unlink()
    assert "was not launched from this computer" in raysent("cluster", "keep", file).err
