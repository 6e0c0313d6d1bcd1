"""A sweep of tasks alone: every family that can learn, on the text of the tasks' own training rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysent
from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.evaluation.division import divided
from raysent.evaluation.tasks import load_task
from raysent.pipeline import training
from raysent.pipeline.arguments import (
    SpaceOptions,
    default_space,
    space_of,
    take_along,
    tasks_of,
    with_labels_of,
)
from raysent.sweeps.fitting import Situation, fit_space, fitted_settings, with_vocabulary
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.space import find_space, parse_space, read_space
from raysent.sweeps.speed import RunSeconds
from raysent.training.labels import LabelsConfig

LONG = Situation(num_train=97_000, num_words=16_000)
PAIRED = {"cse", "paragram_phrase", "infersent"}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of rows of two sentences."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    rows = [
        f'"The number {n} is large. It was number {n}, {word}.",{word}'
        for n in range(60)
        for word in ("good", "bad")
    ]
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def _space(table: Path, **arguments):
    own = {"corpus", "set", "scale", "metric", "data"} & arguments.keys()
    options = {name: arguments.pop(name) for name in own}
    tasks = arguments.pop("tasks", [str(table)])
    return default_space(tasks, SpaceOptions(**options, settings=arguments))


def test_text_is_that_of_the_rows_that_do_not_test(table, tmp_path):
    """Each training text once, and no test row; a run has its own copy, as the cache may be emptied."""
    space = _space(table)
    task = divided(load_task(str(table)))
    path = Path(space.config(space.first_params()).corpus.path)
    texts = {json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()}
    assert texts == {task.sentences[0][row] for row in task.train}
    assert not texts & {task.sentences[0][row] for row in task.test}
    assert len(task.test)
    taken = take_along(space, tmp_path / "run")
    assert taken.config(taken.first_params()).corpus.path == str(tmp_path / "run" / "text.jsonl")
    assert (tmp_path / "run" / "text.jsonl").read_bytes() == path.read_bytes()


def test_text_in_another_language_takes_subwords_and_english_words(table, tmp_path):
    """The plan says why; what the user sets stays."""
    assert _space(table).config(_space(table).first_params()).vocabulary.type == "words"
    other = tmp_path / "chinese.csv"
    rows = (
        f"第{n}只猫在椅子上睡觉。我{word}喜欢它。,{word}"
        for n in range(60)
        for word in ("很", "不")
    )
    other.write_text("text,label\n" + "\n".join(rows) + "\n")
    fitted = with_vocabulary(_space(other))
    assert fitted.config(fitted.first_params()).vocabulary.type == "subwords"
    reasons = {one.name: one.why for one in fitted_settings(fitted)}
    assert reasons["vocabulary.type"] == "the text is in zh, which writes no blanks between words"
    given = _space(other, set={"vocabulary.type": "words"})
    assert given.config(given.first_params()).vocabulary.type == "words"


def test_what_was_decided_for_the_user_has_a_reason_and_what_is_given_has_none(table, tmp_path):
    """The time, the trials and the text are chosen only where nothing else is said; rows alone train nothing."""
    chosen = _space(table)
    assert (chosen.limits.time, chosen.limits.trials, chosen.metric) == ("10m", 0, "downstream")
    assert {one.name for one in fitted_settings(chosen)} == {
        "corpus",
        "limits.time",
        "limits.trials",
    }
    own = tmp_path / "own.txt"
    own.write_text("One.\nTwo.\n")
    assert _space(table, corpus=str(own)).limits.trials == 12
    given = _space(table, corpus=str(own), budget="4usd", usd_per_hour=1.0, trials=3)
    assert (given.limits.time, given.limits.trials) == (None, 3)
    assert not given.fitted
    assert given.config(given.first_params()).corpus.path == str(own)


def test_neither_a_space_nor_a_task_is_one_line():
    """Both are named."""
    with pytest.raises(
        ConfigError,
        match=r"^space: must be a search space, or a task must be given",
    ):
        raysent.plan()


@pytest.mark.parametrize(("space", "read"), [("labels", "a task's rows"), ("cse", "pairs")])
def test_text_that_a_space_does_not_read_is_refused(space, read):
    """It may not even exist; a space of several families has some that read it."""
    with pytest.raises(
        ConfigError, match=f"corpus: must be left out with space {space}, which reads {read} alone"
    ):
        space_of(space, SpaceOptions("books"))
    assert space_of("everything", SpaceOptions("books")).name == "everything"


@pytest.mark.parametrize(
    ("situation", "seconds", "families"),
    [
        (LONG, 1.0, {"quick_thoughts", "quick_thoughts_bow", "multichannel", "skip_thoughts", "view_agreement", "view_generation", "binary"}),
        (Situation(97_000, 16_000, with_neighbours=0.2), 1.0, {"binary"}),
        (Situation(97_000, 16_000, trial_s=10.0), 6.0, {"quick_thoughts_bow", "binary"}),
        (Situation(97_000, 16_000, trial_s=10.0), 4.0, {"quick_thoughts", "quick_thoughts_bow", "multichannel", "skip_thoughts", "view_agreement", "view_generation", "binary"}),
    ],
)  # fmt: skip
def test_families_that_cannot_learn_are_left_out(
    situation, seconds, families, tmp_path, monkeypatch
):
    """Of sentences that stand alone, of pairs that are not there, and of the order of words in too few passes."""
    monkeypatch.chdir(tmp_path)
    space = fit_space(
        read_space(find_space("everything")), situation, speed=lambda _: RunSeconds(seconds)
    )
    assert set(space.domains["family"].edges()) == families
    assert "no file data/pairs/ppdb-2.0-xl-phrasal.gz" in space.fitted["family"]
    for number in range(30):
        params, _ = make_sampler(space, seed=number).ask(0)
        space.config(params)


def test_families_whose_pairs_are_there_stay(tmp_path, monkeypatch):
    """Only a missing file leaves one out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "pairs").mkdir(parents=True)
    (tmp_path / "data" / "pairs" / "ppdb-2.0-xl-phrasal.gz").touch()
    space = fit_space(read_space(find_space("everything")), LONG, speed=lambda _: RunSeconds(1.0))
    assert PAIRED & set(space.domains["family"].edges()) == {"cse", "paragram_phrase"}


