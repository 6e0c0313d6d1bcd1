"""Kill commands at random moments, damage random files, and compare what comes out with what comes out undisturbed.

    python -m benchmarks.kills [--ray 150] [--others 350] [--damages 500] [--faults 500] [--seed 0] [--folder FOLDER]

A kill ends one process of a command by SIGKILL: the command itself, or one that it has started (Ray's control service,
its node, a worker; a reader of text). Then the command is given again, or what continues it. Its files must be those of
an undisturbed one: every value in JSON, every byte elsewhere, but for times. What hangs on the clock (a sweep with a
budget or a deadline) must keep what it had, have every report once, and stay within its budget. A damage flips a bit,
cuts, empties, zeroes, overwrites or removes part of a file of a run, a model, an ensemble, the cache or an index; then
a command reads it. An array of numpy that a user keeps has no hash, so no command could tell.

    same        the command ends well, and its files are those of an undisturbed one
    continued   it was killed, or told in one line that it cannot go on; given again it ends well, its files the same
    refused     one line says what is damaged
    said        it ends well with other files, and a line names the damaged file
    lost        whole lines are gone from the end of a journal or a ledger, as if its writer had been killed before
                them, and nothing tells: no trial went on after them, and no money is gone that the journal has seen
    VIOLATION   anything else: a crash, a traceback, no line, several lines, other files in silence, no end, an orphan

Cases are kept in the folder, and the same command continues with what is missing. The exit code is the number of
violations, at most 100. Commands run in processes that are forked from this one, which has the libraries imported.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# Imported for the processes that are forked from this one.
import torch

import raysent.cli
import raysent.pipeline
import raysent.report
from benchmarks.simulation import replay
from raysent.errors import ExitCode
from raysent.reproduction.tasks import senteval
from raysent.sweeps import load_record, read_events

LIMIT_S, ORPHANS_S, LOOK_S = 1800.0, 180.0, 0.02
# The line of a process that was ended comes after it.
LINE_S = 0.5
VIOLATION = "VIOLATION"
# Files whose lines a sweep appends one by one.
APPENDED = ("journal.jsonl", "ledger.jsonl")
# Files that hold times, or how often a command was started; what they say is compared by `doctor`.
UNCOMPARED = {
    "journal.jsonl",
    "ledger.jsonl",
    "report.html",
    "sweep.json",
    "run.lock",
}
# Values that hang on the clock or on kills.
TIMED = {
    "steps_lost",
    "seconds",
    "hours",
    "training_hours",
    "memory_bytes",
    "time",
    "spent_usd",
    "training_s",
    "encode_ms",
    "step_s",
    "choices",
    "digest",  # of what holds times
    "checksum",
}
# In prose too, of two measured times, which are left unsaid where they are alike.
TIMES = re.compile(rb"(?: and|, which is)? [\d.,]+ times (?:faster|slower)")

TEXT_SPACE = """
metric: context_accuracy
base:
  corpus: {path: text.txt, validation_fraction: 0.2}
  vocabulary: {size: 200}
  encoder: {type: gru, hidden_size: 8, embedding: {dim: 6}}
  objective: {type: context_prediction}
  training: {batch_size: 24, learning_rate: 0.01, epochs: 12.0, num_reports: 4}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  training.learning_rate: {loguniform: [1.0e-3, 1.0e-2]}
limits: {trials: 3, sampler: random, scheduler: {type: none}}
evaluation: {tasks: [reviews.csv], baselines: false}
"""


@dataclass(frozen=True)
class Command:
    """A command as it is typed in the folder of a case.

    Attributes:
        typed: What stands after `raysent`.
        makes: Files and folders that it makes; `-` is its standard output.
        again: What continues it; by default the same.
        is_on_ray: Whether it starts Ray.
        is_timed: Whether its files hang on the clock.
        damages: Files and folders that it reads, which are damaged.
    """

    typed: str
    makes: tuple[str, ...] = ()
    again: str = ""
    is_on_ray: bool = False
    is_timed: bool = False
    damages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the table calls it."""
        words = self.typed.split()
        return " ".join([words[0], *(word for word in words if word.startswith(_MARKS))])


_MARKS = ("--budget", "--deadline", "seeds=", "--into", "workers=")


