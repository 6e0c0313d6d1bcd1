"""Tests of forecasts: learning curves, bands over trials with known curves, pilots, the command and the report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine, stand_in
from run_folders import write_evaluation, write_sweep

from raysent.config import parse_yaml
from raysent.errors import ArtifactError
from raysent.pipeline.forecasts import _assumptions, _PilotEvaluation
from raysent.progress import ProgressLines
from raysent.report.run import read_run
from raysent.report.sections.forecast import expected_score
from raysent.simulation import Band, Forecast, ForecastCell
from raysent.simulation.curves import PRIORS, CurveModel, CurvePrior, gain_after, octave_gain
from raysent.simulation.forecast import (
    Limits,
    TrialModel,
    forecast_cells,
    make_setup,
    read_forecast,
    score_forecast,
    write_forecast,
)
from raysent.sweeps.pilots import Pilot, draw_pilots, family_of
from raysent.sweeps.space import parse_space

EXACT = CurvePrior(exponent=0.5, exponent_sigma=0.0, own_gain=1.0, residual=0.0, width=0.0, level=0.0)
WIDE = replace(
    PRIORS, metric=CurvePrior(exponent=0.5, exponent_sigma=0.5, own_gain=0.5, residual=0.4, width=0.7, level=0.2)
)
SIMULATED = """
base: {encoder: {type: gru}, objective: {type: context_prediction}, training: {num_reports: 4}}
search:
  encoder: {choice: {uni: {type: gru}, bag: {type: bag}}}
  training.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}
