"""The report: what it reads, what it says, and that text from outside cannot break the page."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from run_folders import (
    CHANCE,
    POOL,
    SPACE,
    RecordedDriver,
    write_evaluation,
    write_labels,
    write_sweep,
)
from tiny_run import tiny_run

from raysent.ensembles import combine, read_answers, read_curves, save_best, write_curves
from raysent.ensembles.answer import Answer, Candidate
from raysent.ensembles.answer_rows import AnswerRows, read_answer_rows, write_answer_rows
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.task import TaskData
from raysent.report import write
from raysent.report.blocks import duration, fixed, isolated, number, significant
from raysent.report.figures import short_names
from raysent.report.run import PredictedTask, Run, read_run
from raysent.report.sections import answer as answer_section
from raysent.report.sections import classes as classes_section
from raysent.report.sections.ensemble import method_scores
from raysent.reproduction.tasks import senteval
from raysent.storage import read_json, read_json_lines, write_json, write_json_lines
from raysent.storage.layout import ENSEMBLE_FILE, JOURNAL_FILE, SWEEP_FILE
from raysent.sweeps import RecordedTasks
from raysent.training.outcome import Outcome, save_outcome
from raysent.training.run import save_run

VERSION_2 = Path(__file__).parent / "data" / "version_2"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep of 20 trials, evaluated and combined."""
    folder = write_sweep(tmp_path_factory.mktemp("rich"), num_trials=20)
    write_evaluation(folder, ["0000", "0001", "0002", "0004"])
    return folder


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep of 3 trials that were not evaluated."""
    folder = tmp_path_factory.mktemp("poor") / "a sweep"
    folder.mkdir()
    return write_sweep(folder, num_trials=3)


@pytest.fixture(scope="module")
def rich_page(rich: Path) -> str:
    """The page of the rich sweep."""
    return write(rich).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def poor_page(poor: Path) -> str:
    """The page of the poor sweep."""
    return write(poor).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """Return the text of a page, without scripts, styles and tags."""
    bare = re.sub(r"<(script|style|noscript)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def figures(page: str) -> list[dict[str, Any]]:
    """Return the figures of a page."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    return [json.loads(text) for text in found]


def edit(path: Path, change: Any) -> None:
    """Change a JSON file in place; what was sealed is no longer."""
    values = read_json(path)
    change(values)
    write_json(path, values)


def rewrite(path: Path, text: str) -> None:
    """Write the text of a JSON file with a seal of its own."""
    values = json.loads(text)
    values.pop("digest", None)
    write_json(path, values)


def cells_of(page: str, text: str) -> list[str]:
    """Return the texts of the cells of the first row that has a cell with this text."""
    row = next(
        row for row in re.findall(r"<tr>.*?</tr>", page, flags=re.DOTALL) if f">{text}</td>" in row
    )
    return [
        re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", row, flags=re.DOTALL)
    ]


# -- the page ---------------------------------------------------------------------------------------------------------


def test_write_makes_one_small_file_with_plotly_packed(rich: Path, rich_page: str) -> None:
    """The page has the whole of plotly.js, compressed, and stays below 2.5 MB."""
    assert (rich / "report.html").stat().st_size < 2_500_000
    packed = re.search(
        r'<script id="plotly" type="application/gzip">(.*?)</script>', rich_page, re.DOTALL
    )
    assert packed is not None
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed[1]))[:200]


def test_write_without_figures_leaves_plotly_out(tmp_path: Path) -> None:
    """A page of tables alone is small."""
    write_evaluation(tmp_path, ["a", "b"])
    (tmp_path / ENSEMBLE_FILE).unlink()
    assert write(tmp_path).stat().st_size < 100_000


def test_write_needs_no_network(rich_page: str) -> None:
    """The page refers to no other file."""
    own = re.sub(r"<script\b.*?</script>", "", rich_page, flags=re.DOTALL)
    assert re.findall(r"""\bsrc\s*=|\bhref\s*=\s*["']?[^"'#]|@import|url\(|<link""", own) == []


def test_write_describes_every_figure_in_words(rich_page: str) -> None:
    """A browser without JavaScript shows the sentence in place of the figure."""
    labels = re.findall(r'<div class="plot" role="img" aria-label="([^"]+)"', rich_page)
    assert len(labels) == len(figures(rich_page)) > 10
    assert (
        "<noscript><style>.plot::before { content: attr(aria-label); }</style></noscript>"
        in rich_page
    )


