"""Analyses: computed by hand on simulated predictions and runs, refused in one line, stored and shown by a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command import CommandLine, write_task

from raysent.analysis import reported_for, reported_tables
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation import Evaluator
from raysent.evaluation.tasks import senteval
from raysent.models.schemes.hash import HashEncoder
from raysent.report import write as write_report
from raysent.report.analyses import ANALYSES, read_analyses, write_analysis
from raysent.report.analyses.predictions import Predictions, disagreements, examples, rescale
from raysent.report.analyses.tsne import LabelledRows, project_rows, tsne
from raysent.storage import save_tensors, write_json, write_text


def write_run(folder: Path, *, config: dict | None = None, series: dict[str, list[float]] | None = None) -> Path:
    """Write the folder of a run that reported a metric every half hour; its model has 2 x 3 + 4 parameters."""
    write_text(folder / "model.json", "{}")
    write_text(folder / "vocabulary.txt", "")
    save_tensors(folder / "model.safetensors", {"a": torch.ones(2, 3), "b": torch.ones(4)})
    write_json(folder / "run.json", {"config": {"seed": 0, "objective": {"type": "toy"}, **(config or {})}})
    num_reports = len(next(iter((series or {"downstream": [50.0]}).values())))
    lines = [
        {
            **{
                "index": number + 1,
                "num_reports": num_reports,
                "step": number,
                "num_steps": num_reports,
                "sentences": 0,
            },
            "seconds": 1800.0 * (number + 1),
            "metrics": {name: values[number] for name, values in (series or {"downstream": [50.0]}).items()},
        }
        for number in range(num_reports)
    ]
    write_text(folder / "reports.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder / "outcome.json", {"status": "finished", "seconds": 1800.0 * num_reports})
    return folder


def analysed(name: str, runs: list[Path], **settings):
    """Return the one result of an analysis of runs."""
    (found,) = ANALYSES[name](**settings).compute(runs, None, Evaluator(Path()))
    return found


def rated(model: str, predicted: list[float], gold: list[float]) -> Predictions:
    """Return a model's predictions of rated pairs."""
    rows = [f"row {number}" for number in range(len(gold))]
    return Predictions(model, "pairs", "similarity", (rows, rows), np.array(gold), np.array(predicted))


def classified(model: str, predicted: list[int], gold: list[int], log_probabilities: list[float]) -> Predictions:
    """Return a model's predictions of rows of two classes."""
    rows = [f"row {number}" for number in range(len(gold))]
    return Predictions(
        model, "task", "fast", (rows,), np.array(gold), np.array(predicted), ("no", "yes"), np.array(log_probabilities)
    )


def test_disagreements_of_ratings_are_the_largest_differences_of_errors():
    """The first model's rows are first; a row of equal errors belongs to neither."""
    first, second = rated("a", [1.0, 4.0, 2.0, 3.0], [1, 1, 1, 1]), rated("b", [3.0, 1.5, 2.0, 1.0], [1, 1, 1, 1])
    found = disagreements(first, second, num_rows=1)
    assert [(row.sentences[0], row.gap) for row in found.rows] == [("row 0", 2.0), ("row 1", -2.5)]
    assert (found.num_first, found.num_second, found.num_rows, found.unit) == (1, 2, 4, "points")
    assert found.p_value == 1.0  # one of three, either way


def test_disagreements_of_classes_are_rows_that_one_model_gets_right():
    """Rows that both get right or wrong do not count, whatever their probabilities."""
    first = classified("a", [1, 1, 0, 1], [1, 1, 1, 1], [-0.1, -0.2, -3.0, -0.01])
    second = classified("b", [0, 1, 1, 0], [1, 1, 1, 1], [-2.0, -9.0, -0.5, -4.0])
    found = disagreements(first, second, num_rows=5)
    assert [(row.sentences, row.first, row.second) for row in found.rows] == [
        (("row 3",), "yes", "no"),
        (("row 0",), "yes", "no"),
        (("row 2",), "no", "yes"),
    ]
    assert found.rows[0].gap == pytest.approx(3.99)


def test_examples_are_a_seeded_sample_and_the_worst():
    """Two models have the same sample, and each its own worst rows."""
    gold = list(np.linspace(0, 5, 40))
    one, other = rated("a", [0.0] * 40, gold), rated("b", [5.0] * 40, gold)
    first, second = (examples(predictions, num_rows=3, seed=7) for predictions in (one, other))
    assert [row.sentences for row in first.sample] == [row.sentences for row in second.sample]
    assert [row.sentences[0] for row in first.worst] == ["row 39", "row 38", "row 37"]
    assert [row.sentences[0] for row in second.worst] == ["row 0", "row 1", "row 2"]