def test_train_trains_what_a_sweep_would_try_first(tmp_path, monkeypatch):
    """Its parameters are drawn by the space's sampler; what is set is not searched."""
    space = parse_space(
        parse_yaml(
            "base: {encoder: {type: bag, embedding: {dim: 4}}, objective: {type: context_prediction}}\n"
            "search: {training.batch_size: {choice: [11, 12, 13, 14, 15]}, encoder.embedding.dim: {choice: [5, 6, 7]}}"
        ),
        name="two",
    )
    trained = []
    monkeypatch.setattr(training, "train_all", lambda configs, *_, **__: trained.extend(configs))
    training.train_space(space, seed=3, progress=False)
    training.train_space(space, set={"training.batch_size": 9}, progress=False)
    (drawn, _) = make_sampler(space, seed=0).ask(0)
    first, other = trained
    assert (first.training.batch_size, first.encoder.dim, first.seed) == (*drawn.values(), 3)
    assert other.training.batch_size == 9
    assert other.encoder.dim in (5, 6, 7)


def test_sections_given_as_mappings_count_as_dotted_names_do(table):
    """No default takes the place of a limit or a text that is set; None sets nothing."""
    space = _space(
        table, set={"limits": {"time": "1m", "trials": 3}, "corpus": {"path": str(table)}}
    )
    assert (space.limits.time, space.limits.trials) == ("1m", 3)
    assert space.config(space.first_params()).corpus.path == str(table)
    assert _space(table, time=None, trials=None).limits == _space(table).limits


def test_labels_of_the_task_are_taken_where_validation_names_none(table):
    """An empty `validation.downstream` is no section."""
    options = SpaceOptions("docs", {"labels": {}, "validation.downstream": None})
    space = space_of("quick_thoughts_bow", options)
    taken = with_labels_of(space, tasks_of(space, [str(table)], None))
    assert taken.setting("labels.task") == str(table)


def test_text_of_labels_is_shown_as_the_table(table):
    """Where settings are given with it, too."""
    for task in (str(table), json.dumps({"path": str(table), "name": "reviews"})):
        assert LabelsConfig(task=task).path == str(table)


def test_seed_of_set_is_the_last_word(monkeypatch):
    """As it is where a trial is trained again."""
    seen = []
    monkeypatch.setattr(training, "train_all", lambda configs, *_, **__: seen.extend(configs) or [])
    monkeypatch.setattr(training, "fit_to_machine", lambda space, **_: space)
    training.train_space(
        "quick_thoughts_bow", corpus="docs", seed=4, set={"seed": 3}, progress=False
    )
    assert [one.seed for one in seen] == [3]
