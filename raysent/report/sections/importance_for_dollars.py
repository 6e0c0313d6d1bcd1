"""How much of the trials' cost each searched name explains: the same forest as for the score, asked about dollars."""

from __future__ import annotations

import math

import numpy as np

from raysent.report.blocks import Note, Section
from raysent.report.parameters import parameters_of, short_names
from raysent.report.run import Run, Trial
from raysent.report.sections.importance import MIN_TRIALS, bars_of, importance, trust
from raysent.sweeps.trial import BROKEN

TITLE = "Which searched names cost"


def section(run: Run) -> Section | None:
    """Return the importance for dollars; None where nothing was spent or searched."""
    if run.bill is None or not run.searched:
        return None
    found = [(trial, pace) for trial in run.trials if (pace := _log_pace(trial)) is not None]
    trials, paces = [trial for trial, _ in found], np.array([pace for _, pace in found])
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    if len(trials) < MIN_TRIALS or not parameters:
        text = f"Too few trials: {len(trials)} have a cost and a report, {MIN_TRIALS} are needed."
        return Section("importance-cost", TITLE, blocks=[Note(text)])
    if np.ptp(paces) == 0:
        return Section("importance-cost", TITLE, blocks=[Note("All trials cost the same; nothing is to be explained.")])
    shares = importance(np.stack([p.coordinates() for p in parameters], axis=1), paces, seed=0)
    low, middle, high = (math.exp(value) for value in np.percentile(paces, [10, 50, 90]))
    lead = (
        f"Share of the spread of what a report costs (its logarithm) that goes with each name, over {len(trials)} "
        f"trials. One trial in ten pays more than {high / middle:.1f} times the median, one in ten less than "
        f"{low / middle:.2g} times. A name that costs much and matters little for the score can be fixed where it is "
        "cheap."
    )
    names = short_names(run.searched)
    bars = bars_of(shares, [names[p.name] for p in parameters], of="share of the spread of log dollars a report")
    return Section("importance-cost", TITLE, lead, [bars, trust(shares)])


def _log_pace(trial: Trial) -> float | None:
    """Return the logarithm of a trial's dollars a report; None where it has none, or broke."""
    if trial.status in BROKEN:
        return None
    last = next((point for point in reversed(trial.points) if (point.usd or 0.0) > 0), None)
    return None if last is None or last.usd is None or not last.index else math.log(last.usd / last.index)
