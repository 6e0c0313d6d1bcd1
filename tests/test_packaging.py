"""The wheel and the sdist: what they hold, and that raysent works from the wheel alone, outside a checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from installed import ROOT, VERSION, User, run

from raysent.config import SHIPPED, shipped_path

# Files at the top of the repository that serve only those who have the repository.
NOT_IN_SDIST = {".ci/run", ".gitattributes"}
# What makes the README's sweep one of seconds, which still does everything once.
TINY = [
    "--yes",
    "--trials=1",
    "--set=evaluation.baselines=false",
    "--set=labels=[32]",
    "--set=training.max_steps=4",
]
# What somebody writes who types his own code, and reads the types of raysent's.
TYPED_USE = """
from pathlib import Path

import raysent


def best_answer(table: Path) -> list[str]:
    sweep: raysent.Sweep = raysent.sweep(tasks=[str(table)], run="runs/typed", time="5m")
    first: str = sweep.trials.columns[0]
    return [first, str(sweep.best.encode(["A sentence."]).shape)]


raysent.sweep(tusks=["reviews.csv"], trials="many")
"""
NOUNS = [f"{kind} {place}" for kind in ("hotel", "camera", "train") for place in range(20)]


def repository_files(*options: str) -> set[str]:
    """Return the files that git lists."""
    listed = subprocess.run(
        ["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> User:
    """Return the `raysent` of the wheel."""
    return User(environment, tmp_path, RAYSENT_CACHE=os.environ["RAYSENT_CACHE"])


def test_shipped_path_finds_every_shipped_file():
    """In a checkout they are next to the package."""
    assert [shipped_path(name) for name in SHIPPED] == [ROOT / name for name in SHIPPED]
    assert all(shipped_path(name).exists() for name in SHIPPED)


def test_sdist_holds_the_repository(archives):
    """Every file that git tracks is in it, and none that git ignores."""
    with tarfile.open(archives[0]) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames()} - {"PKG-INFO"}
    tracked = repository_files()
    assert sorted(tracked - NOT_IN_SDIST - held) == []
    assert sorted(held - tracked - repository_files("--others", "--exclude-standard")) == []


def test_wheel_holds_the_package_and_the_shipped_files(archives):
    """Every file of the package, code or not, and search spaces and cluster file inside it, as they are here."""
    expected = {name: name for name in repository_files() if name.startswith("raysent/")}
    expected |= {f"raysent/{name}": name for name in repository_files() if name.startswith(SHIPPED)}
    with zipfile.ZipFile(archives[1]) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert f"raysent-{VERSION}.dist-info/licenses/LICENSE" in held
    assert sorted(expected.keys() - held.keys()) == []
    assert [
        name for name, source in expected.items() if held[name] != (ROOT / source).read_bytes()
    ] == []


def test_links_of_the_description_lead_somewhere(archives):
    """What is shown of the package links to whole addresses, or to files of the sdist; its own pages are whole."""
    with tarfile.open(archives[0]) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        information = archive.extractfile(f"raysent-{VERSION}/PKG-INFO")
        assert information is not None
        described = message_from_bytes(information.read())
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", str(described.get_payload()))
    assert links
    whole = [link for link in links if link.startswith("https://")]
    is_held = [
        link in held or any(name.startswith(f"{link}/") for name in held)
        for link in links
        if link not in whole
    ]
    assert all(is_held), links
    pages = [line.partition(", ")[2] for line in described.get_all("Project-URL", [])]
    assert [page for page in pages if not page.startswith("https://")] == []


@pytest.mark.release
def test_archives_are_what_an_index_takes(archives):
    """Their metadata and description are read by twine without an error or a warning."""
    run(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=archives[0].parent)


@pytest.mark.release
def test_installed_types_are_read_by_mypy(installed, environment):
    """Somebody's file passes where it is right, and a wrong argument is found: the types come from the wheel."""
    use = installed.folder / "use.py"
    use.write_text(TYPED_USE)
    python = environment / "bin" / "python"
    checked = run(
        *(sys.executable, "-m", "mypy", "--strict", "--python-executable", python),
        *("--cache-dir", installed.folder / "types", use),
        cwd=installed.folder,
        code=1,
    )
    *errors, _ = checked.stdout.splitlines()
    wrong_line = f"use.py:{len(TYPED_USE.splitlines())}:"
    assert errors
    assert [error for error in errors if not error.startswith(wrong_line)] == []


def test_wheel_declares_dependencies_that_agree(environment):
    """`pip check` finds every declared dependency in the environment, in a version that was asked for."""
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        environment / "bin" / "python",
        "check",
        cwd=environment,
    )


