"""Faults of disks, stores and clocks, hostile names, and two commands at once: parts of `benchmarks.kills`.

    python -m benchmarks.kills --ray 0 --others 0 --damages 0 --faults 500 [--seed 0] [--folder FOLDER]

Each case has a copy of the files that `kills.Stage` prepares once. The parts:

    bits       one bit of one file of a run, a model or an ensemble is another one; then it is read
    index      a part of an index is damaged, its hidden files among them; then it is searched
    names      a task, a table, a label, a column or an output has a hostile name
    disk       a file system, or the size that a file may have, ends in mid-run; then there is room again
    read-only  a file system or a folder cannot be written from some moment on; then it can be again
    together   two commands are given at once, on the same run
    clock      the clock is set back, in mid-run or since the files were written
    store      a bucket fails or hangs from some request on; then it works again

Outcomes are those of `kills`. A line of an error is one only if it says where, and what to do about it: a line that
prints an exception's text alone is a violation, as a traceback is. File systems of a limited size are mounted, which
needs root; without it a limit on the size of files stands in.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import datetime
import encodings
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.faulty_store import BUCKET, CREDENTIALS
from benchmarks.faulty_store import KINDS as STORE_FAULTS
from benchmarks.kills import (
    ENSEMBLE,
    LOOK_S,
    VIOLATION,
    Case,
    Command,
    Ending,
    Run,
    Stage,
    contents,
    damage,
    run,
    scratch_folder,
    trouble,
)
from raysent.storage import object_store
from raysent.storage.mirror import LINES_SUFFIX

# No command of these parts needs as long.
LIMIT_S = 240.0
# Of all cases, in parts of 500.
SHARES = {
    "bits": 110, "index": 90, "names": 80, "disk": 70, "read-only": 40, "together": 40, "clock": 30, "store": 40,
}  # fmt: skip

PREDICT = Command("predict swept new.csv -o out.csv", ("out.csv",), damages=("swept/best",))
PREDICT_BOTH = Command("predict both new.csv -o out.csv", ("out.csv",), damages=("both",))
PREDICT_TRIAL = Command(
    "predict swept/trials/0001 new.csv --task reviews -o out.csv",
    ("out.csv",),
    damages=("swept/evaluation", "swept/trials/0001"),
)
EVALUATE = Command(
    "evaluate model other --task reviews.csv --json",
    ("-", "model/evaluation"),
    damages=("model/evaluation", "other/model.json", "model/run.json"),
)
COMBINE = Command(ENSEMBLE.format("out"), ("out",), damages=("model/evaluation", "other"))
ENCODE = Command("encode both text.txt -o out.npy", ("out.npy",), damages=("both", "model"))
REPORT = Command("report swept --json", ("-",), damages=("swept",))
RESUME = Command("resume swept --json", ("-",), damages=("swept",))
DOCTOR = Command("doctor swept --json", ("-",), damages=("swept",))
INDEX = Command("index model texts -o out", ("out",))
WHITEN = Command("whiten model -o out --corpus text.txt --dimension full", ("out",))
EXPORT = Command("export model -o out --to sentence-transformers", ("out",))
BINARIZE = Command("binarize vectors.npy -o out.npy --set bits=8 --keep out", ("out.npy", "out"))
CORPUS = Command("encode-corpus model texts -o out", ("out",))
LABEL = Command("label swept new.csv --rows 5 -o labels.csv", ("labels.csv",))
_SEARCH = "search {} --queries queries.txt --by {} --json"
SEARCHES = tuple(
    Command(_SEARCH.format(folder, by), ("-",), damages=(folder,))
    for folder, by in (
        ("folder", "words"), ("folder", "fused"), ("folder", "vectors"), ("folder8", "vectors"),
        ("folder8", "fused"),
    )
)  # fmt: skip
BITS = (PREDICT, PREDICT_BOTH, PREDICT_TRIAL, EVALUATE, COMBINE, ENCODE, REPORT, RESUME, DOCTOR)
WRITERS = (PREDICT, EVALUATE, COMBINE, ENCODE, INDEX, WHITEN, EXPORT, BINARIZE, CORPUS, LABEL)
PREPARATION = ("index model texts -o folder8 --set precision=int8",)


def prepare(stage: Stage) -> None:
    """Make what these parts read beside the files of `kills`, unless an earlier call has; import what they import."""
    _make_files(stage)
    _import_all(stage)


def _import_all(stage: Stage) -> None:
    """Import what the commands import, so that the processes that are forked for them need not."""
    names_file = stage.folder / "modules.txt"
    if names_file.exists():  # of an earlier call
        _import_named(names_file)
        return
    for command in (*BITS, *WRITERS, *SEARCHES[:2]):
        with stage.copy() as folder:
            run(command.typed, folder, before=partial(atexit.register, _write_modules, names_file))
        _import_named(names_file)


def _import_named(names_file: Path) -> None:
    for name in names_file.read_text().splitlines():
        # Some are of the system's other versions, or can be imported by their owners alone.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _write_modules(path: Path) -> None:
    path.write_text("\n".join(sorted(sys.modules)))


def _make_files(stage: Stage) -> None:
    done = stage.folder / "prepared-for-faults"
    if done.exists():
        return
    draw = random.Random(1)
    words = [*(f"w{number}" for number in range(40)), "good", "bad"]
    lines = [f"{row},{' '.join(draw.choices(words, k=6))}" for row in range(30)]
    (stage.base / "new.csv").write_text("\n".join(["id,text", *lines]) + "\n")
    for typed in PREPARATION:
        ended = run(typed, stage.base)
        if ended.code:
            sys.exit(f"kills: {typed}: exit code {ended.code}\n{ended.err}")
    for command in SEARCHES:  # what is derived stands beside the index
        run(command.typed, stage.base)
    done.touch()


# -- lines ----------------------------------------------------------------------------------------------------------

# What a line without a cure of its own is about, where the rule alone says what to do.
_RULES = re.compile(r"\bmust\b|no such|; |already|not a |is in use|another process")
_NAKED = re.compile(
    r"^(\[Errno|\w*(Error|Exception)\b|Expecting|Invalid |'[^']*'$)|\[Errno -?\d+\]|object at 0x|<class '"
)


def is_naked(line: str) -> bool:
    """Return whether a line of an error prints an exception's text alone, with no place or no cure."""
    text = line.removeprefix("error: ")
    place, separator, rest = text.partition(": ")
    is_placed = bool(separator) and bool(place.strip()) and _NAKED.search(place) is None
    return not is_placed or _NAKED.search(text) is not None or _RULES.search(rest) is None