def test_write_repeated_gives_the_same_page(rich: Path, rich_page: str) -> None:
    """The bootstrap has a fixed seed."""
    assert write(rich).read_text(encoding="utf-8") == rich_page


def test_write_escapes_every_text(tmp_path: Path) -> None:
    """Markup in names, values, sentences and errors is shown as text; in labels of figures it is escaped for plotly."""
    nasty = "</script><img src=x onerror=alert(1)>"
    folder = write_sweep(tmp_path / "run", num_trials=5)
    write_evaluation(folder, ["0000", "0001"])
    edit(
        folder / SWEEP_FILE,
        lambda values: values.update(name=nasty, command=["raysent", nasty], source=nasty),
    )
    edit(folder / SWEEP_FILE, lambda values: values["corpus"].update(path=nasty))
    edit(folder / SWEEP_FILE, lambda values: values["versions"].update(raysent=nasty))
    for path in (
        folder / JOURNAL_FILE,
        folder / ENSEMBLE_FILE,
        *folder.glob("evaluation/*/*.json"),
    ):
        if path.suffix == ".json":
            edit(path, dict)
        text = path.read_text()
        if path.suffix == ".jsonl":
            text = "".join(json.dumps(event) + "\n" for event in read_json_lines(path))
        text = text.replace("MemoryError:", nasty)
        for name in ('"0001"', '"bi"', '"uni"', '"bag"', '"MR"', '"validation"', '"fast"'):
            key = re.compile(rf"{name}(?!:)" if name == '"validation"' else name)
            text = key.sub(json.dumps(nasty).replace("\\", "\\\\"), text)
        if path.suffix == ".jsonl":
            write_json_lines(path, map(json.loads, text.splitlines()))
        else:
            rewrite(path, text)
    page = write(folder).read_text()
    outside = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)
    assert "<img" not in outside
    assert outside.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;") > 28
    assert page.count("</script>") == page.count("<script")
    drawn = [figure for figure in figures(page) if figure["data"][0]["type"] != "parcoords"]
    assert "&lt;img" in json.dumps(drawn)
    assert "<img" not in json.dumps(drawn)


def test_names_from_right_to_left_do_not_reorder_what_stands_beside_them(tmp_path: Path) -> None:
    """Cells take the direction of their text; in sentences and figures such names are isolated, whole and each alone."""
    folder = write_sweep(tmp_path / "run", num_trials=3)
    write_evaluation(folder, ["0000", "0001"])
    edit(folder / SWEEP_FILE, lambda values: values.update(name="ביקורות"))
    for path in (folder / ENSEMBLE_FILE, *folder.glob("evaluation/*/*.json")):
        edit(path, dict)
        text = path.read_text().replace('"MR"', '"ביקורות של סרטים"')
        rewrite(path, text.replace('"0001"', '"مراجعات"'))
    page = write(folder).read_text()
    assert '<h1 dir="auto">ביקורות</h1>' in page
    assert '<button type="button" dir="auto">ביקורות של סרטים</button>' in page
    assert re.search(r'<td class="text[^"]*" dir="auto"[^>]*>مراجعات', page)
    assert re.search(r'<td class="number[^"]*"[^>]*dir=', page) is None
    drawn = json.dumps(figures(page), ensure_ascii=False)
    assert ("\u2068ביקורות של סרטים\u2069" in prose(page), "\u2068مراجعات\u2069" in drawn) == (
        True,
        True,
    )
    assert isolated("סרט 88.0, שיר 77") == "\u2068סרט\u2069 88.0, \u2068שיר\u2069 77"


# -- what it says -----------------------------------------------------------------------------------------------------


def test_summary_gives_the_result_in_words(rich_page: str) -> None:
    """Best trial, its ratio to chance, the numbers of trials, and what the ensemble gains."""
    text = prose(rich_page)
    assert re.search(
        r"The best of 20 trials is .*?trial \d+, with context_accuracy 0\.\d+, \d+\.\d × chance \(0\.00200\)",
        text,
    )
    assert re.search(r"Trials: \d+ finished, \d+ stopped early, 1 failed, 1 diverged\.", text)
    gain = r"The ensemble of 4 is better than its best single member \([^)]*trial 0\) in the mean over tasks: \+0\.83 points"
    assert re.search(gain + r" \(95 % interval \+0\.31 to \+1\.36\)", text)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ([-0.2, 1.1], "not significantly different from"),
        ([-1.1, -0.2], "worse than"),
        ([0.0, 1.0], "not significantly"),
    ],
)
def test_summary_says_whether_the_gain_is_significant(
    tmp_path: Path, interval: list[float], verdict: str
) -> None:
    """An interval that contains zero is not a difference."""
    write_evaluation(tmp_path, ["0000", "0001"])
    edit(
        tmp_path / ENSEMBLE_FILE,
        lambda values: values["mean"]["difference"].update(interval=interval),
    )
    assert f"is {verdict}" in prose(write(tmp_path).read_text())