def test_rescale_fits_a_line_and_clips():
    """A linear function of the ratings is rescaled to the ratings, a constant to their mean."""
    scores = np.array([1.0, 2.0, 4.0, 5.0])
    assert rescale(0.9 + 0.01 * scores, scores) == pytest.approx(scores)
    assert rescale(np.array([0.0, 1.0, 9.0, 1.0]), scores).max() <= 5.0
    assert rescale(np.ones(4), scores) == pytest.approx(np.full(4, 3.0))


def test_tsne_keeps_groups_together_and_is_deterministic():
    """Two distant groups stay apart on the plane: every point's nearest point is of its own group."""
    generator = np.random.default_rng(0)
    features = np.vstack([generator.normal(size=(40, 60)), generator.normal(size=(40, 60)) + 8]).astype(np.float32)
    points, _ = tsne(features, seed=3)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(80)
    assert ((distances.argmin(axis=1) < 40) == (np.arange(80) < 40)).all()
    assert (tsne(features, seed=3)[0] == points).all()


def test_project_rows_samples_rows_with_their_ratings():
    """Pairs are points with ratings and texts; too few rows, or equal vectors, are refused."""
    encoder, texts = HashEncoder(8), [f"w{number} w{number % 7}" for number in range(60)]
    rows = LabelledRows((texts, texts[::-1]), np.arange(60.0), ())
    found = project_rows(encoder, rows, model="m", task="pairs", num_points=40, seed=1)
    assert (len(found.x), found.num_rows) == (40, 60)
    assert found.texts == tuple(f"{texts[int(row)]} | {texts[59 - int(row)]}" for row in found.colours)
    with pytest.raises(DataError, match="m: pairs: a projection needs more than 30 rows whose vectors differ"):
        project_rows(encoder, rows, model="m", task="pairs", num_points=20, seed=1)


def test_efficiency_compares_the_time_to_the_best_common_score(tmp_path):
    """The slow run reaches 60 after two hours, the fast one after half an hour: four times faster."""
    slow = write_run(tmp_path / "slow", series={"downstream": [50.0, 52.0, 55.0, 60.0]})
    fast = write_run(tmp_path / "fast", series={"downstream": [61.0, 70.0]})
    found = analysed("efficiency", [slow, fast])
    assert (found.metric, found.mode, found.target) == ("downstream", "max", 60.0)
    assert [curve.hours_to_target for curve in found.curves] == [2.0, 0.5]
    assert [found.speed_up(curve) for curve in found.curves] == [1.0, 4.0]
    assert [curve.num_parameters for curve in found.curves] == [10, 10]


def test_efficiency_of_a_loss_and_of_a_target_that_one_run_misses(tmp_path):
    """A lower loss is better; a run that does not reach the target has no time."""
    runs = [
        write_run(tmp_path / "a", series={"nll": [3.0, 2.0]}),
        write_run(tmp_path / "b", series={"nll": [4.0, 3.5]}),
    ]
    assert analysed("efficiency", runs).target == 3.5
    found = analysed("efficiency", runs, target=2.5)
    assert [curve.hours_to_target for curve in found.curves] == [1.0, None]
    assert found.speed_up(found.curves[1]) is None


def test_efficiency_refuses_runs_without_a_metric_in_common(tmp_path):
    """The error says how to get one."""
    runs = [
        write_run(tmp_path / "a", series={"nll": [3.0]}),
        write_run(tmp_path / "b", series={"context_accuracy": [0.1]}),
    ]
    with pytest.raises(ConfigError, match=r"metric: the runs have none in common; train them with --set validation"):
        analysed("efficiency", runs)
    with pytest.raises(ConfigError, match=r"metric nll: .*b does not report it; the runs report none in common"):
        analysed("efficiency", runs, metric="nll")


def test_compare_values_gives_mean_and_spread_over_seeds(tmp_path):
    """Two seeds of 512 bits and one of 64, by size; the seed is not listed as varied."""
    runs = [
        write_run(tmp_path / f"{bits}-{seed}", config={"seed": seed, "code": {"bits": bits}}, series={"pearson": [r]})
        for bits, seed, r in ((512, 0, 0.6), (512, 1, 0.8), (64, 0, 0.5))
    ]
    found = analysed("parameter", runs, setting="code.bits")
    groups = found.groups()
    assert [(group.value, group.num_runs, group.mean) for group in groups] == [(64, 1, 0.5), (512, 2, 0.7)]
    assert [group.spread for group in groups] == [None, pytest.approx(np.std([0.6, 0.8], ddof=1))]
    assert (found.metric, found.also_varied) == ("pearson", ())


