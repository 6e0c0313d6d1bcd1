"""What `load` finds in a process that has imported nothing else, and what an ensemble of lexical members can do."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raysent.ensembles import combine, load_ensemble
from raysent.errors import ConfigError, RaysentError
from raysent.evaluation.task_files import OwnTask
from raysent.models.schemes import LOADERS
from raysent.registry import load_point

TEXTS = ["a red tall thing", "a blue short thing"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ensembles on one task of own texts: `both` has a lexical and another member, `words` a lexical one alone."""
    folder = tmp_path_factory.mktemp("ensembles")
    rows = [
        f"a {('red tall', 'blue short')[row % 2]} thing {'abcdefghijklmnopqrst'[row % 20] * 9} {'uvwxyz'[row // 10] * 9}"
        for row in range(60)
    ]
    task = OwnTask(
        pd.DataFrame({"text": rows, "label": [f"c{row % 2}" for row in range(60)]}),
        name="own",
        folds=4,
    )
    combine(["tfidf", "hash:10"], output=folder / "both", tasks=[task])
    combine(["tfidf"], output=folder / "words", tasks=[task])
    combine(["hash:10", "hash:20"], output=folder / "vectors", tasks=[task])
    return folder


def python(code: str, *arguments: object) -> str:
    """Run code in a new process; return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# --- in a new process --------------------------------------------------------


def test_ensemble_is_loaded_by_a_process_that_imported_raysent_alone(saved: Path) -> None:
    """`raysent.load` alone: no other import has to come before it."""
    code = f"import raysent, sys; print(raysent.load(sys.argv[1]).predict('own', {TEXTS}))"
    assert python(code, saved / "both") == "['c0', 'c1']\n"
    code = "import raysent, sys; print(raysent.load(sys.argv[1]).encode(['a text']).shape)"
    assert python(code, saved / "vectors") == "(1, 30)\n"


def test_a_trained_model_is_loaded_without_what_ensembles_import(saved: Path) -> None:
    """Reading the table of kinds imports none of them, nor what prints or reads tables."""
    code = "import raysent.models.schemes, sys; print({'raysent.ensembles', 'rich', 'pyarrow'} & sys.modules.keys())"
    assert python(code) == "set()\n"
    assert all(callable(load_point("raysent.loaders", loader)) for loader in LOADERS.values())


def test_a_process_that_trains_imports_none_of_what_takes_a_second() -> None:
    """Every trial starts such processes, on Ray's workers too."""
    code = "import raysent.training.ray_train, sys; print({'scipy.stats', 'scipy.optimize', 'sklearn'} & sys.modules.keys())"
    assert python(code) == "set()\n"


def imported_by(*arguments: object) -> set[str]:
    """Run a command in a new process; return which libraries that take a second or more it has imported."""
    code = (
        "import sys\nfrom raysent.cli import main\nsys.argv[0] = 'raysent'\n"
        "try: main()\nexcept SystemExit as error: assert not error.code\n"
        "print(*{'torch', 'ray', 'optuna', 'pandas', 'sklearn'} & sys.modules.keys())"
    )
    return set(python(code, *arguments).splitlines()[-1].split())


def test_predicting_by_words_imports_neither_torch_nor_ray(saved: Path, tmp_path: Path) -> None:
    """Seconds that whoever predicts a few rows would wait for; other members need them."""
    file, output = tmp_path / "new.csv", tmp_path / "out.csv"
    pd.DataFrame({"text": TEXTS}).to_csv(file, index=False)
    taken = imported_by("predict", saved / "words", file, "-o", output, "--proba")
    assert not taken
    assert pd.read_csv(output)["predicted"].tolist() == ["c0", "c1"]


def test_doctor_of_a_table_imports_neither_torch_nor_ray(tmp_path: Path) -> None:
    """Nothing is trained or searched."""
    file = tmp_path / "table.csv"
    labels = ["red", "blue"] * 20
    texts = [f"a {label} thing of {row} inches" for row, label in enumerate(labels)]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(file, index=False)
    assert not imported_by("doctor", file)


@contextlib.contextmanager
def served(model: object) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """Run `raysent serve` in a new process; yield a connection, and what it said before it answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "raysent", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        while process.poll() is None:
            with contextlib.suppress(OSError):
                connection.connect()
                break
        assert process.poll() is None, said + process.stderr.read()
        yield connection, said
    finally:
        connection.close()
        process.terminate()
        process.communicate(timeout=600)


def post(
    connection: http.client.HTTPConnection, path: str, **body: object
) -> tuple[int, dict[str, object]]:
    """Return the status and the content of an answer."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("name", ["both", "words"])