def test_leaderboard_shows_nan_as_a_dash(rich_page: str) -> None:
    """A trial that diverged has dashes in place of its values."""
    assert cells_of(rich_page, "0011")[:5] == ["0011", "nan", "–", "–", "–"]
    assert not re.search(
        r"\b(?:NaN|None|inf)\b", prose(rich_page).replace("was NaN or infinite", "")
    )


def test_learning_curves_draw_each_trial_and_chance(rich_page: str) -> None:
    """One line per trial, the best on top, and the level of chance."""
    curves = next(figure for figure in figures(rich_page) if figure["layout"].get("shapes"))
    assert len(curves["data"]) == 20
    assert curves["data"][-1]["line"]["width"] > curves["data"][0]["line"]["width"]
    assert curves["layout"]["shapes"][0]["y0"] == pytest.approx(CHANCE)
    assert max(max(line["x"]) for line in curves["data"]) == 1.0


def test_failures_give_the_reason(rich_page: str) -> None:
    """The error of a trial that failed, and what a diverged trial means."""
    assert cells_of(rich_page, "MemoryError: the worker ran out of memory at step 412")[:2] == [
        "0003",
        "failed",
    ]
    assert "0011 nan 16 s the loss was NaN or infinite" in prose(rich_page)


def test_sections_without_files_name_the_command(poor_page: str, poor: Path) -> None:
    """What does not exist yet is named with the command that makes it."""
    text = prose(poor_page)
    assert f"raysent evaluate '{poor}'" in text
    assert f"raysent ensemble '{poor}'" in text
    assert 'id="calibration"' not in poor_page


def test_task_scores_highlight_the_best_of_each_task(rich: Path, rich_page: str) -> None:
    """Each task's best model is marked, and that of the mean."""
    table = rich_page[rich_page.index('id="tasks"') : rich_page.index('id="ensemble"')]
    assert len(re.findall(r'<td class="number short best"', table)) == 6
    best = max(score.test for score in read_run(rich).scores if score.task == "MR")
    assert re.search(rf'<td class="number short best"[^>]*>{best:.2f}</td>', table)


def test_task_scores_keep_correlations_out_of_the_mean(tmp_path: Path) -> None:
    """A correlation among percentages has a column right of the mean."""
    score = {"model": "a", "protocol": "fast", "validation": 1.0}
    write_json(
        tmp_path / "evaluation/a/MR.json",
        {**score, "task": "MR", "test": 70.0, "measures": {"f1": 65.0}},
    )
    write_json(
        tmp_path / "evaluation/a/SICK-R.json",
        {**score, "task": "SICK-R", "test": 80.0, "measures": {"pearson": 80.0}},
    )
    page = write(tmp_path).read_text()
    assert re.findall(r"<button[^>]*>([^<]*)</button>", page[: page.index("</table>")]) == [
        "model",
        "MR",
        "mean",
        "SICK-R r",
    ]
    assert cells_of(page, "a") == ["a", "70.00/65.00", "70.00", "80.00"]


def test_no_command_for_an_ensemble_where_none_can_be_made(tmp_path: Path, poor: Path) -> None:
    """Of evaluated models, whose folder holds none, and beside an answer that ranks passages."""
    write_json(
        tmp_path / "evaluation/a/MR.json",
        {"model": "a", "protocol": "fast", "validation": 1.0, "task": "MR", "test": 70.0},
    )
    assert "raysent ensemble" not in write(tmp_path).read_text()
    run = read_run(poor)
    assert method_scores(run) is not None
    assert method_scores(replace(run, answers=((poor / "best", Mock()),))) is None


