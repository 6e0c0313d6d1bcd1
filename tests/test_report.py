"""The report: what it reads, what it says, and that nothing from outside can break the page."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysent.analysis.neighbours import Comparison, ModelNeighbours, Neighbour, save_comparison
from raysent.config import parse_yaml
from raysent.ensembles import combine
from raysent.errors import ArtifactError
from raysent.evaluation.tasks import senteval
from raysent.report import write
from raysent.report.blocks import duration, fixed, number, significant
from raysent.report.parameters import Parameter, short_names
from raysent.report.run_files import read_run
from raysent.report.sections.importance import comparable, importance
from raysent.sweeps.controller import SweepController
from raysent.sweeps.journal import Journal
from raysent.sweeps.record import SweepRecord, save_record, write_trials_table
from raysent.sweeps.space import parse_space

CHANCE = 0.002
NUM_REPORTS = 10
SEARCH = {
    "training.learning_rate": {"loguniform": [1e-4, 1e-2]},
    "training.batch_size": {"choice": [100, 200, 400]},
    "objective.context_size": {"choice": [1, 2, 3]},
    "encoder": {"choice": {"uni": {"type": "gru"}, "bi": {"type": "gru"}, "bag": {"type": "bag"}}},
    "encoder.hidden_size": {"randint": [64, 512]},
    "encoder.dropout": {"uniform": [0.0, 0.5]},
}
SPACE = """
base:
  encoder: {type: gru, hidden_size: 8}
  objective: {type: context_prediction}
search:
  training.learning_rate: {loguniform: [1e-4, 1e-2]}
  encoder.bidirectional: {choice: [false, true]}
