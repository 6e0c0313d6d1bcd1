"""`raysent predict` and `predict` of every model: tables, lines, pairs, scores, several labels; what is refused."""

from __future__ import annotations

import csv
import json
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import write_table

from raysent import load, predict
from raysent.data.vocabulary import WordVectors
from raysent.ensembles import combine
from raysent.ensembles.ensemble import load_predicting
from raysent.ensembles.task_ensemble import calibration_of
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task_files import OwnTask
from raysent.models import average_of_words
from raysent.pipeline import predictions, ray_predictions
from raysent.pipeline.table_output import OutputTable, writing
from raysent.serving.server import ServerConfig, make_application
from raysent.storage import read_json, write_json

WORDS = ("red", "blue", "tall", "short", "round", "flat", "hot", "cold")


def texts(num_rows: int, seed: int = 0) -> list[str]:
    """Return texts of a few words."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS, 5)) + f" {'abcdefghij'[row % 10] * 5}{row}"
        for row in range(num_rows)
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ensembles: of one task, of pairs, of scored pairs, of several labels, and a folder with one for each task."""
    folder = tmp_path_factory.mktemp("predicting")
    rows, others = texts(80), texts(80, seed=1)
    label = ["warm" if row.count("red") + row.count("hot") > 1 else "cool" for row in rows]
    one = OwnTask(pd.DataFrame({"text": rows, "label": label}), name="own")
    same = [
        "yes" if a.split()[0] == b.split()[0] else "no" for a, b in zip(rows, others, strict=True)
    ]
    pairs = OwnTask(pd.DataFrame({"text_a": rows, "text_b": others, "label": same}), name="same")
    score = [len(set(a.split()) & set(b.split())) for a, b in zip(rows, others, strict=True)]
    scored = OwnTask(
        pd.DataFrame({"text_a": rows, "text_b": others, "score": [2 * one for one in score]}),
        name="near",
        range=[0, 10],
    )
    lists = [[word for word in WORDS[:3] if word in row] for row in rows]
    several = OwnTask(pd.DataFrame({"text": rows, "label": lists}), name="has")
    combine(["tfidf", "hash:10"], output=folder / "own", tasks=[one])
    combine(["tfidf"], output=folder / "same", tasks=[pairs])
    combine(["hash:20"], output=folder / "near", tasks=[scored])
    combine(["tfidf"], output=folder / "has", tasks=several.variants({"accuracy"}))
    for task in ("own", "same"):
        (folder / "run/best" / task).parent.mkdir(parents=True, exist_ok=True)
        combine(
            ["tfidf"], output=folder / "run/best" / task, tasks=[{"own": one, "same": pairs}[task]]
        )
    return folder


@pytest.mark.parametrize("name", ["new.csv", "new.tsv", "new.jsonl", "new.parquet", "new"])
@pytest.mark.parametrize("output", ["out.csv", "out.jsonl", "out.parquet"])
def test_table_keeps_its_columns_and_gets_labels_and_probabilities(
    saved, tmp_path, monkeypatch, name, output
) -> None:
    """In any form, in blocks: the rows in order, and the values of `predict_proba`."""
    monkeypatch.setattr(predictions, "BLOCK_ROWS", 7)
    given = texts(30, seed=2)
    file = write_table(tmp_path / name, {"id": list(range(30)), "review": given})
    made = predict(saved / "own", file, output=tmp_path / output, proba=True, progress=False)
    model = load(saved / "own")
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    found = readers.get(Path(output).suffix, lambda path: pd.read_json(path, lines=True))(
        tmp_path / output
    )
    assert list(found) == ["id", "review", "predicted", "probability_cool", "probability_warm"]
    assert found["review"].tolist() == given
    assert found["id"].astype(int).tolist() == list(range(30))
    assert found["predicted"].tolist() == model.predict(given)
    np.testing.assert_allclose(
        found[["probability_cool", "probability_warm"]], model.predict_proba(given), atol=1e-6
    )
    assert made.num_rows == 30
    assert made.counts == found["predicted"].value_counts().to_dict()


