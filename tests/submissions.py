"""Sweeps submitted to a cluster that is not there: a toy space, a launcher and a job API that only record."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from command import SPACE
from tiny_run import write_corpus

from raysent.cluster import ConnectionLostError, SweepJob
from raysent.cluster.following import JobRecord, write_record
from raysent.cluster.launcher import make_token
from raysent.cluster.submission import Submission, run_submission, submit
from raysent.config import parse_yaml
from raysent.errors import CloudError
from raysent.storage import write_json_lines
from raysent.sweeps import Workers
from raysent.sweeps.space import parse_space

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
CANARY = "AKIACANARYCANARYCANA"


def toy_space(folder: Path, *, trials: int | str = 2, epochs: float = 1.0) -> Path:
    """Write a search space, and its corpus; more limits may follow the number of trials."""
    corpus = write_corpus(folder)
    path = folder / "toy.yaml"
    text = SPACE.replace("trials: 4", f"trials: {trials}").replace("text.txt", str(corpus))
    text = text.replace("epochs: 1.0", f"epochs: {epochs}")
    path.write_text(text + "evaluation: {tasks: []}\n")
    return path


def own_cluster_file(path: Path, *, bucket: str = "my-bucket") -> Path:
    """Write the shipped cluster file with a name, an image and an operator that need no request."""
    text = SHIPPED.read_text(encoding="utf-8").replace("operator: auto", "operator: 203.0.113.7/32")
    text = re.sub("cluster_name: .*", "cluster_name: raysent", text.replace("my-bucket", bucket))
    path.write_text(text.replace("image: /aws", "image: ami-12c6146b  # /aws"), encoding="utf-8")
    return path


def new_submission(folder: Path, **changes) -> Submission:
    """Return a submission of the toy space."""
    values = {
        "run": folder / "run",
        "remote": str(folder / "remote"),
        "options": [],
        "workers": Workers(2, 1),
    }
    space = parse_space(parse_yaml(SPACE + "evaluation: {tasks: []}\n"), name="toy")
    return Submission(**{"space": space, **values, **changes})


def store_run(folder: Path, *events, **changes) -> JobRecord:
    """Store a submitted sweep as its head does."""
    space = {"name": "toy", "values": parse_yaml(SPACE).values}
    record = JobRecord(**{"job": "job", "cluster": "", "region": "", "space": space, **changes})
    write_record(str(folder / "remote"), record)
    if events:
        write_json_lines(folder / "remote" / "journal.jsonl", events)
    return record


class FakeLauncher:
    """A fake launcher that records its calls.

    Attributes:
        is_alive: Whether the cluster has a head.
    """

    is_alive = True
    name, trouble = "raysent", ""

    def __init__(
        self,
        folder: Path,
        *,
        fails: bool = False,
        is_new: bool = True,
        others: tuple[str, ...] = (),
    ) -> None:
        self.token_file = folder / "token"
        make_token(self.token_file)
        self.calls: list[str] = []
        self._fails, self._is_new, self._others = fails, is_new, list(others)
        self.has_launched, self.stays = False, False

    def up(self, *, sweep, is_kept, inputs, on_line) -> bool:
        """Start, or fail halfway; or find a head that is running."""
        self.calls.append(f"up {sweep}")
        self.has_launched = self._is_new
        if self._fails:
            raise CloudError("raysent: 'ray up' ended with exit code 1: no capacity")
        return self._is_new

    def forget_inputs(self, sweep) -> None:
        """Record it."""
        self.calls.append(f"forget {sweep}")

    @property
    def account(self) -> SimpleNamespace:
        """The account, with the workers of other sweeps."""
        workers = [SimpleNamespace(sweep=name, is_head=False) for name in self._others]
        return SimpleNamespace(machines=lambda _: workers)

    def down(self, *, on_line) -> None:
        """Terminate."""
        self.calls.append("down")

    def is_running(self) -> bool:
        """Return whether the cluster has a head."""
        return self.is_alive

    @contextmanager
    def tunnel(self):
        """Yield an address where nothing listens."""
        self.calls.append("tunnel")
        yield "http://127.0.0.1:9"
        self.calls.append("tunnel closed")


class FakeJobs:
    """A fake job API whose job stores a run that has ended, or is interrupted; its connections break.

    Attributes:
        cuts: For each connection, whether it breaks before the submission is answered; else it breaks afterwards.
        known: Names of jobs of the run, and whether each has ended.
    """

    def __init__(self, *events, code=0, lines=(), cuts=(), failure=None) -> None:
        self._events, self._ends, self._failure = (
            events,
            {"code": code, "lines": list(lines)},
            failure,
        )
        self.cuts, self.known, self.num_submitted = list(cuts), {}, 0

    def __call__(self, address, *, token) -> FakeJobs:
        """Connect."""
        return self

    def of_run(self, run) -> dict[str, bool]:
        """Return the known jobs."""
        return self.known

    def other_runs(self, run) -> list[str]:
        """Return no other run."""
        return []

    def submit(self, command, *, folder, environment, name, run) -> str:
        """Keep the job."""
        self.command, self.environment, self._run = command, environment, run
        self.sent = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")
        }
        self.num_submitted += 1
        self.known[name] = False
        if self.cuts[:1] == [True]:
            raise ConnectionLostError(f"cut {self.cuts.pop(0)}")
        return name

    def failure_to_start(self, name) -> str | None:
        """Store the run's end."""
        if self.cuts:
            raise ConnectionLostError(f"cut {self.cuts.pop(0)}")
        if self._ends["code"] is None:
            raise KeyboardInterrupt
        if self._failure is None:
            store_run(Path(self._run).parent, *self._events, **self._ends)
        return self._failure


def run_on(launcher, tmp_path, *, keep=False):
    """Run a submission on a cluster from its launch to its end."""
    say = partial(print, file=sys.stderr)
    return run_submission(
        launcher, new_submission(tmp_path), on_event=lambda _: None, say=say, keep=keep
    )


def submit_once(submitted, folder, *, on_event=lambda _: None, say=lambda _: None):
    """Submit to a cluster that is up."""
    return submit(FakeLauncher(folder), SweepJob(submitted, on_event), say=say)
