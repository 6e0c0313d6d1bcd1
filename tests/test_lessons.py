"""Lessons of earlier sweeps: the order in which settings are tried, files that are handed on, and a sweep that begins so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulation import replay
from raysent.config import Override, parse_yaml
from raysent.errors import ArtifactError, ConfigError
from raysent.storage import cache_folder
from raysent.sweeps import make_sampler, read_sweep
from raysent.sweeps.lessons import (
    Lessons,
    first_trials,
    keep_lessons,
    lesson_overrides,
    lessons_of,
    read_lessons,
)
from raysent.sweeps.ranking import median_values
from raysent.sweeps.space import SearchSpace, parse_space, with_overrides

RECORDED = Path(__file__).parent / "data" / "version_2" / "finished"
SPACE = """
metric: context_accuracy
base:
  corpus: {path: %s, validation_fraction: 0.3}
  vocabulary: {size: 60}
  encoder: {type: bag, embedding: {dim: 4}}
  objective: {type: context_prediction}
  training: {batch_size: 8, epochs: 1.0, num_reports: 2}
  validation: {num_candidates: 10, num_sentences: 30}
search:
  family: {choice: {bag: {encoder: {type: bag}}, linear: {encoder: {type: linear, hidden_size: 4}}}}
  training.batch_size: {choice: [4, 8, 16]}
  training.learning_rate: {loguniform: [1.0e-3, 1.0e-2]}