def test_scores_against_labels_compare_with_baselines_and_chance(tmp_path: Path) -> None:
    """A plot with intervals, baselines and the level of chance; and a table."""
    write_labels(tmp_path, ["0000"])
    page = write(tmp_path).read_text(encoding="utf-8")
    (plot,) = figures(page)
    traces = {trace["name"]: trace for trace in plot["data"]}
    assert list(traces) == ["ensemble + TF-IDF of words", "ensemble", "trial 0", "TF-IDF of words"]
    assert {name: trace["line"]["dash"] for name, trace in traces.items()}[
        "TF-IDF of words"
    ] == "dash"
    assert traces["ensemble"]["error_y"]["array"] == [1.5, 1.5, 1.5]
    assert [note["text"] for note in plot["layout"]["annotations"]] == ["chance 22.00"]
    assert cells_of(page, "chance")[2:] == ["22.00", "22.00", "22.00"]


def test_scores_against_pairs_have_no_level_of_chance(tmp_path: Path) -> None:
    """Which would be 0, and most of the plot."""
    write_labels(tmp_path, ["0000"])
    (curve,) = read_curves(tmp_path)
    write_curves(tmp_path, [curve.model_copy(update={"metric": "ndcg_at_10", "chance": 0.0})])
    (plot,) = figures(write(tmp_path).read_text(encoding="utf-8"))
    assert not plot["layout"].get("shapes")
    assert plot["layout"]["xaxis"]["title"]["text"] == "pairs"


def test_ensemble_plots_have_intervals(rich_page: str) -> None:
    """Ensemble, other methods and members have whiskers, for the mean and each task."""
    plots = [
        figure
        for figure in figures(rich_page)
        if "equal weights" in (figure["data"][0].get("y") or ())
    ]
    assert len(plots) == 6
    assert all(min(plot["data"][0]["error_x"]["array"]) > 0 for plot in plots)
    assert all(plot["data"][0]["y"][-1] == "ensemble" for plot in plots)


def test_reproduction_gives_command_seed_and_data(rich_page: str) -> None:
    """What is needed to run it again."""
    text = prose(rich_page)
    for fact in (
        "command raysent sweep search_spaces/quick_thoughts.yaml --trials 20",
        "seed 7",
        "corpus size 61,204 sentences, 1,102,400 tokens",
        "validation size 4,000 sentences, 1,000 candidates for each; chance 0.002000",
    ):
        assert fact in text


def test_command_can_be_typed_as_it_is_shown(tmp_path: Path) -> None:
    """Arguments with spaces are quoted; of a sweep that Python asked for, no command is named."""
    driver = RecordedDriver(tmp_path, SPACE % 3)
    edit = {"--set": "search.encoder={choice: [a, b]}"}
    for command, shown in (
        (
            ["raysent", "sweep", "s.yaml", *edit, *edit.values()],
            "raysent sweep s.yaml --set 'search.encoder={choice",
        ),
        ([], "The same search space, limits, versions"),
    ):
        write_json(tmp_path / SWEEP_FILE, {**read_json(tmp_path / SWEEP_FILE), "command": command})
        assert shown in prose(write(tmp_path).read_text())
    assert driver is not None


# -- what it reads ----------------------------------------------------------------------------------------------------


def test_write_of_a_sweep_that_has_just_started(tmp_path: Path) -> None:
    """Before the first report, the page says so."""
    driver = RecordedDriver(tmp_path, SPACE % 3)
    assert "No trial has reported context_accuracy yet." in prose(write(tmp_path).read_text())
    driver.controller.suggest()
    text = prose(write(tmp_path).read_text())
    assert "No trial has reported context_accuracy yet. Trials: 1 running." in text
    assert "No trial has reported yet." in text


def test_write_of_a_running_sweep_drops_the_line_that_is_being_written(tmp_path: Path) -> None:
    """An incomplete last line of the journal is not an error."""
    folder = write_sweep(tmp_path, num_trials=2)
    with (folder / JOURNAL_FILE).open("a") as stream:
        stream.write('{"event": "repo')
    assert "The best of 2 trials" in prose(write(folder).read_text())


@pytest.mark.parametrize("name", ["finished", "killed"])
def test_write_of_a_sweep_of_version_2(tmp_path: Path, name: str) -> None:
    """A sweep of version 0.2.0 and one of its trainings have a page."""
    folder = tmp_path / name
    shutil.copytree(VERSION_2 / name, folder)
    text = prose(write(folder).read_text())
    assert f"The best of {6 if name == 'finished' else 2} trials is" in text
    assert "The run reaches context_accuracy" in prose(
        write(folder / "trials" / "0000").read_text()
    )