@pytest.mark.parametrize(
    "first", ["This hotel was really bad, and I will not come back.", "房间很不错。"]
)
def test_first_line_that_looks_like_a_row_is_refused(saved, tmp_path, first) -> None:
    """It would be lost; it is a row with `header=False`, and a name where the column is named."""
    file = tmp_path / "new.csv"
    file.write_text(
        f'"{first}"\n' + "".join(f"{text}\n" for text in texts(4, seed=2)), encoding="utf-8"
    )
    with pytest.raises(
        DataError,
        match="must name the columns; given .*, which looks like a row; it is one with header=F",
    ):
        predict(saved / "own", file, output=tmp_path / "out.csv", progress=False)
    assert (
        predict(
            saved / "own", file, output=tmp_path / "out.csv", header=False, progress=False
        ).num_rows
        == 5
    )
    assert (
        predict(
            saved / "own", file, output=tmp_path / "out.csv", column=first, progress=False
        ).num_rows
        == 4
    )


def test_cluster_s_blocks_come_back_in_the_order_of_the_rows(saved, tmp_path, monkeypatch) -> None:
    """Whichever ends first, and by a copy of the model."""

    def last_first(function, jobs, *, common, address, max_running, gpus_each):
        assert (address, max_running, gpus_each) == ("head:6379", 4, 0.5)
        numbered = enumerate(jobs)
        sent = list(islice(numbered, max_running))
        while sent:
            index, job = sent.pop()
            yield index, function(*pickle.loads(pickle.dumps((job, common))))
            sent += islice(numbered, 1)

    monkeypatch.setattr(predictions, "BLOCK_ROWS", 4)
    monkeypatch.setattr(ray_predictions, "map_on_ray", last_first)
    monkeypatch.setattr(ray_predictions, "ray_session", lambda _: nullcontext())
    monkeypatch.setattr(ray_predictions, "num_jobs_at_once", lambda _: 2)
    monkeypatch.setattr(ray_predictions, "gpu_share", lambda: 0.5)
    file = write_table(tmp_path / "new.csv", {"text": texts(42, seed=9)})
    for name, address in (("here.csv", None), ("there.csv", "head:6379")):
        predict(
            saved / "own", file, output=tmp_path / name, proba=True, address=address, progress=False
        )
    assert (tmp_path / "there.csv").read_text() == (tmp_path / "here.csv").read_text()


def test_command_reads_standard_input_and_writes_csv(saved, raysent) -> None:
    """A line a row, empty ones too; results on standard output, all else on standard error."""
    ran = raysent("predict", saved / "own", "-", stdin=b'red "hot", red\n\nblue cold\n')
    assert (ran.code, ran.err) == (0, "standard output: 3 rows of own: cool 2, warm 1\n")
    assert ran.out == 'text,predicted\n"red ""hot"", red",warm\n,cool\nblue cold,cool\n'


def test_pairs_scores_and_several_labels_are_predicted_as_what_they_are(
    saved, tmp_path, raysent
) -> None:
    """Two columns, found or named; the mean of the levels; a list of labels."""
    left, right = texts(12, seed=3), texts(12, seed=4)
    for table in ({"sentence2": right, "sentence1": left}, {"x": left, "y": right}):
        file = write_table(tmp_path / "new.csv", table)
        assert (
            raysent("predict", str(saved / "same"), file, "-o", str(tmp_path / "a.csv")).code == 0
        )
        assert pd.read_csv(tmp_path / "a.csv")["predicted"].tolist() == load(
            saved / "same"
        ).predict(left, right)

    named = write_table(tmp_path / "named.csv", {"n": range(12), "x": left, "y": right})
    columns = ["--column", "x", "--column", "y"]
    assert (
        raysent(
            "predict", str(saved / "near"), named, *columns, "-o", str(tmp_path / "b.jsonl")
        ).code
        == 0
    )
    scores = pd.read_json(tmp_path / "b.jsonl", lines=True)["predicted"]
    levels = load(saved / "near").predict_proba("near", left, right)
    low, high = load(saved / "near").predictors["near"].records[0].about["scale"]
    np.testing.assert_allclose(scores, levels @ np.linspace(low, high, 5), atol=1e-6)
    assert (low, high) == (0, 10)

    lines = tmp_path / "new.txt"
    lines.write_text("red tall\nblue\n")
    assert (
        raysent(
            "predict", str(saved / "has"), str(lines), "-o", str(tmp_path / "c.jsonl"), "--proba"
        ).code
        == 0
    )
    found = pd.read_json(tmp_path / "c.jsonl", lines=True)
    model = load(saved / "has")
    for word in WORDS[:3]:
        yes = model.predict_proba(f"has.{word}", ["red tall", "blue"])[:, 1]
        np.testing.assert_allclose(found[f"probability_{word}"], yes, atol=1e-6)
        assert [word in row for row in found["predicted"]] == (yes > 0.5).tolist()


