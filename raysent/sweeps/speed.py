"""How long runs of a space train: `cost.trial`, or a guess by their size, scaled by first steps that are measured.

In: runs, and the sizes of their text, or their text. Out: seconds.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch

from raysent.errors import RaysentError
from raysent.kernels.devices import default_device, torch_threads
from raysent.models.config import towers
from raysent.models.encoders import count_parameters
from raysent.parallel import Progress
from raysent.storage import cache_folder, content_key, read_json, write_json
from raysent.sweeps.layout import Layout, Machines, layout
from raysent.sweeps.samplers import RandomSampler
from raysent.sweeps.space import SearchSpace
from raysent.training.data import TextSize, TrainingData, open_training_data, text_size
from raysent.training.loop import seconds_of_steps
from raysent.training.plan import open_stream
from raysent.training.run import RunConfig, TrainingConfig
from raysent.training.workers import Workers

# Words of a sentence if they are not counted; operations of a core in a second; seconds of each step besides.
_WORDS = 12.0
_OPERATIONS_PER_S = 15e9
_STEP_S = 0.01
# Where measured speeds are kept in the cache, and for how many seconds they count.
_SPEEDS_FOLDER, _COUNTS_S = "speeds", 3600.0
# Trials that are drawn for the mean time of one.
_NUM_DRAWN = 24
# Errors of the time of a trial, as standard deviations of its logarithm: given, measured, and guessed by its size.
_GIVEN_SIGMA, _SPEED_SIGMA, _UNMEASURED_SIGMA = 0.35, 0.2, 0.7


class RunSeconds(NamedTuple):
    """How long parts of a trial take.

    Attributes:
        epoch_s: Seconds of one pass over the text.
        report_s: Seconds of one validation; 0 where it is not known.
    """

    epoch_s: float
    report_s: float = 0.0


Speed = Callable[[Sequence[RunConfig]], RunSeconds]
"""Runs -> the mean seconds of their parts."""


@dataclass(frozen=True)
class TrialTime:
    """How long a whole trial trains, in the mean.

    Attributes:
        seconds: The time on what one trial has of the machines.
        source: Where it comes from, in words.
        sigma: Its error, as the standard deviation of its logarithm.
    """

    seconds: float
    source: str
    sigma: float


def trial_time(
    space: SearchSpace,
    machines: Machines,
    *,
    address: str | None = None,
    progress: Progress | None = None,
) -> TrialTime:
    """Return how long a whole trial of a space trains: `cost.trial`, else by a few steps that are trained now.

    Args:
        space: The space; its text is prepared.
        machines: What there is for trials.
        address: The Ray cluster; None for this machine. If it has GPUs and this machine has none, no step is trained.
        progress: Called with the progress of measuring.

    Raises:
        RaysentError: With the place in the search space of the value at fault, where there is one.
    """
    if space.cost.trial_s is not None:
        return TrialTime(space.cost.trial_s, "cost.trial", _GIVEN_SIGMA)
    params = space.first_params()
    is_measured = is_alike(machines, address)
    by_source: dict[str, list[RunConfig]] = {}
    for config in drawn_configs(space):
        by_source.setdefault(type(config.source).__name__, []).append(config)
    try:
        plan = layout(space.limits, machines, num_trials=space.limits.trials)
        seconds = [
            len(configs) * _mean_seconds(configs, plan, progress, is_measured=is_measured)
            for configs in by_source.values()
        ]
    except RaysentError as error:
        raise space.located(error, params) from None
    mean_s = sum(seconds) / sum(map(len, by_source.values()))
    if is_measured:
        return TrialTime(mean_s, "measured by its first steps", _SPEED_SIGMA)
    return TrialTime(mean_s, "guessed by its size", _UNMEASURED_SIGMA)


def _mean_seconds(
    configs: Sequence[RunConfig], plan: Layout, progress: Progress | None, *, is_measured: bool
) -> float:
    """Return the mean seconds of runs that read one kind of text."""
    size = text_size(configs[0])
    run = MeasuredSpeed(size, plan, progress, is_measured=is_measured)(configs)
    epochs = [_passes(config.training, size.num_train) for config in configs]
    reports = fmean(config.training.num_reports for config in configs)
    return fmean(epochs) * run.epoch_s + reports * run.report_s


def _passes(training: TrainingConfig, num_train: int) -> float:
    """Return how often a run reads its text."""
    if training.steps is None:
        return training.epochs
    return training.steps / max(1, num_train // training.batch_size)


def drawn_configs(space: SearchSpace) -> list[RunConfig]:
    """Return runs of the space, drawn at random; at least one."""
    drawn = [RandomSampler(space, seed=0).ask(number) for number in range(_NUM_DRAWN)]
    return [space.config(one[0]) for one in drawn if one is not None] or [
        space.config(space.first_params())
    ]


def is_alike(machines: Machines, address: str | None) -> bool:
    """Return whether what a few steps take here says how fast a cluster trains."""
    return address is None or (machines.gpus > 0) == (default_device().type == "cuda")


class MeasuredSpeed:
    """Seconds of a pass over the text: guessed, and scaled by a measurement of the largest run."""

    def __init__(
        self, size: TextSize, plan: Layout, progress: Progress | None, *, is_measured: bool
    ) -> None:
        self.is_measured = is_measured
        self._size, self._plan, self._progress = size, plan, progress or (lambda *_: None)
        self._known: dict[str, RunSeconds] = {}

    def __call__(self, configs: Sequence[RunConfig]) -> RunSeconds:
        """Return the mean seconds of a pass, and those of a validation."""
        guesses = [guess_epoch_s(config, self._size.facts()) for config in configs]
        slowest = max(range(len(configs)), key=guesses.__getitem__)
        mean_s = sum(guesses) / len(guesses)
        if not self.is_measured:
            return RunSeconds(mean_s)
        measured = self._measured(configs[slowest])
        return measured._replace(epoch_s=measured.epoch_s * mean_s / guesses[slowest])

    def _measured(self, config: RunConfig) -> RunSeconds:
        """Return the measured seconds of a run with the cores that a trial has; one measurement for each encoder."""
        key = config.encoder.model_dump_json()
        if key not in self._known:
            self._progress(
                "timing a few training steps for the plan, encoder", len(self._known) + 1, None
            )
            text, num_threads = open_training_data(config), self._plan.cpus_per_worker
            self._known[key] = RunSeconds(*recent_run_s(config, text, num_threads=num_threads))
        return self._known[key]


def guess_epoch_s(config: RunConfig, facts: Mapping[str, Any]) -> float:
    """Return roughly how many seconds one core of a common processor takes for a pass over the text.

    A step has six operations for each parameter of the encoders that is not a word vector and each token read: two
    forward, four backward. Parameters of the objective, validation and the start of processes are not counted.

    Args:
        config: The run.
        facts: Sizes of its text, as `TrainingData.facts` returns them.
    """
    configs = towers(config.encoder, config.second_encoder, config.objective)
    of_few, of_more = (sum(count_parameters(configs, words)) for words in (2, 3))
    num_computed = max(1, of_few - 2 * (of_more - of_few))
    words = facts.get("num_tokens", 0) / max(1, facts.get("num_sentences", 0)) or _WORDS
    tokens = config.training.batch_size * config.num_encoded * words
    step_s = _STEP_S + 6.0 * num_computed * tokens / _OPERATIONS_PER_S
    return max(1, int(facts.get("num_train", 0)) // config.training.batch_size) * step_s


def recent_run_s(
    config: RunConfig, training_data: TrainingData, *, num_threads: int
) -> tuple[float, float]:
    """Return the seconds of one pass over the text, from two seconds of steps on this machine, and of one validation.

    What was measured in the last hour counts again, so that a sweep has the settings that its plan showed.

    Args:
        config: The run.
        training_data: Its text, prepared.
        num_threads: Threads that train.

    Raises:
        RaysentError: If the run cannot be trained on its text.
    """
    here = platform.node(), torch.__version__, default_device().type
    key = content_key(config.key, training_data.facts(), num_threads, here)
    kept = cache_folder() / _SPEEDS_FOLDER / f"{key}.json"
    with contextlib.suppress(RaysentError, OSError, KeyError, TypeError, ValueError):
        seconds = read_json(kept, sealed=True)
        epoch_s, validation_s = float(seconds["epoch_s"]), float(seconds["validation_s"])
        is_sound = 0 < epoch_s < math.inf and 0 <= validation_s < math.inf
        if is_sound and 0 <= time.time() - kept.stat().st_mtime < _COUNTS_S:
            return epoch_s, validation_s
    with torch_threads(num_threads):
        step_s, validation_s = seconds_of_steps(config, training_data)
        epoch_s = open_stream(config, training_data, Workers()).num_batches * step_s
    with contextlib.suppress(RaysentError, OSError):  # only the next command would have had it
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"epoch_s": epoch_s, "validation_s": validation_s})
    return epoch_s, validation_s