def test_write_of_a_training(tmp_path: Path) -> None:
    """A training has its learning curve, and no leaderboard."""
    config = tiny_run(tmp_path)
    save_run(config, tmp_path)
    assert "No trial has reported yet." in prose(write(tmp_path).read_text())
    for index in (1, 2, 4):
        metrics = {"context_accuracy": index / 50}
        report = {
            "index": index,
            "num_reports": 4,
            "step": index,
            "num_steps": 4,
            "sentences": 8,
            "seconds": 2.0 * index,
        }
        with (tmp_path / "reports.jsonl").open("a") as stream:
            stream.write(json.dumps({**report, "metrics": metrics}) + "\n")
    save_outcome(Outcome("finished", 4, 4, 8, seconds=9.0, pool=POOL), tmp_path, key=config.key)
    page = write(tmp_path).read_text()
    assert figures(page)[0]["data"][0]["x"] == [0.25, 0.5, 1.0]
    assert "The run reaches context_accuracy 0.08000, 40.0 × chance" in prose(page)
    assert "wall clock 9.0 s" in prose(page)
    assert 'id="leaderboard"' not in page


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (SWEEP_FILE, '{"name": "x"', r"sweep\.json: truncated or not JSON"),
        (
            JOURNAL_FILE,
            '{"event": "report", "trial": "9"}\n{}\n',
            r"journal\.jsonl: not the journal of a sweep",
        ),
        (ENSEMBLE_FILE, '{"members": []}', r"ensemble\.json: not an ensemble of this version"),
        ("evaluation/a/MR.json", '{"model": "a"}', r"MR\.json: not a record of an evaluation"),
    ],
)
def test_write_refuses_a_damaged_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A damaged file is named in one line, not shown as an empty page."""
    folder = write_sweep(tmp_path, num_trials=1)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    if name == JOURNAL_FILE:
        write_json_lines(folder / name, map(json.loads, text.splitlines()))
    with pytest.raises(ArtifactError, match=message):
        write(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "reports.jsonl",
            '{"loss": 1}\n',
            r"reports\.jsonl: not the reports of a run \(.*\); restore it",
        ),
        ("run.json", "{}", r"run\.json: not the record of a run"),
    ],
)
def test_write_refuses_a_damaged_training(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """The same for the files of a training."""
    save_run(tiny_run(tmp_path), tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ArtifactError, match=message):
        write(tmp_path)


@pytest.fixture
def combined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep with an ensemble of two models that were evaluated on a task of 60 rows."""
    write_sweep(tmp_path, num_trials=1)
    monkeypatch.setattr(
        senteval, "NUM_ROWS", senteval.NUM_ROWS | {"CR/custrev.pos": 30, "CR/custrev.neg": 30}
    )
    for name, word in (("pos", "good"), ("neg", "bad")):
        path = tmp_path / "data" / "CR" / f"custrev.{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{word} thing {number}\n" for number in range(30)))
    combine(["hash:4", "hash:8"], output=tmp_path, tasks=["CR"], data_dir=tmp_path / "data")
    return tmp_path


def test_write_shows_what_combine_writes(combined: Path) -> None:
    """Scores, weights, calibration and costs of a real ensemble."""
    page = write(combined).read_text()
    assert {score.model for score in read_run(combined).scores} == {"hash:4", "hash:8"}
    assert sum("equal weights" in str(figure["data"][0].get("y")) for figure in figures(page)) == 1
    assert page.count("Reliability on CR") == 1


def test_write_begins_with_what_to_take(combined: Path) -> None:
    """The answer, each class and mistakes are open, and first; how it was searched is folded."""
    evaluator = Evaluator(combined / "evaluation", combined / "data", divides=True)
    save_best(["hash:4", "hash:8"], evaluator, run=combined, tasks=["CR"])
    page = write(combined).read_text()
    kinds = re.findall(r'<(section|details) id="(\w+)"', page)
    assert kinds[:2] == [("section", "answer"), ("section", "classes")]
    searched = kinds.index(("details", "search"))
    assert {kind for kind, _ in kinds[:searched]} == {"section"}
    assert kinds[searched + 1] == ("details", "summary")
    ((folder, answer),) = read_answers(combined)
    assert f'<h1 dir="auto">CR: {answer.answer.test:.1f} % accuracy</h1>' in page
    assert f"<title>CR: {answer.answer.test:.1f} % accuracy – raysent</title>" in page
    assert f"Your model: {folder} ({answer.answer.title}). Accuracy " in prose(page)
    assert f"{answer.score_text[1:]}." in prose(page)
    assert f"raysent predict {folder} new.csv" in prose(page)
    (plot,) = (one for one in figures(page) if one["data"][0].get("y", [""])[-1] == "your model")
    assert {"the most frequent class", "TF-IDF of words", "TF-IDF of characters"} <= set(
        plot["data"][0]["y"]
    )


