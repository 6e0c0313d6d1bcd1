"""Wings: the core is whole without each of them, says nothing of one that is absent, and names one that is broken."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import PACKAGE, WINGS

FOLDERS = tuple(wing.removeprefix("raysent.").replace(".", "/") for wing in WINGS)
# Imports every module of each copy in a process of its own, where the libraries are imported already, and asks for help.
PROGRAM = """
import contextlib, importlib, io, json, os, pkgutil, sys

def modules():
    import raysent
    return [found.name for found in pkgutil.walk_packages(raysent.__path__, "raysent.")]

def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "raysent"]:
        del sys.modules[name]

def import_all():
    lost = {}
    for name in modules():
        if name != "raysent.__main__":
            try:
                importlib.import_module(name)
            except Exception as error:
                lost[name] = f"{type(error).__name__}: {error}"
    return lost

def seen(copy):
    sys.path.insert(0, copy)
    importlib.invalidate_caches()
    lost = import_all()
    import raysent.cli.app
    names = [name for name in dir(raysent) if not hasattr(raysent, name)]
    sys.argv = ["raysent", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
        with contextlib.suppress(SystemExit):
            raysent.cli.main()
    return {"folder": raysent.__path__[0], "lost": lost, "names": names, "help": out.getvalue(), "said": said.getvalue()}

sys.path.insert(0, sys.argv[1])
everywhere = import_all()  # what needs a library that is not installed
forget()
del sys.path[0]
for copy in sys.argv[2:]:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            found = seen(copy)
            found["lost"] = {name: why for name, why in found["lost"].items() if name not in everywhere}
            os.write(write, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(write)
    print(os.fdopen(read).read(), flush=True)
    os.wait()
"""


def copy_without(folder: Path, absent: tuple[str, ...]) -> Path:
    """Write a copy of the package, of links to its folders and files, without some of them; returns what to import from."""
    package = folder / "raysent"
    package.mkdir(parents=True)
    opened = {str(Path(name).parent) for name in absent if "/" in name}
    for source in PACKAGE.iterdir():
        if source.name in opened:
            (package / source.name).mkdir()
            for inner in source.iterdir():
                if f"{source.name}/{inner.name}" not in absent:
                    (package / source.name / inner.name).symlink_to(inner)
        elif source.name not in absent:
            (package / source.name).symlink_to(source)
    for name in ("search_spaces", "papers", "examples", "cluster.yaml"):
        (folder / name).symlink_to(PACKAGE.parent / name)
    return folder


def run(copy: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "120"}
    command = [sys.executable, "-m", "raysent", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_package_is_whole_without_each_wing(tmp_path: Path) -> None:
    """Every module that is left is imported, every public name exists, and help is printed, without a word of the wing."""
    cases = {f"without {name}": (name,) for name in FOLDERS} | {"without all": FOLDERS}
    copies = [copy_without(tmp_path / name, absent) for name, absent in cases.items()]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, PACKAGE.parent, *copies],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == len(cases), ran.stderr
    for (name, absent), line in zip(cases.items(), lines, strict=True):
        found = json.loads(line)
        assert found["folder"] == str(tmp_path / name / "raysent")
        assert (found["lost"], found["names"], found["said"]) == ({}, [], ""), name
        assert "sweep" in found["help"]
        assert ("serve" in found["help"]) == ("serving" not in absent)
        assert ("cluster" in found["help"].split()) == ("cluster" not in absent)


def test_a_wing_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path) -> None:
    """The other commands work; the line is on standard error."""
    copy = copy_without(tmp_path / "copy", ("serving",))
    (copy / "raysent/serving").mkdir()
    (copy / "raysent/serving/__init__.py").write_text("")
    (copy / "raysent/serving/commands.py").write_text("import nowhere_to_be_found\n")
    ran = run(copy, "schema", folder=tmp_path)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)
    assert ran.stderr == (
        "warning: commands of serving cannot be loaded from raysent: ModuleNotFoundError: No module named "
        "'nowhere_to_be_found'\n"
    )


def test_an_option_of_an_absent_wing_is_unknown(tmp_path: Path) -> None:
    """As any other that does not exist."""
    copy = copy_without(tmp_path / "copy", ("cluster",))
    ran = run(copy, "sweep", "everything", "--cluster", "cluster.yaml", folder=tmp_path)
    assert ran.returncode == 2
    assert "error: --cluster: no such option" in ran.stderr


@pytest.mark.cluster
def test_a_sweep_without_wings_ends_with_a_model_that_predicts(tmp_path: Path) -> None:
    """From a table to RUN/best and a label for each row; trials train too."""
    copy = copy_without(tmp_path / "copy", FOLDERS)
    drawn = random.Random(0)
    words = [
        f"{a}{b}"
        for a in ["ba", "ke", "lo", "mi", "nu", "pa", "re", "so"]
        for b in ["lan", "mer", "dos"]
    ]
    rows = [(*drawn.sample(words, 8), word) for word in ("good", "bad") * 60]
    table = "".join(f"{' '.join(row)},{row[-1]}\n" for row in rows)
    (tmp_path / "rows.csv").write_text(f"text,label\n{table}")
    (tmp_path / "text.txt").write_text("\n".join(" ".join(row) + "." for row in rows * 2))
    (tmp_path / "new.csv").write_text("text\nkelan is good\nbalan is bad\n")
    settings = ["training.epochs=1", "training.num_reports=1", "validation.num_candidates=5"]
    settings += ["encoder.type=gru", "encoder.hidden_size=8", "labels=[]"]
    ran = run(
        copy,
        *("sweep", "quickstart", "--task", "rows.csv", "--corpus", "text.txt", "--run", "run"),
        *("--trials", "1", "--yes", *(text for value in settings for text in ("--set", value))),
        folder=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run/best").is_dir()
    answered = run(copy, "predict", "run", "new.csv", folder=tmp_path)
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.splitlines()[0] == "text,predicted"
    assert len(answered.stdout.splitlines()) == 3