ENSEMBLE = "ensemble model other --task reviews.csv --method pool --set baselines=false -o {}"
DISTILL = "distill both --into bag --corpus text.txt --set training.batch_size=24 -o out"
SEARCH = "search folder --queries queries.txt --json"
PREPARATION = (
    "train space.yaml --run model",
    "train space.yaml --run other --seed 1",
    "sweep space.yaml --run swept --yes",
    "encode model text.txt -o vectors.npy",
    "index model texts -o folder",
    "compose model other -o composed",
    "whiten model -o white --corpus text.txt --dimension full",
    ENSEMBLE.format("both"),
    "binarize vectors.npy -o codes.npy --set bits=8 --keep kept",
)
KILLED = (
    Command("evaluate model other --task reviews.csv --json", ("-", "model/evaluation")),
    Command(ENSEMBLE.format("out"), ("out",)),
    Command("encode model text.txt -o out.npy", ("out.npy",)),
    Command("encode-corpus model texts -o out --set workers=2", ("out",)),
    Command("whiten model -o out --corpus text.txt --dimension full", ("out",)),
    Command("compose model other -o out", ("out",)),
    Command("expand model words.vec -o out", ("out",)),
    Command("export model -o out --to sentence-transformers", ("out",)),
    Command("binarize vectors.npy -o out.npy --set bits=8 --keep out", ("out.npy", "out")),
    Command("index model texts -o out", ("out",)),
    Command("report swept --json", ("-",)),
    Command("reproduce paper.yaml --data . -o out", ("out",)),
)
KILLED_ON_RAY = (
    Command("sweep space.yaml --run out --yes", ("out",), "resume out", is_on_ray=True),
    Command(
        "sweep space.yaml --run out --yes --budget 5usd --set cost.usd_per_hour=1", ("out",), "resume out",
        is_on_ray=True, is_timed=True,
    ),
    Command("sweep space.yaml --run out --yes --deadline 1h", ("out",), "resume out", is_on_ray=True, is_timed=True),
    Command(DISTILL, ("out",), is_on_ray=True),
    Command("train space.yaml --run out", ("out",), is_on_ray=True),
    Command("train space.yaml --run out --set workers=2", ("out",), is_on_ray=True),
    Command("train space.yaml --run out --set seeds=2", ("out",), is_on_ray=True),
)  # fmt: skip
DAMAGED = (
    Command("encode model text.txt -o out.npy", ("out.npy",), damages=("model",)),
    Command("encode composed text.txt -o out.npy", ("out.npy",), damages=("composed",)),
    Command("encode white text.txt -o out.npy", ("out.npy",), damages=("white",)),
    Command("encode both text.txt -o out.npy", ("out.npy",), damages=("both", "model")),
    Command("encode swept text.txt -o out.npy", ("out.npy",), damages=("swept",)),
    Command("encode-corpus model texts -o folder", ("folder",), damages=("folder",)),
    Command("train space.yaml --run out", ("out",), damages=("cache",)),
    Command("train space.yaml --run model", ("model",), damages=("model",)),
    Command("evaluate model --task reviews.csv --json", ("-",), damages=("model", "cache")),
    Command(DISTILL, ("out",), damages=("cache",)),
    Command("doctor swept --json", ("-",), damages=("swept",)),
    Command("report swept --json", ("-",), damages=("swept",)),
    Command("resume swept --json", ("-",), damages=("swept",)),
    Command("ensemble swept --task reviews.csv --set baselines=false -o out", ("out",), damages=("swept",)),
    Command(SEARCH, ("-",), damages=("texts.index", "folder")),
    Command("binarize vectors.npy -o out.npy --use kept", ("out.npy",), damages=("kept",)),
)  # fmt: skip


# -- files ----------------------------------------------------------------------------------------------------------