# -- names and numbers ------------------------------------------------------------------------------------------------


def test_short_names_are_unique() -> None:
    """A dotted name keeps its last part, and more if two would be equal."""
    names = ["encoder.dropout", "objective.dropout", "training.batch_size"]
    assert list(short_names(names).values()) == [
        "encoder.dropout",
        "objective.dropout",
        "batch_size",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (math.nan, "–"), (0.0, "0.000"), (0.13094, "0.1309")]
)
def test_significant_prints_a_number_or_a_dash(value: float | None, text: str) -> None:
    """Four significant digits; NaN is never a number."""
    assert significant(value) == text


def test_number_is_finite_or_none() -> None:
    """Only finite numbers are numbers."""
    assert [number(value) for value in (1, "2.5", math.inf, math.nan, True, "x", None)] == [
        1.0,
        2.5,
        *[None] * 5,
    ]


def test_duration_and_fixed_as_text() -> None:
    """Two units at most, and a true minus sign."""
    assert [duration(s) for s in (3.21, 75, 7260, None)] == [
        "3.2 s",
        "1 min 15 s",
        "2 h 01 min",
        "–",
    ]
    assert fixed(-1.234, sign=True) == "−1.23"


def test_what_was_scored_stands_once_in_the_table():
    """So do combinations that took the same members; one of a single member is that member, marked if it is the answer."""
    both = {
        "interval": (60.0, 70.0),
        "behind": BootstrapEstimate(value=0.0, interval=(0.0, 0.0)),
        "num_bytes": 9,
    }
    candidates = [
        Candidate(
            members=members, method=method, validation=validation, test=65.0, encode_ms=2.0, **both
        )
        for members, method, validation in (
            (("tfidf", "0001"), "greedy", 71.0),
            (("0001",), "validation", 70.0),
            (("0001",), "greedy", 70.0),
            (("tfidf",), "validation", 69.0),
            (("tfidf",), "greedy", 69.0),
            (("tfidf", "0001"), "greedy", 68.0),
        )
    ]
    scored = Answer(
        task="my", metric="accuracy", num_test=100, prefer=None, taken=2, simplest=3, majority=None,
        over_majority=None, candidates=tuple(candidates),
    )  # fmt: skip
    titles = [row[0].text for row in answer_section._table(scored).rows]
    assert len(titles) == len(set(titles)) == 3
    assert [row[0].text for row in answer_section._table(scored).rows if row[0].mark == "best"] == [
        "trial 1"
    ]
    assert [one.title for one in scored.simpler] == ["TF-IDF of words"]


# -- what the answer gets wrong ---------------------------------------------------------------------------------------


def _rows(labels: list[int], probabilities: list[list[float]], num_test: int) -> AnswerRows:
    """Return predictions of rows, of which the first ones are held out."""
    logs = np.log(np.array(probabilities))
    numbers = np.arange(len(labels))
    fold = FoldResult(
        validation_rows=numbers[num_test:],
        validation_log_probabilities=logs[num_test:],
        test_rows=numbers[:num_test],
        test_log_probabilities=logs[:num_test],
        strength=None,
    )
    return AnswerRows.of(fold, np.array(labels))


def test_predictions_of_rows_are_counted_by_class_and_listed_by_how_sure_they_are(
    tmp_path: Path,
) -> None:
    """By hand; what is written is what is read."""
    rows = _rows(
        [0, 0, 1, 1, 0, 1],
        [[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.99, 0.01], [0.05, 0.95], [0.3, 0.7]],
        num_test=4,
    )
    np.testing.assert_array_equal(rows.held_out().confusion(2), [[1, 1], [1, 1]])
    assert rows.held_out().worst(5).rows.tolist() == [3, 1]
    assert rows.cross_validated().worst(5).rows.tolist() == [4]
    assert rows.cross_validated().unlikely(0.1).rows.tolist() == [4]
    assert rows.cross_validated().unlikely(0.01).rows.tolist() == []
    write_answer_rows(tmp_path, rows)
    again = read_answer_rows(tmp_path)
    assert again is not None
    np.testing.assert_array_equal(again.of_label, rows.of_label)
    assert {rows.of_label.dtype, rows.probability.dtype} == {np.dtype(np.float32)}
    assert read_answer_rows(tmp_path / "none") is None