limits: {trials: 4, scheduler: {type: none}}
"""
SWEEP = {
    "kind": "sweep",
    "name": "quick_thoughts",
    "command": ["raysent", "sweep", "search_spaces/quick_thoughts.yaml", "--trials", "20"],
    "metric": "context_accuracy",
    "metric_mode": "max",
    "seed": 7,
    "search": SEARCH,
    "source": "search_spaces/quick_thoughts.yaml",
    "started": 1_795_000_000.0,
    "versions": {"raysent": "0.1.0", "torch": "2.9.0", "ray": "2.52.0", "python": "3.11.9"},
    "corpus": {"path": "docs", "key": "6f1c0a2be4d97a35", "num_sentences": 61_204, "num_tokens": 1_102_400},
    "pool": {
        "hash": "0a1b2c3d4e5f6071",
        "num_blocks": 4,
        "num_candidates": 1000,
        "num_sources": 4000,
        "chance_accuracy": CHANCE,
        "chance_nll": math.log(999),
    },
}


def sweep_folder(folder: Path, *, num_trials: int, judged: bool, seed: int = 0) -> Path:
    """Write a sweep's folder as the sweep does, with figures that a formula gives."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(SWEEP))
    events, rows = [], []
    generator = random.Random(seed)
    for index in range(num_trials):
        trial_events, row = trial_story(f"{index:04d}", index, generator)
        events += trial_events
        rows.append(row)
    events.insert(len(events) // 2, {"event": "interrupted", "time": events[len(events) // 2 - 1]["time"]})
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with (folder / "trials.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    if judged:
        judge(folder, [f"{index:04d}" for index in range(4)])
    return folder


def trial_story(name: str, index: int, generator: random.Random) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the journal's events of one trial, and its row of the table."""
    encoder = generator.choice(["uni", "bi", "bag"])
    params: dict[str, Any] = {
        "training.learning_rate": 10 ** generator.uniform(-4, -2),
        "training.batch_size": generator.choice([100, 200, 400]),
        "objective.context_size": generator.choice([1, 2, 3]),
        "encoder": encoder,
        "encoder.dropout": generator.uniform(0, 0.5),
    }
    if encoder != "bag":
        params["encoder.hidden_size"] = generator.randint(64, 512)
    top = 0.11 - 0.05 * (math.log10(params["training.learning_rate"]) + 2.8) ** 2 + 0.02 * (encoder == "bi")
    status = {3: "failed", 11: "nan"}.get(index, "finished" if top > 0.085 or index < 2 else "stopped")
    num_points = {"failed": 2, "nan": 3, "stopped": generator.choice([2, 4])}.get(status, NUM_REPORTS)
    time = SWEEP["started"] + 60.0 * index
    events = [
        {"event": "suggested", "trial": name, "params": params, "time": time},
        {"event": "started", "trial": name, "time": time + 1},
    ]
    metrics: dict[str, float | None] = {}
    for report in range(1, num_points + 1):
        level = CHANCE + max(top, 0.01) * (1 - math.exp(-0.4 * report)) + generator.gauss(0, 0.001)
        metrics = {"context_accuracy": level, "context_nll": 6.9 - 20 * level, "loss": 5.0 - report / 5}
        if status == "nan" and report == num_points:
            metrics = dict.fromkeys(metrics)
        line = {
            "event": "report",
            "trial": name,
            "index": report,
            "num_reports": NUM_REPORTS,
            "metrics": metrics,
            "seconds": 5.5 * report,
        }
        events.append({**line, "time": time + 1 + 5.5 * report})
    seconds = 5.5 * num_points
    error = "MemoryError: the worker ran out of memory at step 412" if status == "failed" else None
    ended = {"event": "ended", "trial": name, "status": status, "metrics": metrics, "seconds": seconds, "error": error}
    events.append({**ended, "time": time + 2 + seconds})
    row = {"trial": name, "status": status, **{key: metrics[key] for key in ("context_accuracy", "context_nll")}}
    return events, {**row, "seconds": seconds, "usd": "", **{key: params.get(key, "") for key in SEARCH}}


def judge(folder: Path, members: list[str]) -> None:
    """Write scores on tasks and an ensemble, as `raysent evaluate` and `raysent ensemble` do."""
    generator = random.Random(1)
    tasks = {"docs_library": 71.0, "docs_order": 58.0, "MR": 74.0, "SUBJ": 90.0, "TREC": 83.0}
    found: dict[str, Any] = {}
    for task, level in tasks.items():
        scores = {name: level + generator.gauss(0, 1.2) for name in members}
        for name, test in scores.items():
            path = folder / "evaluation" / name / f"{task}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            score = {"model": name, "task": task, "protocol": "fast", "validation": test + 0.4, "test": test}
            path.write_text(json.dumps({**score, "interval": [test - 1.1, test + 1.1]}))
        best = max(scores.values())
        pooled = {"ensemble": best + 0.9, "uniform": best + 0.7, "best": best, **scores}
        weights = {name: 1 / len(members) + generator.gauss(0, 0.02) for name in members}
        found[task] = {"weights": weights, "scores": {key: whisker(value) for key, value in pooled.items()}}
    names = next(iter(found.values()))["scores"]
    means = {name: np.mean([entry["scores"][name]["test"] for entry in found.values()]) for name in names}
    mean = {"scores": {k: whisker(float(v), 0.5) for k, v in means.items()}}
    mean["difference"] = {"value": 0.83, "interval": [0.31, 1.36]}
    ensemble = {"kind": "raysent ensemble", "method": "validation", "protocol": "fast", "members": members}
    ensemble |= {"best_member": members[0], "tasks": found, "mean": mean}
    (folder / "ensemble.json").write_text(json.dumps(ensemble))


def whisker(value: float, half: float = 1.1) -> dict[str, Any]:
    """Return a score with its interval."""
    return {"test": value, "interval": [value - half, value + half]}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 20 trials, evaluated and pooled."""
    return sweep_folder(tmp_path_factory.mktemp("rich"), num_trials=20, judged=True)


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 3 trials that nothing has judged."""
    return sweep_folder(tmp_path_factory.mktemp("poor"), num_trials=3, judged=False)


@pytest.fixture(scope="module")
def rich_page(rich: Path) -> str:
    """The rich sweep's page."""
    return write(rich).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def poor_page(poor: Path) -> str:
    """The poor sweep's page."""
    return write(poor).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """Return what is read on the page: without scripts, styles and tags."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", bare).split())


def figures(page: str) -> list[dict[str, Any]]:
    """Return the page's figures."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    return [json.loads(text) for text in found]


def test_write_makes_one_file_under_six_megabytes(rich: Path, rich_page: str) -> None:
    """The page is whole, holds plotly once and stays small."""
    assert (rich / "report.html").stat().st_size < 6_000_000
    assert rich_page.startswith("<!doctype html>")
    assert rich_page.count("plotly.js v") == 1


def test_write_needs_no_network(rich_page: str) -> None:
    """Nothing on the page is fetched from elsewhere."""
    own = re.sub(r"<script>.*?</script>", "", rich_page, flags=re.DOTALL)
    assert re.findall(r"""\bsrc\s*=|\bhref\s*=\s*["']?[^"'#]|@import|url\(|<link""", own) == []


def test_summary_says_the_outcome_in_words(rich_page: str) -> None:
    """Best trial, its distance from chance, the counts, and what the ensemble adds."""
    text = prose(rich_page)
    assert re.search(
        r"The best of 20 trials is \d{4} bi, with context_accuracy 0\.\d+, \d+\.\d × chance \(0\.00200\)", text
    )
    assert re.search(r"\d+ finished, \d+ stopped early, 1 failed, 1 ended by a loss that is not a number", text)
    assert (
        "better than its best single member (0000 bi) on the mean over tasks: +0.83 points (95 % interval +0.31" in text
    )


def test_summary_of_a_doubtful_gain_says_so(tmp_path: Path) -> None:
    """An interval that holds zero is called by its name."""
    folder = sweep_folder(tmp_path, num_trials=5, judged=True)
    edit(folder / "ensemble.json", lambda values: values["mean"]["difference"].update(interval=[-0.2, 1.1]))
    assert "is not told apart from its best single member (0000 bi)" in prose(write(folder).read_text())


def edit(path: Path, change: Any) -> None:
    """Change a JSON file in place."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_leaderboard_ranks_finished_trials_first(rich: Path) -> None:
    """Finished trials come by their metric, then those stopped early, then those that broke."""
    run = read_run(rich)
    ranked = run.ranked
    finished = [run.value(trial) or 0.0 for trial in ranked if trial.status == "finished"]
    assert finished == sorted(finished, reverse=True)
    order = {"finished": 0, "stopped": 1, "failed": 2, "nan": 2}
    assert [order[trial.status] for trial in ranked] == sorted(order[trial.status] for trial in ranked)
    assert run.best == ranked[0]


def test_leaderboard_shows_nan_as_a_dash(rich_page: str) -> None:
    """A trial whose loss was NaN has dashes where its figures would be."""
    row = next(row for row in re.findall(r"<tr>.*?</tr>", rich_page, flags=re.DOTALL) if ">0011</td>" in row)
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", row, flags=re.DOTALL)]
    assert cells[:5] == ["0011", "nan", "–", "–", "–"]
    assert not re.search(r"\b(?:NaN|None|inf)\b", prose(rich_page))


def test_learning_curves_draw_each_trial_and_chance(rich_page: str) -> None:
    """One line a trial against the share of training, the best on top, and the line of chance."""
    curves = next(figure for figure in figures(rich_page) if figure["layout"].get("shapes"))
    assert len(curves["data"]) == 20
    assert curves["data"][-1]["line"]["width"] > curves["data"][0]["line"]["width"]
    assert curves["layout"]["shapes"][0]["y0"] == pytest.approx(CHANCE)
    assert max(max(line["x"]) for line in curves["data"]) == 1.0


def test_failures_show_the_error_line(rich_page: str) -> None:
    """The table of failures holds the reason that the journal gives."""
    assert "MemoryError: the worker ran out of memory at step 412" in prose(rich_page)


def test_sections_without_files_name_the_command(poor_page: str, poor: Path) -> None:
    """What is not there yet says which command makes it."""
    text = prose(poor_page)
    assert f"raysent evaluate {poor}" in text
    assert f"raysent ensemble {poor}" in text
    assert "Too few trials: 3 can be compared with each other, 4 are needed." in text


def test_task_scores_mark_the_best_of_each_task(rich: Path, rich_page: str) -> None:
    """Each task's best member is marked, and the mean's."""
    table = rich_page[rich_page.index('id="tasks"') : rich_page.index('id="ensemble"')]
    assert len(re.findall(r'<td class="number best"', table)) == 6
    best = max((score for score in read_run(rich).scores if score.task == "MR"), key=lambda score: score.test or 0)
    assert f"{best.test:.2f}" in table


def test_ensemble_plot_has_intervals(rich_page: str) -> None:
    """Ensemble, rivals and members stand with whiskers, for the mean and each task."""
    plots = [figure for figure in figures(rich_page) if "ensemble" in str(figure["data"][0].get("y"))]
    assert len(plots) == 6
    assert all(min(plot["data"][0]["error_x"]["array"]) > 0 for plot in plots)


def test_write_escapes_what_users_wrote(tmp_path: Path) -> None:
    """Markup in names, values and errors is shown, never run."""
    folder = sweep_folder(tmp_path, num_trials=5, judged=True)
    nasty = "</script><img src=x onerror=alert(1)>"
    edit(folder / "sweep.json", lambda values: values.update(name=nasty, command=["raysent", nasty]))
    journal = (folder / "journal.jsonl").read_text()
    journal = (
        journal.replace("MemoryError:", nasty).replace('"0001"', json.dumps(nasty)).replace('"bi"', json.dumps(nasty))
    )
    (folder / "journal.jsonl").write_text(journal)
    page = write(folder).read_text()
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, count=1, flags=re.DOTALL)
    assert page.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;") > 3
    assert all("<img" not in json.dumps(figure["data"][0].get("name")) for figure in figures(page))


def test_write_of_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    """With no journal yet, the page says so and nothing fails."""
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    text = prose(write(tmp_path).read_text())
    assert "No trial has reached a context_accuracy yet." in text
    assert "No trial has made a report yet." in text


def test_write_of_a_single_training(tmp_path: Path) -> None:
    """A training's folder gives its learning curve alone."""
    lines = [
        {"index": i, "num_reports": 4, "metrics": {"context_accuracy": i / 50}, "seconds": 2.0 * i} for i in (1, 2, 4)
    ]
    (tmp_path / "reports.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = {"status": "finished", "seconds": 9.0, "pool": SWEEP["pool"], "message": ""}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    page = write(tmp_path).read_text()
    assert figures(page)[0]["data"][0]["x"] == [0.25, 0.5, 1.0]
    assert "The run reaches context_accuracy 0.08000, 40.0 × chance" in prose(page)
    assert 'id="leaderboard"' not in page


def test_write_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    """The error names the folder and what must be in it."""
    with pytest.raises(
        ArtifactError, match=r"must hold sweep\.json, reports\.jsonl, evaluation/ or analyses/; given none"
    ):
        write(tmp_path)


def test_write_refuses_a_torn_sweep_file(tmp_path: Path) -> None:
    """A truncated record is named, not shown as an empty page."""
    (tmp_path / "sweep.json").write_text('{"name": "x"')
    with pytest.raises(ArtifactError, match=r"sweep\.json: truncated or not JSON"):
        write(tmp_path)


def test_write_repeated_gives_the_same_page(rich: Path, rich_page: str) -> None:
    """The bootstrap is seeded, so that a report can be compared with itself."""
    assert write(rich).read_text(encoding="utf-8") == rich_page


@pytest.fixture
def written_by_raysent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep's folder in which every file comes from the code that writes it in earnest."""
    space = parse_space(parse_yaml(SPACE), name="toy")
    facts = {"corpus": {"path": "docs", "key": "k" * 16}, "pool": SWEEP["pool"]}
    save_record(tmp_path, SweepRecord(space, seed=3, command=["raysent", "sweep", "toy.yaml"], facts=facts))
    journal = Journal(tmp_path)
    controller = SweepController(space, seed=3, write=journal.write)
    while (trial := controller.suggest()) is not None:
        for index in (1, 2):
            metrics = {"context_accuracy": 0.01 * index + 0.001 * trial.number, "context_nll": 4.0}
            controller.report(
                trial.name, index=index, num_reports=2, metrics=metrics, seconds=1.5 * index, usd=1.5 * index
            )
        controller.end(trial.name, status="finished")
    journal.close()
    write_trials_table(tmp_path, controller.space, controller.trials.values())
    monkeypatch.setattr(senteval, "NUM_ROWS", senteval.NUM_ROWS | {"CR/custrev.pos": 30, "CR/custrev.neg": 30})
    for name, word in (("pos", "good"), ("neg", "bad")):
        path = tmp_path / "data" / "CR" / f"custrev.{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{word} thing {number}\n" for number in range(30)))
    combine(["hash:4", "hash:8"], output=tmp_path, tasks=["CR"], data_dir=tmp_path / "data")
    return tmp_path


def test_read_run_understands_what_the_other_commands_write(written_by_raysent: Path) -> None:
    """Writers and reader of a run's folder agree on every name."""
    run = read_run(written_by_raysent)
    assert (run.name, run.metric, run.mode, run.chance, run.num_reports) == (
        "toy",
        "context_accuracy",
        "max",
        CHANCE,
        2,
    )
    assert run.best is not None
    assert (run.best.name, run.value(run.best), run.best.seconds, run.best.usd) == ("0003", 0.023, 3.0, 3.0)
    assert run.searched == ["training.learning_rate", "encoder.bidirectional"]
    assert {score.model for score in run.scores} == {"hash:4", "hash:8"}
    assert all(score.interval is not None and score.test is not None for score in run.scores)


def test_write_shows_what_the_other_commands_write(written_by_raysent: Path) -> None:
    """The ensemble, its rivals, both members and the weights stand on the page."""
    ensemble = read_run(written_by_raysent).ensemble
    assert ensemble is not None
    assert {score.task for score in ensemble.scores} == {"CR", "mean"}
    assert {score.model for score in ensemble.scores} == {"ensemble", "uniform", "best", "hash:4", "hash:8"}
    assert ensemble.gain is not None
    assert ensemble.rival in ensemble.members
    page = write(written_by_raysent).read_text()
    assert "raysent sweep toy.yaml" in prose(page)
    assert sum("equal shares" in str(figure["data"][0].get("y")) for figure in figures(page)) == 2


def test_read_run_report_made_again_replaces_the_first(tmp_path: Path) -> None:
    """After a resume a trial goes back to its checkpoint; later reports of the first life are dropped."""
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    events: list[dict[str, Any]] = [{"event": "suggested", "trial": "0000", "params": {}, "time": 0.0}]
    for index, value, time in ((1, 0.1, 10.0), (2, 0.2, 20.0), (2, 0.3, 1000.0)):
        if time == 1000.0:
            events.append({"event": "session", "time": 990.0})
        metrics = {"context_accuracy": value}
        events.append(
            {"event": "report", "trial": "0000", "index": index, "metrics": metrics, "seconds": 1, "time": time}
        )
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(tmp_path)
    assert [point.metrics["context_accuracy"] for point in run.trials[0].points] == [0.1, 0.3]
    assert run.seconds == 30.0


def test_comparable_takes_the_latest_report_that_half_reached(rich: Path) -> None:
    """Trials are compared after equal shares of training."""
    trials, metric, share = comparable(read_run(rich))
    assert share == 1.0
    assert {trial.status for trial in trials} == {"finished"}
    assert len(metric) == len(trials) >= 9


def test_importance_finds_the_name_that_matters() -> None:
    """A name that sets the metric stands above one that does nothing, and the forest is believed."""
    generator = np.random.default_rng(3)
    values = generator.uniform(size=(40, 2))
    found = importance(values, values[:, 0] + 0.05 * generator.normal(size=40), seed=0)
    assert found.low[0] > found.high[1]
    assert found.explained > 0.7
    assert (found.low <= found.shares).all()
    assert (found.shares <= found.high).all()


def test_importance_of_noise_is_not_believed() -> None:
    """Where nothing matters, the forest explains nothing of what it did not see."""
    generator = np.random.default_rng(4)
    found = importance(generator.uniform(size=(30, 3)), generator.normal(size=30), seed=0)
    assert found.explained < 0.2


def test_parameter_places_what_does_not_apply_below() -> None:
    """A missing value has a place of its own under a dash."""
    parameter = Parameter("encoder.hidden_size", "linear", (100, None, 300))
    places = parameter.coordinates()
    assert places[1] < places[0] < places[2]
    assert parameter.ticks()[1][0] == "–"


def test_parameter_orders_categories_of_numbers() -> None:
    """A choice of numbers is laid out by size, not by spelling."""
    parameter = Parameter("training.batch_size", "category", (1000, 200, 400))
    assert parameter.categories == ["200", "400", "1000"]
    assert parameter.coordinates().tolist() == [2.0, 0.0, 1.0]


def test_short_names_keep_what_tells_them_apart() -> None:
    """A dotted name keeps its last part, and more where two would be the same."""
    names = ["encoder.dropout", "objective.dropout", "training.batch_size"]
    assert list(short_names(names).values()) == ["encoder.dropout", "objective.dropout", "batch_size"]


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (math.nan, "–"), (0.0, "0.000"), (0.13094, "0.1309")])
def test_significant_prints_a_number_or_a_dash(value: float | None, text: str) -> None:
    """Four significant digits; NaN is never a number."""
    assert significant(value) == text