limits: {trials: 4, concurrent: 1, scheduler: none}
evaluation: {tasks: [], baselines: false}
"""


def _lessons(*trials: tuple[str | int | float, ...], metric: str = "context_accuracy") -> Lessons:
    """Return lessons of trials of a family, a batch size, a score and seconds, by default one."""
    return Lessons(
        space="toy",
        metric=metric,
        trials=[
            {
                "params": {"family": family, "training.batch_size": size},
                "score": score,
                "curve": [],
                "seconds": time[0],
            }
            for family, size, score, *time in (
                one if len(one) == 4 else (*one, 1.0) for one in trials
            )
        ],
    )


def _space(*overrides: tuple[str, object], text: str = "docs") -> SearchSpace:
    space = parse_space(parse_yaml(SPACE % text, source="toy.yaml"), name="toy")
    return with_overrides(space, [Override(name, value, name) for name, value in overrides])


def _order(*lessons: Lessons) -> list[tuple[str, int]]:
    return [(params["family"], params["training.batch_size"]) for params in first_trials(lessons)]


def test_the_better_two_thirds_come_first_the_cheapest_before():
    """Equal to a restatement over pairs: a place is the share of the other trials that are better, or cheaper.

    A tie counts a half, and one half is added to the places of all sweeps. With equal times the order is by score.
    """
    first = _lessons(
        ("bag", 4, 0.9, 3.0),
        ("bag", 8, 0.5, 1.0),
        ("linear", 4, 0.7, 2.0),
        ("linear", 16, 0.1, 0.5),
        ("bag", 16, 0.8, 4.0),
    )
    second = _lessons(
        ("bag", 8, 3.0, 70.0), ("bag", 4, 1.0, 70.0), ("linear", 4, 2.9, 80.0), metric="nll"
    )

    def mean_place(key, figure_of):
        places = [0.5]
        for lessons, sign in ((first, -1), (second, 1)):
            figures = {
                (one.params["family"], one.params["training.batch_size"]): figure_of(one, sign)
                for one in lessons.trials
            }
            if key in figures:
                others = [figure for other, figure in figures.items() if other != key]
                places.append(
                    sum((other < figures[key]) + (other == figures[key]) / 2 for other in others)
                    / len(others)
                )
        return sum(places) / len(places)

    names = [("bag", 4), ("bag", 8), ("linear", 4), ("linear", 16), ("bag", 16)]
    best = sorted(names, key=lambda key: mean_place(key, lambda one, sign: sign * one.score))[:4]
    expected = sorted(best, key=lambda key: mean_place(key, lambda one, _: one.seconds))
    assert _order(first, second) == expected == [("bag", 8), ("bag", 4), ("linear", 4), ("bag", 16)]
    assert _order(_lessons(("bag", 4, 0.1), ("bag", 8, 0.5), ("linear", 4, 0.7))) == [
        ("linear", 4),
        ("bag", 8),
    ]


def test_a_recorded_sweep_teaches_what_finished(tmp_path, monkeypatch):
    """One trial of each configuration, its score and its curve; the same from the file and from the user's cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    sweep = read_sweep(RECORDED)
    lessons = lessons_of(sweep)
    assert sweep.space.limits.seeds == 2
    finished = [trial for trial in sweep.trials[::2] if trial.status == "finished"]
    medians = median_values(sweep.space, sweep.trials)
    assert len(finished) == 2
    assert [one.params for one in lessons.trials] == [trial.params for trial in finished]
    assert [one.score for one in lessons.trials] == [medians[trial.name] for trial in finished]
    assert [len(one.curve) for one in lessons.trials] == [len(trial.reports) for trial in finished]
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("sweep.json", "journal.jsonl"):
        (folder / name).write_bytes((RECORDED / name).read_bytes())
    keep_lessons(read_sweep(folder))
    keep_lessons(read_sweep(folder))
    assert (
        read_lessons(str(folder))
        == read_lessons(str(folder / "lessons.json"))
        == read_lessons("cache")
        == [lessons]
    )
    (kept,) = (cache_folder() / "lessons").iterdir()
    whole = kept.read_text()
    kept.write_text(whole.replace('"score": ', '"score": 1'))
    with pytest.raises(
        ArtifactError, match=rf"{kept.name}: changed since it was written; restore it or run again$"
    ):
        read_lessons("cache")
    (folder / "lessons.json").unlink()
    monkeypatch.setenv("RAYSENT_CACHE", str(folder / "sweep.json"))  # no folder can be made there
    keep_lessons(read_sweep(folder))
    assert read_lessons(str(folder / "lessons.json")) == [lessons]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_first_trials_have_what_was_learned_then_each_other_family(sampler):
    """Half of the trials at most; what the space lacks is left out, numbers are moved into its intervals, replay agrees."""
    first = [
        {"family": "cnn", "training.batch_size": 4},
        {"family": "linear", "training.batch_size": 16, "training.learning_rate": 0.5},
        {
            "family": "linear",
            "training.batch_size": 16,
            "training.learning_rate": 0.02,
            "corpus.max_length": 3,
        },
        {"family": "linear", "training.batch_size": 5, "training.learning_rate": 0.002},
        {"family": "bag", "training.batch_size": 4},
    ]
    limits = (
        ("limits.trials", 4),
        ("limits.sampler", sampler),
        ("evaluation.stratify_by", "family"),
    )
    space = _space(("first", first), *limits)
    asked, other = make_sampler(space, seed=3), make_sampler(space, seed=3)
    drawn = [asked.ask(number) for number in range(4)]
    params = [one for one, _ in drawn]
    assert params[0] == {
        "family": "linear",
        "training.batch_size": 16,
        "training.learning_rate": 0.01,
    }
    assert (params[1]["family"], params[1]["training.learning_rate"]) == ("linear", 0.002)
    assert params[1]["training.batch_size"] in (4, 8, 16)
    assert params[2]["family"] == "bag"
    for number, (known, attempts) in enumerate(drawn[:3]):
        other.replay(number, known, attempts=attempts)
    assert other.ask(3) == drawn[3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "lessons.json: "),
        ('{"kind": "report"}', "lessons.json: not the lessons.json of a sweep (kind: "),
        (
            '{"kind": "lessons", "space": "a", "metric": "loss", "trials": [{"params": {}, "score": NaN}]}',
            "lessons.json: ",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(tmp_path, text, message):
    """Which file, and what is wrong in it."""
    path = tmp_path / "lessons.json"
    path.write_text(text)
    with pytest.raises(ArtifactError) as caught:
        read_lessons(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sweeps_that_teach_nothing_are_refused(tmp_path):
    """No folder there, none of the space's families, or nothing that it searches."""
    with pytest.raises(
        ConfigError, match="limits.learn_from: no sweep and no lessons.json at nowhere"
    ):
        lesson_overrides(_space(("limits.learn_from", "nowhere")))
    path = tmp_path / "lessons.json"
    path.write_text(_lessons(("cnn", 4, 1.0)).model_dump_json())
    with pytest.raises(ConfigError, match=r"lessons.json searched nothing that toy searches"):
        lesson_overrides(_space(("limits.learn_from", f"{path}, ")))


@pytest.mark.cluster
def test_a_sweep_begins_with_the_best_settings_of_others(running_ray, raysent):
    """The first trials have the settings that came first; the journal replays, and the sweep leaves lessons of its own."""
    Path("text.txt").write_text(
        "\n\n".join(
            f"The cat sees the dog .\nThe dog sees the {one} .\nIt ends ." for one in "abcdefghij"
        )
    )
    Path("toy.yaml").write_text(SPACE % Path("text.txt").absolute())
    lessons = _lessons(("bag", 4, 0.1), ("linear", 16, 0.9), ("bag", 8, 0.5))
    Path("others.json").write_text(lessons.model_dump_json())
    ran = raysent(
        "sweep",
        "toy.yaml",
        "--run",
        Path("run").absolute(),
        "--learn-from",
        "others.json",
        "--yes",
        "--seed",
        "5",
    )
    assert ran.code == 0, ran.err
    log = Path("run/log.txt").read_text(encoding="utf-8")
    assert "2 settings  the better of 3 trials of toy come first, the cheapest before" in log
    run = read_sweep(Path("run"))
    begun = [trial.params for trial in run.trials]
    assert [(one["family"], one["training.batch_size"]) for one in begun[:2]] == [
        ("linear", 16),
        ("bag", 8),
    ]
    assert len(begun) == 4
    assert not replay(run.space, seed=5, events=run.events).difference
    assert json.loads(Path("run/lessons.json").read_text())["trials"][0]["params"] == begun[0]
