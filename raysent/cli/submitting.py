"""`raysent sweep --cluster`: the cluster comes, the sweep is submitted and followed, its results come home, it goes."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raysent.artifacts import write_json
from raysent.cli.console import default_folder, messages, print_json, results
from raysent.cli.live import EVENT_MARK, EVENTS_VARIABLE, SweepView
from raysent.cloud.cluster import ClusterFile, Ended, Jobs, Launcher, bring_home, read_cluster, read_token, ship
from raysent.config import Override
from raysent.cost import parse_money, snapshot
from raysent.errors import ConfigError
from raysent.search_space import SearchSpace, find_space, read_space
from raysent.sweep import CAPACITY_VARIABLE

INTERRUPTED = 130
_SPACE_FOLDER = "space"


class Cluster(Protocol):
    """What a submission needs of a cluster's launcher."""

    @property
    def token_file(self) -> Path:
        """The file that holds its token."""

    def up(self, *, sweep: str, hear: Callable[[str], object]) -> None:
        """Bring it up."""

    def down(self, *, hear: Callable[[str], object]) -> None:
        """Take it down."""

    def tunnel(self) -> AbstractContextManager[str]:
        """Yield the address of its job API."""


@dataclass(frozen=True)
class Submission:
    """One sweep for a cluster.

    Attributes:
        space: What is swept, overrides put in.
        run: The folder here that results come to.
        remote: Where the run is kept meanwhile: `s3://…`, or a folder that the cluster shares with this machine.
        options: What else follows `raysent sweep SPACE` on the head.
        capacity: The most cores and GPUs that its workers have together.
        data: Task files here; None for the embedded tasks.
    """

    space: SearchSpace
    run: Path
    remote: str
    options: Sequence[str]
    capacity: dict[str, float]
    data: Path | None = None


def sweep(
    name: str,
    *,
    cluster: Path,
    overrides: Sequence[Override],
    run: Path | None,
    seed: int | None,
    data: Path | None,
    tasks: str | None,
    is_kept: bool,
    as_json: bool,
) -> int:
    """Sweep on a cluster that comes for it and goes after it; returns the exit code."""
    file = read_cluster(cluster)
    space = _priced(find_space(name), overrides, file)
    folder = run or default_folder(space.name)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; name another --run")
    given = {"--seed": seed, "--tasks": tasks}
    options = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
    machines = _num_machines(file, space)
    submission = Submission(
        space,
        folder,
        f"{file.settings.storage}/{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}",
        [*options, *(["--json"] if as_json else [])],
        {"CPU": machines * _least(file, "CPU"), "GPU": machines * _least(file, "GPU")},
        data,
    )
    return run_on(Launcher(file), submission, is_kept=is_kept, as_json=as_json)


def run_on(launcher: Cluster, submission: Submission, *, is_kept: bool = False, as_json: bool = False) -> int:
    """Bring a cluster up, run a submission on it, bring the results home, and take it down whatever happened.

    Args:
        launcher: The cluster's.
        submission: The sweep.
        is_kept: Whether the cluster stays afterwards.
        as_json: Whether standard output gets one JSON object.

    Returns:
        The sweep's own exit code; 130 if it was interrupted.
    """
    hear = _quiet if as_json else _say
    try:
        launcher.up(sweep=submission.run.name, hear=hear)
        with launcher.tunnel() as address:
            return submit(address, read_token(launcher.token_file), submission, as_json=as_json)
    except KeyboardInterrupt:
        messages.print("interrupted")
        return INTERRUPTED
    finally:
        if is_kept:
            messages.print("the cluster stays, and is paid for, until 'raysent cluster down'", soft_wrap=True)
        else:
            with _uninterrupted():
                launcher.down(hear=hear)


def submit(address: str, token: str, submission: Submission, *, as_json: bool = False) -> int:
    """Run a submission through a job API; results come home however it ends.

    Args:
        address: Of the job API, as in http://127.0.0.1:8265.
        token: The cluster's token.
        submission: The sweep.
        as_json: Whether standard output gets one JSON object.

    Returns:
        The sweep's own exit code; 130 if it was interrupted.
    """
    jobs = Jobs(address, token=token)
    with tempfile.TemporaryDirectory(prefix="raysent-submit-") as scratch:
        command = _packed(submission, Path(scratch))
        surroundings = {EVENTS_VARIABLE: "1", CAPACITY_VARIABLE: json.dumps(submission.capacity)}
        job = jobs.submit(command, folder=Path(scratch), environment=surroundings)
    said: list[str] = []
    try:
        ended = _follow(jobs, job, submission.space, said, as_json=as_json)
    except KeyboardInterrupt:
        messages.print("interrupted; the sweep is asked to stop")
        with _uninterrupted():
            jobs.stop(job)
            ended = Ended(INTERRUPTED)
    with _uninterrupted():
        bring_home(submission.remote, submission.run)
    _tell(said, ended, submission, as_json=as_json)
    return ended.code


