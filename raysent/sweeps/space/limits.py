"""How much a sweep may use, how it searches, and what is evaluated when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from raysent.config import StrictModel
from raysent.cost import Duration, parse_duration
from raysent.sweeps.journal_v1 import RETIRED_KEYS


class SchedulerConfig(StrictModel):
    """How trials are stopped early.

    Attributes:
        type: `asha` (asynchronous successive halving) or `none`.
        reduction_factor: Of the trials that reach a rung, one in this many goes on.
        grace_reports: No trial is stopped before this many reports.
    """

    type: Literal["asha", "none"] = "asha"
    reduction_factor: int = pydantic.Field(default=3, ge=2)
    grace_reports: int = pydantic.Field(default=1, ge=1)


class Limits(StrictModel):
    """How much a sweep may use, and how it searches.

    Attributes:
        trials: Trials in all.
        seeds: Trials of the same values in a row, each with a seed of its own; what these are worth is their median.
        concurrent: Trials at once; None for as many as fit.
        workers_per_trial: Ray Train workers of each trial.
        gpus_per_worker: GPUs of each worker, may be a fraction; None for one where there are GPUs, less for trials of
            one worker that leave room for others on it, none without GPUs.
        time: Wall-clock after which no trial is started and each running one stops at its next report.
        backend: `actor` trains inside reused Tune actors, `train` on Ray Train workers; `auto` takes the actors for one
            worker without a GPU.
        sampler: Optuna's sampler, or `ei_per_usd`: expected improvement per dollar.
        scheduler: How trials are stopped early.
        rung_unit: What a rung is shared out in: `report`, the best third of its trials goes on, or `usd`, the best
            that a third of its dollars was spent on, asked again at every report.
    """

    trials: int = pydantic.Field(default=12, ge=1)
    seeds: int = pydantic.Field(default=1, ge=1)
    concurrent: int | None = pydantic.Field(default=None, ge=1)
    workers_per_trial: int = pydantic.Field(default=1, ge=1)
    gpus_per_worker: float | None = pydantic.Field(default=None, ge=0)
    time: Duration | None = None
    backend: Literal["auto", "actor", "train"] = "auto"
    sampler: Literal["tpe", "random", "qmc", "gp", "ei_per_usd"] = "tpe"
    scheduler: SchedulerConfig = SchedulerConfig()
    rung_unit: Literal["report", "usd"] = "report"

    @property
    def time_s(self) -> float | None:
        """The wall-clock limit in seconds."""
        return None if self.time is None else parse_duration(self.time)


class EvaluationConfig(StrictModel):
    """What is evaluated when all trials have ended.

    Attributes:
        tasks: Names of downstream tasks; None for every task whose files are present, or the embedded ones; an empty
            list for none.
        members: How many of the best trials are evaluated and may join the ensemble.
        stratify_by: A searched name: the first trials have each of its values once, and the best trial of each value
            is a member before the next best trials are.
    """

    retired_names: ClassVar[Mapping[str, str]] = RETIRED_KEYS["evaluation"]

    tasks: list[str] | None = None
    members: int = pydantic.Field(default=6, ge=1)
    stratify_by: str | None = None
