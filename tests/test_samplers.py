"""Samplers: the contract of every one that is found, and what they see of a long sweep."""

from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState

from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.sweeps.samplers import SAMPLERS, make_sampler
from raysent.sweeps.samplers.optuna_samplers import NUM_BEST, NUM_LATEST, Window
from raysent.sweeps.space import SearchSpace, parse_space

TEXT = """
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search:
  encoder.bidirectional: {choice: [false, true]}
  training.batch_size: {choice: [10, 20, 40]}
  encoder.hidden_size: {quniform: [10, 100, 10]}
%s
limits: {trials: 40, sampler: %s}
"""
CHOICES = list(SAMPLERS)


def _space(sampler: str, *, more: str = "") -> SearchSpace:
    """Return a space of 60 configurations."""
    return parse_space(parse_yaml(TEXT % (more, sampler), source="s.yaml"), name="toy")


def _searched(space: SearchSpace, *, seed: int, num: int) -> list:
    """Return the calls that a sweep of two trials at a time makes, with what was asked for."""
    sampler = make_sampler(space, seed=seed)
    calls, running = [], []
    for number in range(num):
        drawn = sampler.ask(number)
        if drawn is None:
            break
        calls.append(("replay", number, *drawn))
        running.append((number, drawn[0]))
        if len(running) == 2:
            calls += _ended(*running.pop(0))
            for name, *values in calls[-3:]:
                _call(sampler, name, *values)
    return calls


def _ended(number: int, params: dict) -> list:
    """Return the calls of a trial's reports and end; narrow and small is best, and every third is stopped."""
    score = -params["encoder.hidden_size"] - params["training.batch_size"] / 10
    status = "stopped" if number % 3 == 2 else "finished"
    return [
        ("on_report", number, 1, score - 1),
        ("on_report", number, 2, score),
        ("complete", number, status, score),
    ]


def _call(sampler, name: str, number: int, *values) -> None:
    match name:
        case "replay":
            sampler.replay(number, values[0], attempts=values[1])
        case "on_report":
            sampler.on_report(number, index=values[0], score=values[1], usd=1.0)
        case "complete":
            sampler.complete(number, status=values[0], score=values[1])


def _params(calls: list) -> list[dict]:
    return [values[1] for name, *values in calls if name == "replay"]


@pytest.mark.parametrize("choice", CHOICES)
def test_sampler_proposes_new_parameters_of_the_space(choice):
    """Inside the domains, and none twice."""
    space = _space(choice)
    proposed = _params(_searched(space, seed=3, num=12))
    assert len(proposed) >= 6
    assert len({repr(params) for params in proposed}) == len(proposed)
    for params in proposed:
        assert list(params) == list(space.domains)
        assert params["training.batch_size"] in (10, 20, 40)
        assert params["encoder.hidden_size"] in range(10, 101, 10)
        assert type(params["encoder.bidirectional"]) is bool


