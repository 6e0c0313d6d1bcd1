"""Kinds of encoders that belong together: tried in turn, one of each kept, and combined with what each adds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_run import tiny_run

import raysent
from raysent.config import parse_yaml
from raysent.ensembles.kinds import kinds_line, read_kinds, save_kinds
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.pipeline import arguments
from raysent.sweeps import RecordedTasks, SweepController
from raysent.sweeps.fitting import Situation, fit_space, fitted_settings, shortages
from raysent.sweeps.ranking import members_of_kinds, select_members
from raysent.sweeps.samplers import make_sampler
from raysent.sweeps.schedulers import make_scheduler
from raysent.sweeps.space import find_space, parse_space, read_space
from raysent.sweeps.speed import RunSeconds
from raysent.sweeps.trial import Trial
from raysent.training.loop import fit

KINDS = ["uni", "bi", "multichannel"]
NOVELS = Situation(num_train=97_000, num_words=16_000)
# The space as it was before it had kinds, which sweeps have recorded.
BEFORE = """
metric: context_accuracy
base:
  encoder: {type: gru, hidden_size: 600, embedding: {dim: 300, vectors: ppmi}}
  objective: {type: context_prediction}
search:
  encoder.bidirectional: {choice: [false, true]}
  encoder.hidden_size: {choice: [300, 600, 1200]}
  objective.context_size: {choice: [1, 2, 3]}
  training.learning_rate: {loguniform: [1.0e-4, 2.0e-3]}
published: {paper: quick_thoughts, model: uni}
limits: {trials: 24, scheduler: {type: asha, reduction_factor: 3, grace_reports: 1}}
evaluation: {members: 6, stratify_by: encoder.bidirectional}
"""


def _space(*overrides: str):
    return read_space(find_space("quick_thoughts"), overrides=overrides)


def _trial(number: int, kind: str, score: float, status: str = "finished", *, index: int = 9):
    trial = Trial(f"{number:04d}", number, {"family": kind}, 0, status=status)
    trial.metrics, trial.index, trial.num_reports = {"context_accuracy": score}, index, 9
    trial.is_outranked = status == "stopped"
    return trial


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_kinds_are_tried_in_turn_and_after_a_replay_too(sampler):
    """Twelve configurations have four of each; every one is a run of its kind, with the margin where the loss has one."""
    space = _space(f"limits.sampler={sampler}")
    asked, resumed = make_sampler(space, seed=1), make_sampler(space, seed=1)
    drawn = []
    for number in range(12):
        drawn.append(asked.ask(number))
        asked.complete(number, status="finished", score=0.1 * number)
    params = [one for one, _ in drawn]
    assert [one["family"] for one in params] == KINDS * 4
    for one in params:
        config = space.config(one)
        assert config.encoder.type == ("concat" if one["family"] == "multichannel" else "gru")
        assert ("objective.margin" in one) == (config.objective.type == "context_margin")
        if config.encoder.type == "gru":
            assert config.encoder.bidirectional == (one["family"] == "bi")
    assert {one["objective.type"] for one in params} == {"context_prediction", "context_margin"}
    for number, (one, attempts) in enumerate(drawn[:7]):
        resumed.replay(number, one, attempts=attempts)
        resumed.complete(number, status="finished", score=0.1 * number)
    assert resumed.ask(7) == drawn[7]


def test_a_kind_of_which_nothing_is_left_gives_up_its_turn():
    """Two kinds, one of which has a single configuration: all seven are tried."""
    text = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search:
  family: {choice: {uni: {encoder: {type: gru}}, bag: {encoder: {type: bag}}}}
  encoder.hidden_size: {choice: [1, 2, 3, 4, 5, 6]}
when: {encoder.hidden_size: {family: uni}}
evaluation: {stratify_by: family, kinds: true}
"""
    sampler = make_sampler(parse_space(parse_yaml(text), name="toy"), seed=0)
    found = []
    while (drawn := sampler.ask(len(found))) is not None:
        found.append(drawn[0]["family"])
        sampler.complete(len(found) - 1, status="finished", score=0.5)
    assert Counter(found) == {"uni": 6, "bag": 1}


