"""The script and the notebook of `examples/` run, in a copy of the folder and with a small search space."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from tiny_run import tiny_run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder, in which the quick start has run with a search space of a few steps."""
    copy = tmp_path_factory.mktemp("copy") / "examples"
    shutil.copytree(EXAMPLES, copy)
    base = tiny_run(copy).model_dump(mode="json", exclude_unset=True)
    search = {"training.learning_rate": {"loguniform": [1e-3, 1e-2]}}
    tiny = {
        "base": base,
        "search": search,
        "limits": {"concurrent": 1},
        "evaluation": {"baselines": False},
    }
    (copy / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    command = [sys.executable, "quickstart.py", "tiny.yaml"]
    ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (copy / "printed.txt").write_text(ran.stdout)
    return copy


def test_quickstart_prints_trials_scores_and_predictions(folder):
    """Four trials ranked on the labels, the best beside baselines, a class, and the report, which exists."""
    printed = (folder / "printed.txt").read_text()
    assert all(f"\n000{number} " in printed for number in range(4))
    assert "downstream" in printed.splitlines()[0]
    assert {"tfidf", "tfidf:chars", "hash:16"} <= set(printed.split())
    assert "['bug']" in printed
    assert "report: runs/first/report.html" in printed
    assert (folder / "runs/first/report.html").is_file()


def notebook_outputs(path: Path) -> list[Any]:
    """Return the data of every output after running a notebook in its folder, by the kernel of these tests."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output.get("data", {}) for cell in cells for output in cell.outputs]


@pytest.mark.filterwarnings("ignore")  # the client's event loop and sockets
def test_notebooks_run_from_top_to_bottom(folder):
    """Every notebook; a cell that raises fails here with its traceback."""
    [path] = sorted(folder.glob("*.ipynb"))
    shown = [data.get("text/plain", "") for data in notebook_outputs(path)]
    assert any(text.startswith("Sweep('runs/first', completed, 4 trials") for text in shown)
    assert shown[-1] == "('bug', 'request')"


def test_notebooks_are_kept_without_outputs():
    """What is committed is what was written, not what one machine printed."""
    for path in EXAMPLES.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