limits: {trials: 8, scheduler: none, concurrent: 1}
evaluation: {members: 3}
"""


def power_law(final: float, scale: float, exponent: float, parts: list[float]) -> tuple[tuple[float, float], ...]:
    """Return points of ``final - scale * (part ** -exponent - 1)``."""
    return tuple((part, final - scale * (part**-exponent - 1)) for part in parts)


def pilots_of(finals: dict[str, list[float]], *, score: bool = False) -> list[Pilot]:
    """Return pilots of a quarter of the training whose metric is heading for `finals`, and a score of a hundredfold."""
    found = []
    for family, values in finals.items():
        for final in values:
            metric = power_law(final, 0.05, 0.5, [0.0625, 0.125, 0.25])
            points = tuple((part, 100 * value) for part, value in metric) if score else ()
            found.append(Pilot(f"{len(found):04d}", family, metric, 600.0, points))
    return found


# -- curves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.5, 1.0])
def test_gain_after_is_that_of_the_power_law(exponent):
    """The gain to the whole, in octaves before the part, of a curve with this exponent."""

    def value(part: float) -> float:
        return math.log2(part) if exponent == 0 else -(part**-exponent - 1) * math.copysign(1, exponent)

    octave = value(0.25) - value(0.125)
    assert gain_after(0.25, exponent) == pytest.approx((value(1.0) - value(0.25)) / octave)


def test_octave_gain_is_interpolated_between_reports():
    """Between a quarter and whole of the pilot, in the logarithm of the steps."""
    assert octave_gain(((0.1, 1.0), (0.4, 3.0))) == pytest.approx(1.0)
    assert octave_gain(((0.3, 1.0), (0.4, 2.0))) == pytest.approx(1 / math.log2(4 / 3))
    assert octave_gain(((0.4, 2.0),)) is None


def test_curve_model_continues_an_exact_power_law():
    """With the right exponent and no noise, a drawn curve is the trial's own, before the pilot's end and after."""
    curve = power_law(0.7, 0.05, 0.5, [0.0625, 0.125, 0.25])
    drawn = CurveModel([curve], [""], replace(EXACT)).sweep(np.random.default_rng(0))
    one = drawn(0, is_other_family=False, noise=0.0)
    # One pilot has no spread of gains, so the mean gain is as uncertain as it is large.
    assert one(0.25) == pytest.approx(one.final - one.gain * gain_after(0.25, 0.5))
    drawn = CurveModel([curve, curve], ["", ""], EXACT).sweep(np.random.default_rng(0))
    one = drawn(1, is_other_family=False, noise=0.0)
    for part in (0.0625, 0.125, 0.25, 0.5, 1.0):
        assert one(part) == pytest.approx(0.7 - 0.05 * (part**-0.5 - 1))


def test_the_shared_error_moves_all_trials_of_a_sweep_alike():
    """It has the stated spread over sweeps and none within one, so that the best of many is not expected higher."""
    finals = [0.5, 0.6, 0.7, 0.9]
    curves = [power_law(final, 0.05, 0.5, [0.125, 0.25]) for final in finals]
    model = CurveModel(curves, ["a", "b", "c", "d"], replace(EXACT, level=0.5))
    drawn = []
    for seed in range(400):
        draw = model.sweep(np.random.default_rng(seed))
        drawn.append([draw(place, is_other_family=False, noise=0.0).final for place in range(4)])
    shifts = np.array(drawn) - np.array(drawn)[:, :1]
    assert np.allclose(shifts, np.array(finals) - finals[0])
    spread = 0.5 * np.std(finals, ddof=1)
    assert np.std(np.array(drawn)[:, 0]) == pytest.approx(spread, rel=0.1)
    assert np.mean(np.array(drawn)[:, 3]) == pytest.approx(0.9, abs=4 * spread / 20)


def test_trial_model_bands_hold_in_known_sweeps():
    """Of simulated sweeps with power laws of varied exponents, 8 of 10 end inside the band, within the noise of 30."""
    inside = 0
    for number in range(30):
        truth = np.random.default_rng(number)
        exponent = truth.normal(0.5, 0.3)
        curves = [power_law(truth.normal(0.6, 0.03), 0.03, exponent, [0.0625, 0.125, 0.25, 1.0]) for _ in range(8 + 12)]
        pilots = [Pilot(f"{place}", "", curve[:-1], 1.0) for place, curve in enumerate(curves[:8])]
        model = TrialModel(pilots, mode="max", priors=WIDE)
        best = [
            max(sweep.curve(str(trial), "")[0].final for trial in range(12)) for sweep in map(model.sweep, range(40))
        ]
        low, high = np.quantile(best, (0.1, 0.9))
        inside += bool(low <= max(curve[-1][1] for curve in curves[8:]) <= high)
    assert 0.65 <= inside / 30 <= 0.97


# -- sweeps of such trials --------------------------------------------------------------------------------------------


def cells(pilots: list[Pilot], limits: list[Limits], *, num_sweeps: int = 40) -> tuple[ForecastCell, ...]:
    """Return the forecast of the simulated space for pilots whose trials take ten minutes."""
    space = parse_space(parse_yaml(SIMULATED), name="simulated")
    setups = [make_setup(space, one, trial_s=600.0, at_once=1) for one in limits]
    return forecast_cells(space, pilots, setups, num_sweeps=num_sweeps)


def test_forecast_rises_with_time_and_machines():
    """An hour trains fewer trials than two, and two machines more than one."""
    pilots = pilots_of({"uni": [0.6, 0.7, 0.65], "bag": [0.5, 0.6]}, score=True)
    hours = [Limits(None, 3600.0), Limits(None, 7200.0), Limits(None, 3600.0, 2), Limits(None, None)]
    one, two, doubled, free = cells(pilots, hours)
    assert one.trials < two.trials == free.trials == 8
    assert doubled.trials > one.trials
    assert one.best is not None
    assert one.best.p10 < one.best.expected < one.best.p90
    assert one.best.expected < two.best.expected
    assert one.best.expected < doubled.best.expected
    assert one.ensemble.expected < two.ensemble.expected
    assert two.hours < 2.1


def test_forecast_of_no_time_has_no_score():
    """In a minute no trial reports."""
    (cell,) = cells(pilots_of({"uni": [0.6, 0.7]}), [Limits(None, 60.0)])
    assert (cell.trials, cell.score) == (0, None)
    made = Forecast("context_accuracy", "max", (), (cell,), (), 1.0)
    assert made.sentence.startswith("No trial is expected to report in this time")


def test_draw_pilots_takes_the_families_in_turn():
    """Both families are among the first two."""
    space = parse_space(parse_yaml(SIMULATED), name="simulated")
    drawn = [family_of(space, params) for params in draw_pilots(space, seed=0)]
    assert len(drawn) == 12
    assert set(drawn[:2]) == set(drawn[2:4]) == {"uni", "bag"}


# -- forecast and outcome ---------------------------------------------------------------------------------------------


def forecast_of(*, deadline_s: float | None = None) -> Forecast:
    """Return a forecast of one cell."""
    cell = ForecastCell(None, deadline_s, 1, 20, 1.0, 0.0, Band(0.08, 0.1, 0.12), Band(70.0, 71.0, 72.0))
    pilots = tuple(pilots_of({"uni": [0.6], "bi": [0.5]}, score=True))
    return Forecast("context_accuracy", "max", ("MR", "TREC"), (cell,), pilots, 60.0, 0.7, ("a line",))


def test_forecast_is_read_as_written(tmp_path):
    """All values, and one line for a file that is damaged."""
    write_forecast(tmp_path, forecast_of())
    assert read_forecast(tmp_path) == forecast_of()
    (tmp_path / "forecast.json").write_text('{"cells": [3]}')
    with pytest.raises(ArtifactError, match=r"forecast\.json: not a forecast"):
        read_forecast(tmp_path)


def test_score_forecast_compares_only_what_was_planned():
    """Inside, above, and nothing for a sweep with another deadline."""
    space = parse_space(parse_yaml(SIMULATED), name="simulated")
    found = score_forecast(forecast_of(), space, best=0.1, ensemble=73.0)
    assert [one.where for one in found] == ["above", "inside"]
    assert found[0].sentence == (
        "forecast of the mean test score of the ensemble on MR, TREC: 70.00 to 72.00, expected 71.00; it is 73.00: above"
    )
    assert score_forecast(forecast_of(deadline_s=60.0), space, best=0.1, ensemble=73.0) == []


def test_report_shows_forecast_beside_outcome(tmp_path):
    """The page of a sweep names the forecast, and where the outcome is."""
    folder = write_sweep(tmp_path / "run", num_trials=8)
    write_evaluation(folder, ["0000", "0001"])
    write_forecast(folder, forecast_of())
    (ensemble, best) = read_run(folder).scored_forecast
    section = expected_score(read_run(folder))
    assert section is not None
    assert ensemble.sentence[1:] in section.blocks[0].text
    assert best.where in ("inside", "below", "above")
    assert section.lead.startswith("Expected mean test score of the ensemble on MR, TREC, in percent: 71.00")
    assert len(section.blocks[3].rows) == 1


def test_pilot_that_ended_at_its_half_is_scored_once(tmp_path, monkeypatch):
    """A slow pilot has two reports: its half is its end, and a curve has no two points at one place."""
    monkeypatch.setattr(_PilotEvaluation, "_score", lambda _, name: 40.0 if name.endswith("half") else 50.0)
    monkeypatch.setattr(_PilotEvaluation, "_gain", lambda *_: None)
    pilots = [
        Pilot("0000", "uni", ((0.01, 0.1), (0.02, 0.2)), 60.0),
        Pilot("0001", "uni", ((0.01, 0.1), (0.02, 0.2), (0.03, 0.3)), 60.0),
    ]
    for pilot in pilots:
        (tmp_path / f"{pilot.name}-half").mkdir()
    with ProgressLines(is_quiet=True) as bar:
        (short, long), _ = _PilotEvaluation(tmp_path, [], None, progress=bar).run(pilots, end=math.inf)
    assert short.score == ((0.02, 50.0),)
    assert long.score == ((0.02, 40.0), (0.03, 50.0))
    assert octave_gain(short.score) is None


def test_pilots_are_evaluated_at_their_end_and_half_before_the_next_one(tmp_path, monkeypatch):
    """Without time two pilots are, and both have a curve that can be continued."""
    monkeypatch.setattr(_PilotEvaluation, "_score", lambda _, name: 40.0 if name.endswith("half") else 50.0)
    monkeypatch.setattr(_PilotEvaluation, "_gain", lambda *_: None)
    metric = ((0.1, 0.1), (0.2, 0.2), (0.3, 0.3))
    pilots = [Pilot(f"{number:04d}", "uni", metric, 60.0) for number in range(3)]
    for pilot in pilots:
        (tmp_path / f"{pilot.name}-half").mkdir()
    with ProgressLines(is_quiet=True) as bar:
        found, _ = _PilotEvaluation(tmp_path, [], None, progress=bar).run(pilots, end=-math.inf)
    assert [octave_gain(one.score) is not None for one in found if one.score] == [True, True]
    assert found[2].score == ()


def test_short_pilots_are_said_to_promise_too_little():
    """From an eighth of the steps down; forecasts were checked with pilots of a quarter."""

    def said(part: float) -> str:
        pilots = [Pilot("0000", "uni", ((part / 2, 0.1), (part, 0.2)), 60.0)]
        return "\n".join(_assumptions(pilots, trial_s=60.0, at_once=1, is_at_chance=False))

    assert "promise too little: give more --pilot-time" in said(0.1)
    assert "promise" not in said(0.25)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def raysent_(monkeypatch, capsys) -> CommandLine:
    """Types a command line in this process."""
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder to stand in, with a search space, its text and a task."""
    stand_in(tmp_path, monkeypatch)
    monkeypatch.setattr("raysent.simulation.forecast.NUM_SWEEPS", 20)
    monkeypatch.setattr("raysent.training.loop._TIMED_S", 0.0)
    monkeypatch.setattr("raysent.sweeps.pilots._MAX_PILOTS", 4)
    return tmp_path