def test_a_trial_is_stopped_early_for_others_of_its_kind_alone():
    """The worst kind's best trial comes to its end; without kinds it is stopped at the first report."""
    space = _space()
    alike = space.model_copy(
        update={"evaluation": space.evaluation.model_copy(update={"kinds": False})}
    )

    def decide(of_space):
        scheduler = make_scheduler(of_space, seed=0)
        trials = [_trial(number, kind, 0.0, index=1) for number, kind in enumerate(KINDS * 2)]
        scores = [0.5, 0.4, 0.1, 0.3, 0.2, 0.05]
        return [
            scheduler.on_report(trial, score=score)
            for trial, score in zip(trials, scores, strict=True)
        ]

    decisions = decide(space)
    assert [one.should_continue for one in decisions] == [True] * 3 + [False] * 3
    assert decisions[5].reason == "place 2 of 2 multichannel after report 1; the best 1 continue"
    assert [one.should_continue for one in decide(alike)] == [True] + [False] * 5


def test_the_best_finished_trial_of_each_kind_is_kept():
    """One that was stopped stands for its kind only where none finished; a kind without a model is absent."""
    space = _space("evaluation.members=1")
    trials = [
        _trial(0, "uni", 0.9, "stopped", index=3),
        _trial(1, "uni", 0.2),
        _trial(2, "bi", 0.3, "stopped", index=3),
        _trial(3, "uni", 0.5),
        _trial(4, "multichannel", 0.1, "failed"),
    ]
    members = select_members(space, trials)
    assert sorted(trial.number for trial in members) == [2, 3]
    kept = members_of_kinds(space, members)
    assert {kind: trial.number for kind, trial in kept.items()} == {"uni": 3, "bi": 2}


def test_a_sweep_of_the_space_as_it_was_goes_on_as_it_began():
    """It has no kinds: its draws and its early stopping are what they were, and its events replay."""
    space = parse_space(parse_yaml(BEFORE), name="quick_thoughts", is_recorded=True)
    assert space.kinds == []
    events: list[dict] = []
    first = SweepController(space, seed=3, write=lambda event, **values: events.append({"event": event, **values}))  # fmt: skip
    decisions = []
    for score in (0.5, 0.1, 0.4, 0.05):
        trial = first.suggest()
        decisions.append(
            first.report(
                trial.name, index=1, num_reports=9, metrics={"context_accuracy": score}, seconds=1.0
            )
        )
    assert decisions == [True, False, False, False]
    again = SweepController(space, seed=3, write=lambda event, **values: None, past=events)
    assert {name: trial.params for name, trial in again.trials.items()} == {
        name: trial.params for name, trial in first.trials.items()
    }


def test_settings_that_the_space_as_it_was_learned_are_those_of_the_kind_that_they_mean():
    """`encoder.bidirectional` says which; of a space in which several families have it, none is meant."""
    learned = {
        "encoder.bidirectional": True,
        "encoder.hidden_size": 300,
        "objective.context_size": 2,
        "training.learning_rate": 0.5,
    }
    assert _space().restricted(learned) == {
        "family": "bi",
        "objective.context_size": 2,
        "encoder.hidden_size": 300,
        "training.learning_rate": 0.006,
    }
    assert _space().restricted({**learned, "encoder.bidirectional": False})["family"] == "uni"
    assert _space().restricted({"objective.context_size": 2}) == {}
    assert read_space(find_space("everything")).restricted(learned) == {}


def test_plan_says_that_kinds_are_tried_in_turn():
    """And what is too little for all of them: the trials, or the time."""

    def reason(*overrides: str, situation: Situation = NOVELS, seconds: float = 10.0):
        space = fit_space(
            _space(*overrides), situation, speed=lambda _: RunSeconds(seconds, report_s=0.0)
        )
        return next(one for one in fitted_settings(space) if one.name == "family")

    said = reason()
    assert said.text == "uni, bi, multichannel"
    assert said.why == (
        "in turn; the best that ends of each is kept, and RUN/kinds is their weighted average"
    )
    assert "limits.trials 3 is enough" in reason("limits.trials=2").why
    short = replace(NOVELS, trial_s=2.0, limit="time 1m", search_s=30.0, at_once=2)
    given = ("training.epochs=2", "encoder.hidden_size=300")
    assert reason(*given, situation=short, seconds=15.0).why.endswith(
        "; in 30s of training not one of each will end (a whole trial takes uni 30s, bi 30s, multichannel 30s, "
        "2 at a time): about 1m15s is enough"
    )
    lacking = fit_space(_space(*given), short, speed=lambda _: RunSeconds(15.0, report_s=0.0))
    # A line of the screen, which has to be a sentence without the others.
    assert shortages(lacking)[0].endswith("is enough")
    assert shortages(lacking)[0].startswith("in 30s of training not one of each will end (")
    assert reason(*given, situation=short, seconds=5.0).why == said.why
    only = fit_space(
        _space("search.family={choice: [bi]}"), NOVELS, speed=lambda _: RunSeconds(1.0)
    )
    assert "family" not in only.fitted