def test_installed_version_is_the_package_version(installed):
    """The metadata and the package have one version."""
    assert installed("--version").strip() == f"raysent {VERSION}"


def test_installed_documentation_is_extracted(installed):
    """The first text of a library that is installed beside raysent, as the corpus `docs` has it."""
    code = (
        "from raysent.data.corpus.embedded import extract; print(next(extract(['optuna'])).module)"
    )
    assert installed.python(code).startswith("optuna")


def test_installed_space_schema_is_printed(installed):
    """The schema needs nothing but the package."""
    schema = json.loads(installed("schema"))
    assert "limits" in schema["properties"]
    assert schema["title"] == "raysent search space"


def test_installed_spaces_are_found_by_name(installed):
    """A shipped search space is found by its bare name."""
    assert "quick_thoughts" in installed("doctor", "quick_thoughts")


def test_installed_completion_completes_commands(installed):
    """What the shell's completion script calls answers with the commands that begin in this way."""
    words = {"COMP_WORDS": "raysent clus", "COMP_CWORD": "1"}
    assert installed(_RAYSENT_COMPLETE="complete_bash", **words).split() == ["cluster"]


def test_installed_cluster_up_needs_credentials(installed):
    """Without a cluster file of the user's the shipped one is read; without credentials nothing is launched."""
    assert installed("cluster", "up", "--print-policies", code=2) == ""


def test_installed_example_adds_an_encoder(installed):
    """The package in `examples/own_encoder`, installed beside raysent, is found by its entry point."""
    source, target = ROOT / "examples" / "own_encoder", installed.folder / "packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        target,
    ]
    run(*pip, source, cwd=installed.folder)
    assert "first_word" in installed("schema", PYTHONPATH=str(target))


def test_installed_without_extras_trains_a_bag_and_names_the_extra(installed):
    """A pretrained encoder is refused in one line, before Ray starts."""
    (installed.folder / "text.txt").write_text(
        "".join(f"w{row % 7} w{row % 5} w{row % 3}\n" for row in range(200))
    )
    (installed.folder / "bert").mkdir()
    (installed.folder / "bert" / "config.json").write_text(
        '{"model_type": "bert", "hidden_size": 8}'
    )
    space = {
        "base": {
            "corpus": {
                "path": "text.txt",
                "format": "sentences",
                "cache_dir": "cache",
                "validation_fraction": 0.2,
            },
            "encoder": {"type": "bag", "embedding": {"dim": 8}},
            "objective": {"type": "context_prediction"},
            "training": {"batch_size": 20, "max_steps": 3, "num_reports": 1},
            "validation": {"num_candidates": 20, "num_sentences": 20},
        }
    }
    code = f"""
from pathlib import Path
from raysent.training.loop import fit
from raysent.training.run import RunConfig
print(fit(RunConfig.model_validate({space["base"]}), Path("run")).status)
"""
    assert installed.python(code) == "finished\n"
    space["base"]["encoder"] = {"type": "pretrained", "path": "bert"}
    (installed.folder / "own.yaml").write_text(json.dumps(space))
    ended = installed.run("raysent", "train", "own.yaml", code=2)
    [line] = ended.stderr.strip().splitlines()
    assert line.endswith("needs transformers; install raysent[pretrained]")


@pytest.mark.cluster
def test_installed_raysent_does_what_the_readme_shows_first(installed):
    """In an empty folder: a sweep of a table, few labels, the answer, the report, and what the answer predicts."""
    shown = re.findall(
        r"^\$ raysent (.*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    sweep, predict = (
        next(line.split() for line in shown if line.startswith(name))
        for name in ("sweep", "predict")
    )
    texts = [f"The {thing} was {word}.,{word}\n" for thing in NOUNS for word in ("good", "bad")]
    (installed.folder / "reviews.csv").write_text("text,label\n" + "".join(texts))
    (installed.folder / "new.csv").write_text("text\nIt was good.\nBad it was.\n")
    own = {
        "random.py",
        "torch.py",
    }  # the user's, which no process of Ray's may import in place of the libraries
    for name in own:
        (installed.folder / name).write_text("raise SystemExit('not a library')")
    installed(*sweep, *TINY)
    assert (installed.folder / "runs/first/report.html").stat().st_size > 10_000
    curves = json.loads((installed.folder / "runs/first/label_curves/reviews.json").read_text())[
        "curves"
    ]
    assert list(curves) == ["0000", "chance"]  # without baselines
    installed(*predict)
    assert (
        installed.folder / "predicted.csv"
    ).read_text() == "text,predicted\nIt was good.,good\nBad it was.,bad\n"
    assert {path.name for path in installed.folder.iterdir()} == {
        *own, "reviews.csv", "new.csv", "runs", "predicted.csv",
    }  # fmt: skip