def trouble_of(ended: Ending) -> str:
    """Return what is wrong with how a command ended; empty if it ended well or in one line with place and cure."""
    found = trouble(ended)
    if found or not ended.code:
        return found
    line = next(line for line in ended.err.splitlines() if line.startswith("error: "))
    return f"an exception's text alone: {line}" if is_naked(line) else ""


def _violation(why: str) -> dict[str, Any]:
    return {"outcome": VIOLATION, "why": why[-1500:]}


def flip_a_bit(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Flip one bit of a file that a command reads."""
    return damage(case, stage, draw, ways=("flip",), find_trouble=trouble_of)


def damage_an_index(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Damage one file of an index."""
    return damage(case, stage, draw, find_trouble=trouble_of)


# -- names ----------------------------------------------------------------------------------------------------------

NAMES = (
    "..", ".", "...", "..csv", "", " ", "a/b", "../up", "/etc/x", "a\\b", "a\0b", "a\nb", "a\rb", "a\tb",
    "\x1b[31mX\x1b]0;O\a", "\u202etxt", "\u200b", "CON", "nul", "COM1.txt", "x" * 256, "x" * 4000, "é" * 128,
    "x:y", "a=b", "a,b", "-o", "--help", "%2e%2e", "~", "$HOME", "*", "[x]", "{x}", "#x", "'q'", '"q"', ".hidden",
    "end.", "end ", "best", "members", "evaluation", "ensemble.json", "journal.jsonl", "<b>x</b>", "null", "true",
    "1e5", "日本語", "שלום", "a\u0301", "…", "|", ";", "&", "`id`", "=1+1", "@SUM(1)", "x" * 231, "..\u200b",
    "\ufeffx", "\u2028", "s3://x/y", "hash:20", "all", "validation",
)  # fmt: skip
POSITIONS = ("task", "table", "label", "column", "output", "model")
_NUM_TABLE_ROWS = 60


def _table(
    draw: random.Random, *, label: str = "good", columns: Sequence[str] = ("text", "label")
) -> str:
    """Return a CSV of rows of two labels; `label` stands for one of them."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in range(_NUM_TABLE_ROWS):
        words = draw.choices([f"w{number}" for number in range(40)], k=6)
        is_good = row % 2 == 0
        writer.writerow(
            [" ".join([*words, "good" if is_good else "bad"]), label if is_good else "bad"]
        )
    return stream.getvalue()


def _words_with_name(position: str, name: str, folder: Path, draw: random.Random) -> list[str]:
    """Write the files of a case of names; return the command.

    Raises:
        OSError: If the system has no such name.
        ValueError: Likewise.
    """
    ensemble = ["ensemble", "hash:20", "hash:30", "--set", "baselines=false", "-o"]
    if position == "task":
        settings = {"path": "named.csv", "text": "text", "label": "label"}
        (folder / "named.csv").write_text(_table(draw))
        (folder / "tasks.yaml").write_text(json.dumps({"tasks": {name: settings}}))
        return [*ensemble, "out", "--task", "tasks.yaml"]
    if position == "table":
        path = folder / f"{name}.csv"
        if path.parent != folder:
            raise ValueError("not a name of one file")
        path.write_text(_table(draw))
        return [*ensemble, "out", "--task", f"./{name}.csv"]
    if position == "label":
        (folder / "named.csv").write_text(_table(draw, label=name), encoding="utf-8")
        return [*ensemble, "out", "--task", "named.csv"]
    if position == "column":
        (folder / "named.csv").write_text(_table(draw, columns=(name, "label")))
        return [*ensemble, "out", "--task", f"named.csv:text={name},label=label"]
    if "\0" in name:
        raise ValueError("no word of a command line")
    if position == "output":
        return ["encode", "hash:20", "queries.txt", "-o", f"{name}.npy"]
    return [*ensemble, name, "--task", "reviews.csv"]


def _content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder that are kept."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "cache" not in path.relative_to(folder).parts
    }


def name_something(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Give something a hostile name; the files that were there must stay, and an answer must be right."""
    position = POSITIONS[case.number % len(POSITIONS)]
    name = draw.choice(NAMES)
    said = {"position": position, "name": name[:40]}
    with stage.copy(("queries.txt", "reviews.csv", "swept", "cache")) as folder:
        (folder.parent / "beside.txt").write_text("a file that no command knows")
        try:
            typed = _words_with_name(position, name, folder, draw)
        except (OSError, ValueError):
            return said | {"outcome": "same", "why": "the system has no such name"}
        before = _content_of(folder.parent)
        ended = run(typed, folder, limit_s=LIMIT_S)
        after = _content_of(folder.parent)
        lost = [path for path, content in before.items() if after.get(path) != content]
        streams = {"files.out.txt", "files.err.txt"}
        if lost := [path for path in lost if path not in streams]:
            return said | _violation(f"changed or gone: {lost[:3]}; {typed}")
        made = set(after) - set(before) - streams
        if position not in ("output", "model"):
            outside = [path for path in made if not path.startswith("files/")]
            if outside:
                return said | _violation(f"made outside: {outside[:3]}")
        if why := trouble_of(ended):
            return said | _violation(why)
        if ended.code:
            return said | {"outcome": "refused", "why": ended.err[-300:]}
        if position == "label":
            return said | _labels_of(name, folder)
        return said | {"outcome": "same"}


def _labels_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the outcome of predicting with a label of a hostile name, which must come back as it was."""
    ended = run(["predict", "out", "named.csv", "-o", "out.csv"], folder, limit_s=LIMIT_S)
    if why := trouble_of(ended):
        return _violation(f"predict: {why}")
    if ended.code:
        return {"outcome": "refused", "why": ended.err[-300:]}
    with (folder / "out.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    answers = {row["predicted"] for row in rows}
    if answers <= {name.strip(), name, "bad"} or answers <= {f"'{name}", name, "bad"}:
        return {"outcome": "same"}
    return _violation(f"labels {sorted(answers)[:3]} of {name!r} and bad")


# -- disks ----------------------------------------------------------------------------------------------------------

_ROOM = 512 << 20


def _can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _mount(folder: Path, *options: str) -> bool:
    """Mount a file system in memory, or mount it again with other options; return whether that worked."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def _mounted_copy(stage: Stage) -> Iterator[Path]:
    """Yield a copy of the files on a file system of its own."""
    with scratch_folder(stage.folder) as scratch:
        folder = scratch / "files"
        folder.mkdir()
        if not _mount(folder, f"size={_ROOM}"):
            raise OSError("no file system can be mounted")
        try:
            shutil.copytree(stage.base, folder, symlinks=True, dirs_exist_ok=True)
            yield folder
        finally:
            for _ in range(20):
                if not subprocess.run(
                    ["umount", str(folder)], check=False, capture_output=True
                ).returncode:
                    break
                time.sleep(0.2)
            else:
                subprocess.run(["umount", "-l", str(folder)], check=False)


def _used_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


_GROWTH: dict[str, int] = {}


def _growth(command: Command, stage: Stage) -> int:
    """Return by how many bytes an undisturbed command fills its file system."""
    if command.typed not in _GROWTH:
        with _mounted_copy(stage) as folder:
            before = _used_bytes(folder)
            run(command.typed, folder, limit_s=LIMIT_S)
            _GROWTH[command.typed] = max(8192, _used_bytes(folder) - before)
    return _GROWTH[command.typed]


def _limit_size(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def _full_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _outcome(
    command: Command, stage: Stage, folder: Path, ended: Ending, mend: Callable[[], object]
) -> dict[str, Any]:
    """Return the outcome of a command that met a fault: right, or one line and right once the fault is gone."""
    if why := trouble_of(ended):
        return _violation(why)
    if ended.code == 0:
        differs = stage.compare(command, folder, ended.out)
        return _violation(f"in silence: {differs}") if differs else {"outcome": "same"}
    line = ended.err[-300:]
    mend()
    again = run(command.typed, folder, limit_s=LIMIT_S)
    if again.code:
        return _violation(f"{line}; again: {again.err[-600:]}")
    differs = stage.compare(command, folder, again.out)
    if differs:
        return _violation(f"{line}; again: {differs}")
    return {"outcome": "continued", "why": line}


def fill_the_disk(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """End the room of a file system, or of a file, in mid-run."""
    command = case.command
    kinds = ["size of a file", "output"] if "-" in command.makes else ["size of a file"]
    kind = draw.choice([*kinds, "room", "room"] if _can_mount() else kinds)
    part = draw.random()
    if kind == "room":
        room = int(part * _growth(command, stage))
        with _mounted_copy(stage) as folder:
            _mount(folder, "remount", f"size={_used_bytes(folder) + room}")
            ended = run(command.typed, folder, limit_s=LIMIT_S)
            mend = partial(_mount, folder, "remount", f"size={_ROOM}")
            return {"kind": kind, "room": room} | _outcome(command, stage, folder, ended, mend)
    with stage.copy() as folder:
        room = int(4096 * 2 ** (6 * part))
        before = _full_output if kind == "output" else partial(_limit_size, room)
        ended = run(command.typed, folder, before=before, limit_s=LIMIT_S)
        if kind == "output" and ended.code == 0:
            return {"kind": kind} | _violation("an output that is lost, and exit code 0")
        return {"kind": kind, "room": room} | _outcome(command, stage, folder, ended, lambda: None)


_STRANGER = 54321


def _can_be_stranger() -> bool:
    """Return whether another user may read the interpreter, parts of which are imported late."""
    folders = [Path(encodings.__file__), *Path(encodings.__file__).parents]
    return os.geteuid() == 0 and all(path.stat().st_mode & 0o005 == 0o005 for path in folders[1:])


def _be_a_stranger() -> None:
    os.environ["HOME"] = "/nonexistent"
    os.setgroups([])
    os.setresgid(_STRANGER, _STRANGER, _STRANGER)
    os.setresuid(_STRANGER, _STRANGER, _STRANGER)


def _lock_soon(folder: Path, process: Run) -> None:
    """Make a file system read-only; while a file of it is being written that is refused, and tried again."""
    while not process.is_over() and not _mount(folder, "remount", "ro"):
        time.sleep(0.005)


def _run_until(
    command: Command, folder: Path, at_s: float, act: Callable[[Run], object], **options: Any
) -> Ending:
    """Run a command, and do something at a moment of it."""
    process = Run(command.typed, folder, **options)
    began = time.monotonic()
    while not process.is_over() and time.monotonic() - began < at_s:
        time.sleep(LOOK_S / 4)
    act(process)
    return process.wait(LIMIT_S)


def forbid_writing(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Let a file system, or a folder, be read alone from a moment of a command on."""
    command = case.command
    kinds = [
        *(["file system"] if _can_mount() else []),
        *(["folder"] if _can_be_stranger() else []),
    ]
    if not kinds:
        return {"outcome": "missed"}
    kind = draw.choice(kinds)
    at_s = draw.choice([0.0, draw.random()]) * float(stage.reference(command)["seconds"])
    said = {"kind": kind, "at_s": round(at_s, 2)}
    if kind == "file system":
        with _mounted_copy(stage) as folder:
            ended = _run_until(command, folder, at_s, partial(_lock_soon, folder))
            mend = partial(_mount, folder, "remount", f"size={_ROOM}", "rw")
            if ended.code == 0:
                mend()
            return said | _outcome(command, stage, folder, ended, mend)
    with stage.copy() as folder:
        paths = [folder.parent, folder, *folder.rglob("*")]
        for path in paths:
            os.chown(path, _STRANGER, _STRANGER, follow_symlinks=False)
        folder.parent.parent.chmod(0o755)
        folder.parent.chmod(0o755)
        folders = [path for path in paths[1:] if path.is_dir() and not path.is_symlink()]
        roots = [
            folder,
            folder / "cache",
            *(folder / made for made in command.makes if made != "-"),
        ]
        locked = draw.choice([path for path in roots if path in folders] + folders)
        said["locked"] = str(locked.relative_to(folder))
        ended = _run_until(
            command, folder, at_s, lambda _: locked.chmod(0o555), before=_be_a_stranger
        )
        mend = partial(locked.chmod, 0o755)
        return said | _outcome(command, stage, folder, ended, mend)


# -- two at once ----------------------------------------------------------------------------------------------------

PAIRS = (
    (EVALUATE, EVALUATE), (COMBINE, COMBINE), (RESUME, RESUME), (INDEX, INDEX), (CORPUS, CORPUS), (PREDICT, RESUME),
    (REPORT, RESUME), (EVALUATE, COMBINE), (EXPORT, EXPORT), (WHITEN, WHITEN), (REPORT, REPORT), (PREDICT, LABEL),
    (BINARIZE, BINARIZE),
)  # fmt: skip


def run_two(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Give two commands at once; each must end right, or in one line, and one of both must end right."""
    commands = PAIRS[case.number % len(PAIRS)]
    part = draw.choice([0.0, draw.random()])
    said: dict[str, Any] = {"kind": " and ".join(command.name for command in commands)}
    with stage.copy() as folder:
        first = Run(commands[0].typed, folder)
        time.sleep(part * float(stage.reference(commands[0])["seconds"]))
        # Their output must not meet.
        beside = folder.parent / "second"
        beside.symlink_to(folder, target_is_directory=True)
        second = Run(commands[1].typed, beside, before=partial(_share_cache, folder))
        endings = (first.wait(LIMIT_S), second.wait(LIMIT_S))
        for ended in endings:
            if why := trouble_of(ended):
                return said | _violation(why)
        said["codes"] = [ended.code for ended in endings]
        if all(ended.code for ended in endings):
            return said | _violation(
                f"neither ended well: {endings[0].err[-300:]} {endings[1].err[-300:]}"
            )
        for command, ended in zip(commands, endings, strict=True):
            if ended.code == 0 and (differs := stage.compare(command, folder, ended.out)):
                return said | _violation(f"in silence: {command.name}: {differs}")
        refused = [ended.err[-300:] for ended in endings if ended.code]
        return said | (
            {"outcome": "refused", "why": refused[0]} if refused else {"outcome": "same"}
        )


def _share_cache(folder: Path) -> None:
    os.chdir(folder)
    os.environ["RAYSENT_CACHE"] = str(folder / "cache")


# -- clocks ---------------------------------------------------------------------------------------------------------

_HOUR_S = 3600.0


class _Clock:
    """A clock that is set back at some moment."""

    def __init__(self, shift_s: float, after_s: float) -> None:
        self._shift_s, self._until = shift_s, time.monotonic() + after_s
        self._read = time.time

    def __call__(self) -> float:
        is_set = time.monotonic() >= self._until
        return self._read() - (self._shift_s if is_set else 0.0)


def _set_back(shift_s: float, after_s: float) -> None:
    """Let the clock of this process be set back after some seconds."""
    clock = _Clock(shift_s, after_s)

    class ShiftedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> ShiftedDatetime:
            return cls.fromtimestamp(clock(), tz)

    time.time = clock
    datetime.datetime = ShiftedDatetime  # type: ignore[misc]


def set_the_clock_back(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Set the clock back in mid-run, or since the files were written."""
    command = case.command
    shift_s = _HOUR_S * draw.choice([1.0, 24.0, 24.0 * 400, 24.0 * 365 * 50])
    kind = draw.choice(["in mid-run", "since the files were written"])
    with stage.copy() as folder:
        before = None
        if kind == "in mid-run":
            after_s = draw.choice([0.0, draw.random()]) * float(stage.reference(command)["seconds"])
            before = partial(_set_back, shift_s, after_s)
        else:
            for path in folder.rglob("*"):
                written = path.lstat().st_mtime + shift_s
                os.utime(path, (written, written), follow_symlinks=False)
        ended = run(command.typed, folder, before=before, limit_s=LIMIT_S)
        said = {"kind": kind, "hours": shift_s / _HOUR_S}
        if why := trouble_of(ended):
            return said | _violation(why)
        if ended.code:
            return said | {"outcome": "refused", "why": ended.err[-300:]}
        differs = stage.compare(command, folder, ended.out)
        return said | (_violation(f"in silence: {differs}") if differs else {"outcome": "same"})


# -- stores ---------------------------------------------------------------------------------------------------------

_READ_S = 1.5
_BUCKET_COMMANDS = (
    ("evaluate s3://runs/model hash:20 --task reviews.csv --json", ("-",)),
    ("predict s3://runs/both new.csv -o out.csv", ("out.csv",)),
    (
        "ensemble s3://runs/model hash:20 --task reviews.csv --set baselines=false -o s3://runs/out",
        (),
    ),
    ("encode s3://runs/both text.txt -o out.npy", ("out.npy",)),
    ("encode s3://runs/model text.txt -o s3://runs/out.npy", ()),
    ("encode-corpus s3://runs/model texts -o s3://runs/out", ()),
    ("whiten s3://runs/model -o s3://runs/out --corpus text.txt --dimension full", ()),
    ("report s3://runs/swept --json", ("-",)),
    ("resume s3://runs/swept --json", ("-",)),
    ("search s3://runs/index --queries queries.txt --json", ("-",)),
)
STORED = tuple(Command(typed, makes) for typed, makes in _BUCKET_COMMANDS)
_UPLOADED = ("model", "swept")
_STORE_PREPARATION = (
    "ensemble s3://runs/model hash:20 --task reviews.csv --set baselines=false -o s3://runs/both",
    "index s3://runs/model texts -o s3://runs/index",
)
# What reads what a command has put into the bucket.
_CHECKS = {
    "ensemble": Command("predict s3://runs/out new.csv -o out.csv", ("out.csv",)),
    "whiten": Command("encode s3://runs/out text.txt -o out.npy", ("out.npy",)),
}


class _Bucket:
    """The process of `faulty_store`, whose objects were put there by commands without a fault."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        port_file = stage.folder / f"port-{os.getpid()}"
        command = [sys.executable, "-m", "benchmarks.faulty_store", str(port_file)]
        self.process = subprocess.Popen(command)
        while not port_file.exists():
            time.sleep(0.1)
        self.url = f"http://127.0.0.1:{port_file.read_text()}"
        port_file.unlink()
        self._references: dict[str, tuple[dict[str, str], int, set[str]]] = {}

    def fill(self) -> None:
        """Put there what the cases read."""
        with self._stage.copy() as folder:
            run("--version", folder, before=partial(self._upload, folder))
            for typed in _STORE_PREPARATION:
                ended = run(typed, folder, before=self.use)
                if ended.code:
                    sys.exit(f"kills: {typed}: exit code {ended.code}\n{ended.err}")
        self.steer("keep")

    def use(self) -> None:
        """Let the commands of this process use it, with short waits."""
        import botocore.config  # noqa: PLC0415 - of these cases alone

        os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=self.url)
        plain = botocore.config.Config
        botocore.config.Config = lambda **options: plain(**{**options, "read_timeout": _READ_S})

    def _upload(self, folder: Path) -> None:
        """Put the folders of trainings into the bucket, as commands would have done that wrote them there."""
        self.use()
        files = [file for name in _UPLOADED for file in sorted((folder / name).rglob("*"))]
        for file in files:
            address = f"s3://{BUCKET}/{file.relative_to(folder)}"
            if not file.is_file() or file.name.startswith("."):
                continue
            if file.suffix != LINES_SUFFIX:
                object_store.put_file(address, file)
                continue
            for number, line in enumerate(file.read_bytes().splitlines(keepends=True)):
                object_store.conditional_put(f"{address}/{number:09d}.json", line)

    def steer(self, action: str) -> int:
        """Return the number of requests since the last reset, after an action."""
        with urllib.request.urlopen(f"{self.url}/faulty/{action}", timeout=120) as answer:
            return int(answer.read().split()[0])

    def reset(self, kind: str = "", after: int = 0) -> None:
        """Bring the objects back; fail from a request on."""
        self.steer(f"reset?kind={quote(kind)}&after={after}")

    def made(self, command: Command, folder: Path, ended: Ending) -> dict[str, str]:
        """Return what a command has made, of a bucket by what reads it."""
        check = _CHECKS.get(command.typed.split()[0])
        if check is None:
            return contents(folder, command, ended.out)
        read = run(check.typed, folder, before=self.use, limit_s=LIMIT_S)
        return {
            "exit code": str(read.code),
            "err": read.err[-200:] if read.code else "",
        } | contents(folder, check, read.out)

    def reference(self, command: Command) -> tuple[dict[str, str], int, set[str]]:
        """Return what an undisturbed command makes, its number of requests, and the places that differ."""
        if command.typed not in self._references:
            made, number = [], 0
            for _ in range(2):
                self.reset()
                with self._stage.copy(_STORE_FILES) as folder:
                    ended = run(command.typed, folder, before=self.use, limit_s=LIMIT_S)
                    if ended.code:
                        sys.exit(f"kills: {command.typed}: exit code {ended.code}\n{ended.err}")
                    number = self.steer("count")
                    made.append(self.made(command, folder, ended))
            places = made[0].keys() | made[1].keys()
            loose = {place for place in places if made[0].get(place) != made[1].get(place)}
            self._references[command.typed] = (made[0], number, loose)
        return self._references[command.typed]


_STORE_FILES = ("text.txt", "texts", "reviews.csv", "new.csv", "queries.txt", "space.yaml")


class _Store:
    """The bucket of all cases, which is there once it is used."""

    def __init__(self) -> None:
        self._bucket: _Bucket | None = None

    def bucket(self, stage: Stage) -> _Bucket:
        """Return the bucket."""
        if self._bucket is None:
            self._bucket = _Bucket(stage)
            self._bucket.fill()
        return self._bucket

    def close(self) -> None:
        """End its process, if there is one."""
        if self._bucket is not None:
            self._bucket.process.terminate()
            self._bucket.process.wait()


STORE = _Store()


def fail_the_store(case: Case, stage: Stage, draw: random.Random) -> dict[str, Any]:
    """Let a bucket fail or hang from a request on; then let it work again."""
    bucket, command = STORE.bucket(stage), case.command
    expected, num_requests, loose = bucket.reference(command)
    kind = STORE_FAULTS[case.number % len(STORE_FAULTS)]
    after = draw.randrange(num_requests)
    said = {"kind": kind, "after": after, "of": num_requests}
    bucket.reset(kind, after)
    with stage.copy(_STORE_FILES) as folder:
        ended = run(command.typed, folder, before=bucket.use, limit_s=LIMIT_S)
        if why := trouble_of(ended):
            return said | _violation(why)
        bucket.steer("heal")
        outcome = {"outcome": "same"}
        if ended.code:
            outcome = {"outcome": "continued", "why": ended.err[-300:]}
            ended = run(command.typed, folder, before=bucket.use, limit_s=LIMIT_S)
            if ended.code:
                return said | _violation(f"{outcome['why']}; again: {ended.err[-600:]}")
        made = bucket.made(command, folder, ended)
        differing = [
            place
            for place in sorted((made.keys() | expected.keys()) - loose)
            if made.get(place) != expected.get(place)
        ]
        return said | (_violation(f"in silence: {differing[0]}") if differing else outcome)


# -- all ------------------------------------------------------------------------------------------------------------

_TIMED = (PREDICT, EVALUATE, COMBINE, REPORT, RESUME, DOCTOR, INDEX, CORPUS)
_ANY = (Command("names"),)
Act = Callable[[Case, Stage, random.Random], dict[str, Any]]
PARTS: Mapping[str, tuple[tuple[Command, ...], Act]] = {
    "bits": (BITS, flip_a_bit),
    "index": (SEARCHES, damage_an_index),
    "names": (
        tuple(replace(_ANY[0], typed=f"names {position}") for position in POSITIONS),
        name_something,
    ),
    "disk": (WRITERS, fill_the_disk),
    "read-only": (WRITERS, forbid_writing),
    "together": (tuple(first for first, _ in PAIRS), run_two),
    "clock": (_TIMED, set_the_clock_back),
    "store": (STORED, fail_the_store),
}


def numbers_of(count: int) -> dict[str, int]:
    """Return how many cases each part has, of a number of cases in all."""
    total = sum(SHARES.values())
    numbers = {part: count * share // total for part, share in SHARES.items()}
    numbers["bits"] += count - sum(numbers.values())
    return numbers