def _predicted(rows: AnswerRows, names: tuple[str, ...], texts: list[str] | None) -> Mock:
    """Return a run with one answer whose predictions and texts are given."""
    data = None
    if texts is not None:
        data = TaskData("my", "sentence", "train-test", names, (texts,), rows.labels)
    task = PredictedTask("my", names, rows, data)
    return Mock(predicted_tasks=[task], folder=Path("runs/a"))


def test_texts_of_a_task_are_read_as_the_sweep_named_it(tmp_path: Path, monkeypatch) -> None:
    """By its file, and from the folder of task files; a run of an earlier version is asked by the name."""
    rows = TaskData("my", "sentence", "train-test", ("a", "b"), (["x", "y"],), np.array([0, 1]))
    asked = []

    def find(spec: str) -> Mock:
        return Mock(load=lambda folder: asked.append((spec, folder)) or rows)

    monkeypatch.setattr("raysent.report.run.find_task", find)
    recorded = RecordedTasks(["tables/my.csv"], ["my"], data="files")
    sweep = Mock(record=Mock(tasks=recorded))
    assert Run(tmp_path, "run", sweep=sweep)._rows_of("my") is rows
    assert Run(tmp_path, "run")._rows_of("my") is rows
    assert asked == [("tables/my.csv", Path("files")), ("my", None)]


def test_classes_have_precision_recall_and_f1_and_what_they_are_confused_with() -> None:
    """Of hold-out rows; the number of labelled rows is of all."""
    rows = _rows(
        [0, 0, 0, 1, 1],
        [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6], [0.9, 0.1]],
        num_test=4,
    )
    section = classes_section.classes(_predicted(rows, ("bad", "good"), None))
    assert section is not None
    table, matrix = section.blocks
    first, second = [[cell.text for cell in row] for row in table.rows]
    assert first == ["bad", "3", "3", "100.0", "66.7", "80.0"]
    assert second == ["good", "2", "1", "50.0", "100.0", "66.7"]
    assert [[cell.text for cell in row] for row in matrix.rows] == [
        ["bad", "2", "1"],
        ["good", "0", "1"],
    ]
    many = tuple(f"c{number}" for number in range(12))
    probabilities = np.full((3, 12), 0.01)
    probabilities[:, 5] = 0.9
    pairs = classes_section.classes(
        _predicted(_rows([0, 0, 5], probabilities.tolist(), 3), many, None)
    )
    assert pairs is not None
    assert [cell.text for cell in pairs.blocks[1].rows[0]] == ["c0", "c5", "2", "100 %"]


def test_mistakes_and_suspects_have_their_text() -> None:
    """The surest first; a row whose text cannot be read has its number; nothing where all is right."""
    rows = _rows([0, 1, 0, 1], [[0.1, 0.9], [0.7, 0.3], [0.02, 0.98], [0.1, 0.9]], num_test=2)
    texts = ["first <b>", "second", "third " * 100, "fourth"]
    run = _predicted(rows, ("bad", "good"), texts)
    mistakes = classes_section.mistakes(run)
    assert mistakes is not None
    assert [row[0].text for row in mistakes.blocks[0].rows] == ["first <b>", "second"]
    assert [cell.text for cell in mistakes.blocks[0].rows[0][1:]] == ["bad", "good", "90 %"]
    suspects = classes_section.suspects(run)
    assert suspects is not None
    (row,) = suspects.blocks[0].rows
    assert row[0].text.endswith("…")
    assert len(row[0].text) == 300
    assert "raysent label runs/a TABLE --suspect" in suspects.blocks[-1].command
    unread = classes_section.mistakes(_predicted(rows, ("bad", "good"), None))
    assert unread is not None
    assert unread.blocks[0].rows[0][0].text == "row 1"
    right = _predicted(_rows([0, 1], [[0.9, 0.1], [0.2, 0.8]], 1), ("bad", "good"), None)
    assert classes_section.mistakes(right) is None
    assert classes_section.suspects(right) is None
