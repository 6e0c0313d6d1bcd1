"""What `make release-check` and `make versions` try: every Python that is promised, and every range of versions."""

from __future__ import annotations

import re
import sys

import pytest
import release
import versions
from installed import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_every_list_of_dependencies_is_tried_or_left_out_with_a_reason():
    """Also an extra that is added to pyproject.toml."""
    tried, left_out = set(versions.TESTS), set(versions.LEFT_OUT) - {"torch"}
    assert tried | left_out == set(versions.lists())
    assert not tried & left_out


def test_tests_of_every_list_exist():
    """A renamed test would be an error of `make versions` alone."""
    files = {f"tests/{name}.py" for names in versions.TESTS.values() for name in names}
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_torch_is_never_installed_anew():
    """With each list that asks for it, torch stays that of .venv."""
    assert all("torch" in versions.kept(name) for name in versions.TESTS)


def test_both_ends_are_tried_and_torch_is_named(monkeypatch, capsys, tmp_path):
    """A failing end is an exit code and a line, and the other lists are tried all the same."""
    ran = []

    def fake_run(name, folder):
        ran.append((name, folder.name))
        return int(folder.name == "search-highest")

    monkeypatch.setattr(versions, "install", lambda name, end: tmp_path / f"{name}-{end}")
    monkeypatch.setattr(versions, "run_tests", fake_run)
    assert versions.main(["search", "serve"]) == 1
    ends = ("lowest-direct", "highest")
    assert ran == [(name, f"{name}-{end}") for name in ("search", "serve") for end in ends]
    printed = capsys.readouterr().out
    assert "left out: torch" in printed
    assert printed.splitlines()[-1] == "failed: search, highest"
    assert versions.main(["serve"]) == 0
    assert versions.main(["sevre"]) == 2


def test_classifiers_name_pythons_that_are_tried():
    """From the lowest that is required on; the package runs on no other."""
    [lowest] = re.findall(r'^requires-python = ">=(3\.\d+)"$', PYPROJECT, re.MULTILINE)
    assert release.classified()[0] == lowest == release.VERSIONS[0]
    assert set(release.classified()) <= set(release.VERSIONS)


def test_pythons_are_found_by_version_and_by_path(monkeypatch):
    """This one is; one that is nowhere and cannot be fetched is not."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = release.interpreter(own)
    assert found is not None
    assert release.version_of(found) == own
    assert release.interpreter(found) == found
    assert release.interpreter("/nowhere/python") is None
    monkeypatch.setattr(release, "_candidates", lambda version: iter([sys.executable]))
    assert release.interpreter("3.99") is None


@pytest.mark.parametrize(("is_here", "code"), [(True, 0), (False, 1)])
def test_a_classifier_whose_python_was_not_tried_is_an_error(is_here, code, monkeypatch, capsys):
    """A line names it; the others are tried, each by an option of pytest."""
    commands = []

    def fake_run(command, **options):
        commands.append(command)
        return release.subprocess.CompletedProcess(command, 0)

    def version_of(path):
        return path.rpartition("/")[2]

    here = [version for version in release.VERSIONS if is_here or version != "3.11"]
    monkeypatch.setattr(
        release, "interpreter", lambda version: f"/{version}" if version in here else None
    )
    monkeypatch.setattr(release, "version_of", version_of)
    monkeypatch.setattr(release.subprocess, "run", fake_run)
    assert release.main([]) == code
    [command] = commands
    assert [path for path in command if path.startswith("/3")] == [
        f"/{version}" for version in here
    ]
    printed = capsys.readouterr().out
    assert ("Python 3.11: not on this machine" in printed) is not is_here
    assert ("names Python 3.11, which was not tried" in printed) is not is_here
