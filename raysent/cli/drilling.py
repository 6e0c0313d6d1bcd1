"""`raysent cluster drill`: what is typed, and what is seen."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import typer

from raysent.cli.console import messages, print_json, print_table
from raysent.cluster import DrillResult, Jobs, Launcher, drill, local_cluster, read_cluster, read_token
from raysent.errors import ConfigError
from raysent.storage import address_of

FAILED = 1


def drill_here(*, address: str | None, run: Path | None, notice_s: float, is_agreed: bool, as_json: bool) -> int:
    """Drill on a cluster that stands, or on one of this machine that comes for it; 1 where training did not go on."""
    if address is not None:
        _agree(address, is_agreed=is_agreed)
    with _folder(run) as folder, local_cluster() if address is None else contextlib.nullcontext(address) as where:
        found = drill(where, folder, notice_s=notice_s, on_line=lambda line: messages.print(line, soft_wrap=True))
    if as_json:
        print_json({**asdict(found), "has_continued": found.has_continued})
    else:
        _print_drill(found)
    return 0 if found.has_continued else FAILED


def drill_cluster(file: Path, *, notice_s: float, is_agreed: bool, as_json: bool) -> int:
    """Drill on the machines of a cluster file that stands; 1 where training did not go on."""
    cluster = read_cluster(file)
    _agree(cluster.name, is_agreed=is_agreed)
    launcher = Launcher(cluster)
    token = read_token(launcher.token_file)
    run = f"{cluster.settings.storage}/drill-{time.strftime('%Y%m%d-%H%M%S')}"
    options = ["--address", "auto", "--run", run, "--notice", f"{notice_s:g}s", "--yes", "--json"]
    said: list[str] = []
    with launcher.tunnel() as address, tempfile.TemporaryDirectory(prefix="raysent-drill-") as folder:
        jobs = Jobs(address, token=token)
        job = jobs.submit(
            ["python", "-m", "raysent", "cluster", "drill", *options], folder=Path(folder), environment={}
        )
        ended = jobs.follow(job, said.append)
    begin = next((number for number, line in enumerate(said) if line == "{"), None)
    if begin is None:
        for line in said or [ended.message]:
            messages.print(line, soft_wrap=True)
        return ended.code or FAILED
    values = json.loads("\n".join(said[begin:]))
    if as_json:
        print_json(values)
    else:
        values.pop("has_continued")
        _print_drill(DrillResult(**values))
    return ended.code


def _agree(where: str, *, is_agreed: bool) -> None:
    """Ask before a node of somebody's cluster is killed.

    Raises:
        ConfigError: If nobody can be asked.
    """
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{where}: a node of it would be killed; say --yes")
    typer.confirm(f"A node of {where} will be killed. Go on?", default=False, abort=True, err=True)


@contextlib.contextmanager
def _folder(run: Path | None) -> Iterator[Path]:
    """Yield the folder that is named, which must be empty, or one that is gone afterwards."""
    if run is None:
        with tempfile.TemporaryDirectory(prefix="raysent-drill-", ignore_cleanup_errors=True) as scratch:
            yield Path(scratch) / "run"
        return
    if run.exists() and any(run.iterdir()):
        raise ConfigError(f"{address_of(run)}: is not empty; name another --run")
    yield run


def _print_drill(found: DrillResult) -> None:
    """Print what happened, in order."""

    def after(seconds: float | None) -> str:
        return "never" if seconds is None else f"{seconds:.1f} s"

    rows = [
        ("the training heard of it", after(found.notice_s)),
        ("a checkpoint was there", after(found.checkpoint_s)),
        (f"node {found.node} was killed", after(found.killed_s)),
    ]
    if found.continued_s is None:
        rows.append(("training went on", "never"))
    else:
        rows.append((f"training went on, on node {found.continued_on}", after(found.continued_s)))
        rows.append(("from step", f"{found.step:,}"))
        rows.append(("steps done again", f"{found.steps_lost:,}"))
    print_table(["after the notice", ""], rows)