def write_inputs(folder: Path) -> None:
    """Write a text in which neighbouring sentences share words, labelled rows, word vectors, queries and a paper."""
    draw = random.Random(0)
    names = [f"w{number}" for number in range(40)]
    documents = []
    for _ in range(12):
        topic, lines = draw.randrange(40), []
        for _ in range(30):
            topic = (topic + draw.randrange(2)) % 40
            lines.append(
                " ".join(
                    names[(topic + draw.randrange(3)) % 40] for _ in range(draw.randrange(3, 9))
                )
            )
        documents.append("\n".join(lines))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "texts").mkdir()
    for number in range(3):
        (folder / "texts" / f"{number}.txt").write_text(
            "\n".join(documents[4 * number : 4 * number + 4]) + "\n"
        )
    rows = [
        (" ".join([*draw.choices(names, k=6), word]), word)
        for _ in range(40)
        for word in ("good", "bad")
    ]
    (folder / "reviews.csv").write_text(
        "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    )
    vectors = "".join(
        f"{name} {' '.join(f'{draw.gauss(0, 1):.3f}' for _ in range(6))}\n"
        for name in [*names, "new"]
    )
    (folder / "words.vec").write_text(f"41 6\n{vectors}")
    (folder / "senteval/CR").mkdir(parents=True)
    for name, word in (("pos", "good"), ("neg", "bad")):
        lines = [f"{word} {' '.join(draw.choices(names, k=5))}" for _ in range(NUM_ROWS)]
        (folder / f"senteval/CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    (folder / "queries.txt").write_text("w1 w2\nw3 w4 w5\n")
    (folder / "space.yaml").write_text(TEXT_SPACE)
    (folder / "paper.yaml").write_text(PAPER)


PAPER = """
paper: Logeswaran and Lee, 2018
title: Toy
scales:
  small:
    protocol: fast
    machine: {flops: 1.0e+9, usd_per_hour: 1.0}
    data: {text: {path: text.txt, sentences: 120}}
    bases:
      contexts:
        corpus: {path: "{text}", format: sentences, validation_fraction: 0.2}
        encoder: {type: gru, hidden_size: 8, embedding: {dim: 6}}
        objective: {type: context_prediction}
        training: {batch_size: 24, max_steps: 40, epochs: 100.0, num_reports: 2}
        validation: {num_candidates: 20, num_sentences: 40}
models:
  gru: {train: contexts}
  bag: {train: contexts, run: {encoder: {type: bag, embedding: {dim: 6}}}}
  both: {compose: [gru, bag]}
tables: {"1": {title: All, tasks: [CR], rows: {uni-QT: gru, combine: both}}}
"""
NUM_ROWS = 40


def contents(folder: Path, command: Command, output: str) -> dict[str, str]:
    """Return what a command has made: place -> value, of JSON each value, of other files their hash."""
    found: dict[str, str] = {}
    for made in command.makes:
        if made == "-":
            found.update(_values("-", output.encode()))
            continue
        for path in [folder / made, *sorted((folder / made).rglob("*"))]:
            place = path.relative_to(folder)
            if (
                path.is_file()
                and path.name not in UNCOMPARED
                and not any(part[0] == "." for part in place.parts)
            ):
                found.update(_values(str(place), path.read_bytes()))
    return found


def _values(name: str, data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the places and values of JSON, of one object or one a line; else the hash of the bytes."""
    data = TIMES.sub(b"", data)
    try:
        values = (
            json.loads(data)
            if not name.endswith(".jsonl")
            else [json.loads(line) for line in data.splitlines()]
        )
    except ValueError:
        yield name, hashlib.sha256(data).hexdigest()
        return
    yield from _leaves(name, values)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in TIMED:
                yield from _leaves(f"{place}/{key}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(f"{place}/{number}", inner)
    else:
        yield place, repr(value)


def difference(found: Mapping[str, str], expected: Mapping[str, str], *, loose: set[str]) -> str:
    """Return the first place at which what was made differs; empty if nothing does. `loose` places may differ."""
    for place in sorted((found.keys() | expected.keys()) - loose):
        if found.get(place) != expected.get(place):
            return f"{place}: {expected.get(place, 'nothing')} became {found.get(place, 'nothing')}"
    return ""


# -- processes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, None if it did not; what it printed; and its process."""

    code: int | None
    out: str
    err: str
    seconds: float
    pid: int = 0


class Run:
    """A command in a process of its own, forked from this one."""

    def __init__(
        self,
        typed: str | Sequence[str],
        folder: Path,
        *,
        before: Callable[[], object] | None = None,
    ) -> None:
        """Start it.

        Args:
            typed: What stands after `raysent`; a list where words have blanks in them.
            folder: Where it is started.
            before: What its process does first.
        """
        self._folder, self._began = folder, time.monotonic()
        self._before = before
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._be(typed.split() if isinstance(typed, str) else list(typed))
        self.process, self._code = psutil.Process(self.pid), None

    def _be(self, arguments: list[str]) -> None:
        """Be the command; never returns."""
        code = 70
        try:
            os.setsid()
            os.chdir(self._folder)
            os.environ["OMP_NUM_THREADS"] = "1"
            os.environ["RAYSENT_CACHE"] = str(self._folder / "cache")
            for name, number in (("out.txt", 1), ("err.txt", 2)):
                os.dup2(
                    os.open(
                        self._folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                    ),
                    number,
                )
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if self._before is not None:
                self._before()
            sys.argv = ["raysent", *arguments]
            if arguments[0] == "compose":  # a function alone
                raysent.compose(arguments[1:-2], output=arguments[-1])
                code = 0
            else:
                raysent.cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
                atexit._run_exitfuncs()
            os._exit(code)

    def tree(self) -> list[psutil.Process]:
        """Return the command's processes, itself first."""
        with contextlib.suppress(psutil.Error):
            return [self.process, *self.process.children(recursive=True)]
        return [self.process]

    def is_over(self) -> bool:
        """Return whether it has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def wait(self, limit_s: float = LIMIT_S) -> Ending:
        """Wait for its end; kill it after the limit."""
        while not self.is_over() and time.monotonic() - self._began < limit_s:
            time.sleep(LOOK_S)
        code = self._code
        if code is None:
            for process in self.tree():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            os.waitpid(self.pid, 0)
        if code != 0:
            time.sleep(LINE_S)
        out, err = (
            self._folder.with_suffix(f".{name}.txt").read_text(errors="replace")
            for name in ("out", "err")
        )
        return Ending(code, out, err, time.monotonic() - self._began, self.pid)


def run(
    typed: str | Sequence[str],
    folder: Path,
    *,
    before: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
) -> Ending:
    """Run a command to its end, or to the limit."""
    return Run(typed, folder, before=before).wait(limit_s)


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder; a `TemporaryDirectory` would be removed at the end of each forked process."""
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="kills"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- cases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One kill or damage.

    Attributes:
        part: `ray`, `others` or `damages`.
        number: Its place in the part.
        command: What is killed, or reads the damaged file.
    """

    part: str
    number: int
    command: Command


class Stage:
    """The folder with the files that all cases begin with, and what undisturbed commands make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self._references: dict[str, dict[str, Any]] = {}

    def prepare(self) -> None:
        """Make the files, unless an earlier call has."""
        done = self.folder / "prepared"
        if done.exists():
            return
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        write_inputs(self.base)
        for typed in PREPARATION:
            ended = run(typed, self.base)
            if ended.code:
                sys.exit(f"kills: {typed}: exit code {ended.code}\n{ended.err}")
        done.touch()

    @contextlib.contextmanager
    def copy(self, names: Sequence[str] = ()) -> Iterator[Path]:
        """Yield a copy of the files; of these alone, if some are named."""
        with scratch_folder(self.folder) as scratch:
            shutil.copytree(self.base, scratch / "files", symlinks=True, ignore=_all_but(names))
            yield scratch / "files"

    def reference(self, command: Command) -> dict[str, Any]:
        """Return what an undisturbed command makes, which places differ between two of them, and its seconds."""
        key = hashlib.sha256(command.typed.encode()).hexdigest()[:16]
        path = self.folder / f"reference-{key}.json"
        if key not in self._references and path.exists():
            self._references[key] = json.loads(path.read_text())
        if key not in self._references:
            made, seconds = [], 0.0
            for _ in range(2):
                with self.copy() as folder:
                    ended = run(command.typed, folder)
                    if ended.code:
                        sys.exit(f"kills: {command.typed}: exit code {ended.code}\n{ended.err}")
                    made.append(contents(folder, command, ended.out))
                    seconds = ended.seconds
            loose = [
                place
                for place in made[0].keys() | made[1].keys()
                if made[0].get(place) != made[1].get(place)
            ]
            path.write_text(
                json.dumps({"made": made[0], "loose": sorted(loose), "seconds": seconds})
            )
            self._references[key] = json.loads(path.read_text())
        return self._references[key]

    def compare(self, command: Command, folder: Path, out: str) -> str:
        """Return how the files differ from those of an undisturbed command; empty if they do not."""
        if command.is_timed:
            return check_sweep(folder, folder / command.makes[0])
        expected = self.reference(command)
        return difference(
            contents(folder, command, out), expected["made"], loose=set(expected["loose"])
        ) or (check_sweep(folder, folder / "out") if command.typed.startswith("sweep") else "")


def _all_but(names: Sequence[str]) -> Callable[[str, list[str]], list[str]]:
    """Return what `copytree` is to leave out: all at the top but these names, or nothing without names."""
    top: list[str] = []

    def ignored(folder: str, found: list[str]) -> list[str]:
        top.append(folder)
        is_top = folder == top[0]
        return [name for name in found if is_top and names and name not in names]

    return ignored


def check_sweep(folder: Path, sweep: Path) -> str:
    """Return what is wrong with a sweep that has ended; empty if nothing is."""
    ended = run(f"doctor {sweep.name}", folder)
    if ended.code:
        return f"doctor: exit code {ended.code}: {ended.out[-300:]}{ended.err[-300:]}"
    record, events = load_record(sweep), list(read_events(sweep))
    if found := replay(record.space, seed=record.seed, events=events).difference:
        return f"derived again from the journal: {found}"
    reports = Counter(
        (event["trial"], event["index"]) for event in events if event["event"] == "report"
    )
    ends = Counter(event["trial"] for event in events if event["event"] == "ended")
    if [*reports.values(), *ends.values()] != [1] * (len(reports) + len(ends)):
        return "a report or an end is there twice"
    if events[-1]["event"] != "completed":
        return f"the last event is {events[-1]['event']}"
    if any(not (sweep / "trials" / trial / "model.json").exists() for trial, _ in reports):
        return "a trial that has reported has no model"
    return ""


def trouble(ended: Ending) -> str:
    """Return what is wrong with how a command told that it cannot go on; empty if it is one line."""
    if ended.code is None:
        return f"no end after {LIMIT_S:.0f} s"
    if ended.code < 0:
        return f"ended by signal {signal.Signals(-ended.code).name}"
    if "Traceback" in ended.err or "Traceback" in ended.out:
        return f"traceback: {ended.err[-1500:]}"
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if ended.code and len(lines) != 1:
        return f"exit code {ended.code} with {len(lines)} lines of error: {ended.err[-600:]}{ended.out[-300:]}"
    return ""


def victims(tree: list[psutil.Process], kind: str) -> list[psutil.Process]:
    """Return the processes of a kind: `command`, `control`, `node`, `worker` (Ray's), or `child`."""
    if kind == "command":
        return tree[:1]
    found = []
    for process in tree[1:]:
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline()[:2])
            name = "control" if "gcs_server" in line else "node" if "raylet" in line else "worker"
            if kind in (name if "ray" in line else "", "child"):
                found.append(process)
    return found


def kill(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Kill a process of a command at a random moment; then let it be continued, and compare."""
    command = case.command
    kinds = (
        ["command", "command", "worker", "control", "node"]
        if command.is_on_ray
        else ["command", "command", "child"]
    )
    kind, is_cold, part = draw.choice(kinds), draw.random() < 0.5, draw.random()
    seconds = stage.reference(command)["seconds"] if not command.is_timed else 60.0
    for attempt in range(6):
        with stage.copy() as folder:
            if is_cold and not command.is_on_ray:
                for name in ("text", "corpora", "evaluation", "targets", "projections"):
                    shutil.rmtree(folder / "cache" / name, ignore_errors=True)
            ended, orphans = _struck(
                command,
                folder,
                kind if attempt < 3 else "command",
                part * seconds * 0.5**attempt,
                draw,
            )
            if ended is None:
                continue  # it had ended before
            said = {
                "kind": kind,
                "at_s": round(part * seconds * 0.5**attempt, 2),
                "code": ended.code,
            }
            if orphans:
                return said | {"outcome": VIOLATION, "why": f"orphans: {orphans}"}
            said |= _continued(command, stage, folder, ended)
            if said["outcome"] == VIOLATION:
                _keep_logs(ended.pid, stage.folder / f"{case.part}-{case.number}")
            return said
    return {"outcome": "missed", "kind": kind}


def _keep_logs(pid: int, folder: Path) -> None:
    """Copy the logs of the Ray that a process has started, which later ones remove."""
    for logs in Path(tempfile.gettempdir()).glob(f"raysent-*/*/session_*_{pid}/logs"):
        shutil.copytree(logs, folder, ignore_dangling_symlinks=True, dirs_exist_ok=True)


def _struck(
    command: Command, folder: Path, kind: str, at_s: float, draw: random.Random
) -> tuple[Ending | None, list[str]]:
    """Run a command and kill one of its processes; returns how it ended, None if before, and what outlived it."""
    started = Run(command.typed, folder)
    began, seen = time.monotonic(), {}
    while not started.is_over():
        tree = started.tree()
        seen |= {process.pid: process for process in tree}
        if time.monotonic() - began >= at_s and (chosen := victims(tree, kind)):
            with contextlib.suppress(psutil.Error):
                draw.choice(chosen).kill()
                break
        time.sleep(LOOK_S)
    else:
        started.wait()
        return None, []
    seen |= {process.pid: process for process in started.tree()}
    ended = started.wait()
    until = time.monotonic() + ORPHANS_S
    while (alive := [one for one in seen.values() if _is_alive(one)]) and time.monotonic() < until:
        time.sleep(0.2)
    names = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline()[:3])[:80])
            process.kill()
    return ended, names


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _continued(command: Command, stage: Stage, folder: Path, ended: Ending) -> dict[str, Any]:
    """Continue a command that was struck, unless it came to its end; compare."""
    if ended.code == 0:
        differs = stage.compare(command, folder, ended.out)
        return {"outcome": VIOLATION, "why": differs} if differs else {"outcome": "same"}
    if ended.code != -signal.SIGKILL and (why := trouble(ended)):
        return {"outcome": VIOLATION, "why": why}
    has_begun = not command.again or (folder / "out" / "sweep.json").exists()
    again = run(command.again if has_begun and command.again else command.typed, folder)
    if again.code and "already" in again.err and not trouble(again):
        again = Ending(0, again.out, again.err, 0.0)  # all was done: compare
    if again.code:
        return {"outcome": VIOLATION, "why": f"again: {trouble(again) or again.err[-600:]}"}
    differs = stage.compare(command, folder, again.out)
    return (
        {"outcome": VIOLATION, "why": f"again: {differs}"} if differs else {"outcome": "continued"}
    )


def _flip(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _part(data: bytes, draw: random.Random) -> tuple[int, int]:
    first, last = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return first, last


def _zero(data: bytes, draw: random.Random) -> bytes:
    first, last = _part(data, draw)
    return data[:first] + bytes(last - first) + data[last:]


def _overwrite(data: bytes, draw: random.Random) -> bytes:
    first, last = _part(data, draw)
    return data[:first] + draw.randbytes(last - first) + data[last:]


def _take_out(data: bytes, draw: random.Random) -> bytes:
    first, last = _part(data, draw)
    return data[:first] + data[last:]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip": _flip,
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "cut at a line": lambda data, _: b"".join(data.splitlines(keepends=True)[:-1]),
    "empty": lambda *_: b"",
    "zeros": _zero,
    "overwrite": _overwrite,
    "take out": _take_out,
    "remove": lambda *_: None,
}


def damage(
    case: Case,
    stage: Stage,
    draw: random.Random,
    *,
    ways: Sequence[str] = tuple(DAMAGES),
    find_trouble: Callable[[Ending], str] = trouble,
) -> dict[str, Any]:
    """Damage a file that a command reads in one of these ways, and compare what it makes."""
    command = case.command
    with stage.copy() as folder:
        paths = [folder / name for name in command.damages]
        files = sorted(
            {
                file
                for path in paths
                for file in ([path] if path.is_file() else path.rglob("*"))
                if file.is_file()
            }
        )
        file = draw.choice([file for file in files if file.stat().st_size])
        how, whole = draw.choice(ways), file.read_bytes()
        damaged = DAMAGES[how](whole, draw)
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        ended = run(command.typed, folder)
        said = {"file": str(file.relative_to(folder)), "how": how, "code": ended.code}
        # It came to its end without what is damaged, which a line names.
        is_named = "Traceback" not in ended.err and file.name in ended.err
        if ended.code == ExitCode.INCOMPLETE and is_named:
            return said | {"outcome": "said", "why": ended.err[-300:]}
        # A doctor that finds something says it in its own way.
        has_found = command.typed.startswith("doctor") and ended.code in (0, 1)
        why = "" if has_found else find_trouble(ended)
        if why:
            return said | {"outcome": VIOLATION, "why": why}
        if ended.code:
            return said | {"outcome": "refused", "why": ended.err[-200:]}
        differs = stage.compare(command, folder, ended.out)
        if not differs:
            return said | {"outcome": "same"}
        if file.name in ended.err:
            return said | {"outcome": "said", "why": ended.err[-300:]}
        if file.name in APPENDED and whole.startswith(damaged or b""):
            return said | {"outcome": "lost", "why": differs}
        return said | {"outcome": VIOLATION, "why": f"in silence: {differs}"}


# -- all ------------------------------------------------------------------------------------------------------------

PARTS: dict[
    str, tuple[tuple[Command, ...], Callable[[Case, Stage, random.Random], dict[str, Any]]]
] = {
    "ray": (KILLED_ON_RAY, kill),
    "others": (KILLED, kill),
    "damages": (DAMAGED, damage),
}


def cases(numbers: Mapping[str, int]) -> Iterator[Case]:
    """Yield all cases: of each part in turn, the commands in turn."""
    for number in range(max(numbers.values())):
        for part, count in numbers.items():
            if number < count:
                commands, _ = PARTS[part]
                yield Case(part, number, commands[number % len(commands)])


def play(
    numbers: Mapping[str, int],
    *,
    seed: int,
    folder: Path,
    say: Callable[[str], object],
    prepare: Callable[[Stage], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run the cases that are missing; return the results of all. `prepare` makes more files for them."""
    folder.mkdir(parents=True, exist_ok=True)
    stage, kept = Stage(folder.resolve()), folder / "results.jsonl"
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(result["part"], result["number"], result["seed"]) for result in results}
    torch.set_num_threads(1)
    senteval.NUM_ROWS.update(dict.fromkeys(("CR/custrev.pos", "CR/custrev.neg"), NUM_ROWS))
    stage.prepare()
    prepare(stage)
    for case in cases(numbers):
        if (case.part, case.number, seed) in done:
            continue
        _, act = PARTS[case.part]
        draw = random.Random(f"{case.part} {case.number} {seed}")
        result = {
            "part": case.part,
            "number": case.number,
            "seed": seed,
            "command": case.command.name,
        }
        result |= act(case, stage, draw)
        results.append(result)
        with kept.open("a") as stream:
            stream.write(json.dumps(result) + "\n")
        if result["outcome"] == VIOLATION:
            say(json.dumps(result))
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Return how often each command had each outcome."""
    outcomes = ("same", "continued", "refused", "said", "lost", "missed", VIOLATION)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        counts.setdefault((result["part"], result["command"]), Counter())[result["outcome"]] += 1
    for part in {part for part, _ in counts}:
        every = [count for (of, _), count in counts.items() if of == part]
        counts[part, "all"] = sum(every, Counter())
    lines = [
        "| part | command | " + " | ".join(outcomes) + " |",
        "|---|---" + "|---:" * len(outcomes) + "|",
    ]
    for (part, name), count in sorted(counts.items()):
        lines.append(
            f"| {part} | {name} | "
            + " | ".join(f"{count[outcome]:,}" for outcome in outcomes)
            + " |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run, print a table, and return the number of violations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ray", type=int, default=150, help="kills of commands that use Ray")
    parser.add_argument("--others", type=int, default=350, help="kills of other commands")
    parser.add_argument("--damages", type=int, default=500)
    parser.add_argument(
        "--faults", type=int, default=500, help="cases of `faults`: disks, stores, clocks, names"
    )
    parser.add_argument("--only", help="parts of the faults, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where results are kept, to continue; by default none are"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from benchmarks import faults  # noqa: PLC0415 - it imports this module

    PARTS.update(faults.PARTS)
    numbers = {"ray": options.ray, "others": options.others, "damages": options.damages}
    parts = options.only.split(",") if options.only else list(faults.PARTS)
    numbers |= {part: n for part, n in faults.numbers_of(options.faults).items() if part in parts}
    with scratch_folder() as scratch, contextlib.closing(faults.STORE):
        folder = options.folder or scratch
        results = play(
            numbers,
            seed=options.seed,
            folder=folder,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            prepare=faults.prepare if options.faults else lambda _: None,
        )
    print(json.dumps(results) if options.json else table(results))
    return min(100, sum(result["outcome"] == VIOLATION for result in results))


if __name__ == "__main__":
    # The module that `faults` imports, so that there is one of it.
    from benchmarks.kills import main as main_of_module

    sys.exit(main_of_module())
