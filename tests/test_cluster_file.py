"""`cluster.yaml` against Ray's schema, AWS's parameters and the rules of safety, without a cloud."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from ray.autoscaler._private.util import hash_launch_conf, prepare_config, validate_config
from submissions import SHIPPED

from raysent.cluster import head_policy, read_cluster, self_destruct, worker_policy
from raysent.cluster.policies import input_policy, s3_addresses
from raysent.errors import ConfigError

VALUES = {
    "cluster": "raysent", "sweep": "novels", "expires": "2026-01-02T00:00:00Z", "security_group": "sg-1", "image": "ami-1",
    "head_profile": "head", "worker_profile": "worker", "self_destruct": "#!/bin/sh", "token_file": "/home/me/token",
    "wheel_folder": "/home/me/wheel", "wheel": "raysent-1-py3-none-any.whl", "ray_version": "2.60.0",
    "node_types": "spot-g6=30/spot",
}  # fmt: skip
ACCOUNT = "123456789012"


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    """Write the shipped file with all occurrences of a text replaced."""
    text = SHIPPED.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def _statements(policy: dict) -> dict[str, dict]:
    return {statement["Sid"]: statement for statement in policy["Statement"]}


def test_shipped_cluster_passes_rays_schema_before_and_after_rendering():
    """No placeholder is left."""
    cluster = read_cluster(SHIPPED)
    rendered = cluster.render(VALUES)
    for values in (cluster.document.values, rendered):
        validate_config(prepare_config(copy.deepcopy(values)))
    assert "{{" not in json.dumps(rendered)
    assert rendered["setup_commands"][-1].endswith(
        'file:///home/ubuntu/raysent-wheel/raysent-1-py3-none-any.whl"'
    )


def test_shipped_cluster_spreads_spot_workers_and_scales_to_zero():
    """An on-demand head, three spot types over several zones, on-demand workers last, no idle workers."""
    cluster = read_cluster(SHIPPED)
    spot = {
        name
        for name, kind in cluster.node_types.items()
        if "InstanceMarketOptions" in kind["node_config"]
    }
    assert len({cluster.node_types[name]["node_config"]["InstanceType"] for name in spot}) >= 3
    assert len(cluster.document.values["provider"]["availability_zone"].split(",")) >= 3
    assert "head" not in spot
    workers = {name: kind for name, kind in cluster.node_types.items() if name != "head"}
    assert {kind["min_workers"] for kind in workers.values()} == {0}
    assert min(workers, key=lambda name: workers[name]["priority"]) not in spot


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('cluster_name: "raysent-{{ user }}"', "cluster_nam: raysent", "not allowed ('cluster_nam' was unexpected)"),
        ("max_workers: 8\n\n", "max_workers: eight\n\n", "max_workers: 'eight' is not of type 'integer'"),
        ('cluster_name: "raysent-{{ user }}"', "", "cluster_name: must be given"),
        ("type: aws", "type: gcp", "provider.type: must be aws; given 'gcp'"),
        ("  region: us-east-1\n", "", "provider: must name a region"),
        ('cluster_name: "raysent-{{ user }}"', "cluster_name: Ray Sent", "cluster_name: must be at most 40 letters a-z"),
        ("MetadataOptions:", "MetadataOption:", "MetadataOption: unknown to AWS; did you mean 'MetadataOptions'?"),
        ("VolumeSize: 150", "VolumeSize: big", "Invalid type for parameter BlockDeviceMappings[0].Ebs.VolumeSize"),
        ("labels: {market: spot, instance-type: g5.xlarge}", "labels: {market: spot}", "spot-g5.labels: must have instance-type: g5.xlarge, which determines its price"),
        ("labels: {market: spot, instance-type: g5.xlarge}", "labels: {market: on-demand, instance-type: g5.xlarge}", "spot-g5.labels: must have market: spot, which"),
        ("export RAY_AUTH_MODE=token; ", "export RAY_AUTH_MODE=token RAY_enable_autoscaler_v2=0; ", "must not set RAY_enable_autoscaler_v2=0"),
        ("    max_workers: 0\n", "    max_workers: 2\n", "available_node_types.head.max_workers: must be 0"),
        ("{CPU: 0, raysent_driver: 64}", "{CPU: 4, raysent_driver: 64}", "head.resources: must have CPU: 0"),
        ("{CPU: 0, raysent_driver: 64}", "{CPU: 0}", "must have raysent_driver: 64"),
        ("{CPU: 4, GPU: 1}", "{}", "must name CPU, and GPU if it has one"),
        ("min_workers: 0", "min_workers: 1", "must be 0, so that no machine waits for work"),
        ("cache_stopped_nodes: false", "cache_stopped_nodes: true", "must have cache_stopped_nodes: false"),
        ("{{ wheel }}", "raysent.whl", "setup_commands: must install '{{ wheel }}'"),
        ("Value: \"{{ cluster }}\"}", "Value: \"{{ cluster }}\"}\n            - {Key: raysent-expires, Value: soon}", "must not tag the instance raysent-expires; raysent adds it at launch"),
        ("{Key: raysent-cluster, Value", "{Value", "must tag the instance raysent-cluster: '{{ cluster }}'"),
        ("ResourceType: volume", "ResourceType: subnet", "must tag the volume raysent-cluster"),
        ("ShutdownBehavior: terminate", "ShutdownBehavior: stop", "must have InstanceInitiatedShutdownBehavior: terminate"),
        ("{{ self_destruct }}", "", "must have '{{ self_destruct }}' in UserData"),
        ("HttpTokens: required", "HttpTokens: optional", "must have HttpTokens: required (IMDSv2)"),
        ("HopLimit: 1", "HopLimit: 2", "must have HttpPutResponseHopLimit: 1"),
        ('SecurityGroupIds: ["{{ security_group }}"]', "SecurityGroupIds: [sg-9]", "Ray's default allows the whole internet"),
        ("{{ worker_profile }}", "{{ head_profile }}", "must be {Name: '{{ worker_profile }}'}"),
        ("export RAY_AUTH_MODE=token; ", "", "head_start_ray_commands: must export RAY_AUTH_MODE=token before 'ray start'"),
        ("chmod 600", "chmod 644", "setup_commands: must 'chmod 600 ~/.ray/auth_token'"),
        ('.ray/auth_token: "{{ token_file }}"', 'token: "{{ token_file }}"', "must put '{{ token_file }}' at ~/.ray/auth_token"),
        ("--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0", "must have --dashboard-host=127.0.0.1"),
        ("use_internal_ips: false", "aws_credentials: {}", "provider.aws_credentials: must not be in a file"),
        ("operator: auto", "operator: 0.0.0.0/0", "metadata.raysent.operator: must be at most 256 addresses"),
        ("operator: auto", "operator: '2001:db8::7/128'", "must be auto or an address such as 203.0.113.7/32; given '2001:db8::7/128'"),
        ("operator: auto", "operator: me", "must be auto or an address such as 203.0.113.7/32; given 'me'"),
        ("storage: s3://my-bucket/raysent", "storage: /home", "must look like s3://bucket/prefix; given '/home'"),
        ("time_to_live: 24h", "time_to_life: 24h", "metadata.raysent.time_to_life: unknown name; did you mean 'time_to_live'?"),
    ],
)  # fmt: skip
def test_read_cluster_rejects(tmp_path, old, new, error):
    """Each rule raises an error of one line with the file and what must hold."""
    with pytest.raises(ConfigError, match=re.escape(error)) as raised:
        read_cluster(_changed(tmp_path, old, new))
    assert str(raised.value).startswith(f"{tmp_path}/cluster.yaml:")
    assert "\n" not in str(raised.value)


def test_read_cluster_rejects_missing_setup_commands(tmp_path):
    """Ray's default installs a nightly build of Ray."""
    text = re.sub(
        r"^setup_commands:\n(  .*\n)+",
        "setup_commands: []\n",
        SHIPPED.read_text(),
        count=1,
        flags=re.MULTILINE,
    )
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match="setup_commands: must be given; Ray's default installs a nightly build"
    ):
        read_cluster(tmp_path / "cluster.yaml")