def test_number_refuses_what_is_none() -> None:
    """Only finite numbers are numbers."""
    assert [number(value) for value in (1, "2.5", math.inf, math.nan, True, "x", None)] == [1.0, 2.5, *[None] * 5]


def test_duration_and_fixed_read_at_a_glance() -> None:
    """Two units at most, and a true minus sign."""
    assert [duration(s) for s in (3.21, 75, 7260, None)] == ["3.2 s", "1 min 15 s", "2 h 01 min", "–"]
    assert fixed(-1.234, sign=True) == "−1.23"


def test_ensemble_written_by_raysent_gives_calibration_and_members(written_by_raysent: Path) -> None:
    """Honest scores, a reliability plot a task, what members cost, their errors' correlations, both fronts."""
    page = write(written_by_raysent).read_text()
    assert "cross-fitted" in page[page.index('id="calibration"') : page.index('id="members"')]
    assert page.count("Reliability on CR") == 1
    assert page.count("Score against") == 2
    assert "errors of" in page


def test_ensemble_of_an_earlier_version_leaves_the_rest_of_the_page(rich_page: str) -> None:
    """Without honest scores there is no section about them."""
    assert 'id="ensemble"' in rich_page
    assert 'id="calibration"' not in rich_page
    assert 'id="members"' not in rich_page


def test_neighbours_stand_beside_each_other(tmp_path: Path) -> None:
    """A table a query, a column a model, fewer neighbours left blank; text is escaped."""
    folder = sweep_folder(tmp_path / "run", num_trials=2, judged=False)
    near, far = Neighbour("He <b>slept</b>.", 0.91234), Neighbour("She sang.", 0.5)
    columns = (
        ModelNeighbours("0001", "cosine", ((near, far),)),
        ModelNeighbours("0002", "hamming", ((Neighbour("They ran.", 17),),)),
    )
    save_comparison(folder, Comparison("books/", 1200, "key", ("He slept well.",), columns))
    page = write(folder).read_text(encoding="utf-8")
    assert "among 1,200 of books/, found exactly" in prose(page)
    assert "<caption>He slept well.</caption>" in page
    assert "He &lt;b&gt;slept&lt;/b&gt;.</td>" in page
    assert ">0.9123</td>" in page
    assert ">17</td>" in page
    assert "Nearest sentences" in prose(page)


def test_neighbours_have_no_page_where_none_were_asked_for(rich_page: str) -> None:
    """Nothing is said of what was not asked."""
    assert "Nearest sentences" not in rich_page
