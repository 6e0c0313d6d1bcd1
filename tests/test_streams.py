"""Standard streams that are closed or narrow, and Python without docstrings: right, or one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from raysent.docstrings import docstring_of
from raysent.ensembles import combine
from raysent.evaluation.task_files import OwnTask, TaskSettings

COMMAND = [sys.executable, "-m", "raysent"]


def run(
    *arguments: str, shell: str = "", stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of raysent, with redirections of a shell."""
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, env={**os.environ, **environment}, check=False
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model of two labels, one of which no Latin-1 terminal can show."""
    folder = tmp_path_factory.mktemp("model") / "own"
    words = np.random.default_rng(0).choice(["red", "blue", "tall", "flat", "hot", "cold"], (60, 6))
    rows = [f"{' '.join(row)} {'good' if index % 2 else 'bad'}" for index, row in enumerate(words)]
    frame = pd.DataFrame({"text": rows, "label": ["no", "\U0001f642"] * 30})
    combine(["tfidf"], output=folder, tasks=[OwnTask(frame, name="own")])
    return str(folder)


@pytest.mark.parametrize("shell", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(shell):
    """As those of a daemon; the numbers of the streams are no file's."""
    ran = run("schema", shell=shell)
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False)


def test_narrow_output_shows_escapes_and_refuses_a_table(model):
    """Text is shown, JSON stays JSON, and CSV, which is data, says what can be done."""
    assert run("--help", PYTHONIOENCODING="latin-1:strict").returncode == 0
    ran = run("schema", PYTHONIOENCODING="ascii")
    assert json.loads(ran.stdout)
    texts = "The good café\n".encode()
    ran = run("predict", model, "-", stdin=texts, PYTHONIOENCODING="latin-1")
    assert (ran.returncode, b"Traceback" in ran.stderr) == (2, False)
    assert ran.stderr.splitlines()[-1] == (
        b"error: --output: must be a file, which is UTF-8, as standard output is iso8859-1 and cannot hold "
        b"'\\U0001f642'; or set PYTHONIOENCODING=utf-8"
    )
    ran = run("predict", model, "-", stdin=texts, shell=">&-")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (
        2,
        b"error: --output: must be given, as standard output is closed",
    )


def test_python_without_docstrings_has_the_same_help(model):
    """It is read from the sources; what needs Ray Train, which cannot be imported then, is one line."""
    for arguments in (["predict", "--help"], ["cluster", "up", "--help"]):
        assert run(*arguments, PYTHONOPTIMIZE="2").stdout == run(*arguments).stdout
    ran = run(
        "predict",
        model,
        "-",
        stdin=b"The good film\n",
        PYTHONOPTIMIZE="2",
        PYTHONIOENCODING="utf-8",
    )
    assert (ran.returncode, "\U0001f642" in ran.stdout.decode()) == (0, True)
    assert run("components", PYTHONOPTIMIZE="2").stdout == run("components").stdout
    ran = run("doctor", "quickstart", PYTHONOPTIMIZE="2")
    assert (ran.returncode, ran.stderr.splitlines()[-1][:42]) == (
        2,
        b"error: PYTHONOPTIMIZE: must be 0 or 1 for ",
    )


def test_docstring_of_a_source_is_that_of_the_object():
    """Of classes, functions and modules."""
    import raysent.data.tables as module

    code = (
        "import sys; from raysent.docstrings import docstring_of; import raysent.data.tables as m;"
        "from raysent.evaluation.task_files import TaskSettings;"
        "sys.stdout.buffer.write(chr(0).join(map(docstring_of, [m, m.read_table, TaskSettings, len])).encode())"
    )
    ran = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, check=True)
    documented = [module, module.read_table, TaskSettings]
    assert ran.stdout.decode().split("\0")[1:3] == [
        docstring_of(module.read_table),
        docstring_of(TaskSettings),
    ]
    assert ran.stdout.decode().startswith(docstring_of(documented[0])[:50])