def test_compare_values_lists_other_differences_and_refuses_unknown_names(tmp_path):
    """The error for a misspelt name gives the nearest, that for a section names a setting in it."""
    runs = [
        write_run(tmp_path / "a", config={"code": {"bits": 64}, "lambda_sp": 0.2}),
        write_run(tmp_path / "b", config={"code": {"bits": 128}, "lambda_sp": 0.8}),
    ]
    assert analysed("parameter", runs, setting="code.bits").also_varied == ("lambda_sp",)
    series = analysed("parameter", runs, setting="code.bits", by="lambda_sp").groups()
    assert [(group.series, group.value) for group in series] == [("0.2", 64), ("0.8", 128)]
    with pytest.raises(ConfigError, match=r"code\.bit: none of the runs has such a setting; did you mean 'code\.bits'"):
        analysed("parameter", runs, setting="code.bit")
    with pytest.raises(ConfigError, match=r"code: must be a single setting; given a section; name one inside"):
        analysed("parameter", runs, setting="code")


def test_read_analyses_returns_what_was_written(tmp_path):
    """An analysis survives its file; a file of another version is an error that says what to do."""
    found = disagreements(rated("a/1", [1.0], [2.0]), rated("b", [3.0], [2.5]), num_rows=1)
    path = write_analysis(tmp_path, found)
    assert path.name == "disagreements-pairs-a-1-b.json"
    assert read_analyses(tmp_path) == (found,)
    values = json.loads(path.read_text())
    del values["models"]
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="models is not as this version writes it; analyse again"):
        read_analyses(tmp_path)
    path.write_text("[]")
    with pytest.raises(ArtifactError, match="not an analysis; remove it"):
        read_analyses(tmp_path)


def test_reported_tables_are_complete():
    """All papers are read, every row has a number, and percentages are in a plausible range."""
    tables = reported_tables()
    assert len({table.paper for table in tables}) == 5
    for table in tables:
        for row in table.rows.values():
            assert any(figure is not None for figure in row)
            measured = zip(table.columns, row, strict=True)
            bounded = [figure for column, figure in measured if column.endswith(("pearson", "spearman", "f1"))]
            assert all(figure is None or 10 < figure < 100 for figure in bounded)


def test_reported_for_joins_a_papers_tables_but_never_protocols():
    """MC-QT is in two tables of one paper; its row in another paper, of another protocol, is a separate entry."""
    models = [model for model in reported_for(["MR", "SST-2", "SICK-R"]) if model.model.startswith("MC-QT")]
    by_paper = {model.where: model for model in models}
    joined = by_paper["Logeswaran and Lee, 2018, tables 1 and 2"]
    assert (joined.protocol, joined.figures) == (
        "kiros",
        {"dim": 4800, "hours": 28, "MR": 82.4, "SST-2": 87.6, "SICK-R": 87.4},
    )
    assert by_paper["Tang and de Sa, 2018, table 5"].protocol == "senteval"
    assert reported_for(["no-such-task"]) == []


def test_analyse_commands_write_what_the_report_shows(tmp_path, monkeypatch, capsys):
    """Each command writes a file, and the page of a folder with evaluated models alone has a section for each."""
    monkeypatch.chdir(tmp_path)
    raysent = CommandLine(monkeypatch, capsys)
    run = write_run(tmp_path / "a", config={"size": 1}, series={"downstream": [50.0, 60.0]})
    other = write_run(tmp_path / "b", config={"size": 2}, series={"downstream": [60.0, 70.0]})
    write_task(tmp_path / "data")
    monkeypatch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 40))
    task = ("--tasks", "MR", "--set", "data=data", "--set", "into=home")
    assert "2.0 ×" in raysent("analyse", "efficiency", run, other, "--set", "into=home").out
    assert "size" in raysent("analyse", "parameter", run, other, "--set", "setting=size", "--set", "into=home").out
    assert raysent("analyse", "examples", "hash:8", "--set", "rows=3", *task).code == 0
    assert raysent("analyse", "errors", "hash:8", "hash:16", "--set", "rows=3", *task).code == 0
    assert raysent("analyse", "tsne", "hash:8", "--set", "points=40", *task).code == 0
    refused = raysent("analyse", "errors", "hash:8", "hash:16", "--set", "row=3", *task)
    assert (refused.code, refused.err) == (2, "error: row: unknown name; did you mean 'rows'?\n")
    assert "unknown analysis" in raysent("analyse", "error", "hash:8").err
    page = write_report(tmp_path / "home").read_text(encoding="utf-8")
    for heading in (
        "Score against training time",
        "Effect of a setting",
        "Maps of sentences",
        "Example predictions",
        "Where two models differ",
    ):
        assert f"<h2>{heading}</h2>" in page