def test_several_labels_are_predicted_as_the_table_writes_them(tmp_path) -> None:
    """Not as names of files have them, and two labels that these would have alike are two; dots are part of a label."""
    labels = dict(
        zip(WORDS[:5], ("our staff", "our-staff", "très (froid)", "v1.2", "50 %/a"), strict=True)
    )
    rows = texts(80)
    lists = [[label for word, label in labels.items() if word in row] for row in rows]
    tasks = OwnTask(pd.DataFrame({"text": rows, "label": lists}), name="has").variants({"accuracy"})
    assert not any(set("/().") & set(task.name.removeprefix("has.")) for task in tasks)
    combine(["tfidf"], output=tmp_path / "has", tasks=tasks)
    (tmp_path / "new.txt").write_text("\n".join(texts(20, seed=1)), encoding="utf-8")
    found = predict(
        tmp_path / "has",
        tmp_path / "new.txt",
        output=tmp_path / "out.jsonl",
        proba=True,
        progress=False,
    )
    assert found.task == "has"
    columns = list(pd.read_json(tmp_path / "out.jsonl", lines=True))
    assert set(columns) == {
        "text",
        "predicted",
        *(f"probability_{label}" for label in labels.values()),
    }
    assert set(found.counts) <= set(labels.values())


def test_model_predicts_what_it_was_evaluated_on(tmp_path) -> None:
    """A trained model with the probe of its record: of its own folder, or of the sweep that it is a trial of."""
    folder, words = tmp_path / "run/trials/0003", [*WORDS, "green"]
    trained = average_of_words(WordVectors(tuple(words), np.eye(len(words), dtype=np.float32)))
    trained.save(folder / "model")
    with pytest.raises(
        ConfigError,
        match=r"0003: predicts no task; 'raysent evaluate .*0003 --task FILE' fits what",
    ):
        load(folder).predict("a text")
    trained.save(tmp_path / "my run")
    with pytest.raises(
        ConfigError,
        match=r"predicts no task; 'raysent evaluate '/.*/my run' --task FILE' fits what",
    ):
        load(tmp_path / "my run").predict("a text")
    rows = texts(60)
    task = OwnTask(
        pd.DataFrame({"text": rows, "label": ["red" in row for row in rows]}), name="own"
    )
    evaluator = Evaluator(tmp_path / "run/evaluation", divides=True)
    ((record,),) = evaluator.records(expand([folder]), [task]).values()
    model = load(folder)
    assert model.tasks == ["own"]
    assert model.label_names() == ("False", "True")
    expected = calibration_of([record], method="uniform")(
        record.probe.log_probabilities(model.encode(rows))
    )
    np.testing.assert_allclose(model.predict_log_probabilities(rows), expected, atol=1e-6)
    assert model.predict("red red", task="own") == model.predict("own", ["red red"]) == [True]

    other = average_of_words(WordVectors(tuple(words), 2 * np.eye(len(words), dtype=np.float32)))
    shutil.rmtree(folder / "model")
    other.save(folder / "model")
    assert load(folder).tasks == []  # the record is of another model


def test_best_models_of_several_tasks_are_served_together(saved) -> None:
    """A sweep's folder stands for them; each answers its task, pairs too, and there are no vectors."""
    testclient = pytest.importorskip("starlette.testclient", reason="pip install raysent[serve]")
    client = testclient.TestClient(
        make_application(saved / "run", ServerConfig()), base_url="http://localhost"
    )
    assert client.get("/v1/models").json()["data"][0]["tasks"] == ["own", "same"]
    rows = list(zip(texts(5), texts(5, seed=8), strict=True))
    answer = client.post("/v1/predict", json={"input": rows, "task": "same"}).json()
    model = load(saved / "run/best/same")
    assert (
        answer["probabilities"] == model.predict_proba(*map(list, zip(*rows, strict=True))).tolist()
    )
    assert answer["labels"] == model.predict(*map(list, zip(*rows, strict=True)))
    missing = client.post("/v1/predict", json={"input": "a"})
    assert (missing.status_code, "it predicts own, same" in missing.text) == (404, True)
    refused = client.post("/v1/embeddings", json={"input": "a"})
    assert (refused.status_code, "it has a model for each of own, same" in refused.text) == (
        400,
        True,
    )