def test_kinds_need_a_choice():
    """Where members are stratified by a number between two others, there are no kinds."""
    text = """
base: {encoder: {type: gru}, objective: {type: context_prediction}}
search: {training.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}}
evaluation: {stratify_by: training.learning_rate, kinds: true}
"""
    with pytest.raises(ConfigError, match=r"^s.yaml:4: evaluation.kinds: needs a choice in evalu"):
        parse_space(parse_yaml(text, source="s.yaml"), name="s")


def test_scale_paper_has_the_published_encoder_of_each_kind():
    """The multichannel one has the two channels of the paper's; kinds are still tried in turn."""
    space = arguments.space_of("quick_thoughts", arguments.SpaceOptions(scale="paper"))
    configs = {kind: space.config({"family": kind}) for kind in space.kinds}
    assert list(configs) == KINDS
    assert {configs[kind].encoder.hidden_size for kind in ("uni", "bi")} == {1200}
    assert [configs[kind].encoder.bidirectional for kind in ("uni", "bi")] == [False, True]
    members = configs["multichannel"].encoder.members
    assert {name: one.embedding.trained for name, one in members.items()} == {
        "fixed": False,
        "trained": True,
    }
    assert members["fixed"].embedding.vectors == "data/vectors/glove.840B.300d.txt"
    assert all(one.bidirectional and one.hidden_size == 1200 for one in members.values())
    assert {config.vocabulary.size for config in configs.values()} == {50_001}
    asked = [make_sampler(space, seed=0).ask(number)[0] for number in range(3)]
    assert [params["family"] for params in asked] == KINDS
    assert {"encoder.hidden_size" in params for params in asked[:2]} == {True}


def test_a_setting_of_one_kind_alone_is_set_there():
    """The vectors of the fixed channel are no setting of the other kinds, nor of `base`."""
    space = _space(
        "encoder.members.fixed.embedding.vectors=glove.txt",
        "encoder.members.fixed.embedding.dim=200",
    )
    configs = {params["family"]: space.config(params) for params in space.edges()}
    fixed = configs["multichannel"].encoder.members["fixed"].embedding
    assert (fixed.vectors, fixed.dim) == ("glove.txt", 200)
    assert configs["uni"].encoder.embedding.vectors == "ppmi"
    with pytest.raises(ConfigError, match=r"droput=0.1: unknown name; did you mean 'dropout'"):
        _space("encoder.droput=0.1")


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table whose labels are in words that all encoders see."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    words = {"good": ["fine", "kind", "warm", "clear"], "bad": ["dull", "cold", "rude", "late"]}
    rows = ["text,label"]
    for number in range(240):
        label = ("good", "bad")[number % 2]
        said = draw.choice(words[label] if draw.random() > 0.3 else words["good"], 2)
        rows.append(f"the {said[0]} and {said[1]} w{draw.integers(0, 30)},{label}")
    table = tmp_path / "reviews.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def test_kinds_are_weighted_by_validation_and_say_what_each_adds(tmp_path, reviews):
    """Equal to a restatement from the records: weights, the average, and the average without each kind."""
    members = dict(zip(KINDS, expand(["hash:8", "hash:32", "hash:64"]), strict=True))
    evaluator = Evaluator(tmp_path / "evaluation", divides=True)
    ended = {"uni": True, "bi": True, "multichannel": False}
    kinds = save_kinds(
        members, evaluator, run=tmp_path, tasks=[str(reviews)], ended=ended, absent=["bow"]
    )
    records = {kind: evaluator.records([one], [str(reviews)])[one][0] for kind, one in members.items()}  # fmt: skip

    def accuracy(some: list[str]) -> float:
        folds = [records[kind].folds[0] for kind in some]
        labels = np.asarray(records[some[0]].labels)
        scores = [
            np.mean(fold.validation_log_probabilities.argmax(1) == labels[fold.validation_rows])
            for fold in folds
        ]
        pooled = sum(
            score / sum(scores) * fold.test_log_probabilities
            for score, fold in zip(scores, folds, strict=True)
        )
        return 100 * float(np.mean(pooled.argmax(1) == labels[folds[0].test_rows]))

    assert kinds.together.value == pytest.approx(accuracy(KINDS))
    validation = [one.validation for one in kinds.kinds]
    assert validation == sorted(validation, reverse=True)
    for one in kinds.kinds:
        others = [kind for kind in KINDS if kind != one.kind]
        assert one.adds.value == pytest.approx(accuracy(KINDS) - accuracy(others))
        assert one.adds.interval[0] <= one.adds.value <= one.adds.interval[1]
    best = kinds.kinds[0].kind
    assert kinds.over_best.value == pytest.approx(accuracy(KINDS) - accuracy([best]))
    assert kinds.remarks == [
        "no trial of multichannel came to its end: hash:64, its best, stands for it as it was stopped",
        "no trial of bow has left a model",
    ]
    assert read_kinds(tmp_path).model_dump(mode="json") == kinds.model_dump(mode="json")
    line = kinds_line(tmp_path, kinds)
    assert line.startswith(f"Ensemble of the kinds: {tmp_path}/kinds {kinds.together.value:.1f}, ")
    assert line.endswith(f" above {kinds.kinds[0].kind}")
    saved = json.loads((tmp_path / "kinds" / "ensemble.json").read_text())
    assert saved["method"] == "validation"
    [weights] = [task["weights"] for task in saved["tasks"].values()]
    total = sum(one.validation for one in kinds.kinds)
    assert weights == pytest.approx({one.member: one.validation / total for one in kinds.kinds})
    assert raysent.load(tmp_path / "kinds").predict(["the dull and rude w1"]) == ["bad"]