def test_serve_predicts_by_an_ensemble_with_a_lexical_member(saved: Path, name: str) -> None:
    """It answers its task, and refuses vectors in one line that says what it can do."""
    pytest.importorskip("uvicorn", reason="pip install raysent[serve]")
    with served(saved / name) as (connection, said):
        assert said.startswith(f"serving {saved / name} on http://127.0.0.1:")
        status, answer = post(connection, "/v1/predict/own", input=TEXTS)
        assert (status, answer["labels"]) == (200, ["c0", "c1"])
        assert post(connection, "/v1/predict", input=TEXTS) == (200, answer)
        assert answer["probabilities"] == load_ensemble(saved / name).predict_proba(TEXTS).tolist()
        model = load_ensemble(saved / name)
        threshold = model.predictors["own"].promise(coverage=0.3).level.threshold
        sure = model.predict_proba(TEXTS).max(axis=1) >= threshold
        status, answer_in_part = post(connection, "/v1/predict", input=TEXTS, coverage=0.3)
        assert (status, [label is not None for label in answer_in_part["labels"]]) == (
            200,
            sure.tolist(),
        )
        for wrong in ({"coverage": 80}, {"coverage": "all"}, {"coverage": 0.5, "precision": 0.5}):
            assert post(connection, "/v1/predict", input=TEXTS, **wrong)[0] == 400
        assert post(connection, "/v1/predict", input=TEXTS, task="own") == (200, answer)
        assert post(connection, "/v1/predict", input=TEXTS, task="other")[0] == 404
        status, answer = post(connection, "/v1/embeddings", input=TEXTS)
        assert status == 400
        assert (
            "cannot encode, as its member tfidf has no vectors of a fixed size; it predicts own"
            in str(answer)
        )


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("nowhere", r"error: nowhere: no such folder; name a run, .*"),
        (
            "tfidf",
            r"error: tfidf: cannot encode, as it has no vectors of a fixed size; it answers tasks: .*",
        ),
    ],
)
def test_serve_opens_the_model_before_it_says_where(model: str, line: str, tmp_path: Path) -> None:
    """A name that cannot be served is one line, and nothing is said of serving."""
    pytest.importorskip("uvicorn", reason="pip install raysent[serve]")
    command = [sys.executable, "-m", "raysent", "serve", model]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert re.fullmatch(line + r"\n", ran.stderr), ran.stderr


# --- arguments of predict ----------------------------------------------------


@pytest.mark.parametrize("name", ["both", "words", "vectors"])
def test_predict_reads_one_string_as_one_text(saved: Path, name: str) -> None:
    """As `encode` does, and any sequence of strings; no text at all has no answer."""
    ensemble = load_ensemble(saved / name)
    rows = ensemble.predict_proba("own", TEXTS)
    np.testing.assert_allclose(ensemble.predict_proba("own", TEXTS[1]), rows[1:], atol=1e-6)
    np.testing.assert_array_equal(ensemble.predict_proba("own", pd.Series(TEXTS)), rows)
    np.testing.assert_array_equal(ensemble.predict_proba(TEXTS), rows)
    np.testing.assert_array_equal(ensemble.predict_proba(TEXTS, task="own"), rows)
    assert ensemble.predict("own", "abc") == ensemble.predict("abc") == ensemble.predict(["abc"])
    assert ensemble.predict("own", []) == []
    assert ensemble.predict_proba("own", []).shape == (0, 2)


@pytest.mark.parametrize("name", ["both", "words", "vectors"])
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("own", [None]), r"own: sentences\[0\]: must be a string; given NoneType"),
        (("own", ["a", 3]), r"own: sentences\[1\]: must be a string; given int"),
        (
            ("own", None),
            r"own: sentences: must be a string or a sequence of strings; given NoneType",
        ),
        (
            ("own", b"abc"),
            r"own: sentences: must be a string or a sequence of strings; given bytes",
        ),
        (("own", ["a"], ["b"]), r"own: needs 1 list\(s\) of equally many sentences; given 2"),
        ((None,), r"own: sentences: must be a string or a sequence of strings; given NoneType"),
        (
            (["a text"], ["a text"]),
            r"task: must be the name of a task, before its texts: own; given list",
        ),
        (("a text", ["b"]), r"a text: .* was not made on this task; known: own"),
    ],
)
def test_predict_refuses_other_arguments_in_one_line(
    saved: Path, name: str, arguments: tuple, line: str
) -> None:
    """Where, what must hold, and what was given; whatever the members are."""
    with pytest.raises(RaysentError, match=rf"^{line}$"):
        load_ensemble(saved / name).predict(*arguments)


def test_ensemble_with_a_lexical_member_says_why_it_cannot_encode(saved: Path) -> None:
    """Both its vectors and their size are refused; without such a member there is no reason."""
    both = load_ensemble(saved / "both")
    assert load_ensemble(saved / "vectors").cannot_encode is None
    for ask in (lambda: both.encode(TEXTS), both.get_sentence_embedding_dimension):
        with pytest.raises(
            ConfigError, match=r"both: cannot encode, as its member tfidf has no vectors of a fixed"
        ):
            ask()
