"""The image and the manifest for Kubernetes name what exists.

The fields and their types are those of KubeRay's custom resource RayJob, version ray.io/v1, in which the manifest has
been checked as a whole.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import typer
import yaml

from raysent.cli.app import app
from raysent.preemption.agent import SHUTDOWN_S
from raysent.sweeps.space import find_space, read_space
from raysent.sweeps.space.limits import WorkersToCome

ROOT = Path(__file__).resolve().parent.parent
JOB = {
    "entrypoint": str,
    "submissionMode": str,
    "backoffLimit": int,
    "shutdownAfterJobFinishes": bool,
}
JOB |= {"ttlSecondsAfterFinished": int, "rayClusterSpec": dict}
CLUSTER = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": dict,
    "headGroupSpec": dict,
    "workerGroupSpecs": list,
}
GROUP = {"rayStartParams": dict, "template": dict}
WORKERS = {**GROUP, "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


def _types(values: dict) -> dict:
    return {name: type(value) for name, value in values.items()}


def test_manifest_has_the_fields_of_a_rayjob():
    """Every field, no other; start parameters and amounts are texts."""
    job = yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert [_types(one) for one in (spec, cluster, head, workers)] == [JOB, CLUSTER, GROUP, WORKERS]
    assert _types(cluster["autoscalerOptions"]) == {"version": str, "idleTimeoutSeconds": int}
    for group in (head, workers):
        for container in group["template"]["spec"]["containers"]:
            resources = container["resources"]
            amounts = [*resources["limits"].values(), *group["rayStartParams"].values()]
            assert all(isinstance(amount, str) for amount in amounts)
            assert resources["limits"] == resources["requests"]


def test_manifest_grows_to_the_workers_that_the_sweep_counts_on():
    """From none to the most; each has what a trial is given, and a node agent that ends before its pod."""
    spec = yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text())["spec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    trainer, agent = pod["containers"]
    amounts = trainer["resources"]["limits"]
    _, _, script = shlex.split(spec["entrypoint"])
    setting = next(word for word in shlex.split(script) if word.startswith("cluster.workers="))
    space = read_space(find_space("quickstart"), overrides=[setting])
    assert space.cluster.workers == WorkersToCome(
        count=workers["maxReplicas"],
        cpu=int(amounts["cpu"]),
        gpu=float(amounts["nvidia.com/gpu"]),
    )
    assert workers["minReplicas"] == workers["replicas"] == 0
    assert agent["command"][:3] == ["python", "-m", "raysent.preemption"]
    # SIGTERM is a notice of so many seconds, in which the trials' container lives.
    assert trainer["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", f"{SHUTDOWN_S:g}"]
    assert pod["terminationGracePeriodSeconds"] > SHUTDOWN_S


def test_manifest_runs_commands_that_exist():
    """The entry point resumes the run, or begins it; the version of Ray is the pinned one."""
    spec = yaml.safe_load((ROOT / "deploy/rayjob.yaml").read_text())["spec"]
    _, _, script = shlex.split(spec["entrypoint"])
    names = re.findall(r"raysent (\w+)", script)
    assert names == ["resume", "sweep"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(names) <= commands.keys()
    options = {option for one in commands["sweep"].params for option in one.opts}
    assert set(re.findall(r"--[a-z]+", script)) <= options
    assert (
        f"ray=={spec['rayClusterSpec']['rayVersion']}"
        in (ROOT / "constraints.txt").read_text().split()
    )


def test_image_copies_what_the_package_is_built_from():
    """Each COPY names what exists; files that the wheel takes from outside the package are among them."""
    text = (ROOT / "deploy/Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.*)$", text, re.M) for name in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    forced = (
        (ROOT / "pyproject.toml").read_text().partition("force-include]\n")[2].partition("\n\n")[0]
    )
    assert (
        set(re.findall(r'^"(.*?)"', forced, re.M))
        | {"raysent", "pyproject.toml", "README.md", "LICENSE"}
        <= copied
    )
