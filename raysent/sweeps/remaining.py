"""How long training still takes, by the reports that were made: one estimate for machines, and for who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raysent.sweeps.trial import ENDED, Trial


@dataclass(frozen=True)
class TrialPace:
    """How far a trial is, and how fast it trains.

    Attributes:
        reports: Reports that it has made, with the part of the next one that is done.
        seconds: Seconds that it has trained.
        left_s: Seconds to its end at its own pace; None while that is unknown.
    """

    reports: float
    seconds: float
    left_s: float | None = None


def reported_pace(trial: Trial) -> TrialPace:
    """Return a trial's pace by its reports alone."""
    if not trial.index:
        return TrialPace(0.0, trial.seconds)
    left_s = trial.seconds / trial.index * (trial.num_reports - trial.index)
    return TrialPace(trial.index, trial.seconds, left_s)


def whole_trial(trials: Iterable[Trial]) -> int:
    """Return the reports of a whole trial; 1 while none has reported."""
    return max((trial.num_reports for trial in trials), default=0) or 1


def training_left_s(
    trials: Iterable[Trial],
    *,
    num_to_draw: int,
    num_slots: int,
    pace_of: Callable[[Trial], TrialPace] = reported_pace,
    least_part: float = 0.0,
) -> float | None:
    """Return the seconds that all training left takes when nothing is interrupted; None while nothing is done.

    Args:
        trials: Those that are known.
        num_to_draw: Trials that are still to be drawn; they fare as those that have ended, else they go to the end.
        num_slots: Trials at once.
        pace_of: Returns how far a trial is.
        least_part: The part of all reports that must be made before anything is said.
    """
    done = seconds = done_by_ended = 0.0
    num_reports = num_ended = 0
    running: list[TrialPace] = []
    for trial in trials:  # in one pass: it is called at every poll, with thousands of trials
        pace = pace_of(trial)
        done += pace.reports
        seconds += pace.seconds
        num_reports = max(num_reports, trial.num_reports)
        if trial.status in ENDED:
            done_by_ended += pace.reports
            num_ended += 1
        else:
            running.append(pace)
    whole = num_reports or 1
    num_trials = num_ended + len(running) + num_to_draw
    if not done or done < least_part * whole * num_trials:
        return None
    report_s = seconds / done
    mean = done_by_ended / num_ended if num_ended else whole
    left = sum(whole - pace.reports for pace in running) + num_to_draw * mean
    # However many run at once, the longest one has to come to its end.
    longest_s = max((_left_s(pace, whole, report_s) for pace in running), default=0.0)
    return max(report_s * left / num_slots, longest_s)


def _left_s(pace: TrialPace, whole: int, report_s: float) -> float:
    """Return the seconds to a trial's end at its own pace, else at that of all trials."""
    return report_s * (whole - pace.reports) if pace.left_s is None else pace.left_s


def longest_left_s(trials: Iterable[Trial]) -> float:
    """Return the seconds that training takes until the longest running trial ends; 0 while none has reported."""
    paces = [reported_pace(trial) for trial in trials if trial.status == "running"]
    return max((pace.left_s for pace in paces if pace.left_s is not None), default=0.0)