def test_read_cluster_rejects_missing_and_large_files(tmp_path):
    """No such file; more than a million bytes."""
    with pytest.raises(ConfigError, match="no such file"):
        read_cluster(tmp_path / "none.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="must be at most 1,000,000 bytes"):
        read_cluster(tmp_path / "big.yaml")


def test_render_rejects_an_unknown_placeholder():
    """The error names the nearest placeholder."""
    cluster = read_cluster(SHIPPED)
    cluster.document.values["initialization_commands"] = ["echo {{ sweeep }}"]
    with pytest.raises(
        ConfigError, match=r"'\{\{ sweeep \}\}' has no value; did you mean 'sweep'\?"
    ):
        cluster.render(VALUES)


def test_render_values_cannot_change_the_structure():
    """A value stays one text."""
    rendered = read_cluster(SHIPPED).render(
        {**VALUES, "cluster": "x}, {Key: raysent-sweep, Value: other"}
    )
    (tag,) = rendered["available_node_types"]["head"]["node_config"]["TagSpecifications"][0]["Tags"]
    assert tag == {"Key": "raysent-cluster", "Value": "x}, {Key: raysent-sweep, Value: other"}


@pytest.mark.parametrize(
    ("uptime_s", "has_raylet", "alone_s", "lease", "ends"),
    [
        (100, True, 0, None, False),
        (86_400, True, 0, None, True),
        (1000, False, 899 - 60, None, False),  # still starting, or its Ray has just ended
        (1000, False, 901, None, True),
        (1000, True, 901, None, False),
        (1000, True, 0, (3600, 3500), False),
        (1000, True, 0, (3600, 3601), True),
    ],
)
def test_self_destruct_ends_machines_that_are_old_or_without_ray_or_lease(
    tmp_path, uptime_s, has_raylet, alone_s, lease, ends
):
    """A shell runs the script of the cron job with fakes of uptime, processes and shutdown."""
    script = self_destruct(read_cluster(SHIPPED))
    line = re.search(r"<<'END'\n(.*?)^END$", script, re.MULTILINE | re.DOTALL)[1]
    for old, new in {
        "/var/lib/raysent": str(tmp_path), "/home/ubuntu/raysent-fleet": str(tmp_path), "/sbin/shutdown": "shutdown",
        "/proc/uptime": f"{tmp_path}/uptime",
    }.items():  # fmt: skip
        assert old in line
        line = line.replace(old, new)
    (tmp_path / "uptime").write_text(f"{uptime_s}.5 1.0\n")
    for name, body in {
        "shutdown": f"touch {tmp_path}/ended",
        "pgrep": f"exit {int(not has_raylet)}",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "alive").touch()
    os.utime(tmp_path / "alive", (time.time() - alone_s,) * 2)
    if lease is not None:
        (tmp_path / "lease").write_text(str(lease[0]))
        os.utime(tmp_path / "lease", (time.time() - lease[1],) * 2)
    subprocess.run(
        ["sh", "-c", line],
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert (tmp_path / "ended").exists() is ends


def test_launch_hash_is_the_same_for_every_sweep_and_time():
    """Ray relaunches a head whose hash differs; the tags of a sweep are in the provider's section."""
    cluster = read_cluster(SHIPPED)
    first, second = (cluster.render({**VALUES, "sweep": name}) for name in ("one", "two"))
    hashes = [
        hash_launch_conf(values["available_node_types"][name]["node_config"], values["auth"])
        for values in (first, second)
        for name in cluster.node_types
    ]
    assert hashes[: len(cluster.node_types)] == hashes[len(cluster.node_types) :]
    assert [values["provider"]["raysent"]["tags"] for values in (first, second)] == [
        {"raysent-sweep": "one"}, {"raysent-sweep": "two"}
    ]  # fmt: skip


def test_head_policy_starts_only_listed_types_with_the_tag():
    """RunInstances requires type, tag and IMDSv2; only Describe is allowed on all resources."""
    statements = _statements(head_policy(read_cluster(SHIPPED), account=ACCOUNT))
    condition = statements["StartListedTypes"]["Condition"]["StringEquals"]
    assert condition["ec2:InstanceType"] == ["g4dn.xlarge", "g5.xlarge", "g6.xlarge", "m5.xlarge"]
    assert condition["aws:RequestTag/raysent-cluster"] == read_cluster(SHIPPED).name
    assert condition["ec2:MetadataHttpTokens"] == "required"
    assert [sid for sid, statement in statements.items() if statement["Resource"] == "*"] == [
        "Describe"
    ]
    assert not any(
        ":instance/*" in resource for resource in statements["UseImagesAndNetwork"]["Resource"]
    )


def test_head_policy_terminates_only_tagged_machines_and_cannot_tag_others():
    """TerminateInstances requires the tag; only Ray's tags can be set after the start."""
    statements = _statements(head_policy(read_cluster(SHIPPED), account=ACCOUNT))
    assert statements["TerminateCluster"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/raysent-cluster": read_cluster(SHIPPED).name}
    }
    assert statements["TagCluster"]["Condition"]["ForAllValues:StringLike"] == {
        "aws:TagKeys": ["ray-*", "Name"]
    }
    assert statements["TagAtStart"]["Condition"] == {
        "StringEquals": {"ec2:CreateAction": "RunInstances"}
    }


def test_head_policy_passes_one_role():
    """PassRole is limited to the workers' role, for EC2."""
    passed = _statements(head_policy(read_cluster(SHIPPED), account=ACCOUNT))["PassWorkerRole"]
    assert (
        passed["Resource"]
        == f"arn:aws:iam::{ACCOUNT}:role/{read_cluster(SHIPPED).name}-raysent-worker"
    )
    assert passed["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def test_worker_policy_allows_the_prefix_only(tmp_path):
    """No EC2, no IAM; only objects below the prefix."""
    statements = _statements(worker_policy(read_cluster(SHIPPED)))
    assert statements["ReadWriteRuns"]["Resource"] == "arn:aws:s3:::my-bucket/raysent/*"
    assert statements["ListRuns"]["Condition"] == {
        "StringLike": {"s3:prefix": ["raysent", "raysent/*"]}
    }
    actions = {
        action
        for statement in statements.values()
        for action in [statement["Action"]]
        if isinstance(action, str)
    }
    assert actions | set(statements["ReadWriteRuns"]["Action"]) == {
        "s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload",
    }  # fmt: skip
    bare = read_cluster(_changed(tmp_path, "s3://my-bucket/raysent", "s3://my-bucket"))
    assert (
        _statements(worker_policy(bare))["ReadWriteRuns"]["Resource"] == "arn:aws:s3:::my-bucket/*"
    )


def test_limited_cluster_has_fewer_workers_of_one_market():
    """The limit holds for each type, types of the other market have none, and the original is unchanged."""
    cluster = read_cluster(SHIPPED)
    few = cluster.limited(num_workers=3)
    assert few.max_workers == 3
    assert {name: kind["max_workers"] for name, kind in few.worker_types.items()} == {
        "spot-g6": 3, "spot-g5": 3, "spot-g4dn": 3, "on-demand-g4dn": 2,
    }  # fmt: skip
    on_demand = cluster.limited(num_workers=8, market="on-demand")
    assert on_demand.max_workers == 2
    assert list(on_demand.worker_types) == ["on-demand-g4dn"]
    assert cluster.max_workers == 8
    validate_config(prepare_config(copy.deepcopy(on_demand.render(VALUES))))


def test_cluster_without_max_workers_has_as_many_as_ray_gives_it(tmp_path):
    """Two, whatever its types may have."""
    assert read_cluster(_changed(tmp_path, "max_workers: 8\n\n", "")).max_workers == 2


def test_limited_cluster_rejects_a_market_without_workers(tmp_path):
    """The error names the node types."""
    text = SHIPPED.read_text()
    start, end = text.index("  on-demand-g4dn:"), text.index("file_mounts:")
    (tmp_path / "cluster.yaml").write_text(text[:start] + text[end:])
    with pytest.raises(
        ConfigError, match="must have a worker of cost.market, with labels: {market: on-demand}"
    ):
        read_cluster(tmp_path / "cluster.yaml").limited(num_workers=8, market="on-demand")


def test_input_policy_reads_what_a_space_names_and_nothing_else():
    """Addresses of files, folders and patterns, each bucket and prefix once."""
    values = {
        "corpus": {"path": ["s3://text/books/*.txt", "s3://text/books/a.txt"]},
        "x": ["s3://other", "local.txt"],
    }
    assert s3_addresses(values) == ["s3://other", "s3://text/books/*.txt", "s3://text/books/a.txt"]
    statements = _statements(input_policy(s3_addresses(values)))
    assert {
        action
        for one in statements.values()
        for action in one["Action"]
        if isinstance(one["Action"], list)
    } == {"s3:GetObject"}
    granted = [one["Resource"] for one in statements.values()]
    assert ["arn:aws:s3:::text/books", "arn:aws:s3:::text/books/*"] in granted
    assert "arn:aws:s3:::other/*" in granted


def test_inputs_are_the_tables_of_tasks_too():
    """With settings as text or as JSON, with a name, and a table for each split."""
    splits = json.dumps({"path": {"train": "s3://t/train.csv", "test": "s3://t/test.csv"}})
    tasks = [
        "s3://t/a.csv:text=body,label=stars",
        json.dumps({"path": "s3://t/b.csv", "text": "body"}),
        "r=s3://t/c.csv",
    ]
    assert s3_addresses(
        [{"evaluation": {"tasks": [*tasks, "docs-library"]}}, [splits, "s3://t/d.csv"]]
    ) == [f"s3://t/{name}.csv" for name in ("a", "b", "c", "d", "test", "train")]