def test_rows_below_a_threshold_stay_unanswered(saved, tmp_path, raysent) -> None:
    """The threshold is saved with the model; the printed line says what validation rows promise and what was done."""
    given = texts(50, seed=6)
    file = write_table(tmp_path / "new.jsonl", {"text": given})
    ran = raysent("predict", saved / "own", file, "-o", tmp_path / "out.jsonl", "--coverage", "0.6")
    found = pd.read_json(tmp_path / "out.jsonl", lines=True)["predicted"]
    model = load(saved / "own")
    calibration = json.loads((saved / "own/ensemble.json").read_text())["tasks"]["own"][
        "calibration"
    ]
    level = next(one for one in calibration["levels"] if one[1] >= 0.6 * calibration["num_rows"])
    is_answered = model.predict_proba(given).max(axis=1) >= level[0]
    assert found.notna().tolist() == is_answered.tolist()
    assert found[is_answered].tolist() == model.predict(
        [given[row] for row in np.flatnonzero(is_answered)]
    )
    line = (
        rf"60% of rows answered: a confidence of {level[0]:.3f} answers {level[1]} of {calibration['num_rows']} validation "
        rf"rows, {level[2] / level[1]:.1%} of them right; here {is_answered.sum()} of 50 rows are answered \(.*\)"
    )
    assert re.search(rf"^{line}$", ran.err, re.MULTILINE), ran.err

    both = raysent("predict", saved / "own", file, "--coverage", "0.6", "--precision", "0.9")
    assert (both.code, both.err) == (
        2,
        "error: coverage and precision: must not both be given; name one\n",
    )
    assert raysent("predict", saved / "near", file, "--coverage", "0.6").err == (
        "error: --coverage: must be of a task with classes; near has scores\n"
    )
    several = raysent("predict", saved / "has", file, "--precision", "0.6").err
    assert (
        several
        == "error: --task: must be one of has.tall, has.red, has.blue to be answered in part\n"
    )