@pytest.mark.parametrize("choice", CHOICES)
def test_sampler_is_a_function_of_its_seed(choice):
    """The same calls give the same proposals; another seed gives others."""
    first, again, other = (
        _params(_searched(_space(choice), seed=seed, num=8)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("choice", CHOICES)
def test_sampler_continues_after_a_replay_as_if_it_had_not_stopped(choice):
    """After the recorded calls, with `replay` for `ask`, a new sampler proposes what the first one would have."""
    space = _space(choice)
    calls = _searched(space, seed=5, num=14)
    for cut in (place for place, (name, *_) in enumerate(calls) if name == "replay"):
        resumed = make_sampler(space, seed=5)
        for name, *values in calls[:cut]:
            _call(resumed, name, *values)
        _, number, *drawn = calls[cut]
        assert resumed.ask(number) == tuple(drawn)


@pytest.mark.parametrize("choice", ["tpe", "random"])
def test_sampler_begins_with_each_stratum(choice):
    """Every value of the name that members are stratified by comes first, after a replay too."""
    space = _space(choice, more="evaluation: {stratify_by: training.batch_size}")
    proposed = _params(_searched(space, seed=0, num=4))
    assert [params["training.batch_size"] for params in proposed[:3]] == [10, 20, 40]


@pytest.mark.parametrize("choice", ["tpe", "random", "qmc"])
def test_sampler_says_when_a_small_space_is_exhausted(choice):
    """Sixty configurations, none twice, and then none."""
    sampler = make_sampler(_space(choice), seed=0)
    proposed = []
    while (drawn := sampler.ask(len(proposed))) is not None:
        proposed.append(drawn[0])
        sampler.complete(len(proposed) - 1, status="finished", score=0.5)
    assert len(proposed) == len({repr(params) for params in proposed}) == 60


@pytest.mark.parametrize("choice", CHOICES)
def test_sampler_takes_conditions(choice):
    """A name under `when` is drawn only where it applies."""
    space = _space(choice, more="when: {encoder.hidden_size: {encoder.bidirectional: true}}")
    sampler = make_sampler(space, seed=0)
    for number in range(8):
        params, _ = sampler.ask(number)
        assert ("encoder.hidden_size" in params) == params["encoder.bidirectional"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("tpee", r"^s.yaml:8: limits.sampler: unknown sampler; did you mean 'tpe'\?$"),
        ("{type: tpe, n_startup: 3}", r"^s.yaml:8: limits.sampler.n_startup: unknown name$"),
        ("3", r"^s.yaml:8: limits.sampler: must be a mapping of names to values; given 3$"),
    ],
)
def test_a_wrong_sampler_is_one_line_before_anything_starts(choice, message):
    """File, line, the setting and what it should be, when the space is read."""
    with pytest.raises(ConfigError, match=message):
        parse_space(parse_yaml(TEXT % ("", choice), source="s.yaml"), name="toy")


def _study(direction: str = "maximize") -> optuna.Study:
    """Return a study in a window."""
    return optuna.create_study(storage=Window(), direction=direction)


def _told(study: optuna.Study, value: float, state: TrialState | None = None) -> int:
    """Run one trial through; returns its number."""
    trial = study.ask()
    trial.suggest_float("x", 0.0, 1.0)
    study.tell(trial, None if state else value, state=state)
    return trial.number


def test_window_shows_all_of_a_short_sweep():
    """Up to its size it is Optuna's own storage."""
    study = _study()
    numbers = [_told(study, float(value)) for value in range(NUM_LATEST)]
    assert [trial.number for trial in study.get_trials(deepcopy=False)] == numbers


@pytest.mark.parametrize(("direction", "best"), [("maximize", 5), ("minimize", 3)])
def test_window_keeps_the_best_and_the_latest(direction, best):
    """The best of all trials is shown however long ago it was, and no more than the window holds."""
    study = _study(direction)
    for number in range(3 * NUM_LATEST):
        _told(study, {5: 1e6, 3: -1e6}.get(number, float(number % 7)))
    shown = [trial.number for trial in study.get_trials(deepcopy=False)]
    assert best in shown
    assert len(shown) <= NUM_BEST + NUM_LATEST
    assert shown[-NUM_LATEST:] == list(range(2 * NUM_LATEST, 3 * NUM_LATEST))


def test_window_shows_what_is_under_way_and_not_what_failed():
    """A waiting or running trial is shown until it ends; a failed one teaches nothing."""
    study = _study()
    study.enqueue_trial({"x": 0.5})
    open_trial = study.ask()
    assert open_trial.suggest_float("x", 0.0, 1.0) == 0.5
    _told(study, 0.0, TrialState.FAIL)
    assert [trial.number for trial in study.get_trials(deepcopy=False)] == [open_trial.number]


def test_window_gives_copies_where_asked():
    """A reader's change does not reach the storage."""
    study = _study()
    _told(study, 1.0)
    study.get_trials()[0].params["x"] = -1.0
    assert study.get_trials(deepcopy=False)[0].params["x"] >= 0.0
