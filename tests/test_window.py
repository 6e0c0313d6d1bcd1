"""What samplers see of a long sweep: nothing is left out of a short one, and the best is never left out."""

from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState

from raysent.sweeps.samplers.window import NUM_BEST, NUM_LATEST, Window


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