def test_one_kind_alone_is_not_combined(tmp_path, reviews):
    """Nothing is left of an earlier combination."""
    (tmp_path / "kinds").mkdir()
    [only] = expand(["hash:8"])
    evaluator = Evaluator(tmp_path / "evaluation", divides=True)
    shared = {"run": tmp_path, "tasks": [str(reviews)], "ended": {"uni": True}}
    assert save_kinds({"uni": only}, evaluator, **shared) is None
    assert not (tmp_path / "kinds").exists()
    assert read_kinds(tmp_path) is None


def test_codes_start_from_the_best_encoder_of_a_sweep(tmp_path):
    """`--set initial=RUN` alone: the encoder of the space is left out, and the sweep's winner is in its place."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "sweep.json").write_text("{}")
    with pytest.raises(ArtifactError, match=rf"^{run}: this sweep has no best encoder yet; finish"):
        arguments.space_of("binary", arguments.SpaceOptions(set={"initial": str(run)}))
    fit(tiny_run(tmp_path, training__epochs=0.2, training__num_reports=1), run / "encoder")
    for named in (str(run), f"{run}/", str(run / "encoder")):
        space = arguments.space_of("binary", arguments.SpaceOptions(set={"initial": named}))
        config = space.config(space.first_params())
        assert (config.encoder.type, config.encoder.hidden_size) == ("gru", 8)
        assert config.initial == str(run / "encoder")
        assert {"code", "code.bits", "objective.lambda_sp"} <= set(space.domains)
    typed = {"initial": str(run), "encoder": {"type": "gru", "hidden_size": 8}}
    space = arguments.space_of("binary", arguments.SpaceOptions(set=typed))
    assert space.config(space.first_params()).initial == str(run / "encoder")
    wider = arguments.space_of(
        "binary", arguments.SpaceOptions(set={"initial": str(run), "encoder": {"dropout": 0.1}})
    )
    assert wider.config(wider.first_params()).encoder.dropout == 0.1


@pytest.mark.parametrize(("corpus", "is_offered"), [({"path": "books"}, True), (None, False)])
def test_codes_are_offered_where_there_is_running_text(tmp_path, corpus, is_offered):
    """Trials of pairs or of labels have no text that codes could be trained on."""
    (tmp_path / "encoder").mkdir()
    sweep = SimpleNamespace(
        folder=tmp_path,
        space=SimpleNamespace(setting={"corpus": corpus}.get),
        recorded=SimpleNamespace(record=SimpleNamespace(tasks=RecordedTasks(["reviews.csv"]))),
        address="runs/a",
    )
    command = raysent.Sweep.codes_command.fget(sweep)
    expected = "raysent sweep binary --corpus books --task reviews.csv --set initial=runs/a"
    assert command == (expected if is_offered else "")