def test_ensemble_of_an_earlier_version_is_calibrated_by_its_records(saved, tmp_path) -> None:
    """Its file has no calibration; the members' records have what it is fitted on."""
    shutil.copytree(saved / "own", tmp_path / "own")
    file = tmp_path / "own/ensemble.json"
    about = read_json(file)
    del about["tasks"]["own"]["calibration"]
    write_json(file, about)
    rows = texts(20, seed=7)
    np.testing.assert_array_equal(
        load(tmp_path / "own").predict_proba(rows), load(saved / "own").predict_proba(rows)
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("own", "no.csv"), r"no\.csv: no such file"),
        (
            ("own", "new.csv", "--column", "bodie"),
            r"new\.csv: column: must name a column; given 'bodie'; did you mean 'bodies'\?",
        ),
        (
            ("own", "new.csv"),
            r"new\.csv: column: must name the column of the text; it has id, bodies, predicted",
        ),
        (
            ("same", "ids.csv"),
            r"ids\.csv: column: must name the two columns of the texts of pairs; it has id, text",
        ),
        (
            ("own", "new.csv", "--column", "bodies"),
            r"new\.csv: must have no column 'predicted', which the output adds; .*",
        ),
        (
            ("own", "-", "--column", "body"),
            r"--column body: must be left out for standard input, which has no columns",
        ),
        (
            ("same", "-"),
            r"standard input: must be a table with the two columns of pairs; given lines of text",
        ),
        (("own", "-"), r"standard input: must hold text; given no row of it"),
        (("run", "new.csv"), r"--task: must be named for .*best; it predicts own, same"),
        (
            ("run", "new.csv", "--task", "son"),
            r"son: .*best was not made on this task; did you mean 'own'\?",
        ),
        (
            ("own", "ids.jsonl", "--column", "text"),
            r"ids\.jsonl: row 2: column 'text' must be text; given nothing",
        ),
        (
            ("own", "ids.jsonl", "-o", "out.xls"),
            r"--output out\.xls: must end in \.csv, \.tsv, \.jsonl or \.parquet",
        ),
    ],
)
def test_wrong_input_is_one_line(saved, tmp_path, monkeypatch, raysent, arguments, line) -> None:
    """Exit code 2, and no file is left."""
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("id,bodies,predicted\n1,a,b\n")
    Path("ids.csv").write_text("id,text\n1,a\n")
    Path("ids.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    output = [] if "-o" in arguments else ["-o", "out.csv"]
    ran = raysent("predict", saved / arguments[0], *arguments[1:], *output)
    assert ran.code == 2
    assert re.fullmatch(rf"error: {line}\n", ran.err), ran.err
    assert not Path("out.csv").exists()


def test_a_scheme_says_what_makes_it_predict(raysent) -> None:
    """A lexical model has no labels until an ensemble is made of it."""
    ran = raysent("predict", "tfidf", "-", stdin=b"a\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: tfidf: predicts no task; 'raysent ensemble tfidf --task FILE -o FOLDER' makes a model that does\n"
    )


def test_killed_command_leaves_no_file_and_another_writes_the_whole(saved, tmp_path) -> None:
    """The output appears whole or not at all, and is the same whatever was killed before."""
    file, output = (
        write_table(tmp_path / "new.csv", {"text": texts(1000, seed=5)}),
        tmp_path / "out.csv",
    )
    code = """if True:
        import sys, time
        from raysent.cli import main
        from raysent.pipeline import predictions, ray_predictions
        predictions.BLOCK_ROWS, columns = 5, predictions.Answerer.columns
        predictions.Answerer.columns = lambda *given: (time.sleep(0.1), columns(*given))[1]
        main()"""
    arguments = ["predict", str(saved / "own"), file, "-o", str(output)]
    running = subprocess.Popen([sys.executable, "-c", code, *arguments])
    while len(list(tmp_path.iterdir())) == 1:  # the file to predict
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not output.exists()
    for again in (output, tmp_path / "other.csv"):
        predict(saved / "own", file, output=again, progress=False)
    assert output.read_bytes() == (tmp_path / "other.csv").read_bytes()
    assert output.read_bytes().count(b"\n") == 1001


def test_an_answer_that_was_not_finished_is_one_line(tmp_path: Path) -> None:
    """A sweep that is killed while its answer is saved has a folder of it without what it is."""
    (tmp_path / "run" / "best" / "evaluation").mkdir(parents=True)
    (tmp_path / "run" / "sweep.json").write_text("{}")
    with pytest.raises(
        ArtifactError,
        match=r"run: a sweep without a model to take; finish it with 'raysent resume ",
    ):
        load_predicting(tmp_path / "run")


def test_a_carriage_return_in_a_cell_ends_no_row(tmp_path: Path) -> None:
    """The row is quoted whole, the header too; other rows are written as before."""
    with writing(tmp_path / "out.csv", OutputTable(["a\rb", "c"], 2)) as write:
        write([["good film\rsecond part", "plain"], [1, 2]])
    with (tmp_path / "out.csv").open(newline="") as stream:
        assert list(csv.reader(stream)) == [
            ["a\rb", "c"],
            ["good film\rsecond part", "1"],
            ["plain", "2"],
        ]
    assert (tmp_path / "out.csv").read_bytes().endswith(b"\nplain,2\n")


def test_parquet_column_without_a_value_in_its_first_block_takes_texts(tmp_path: Path) -> None:
    """So does a column whose first lists are empty."""
    with writing(tmp_path / "out.parquet", OutputTable(["one", "several"], 2)) as write:
        write([[None, None], [[], []]])
        write([["good"], [["a", "b"]]])
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["one"].dropna().tolist() == ["good"]
    assert [list(row) for row in found["several"]] == [[], [], ["a", "b"]]


@pytest.mark.parametrize("value", [{}, 10**23])
def test_what_parquet_cannot_hold_is_one_line(tmp_path: Path, value: object) -> None:
    """Nothing is left of the file."""
    wrong = pytest.raises(
        DataError, match=r"^output: (column 'x': )?Parquet cannot hold .*; write \.jsonl instead$"
    )
    with wrong, writing(tmp_path / "out.parquet", OutputTable(["x"], 1)) as write:
        write([[value]])
    assert not (tmp_path / "out.parquet").exists()