def _packed(submission: Submission, folder: Path) -> list[str]:
    """Put the space and the local files that it names into a folder; returns the head's command."""
    space = submission.space
    path = folder / _SPACE_FOLDER / f"{space.name}.yaml"
    write_json(path, ship(space.document.values, folder))
    command = ["python", "-m", "raysent", "sweep", str(path.relative_to(folder)), "--run", submission.remote]
    if submission.data is not None:
        command += ["--data", str(ship(f"{submission.data.absolute()}", folder))]
    return [*command, "--address", "auto", "--yes", *submission.options]


def _follow(jobs: Jobs, job: str, space: SearchSpace, said: list[str], *, as_json: bool) -> Ended:
    """Show a job's sweep as one of this machine is shown; what else it says is kept for its end."""
    with SweepView(messages, title=space.name, metric=space.metric, mode=space.mode, is_quiet=as_json) as view:

        def hear(line: str) -> None:
            if not line.startswith(EVENT_MARK):
                said.append(line)
                return
            # A line that a killed process left half is no event.
            with contextlib.suppress(json.JSONDecodeError):
                view.hear(json.loads(line.removeprefix(EVENT_MARK)))

        return jobs.follow(job, hear)


def _tell(said: Sequence[str], ended: Ended, submission: Submission, *, as_json: bool) -> None:
    """Print what the sweep itself printed."""
    # Where the run was, is here now.
    said = [line.replace(submission.remote, str(submission.run)) for line in said]
    begin = next((number for number, line in enumerate(said) if line == "{"), None)
    if as_json and begin is not None:
        print_json(json.loads("\n".join(said[begin:])))
        return
    for line in said:
        (messages if ended.code else results).print(line, soft_wrap=True)
    if ended.message:
        messages.print(f"error: the job could not run: {ended.message}", soft_wrap=True)
    messages.print(f"results: {submission.run}", soft_wrap=True)


def _priced(path: Path, overrides: Sequence[Override], file: ClusterFile) -> SearchSpace:
    """Return a space that says what a machine costs: where it does not, the dearest one's list price on demand."""
    space = read_space(path, overrides=overrides)
    if space.cost.usd_per_hour is not None:
        return space
    usd = max(snapshot().on_demand(kind, file.region).usd_per_hour for kind in file.instance_types)
    return read_space(path, overrides=[*overrides, Override("cost.usd_per_hour", usd, f"--cluster {file.path}")])


def _num_machines(file: ClusterFile, space: SearchSpace) -> int:
    """Return how many workers may stand at once: as the file says, and as the dollars an hour allow.

    Raises:
        ConfigError: If not even one is allowed beside the head.
    """
    most = int(file.document.values["max_workers"])
    if space.cost.max_hourly is None or not space.cost.usd_per_hour:
        return most
    allowed = int(parse_money(space.cost.max_hourly) / space.cost.usd_per_hour) - 1
    if allowed < 1:
        raise ConfigError(
            f"--max-hourly: must allow for the head and one worker, {2 * space.cost.usd_per_hour:.2f} usd an hour at "
            f"most; given {parse_money(space.cost.max_hourly):.2f}"
        )
    return min(most, allowed)


def _least(file: ClusterFile, resource: str) -> float:
    """Return how much of a resource every kind of worker has at least."""
    head = file.document.values["head_node_type"]
    return min(float(kind["resources"].get(resource, 0)) for name, kind in file.node_types.items() if name != head)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a first Ctrl-C inside the block pass: what it would leave costs money."""
    try:
        yield
    except KeyboardInterrupt:
        messages.print("still cleaning up; what is left costs money: 'raysent cluster down'", soft_wrap=True)
        raise


def _say(line: str) -> None:
    messages.print(line, style="dim", soft_wrap=True)


def _quiet(_: str) -> None:
    """Say nothing."""


__all__ = ["Submission", "run_on", "submit", "sweep"]