def test_plan_json_is_one_object_with_the_forecast(raysent_, place):
    """Pilots are trained and evaluated; the forecast, its report and its file are in the run folder."""
    given = ["space.yaml", "--data", "data", "--tasks", "MR", "--time", "2h", "--machines", "1,2", "--run", "out"]
    given += ["--set", "cost.usd_per_hour=0.5"]
    ran = raysent_("plan", *given, "--pilot-time", "2s", "--json")
    assert (ran.code, ran.err) == (0, "")
    made, estimate = (json.loads(ran.out)[name] for name in ("forecast", "estimate"))
    assert estimate["hours"]["p90"] < 1.0  # the time of a trial is that of the pilots, not the assumed half hour
    assert (made["metric"], made["tasks"]) == ("context_accuracy", ["MR"])
    assert {(cell["deadline_s"], cell["machines"]) for cell in made["cells"]} == {
        (seconds, number) for seconds in (3600.0, 7200.0, 14400.0) for number in (1, 2)
    }
    own = made["cells"][0]
    assert (own["deadline_s"], own["machines"], own["trials"]) == (7200.0, 1, 4)
    assert own["ensemble"]["p10"] <= own["ensemble"]["expected"] <= own["ensemble"]["p90"]
    assert all(pilot["trial_s"] > 0 for pilot in made["pilots"])
    assert read_forecast(place / "out") is not None
    assert "Forecast" in (place / "out" / "report.html").read_text()
    again = raysent_("plan", *given)
    assert (again.code, again.err) == (2, "error: out: holds a forecast already; name another --run or remove it\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pilot-time", "soon"], "--pilot-time: a duration must look like 90s, 30m, 2h or 1h30m; given 'soon'"),
        (["--pilot-time", "0s"], "--pilot-time 0s: must be above 0; 'raysent sweep --dry-run' plans without pilots"),
        (["--machines", "two"], "--machines two: must be whole numbers, such as 1,4"),
        (["--machines", "0"], "--machines 0: must be at least 1"),
        (
            ["--budget", "10usd,20usd"],
            "--budget: must be used with machines that have a price; given none; --set cost.usd_per_hour=0.5 sets one",
        ),
        (["--deadline", "1h,x"], "--deadline: a duration must look like 90s, 30m, 2h or 1h30m; given 'x'"),
    ],
)
def test_plan_refuses_wrong_options_in_one_line(raysent_, place, options, message):
    """Before a pilot is trained."""
    ran = raysent_("plan", "space.yaml", "--data", "data", "--tasks", "MR", "--run", "out", *options)
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {message}\n")
    assert not (place / "out").exists()
