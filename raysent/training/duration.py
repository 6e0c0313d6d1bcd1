"""How long a run trains on this machine: guessed from its size, or measured by its first steps.

In: a run and the sizes of its text, or its text. Out: seconds.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Mapping
from typing import Any

import torch

from raysent.errors import RaysentError
from raysent.models.config import towers
from raysent.models.encoders import count_parameters
from raysent.storage import cache_folder, content_key, read_json, write_json
from raysent.training.data import TrainingData
from raysent.training.loop import seconds_of_steps
from raysent.training.plan import open_stream
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

# Words of a sentence if they are not counted; operations of a core in a second; seconds of each step besides.
_WORDS = 12.0
_OPERATIONS_PER_S = 15e9
_STEP_S = 0.01
# Where measured speeds are kept in the cache, and for how many seconds they count.
_SPEEDS_FOLDER, _COUNTS_S = "speeds", 3600.0


def guess_epoch_s(config: RunConfig, facts: Mapping[str, Any]) -> float:
    """Return roughly how many seconds one core of a common processor takes for a pass over the text.

    A step has six operations for each parameter of the encoders that is not a word vector and each token read: two
    forward, four backward. Parameters of the objective, validation and the start of processes are not counted.

    Args:
        config: The run.
        facts: Sizes of its text, as `TrainingData.facts` returns them.
    """
    return max(1, int(facts.get("num_train", 0)) // config.training.batch_size) * _guess_step_s(config, facts)


def recent_run_s(config: RunConfig, training_data: TrainingData, *, num_threads: int) -> tuple[float, float]:
    """Return the seconds of one pass over the text, from two seconds of steps on this machine, and of one validation.

    What was measured in the last hour counts again, so that a sweep has the settings that its plan showed.

    Args:
        config: The run.
        training_data: Its text, prepared.
        num_threads: Threads that train.

    Raises:
        RaysentError: If the run cannot be trained on its text.
    """
    key = content_key(config.key, training_data.facts(), num_threads, platform.node(), torch.__version__)
    kept = cache_folder() / _SPEEDS_FOLDER / f"{key}.json"
    with contextlib.suppress(RaysentError, OSError, TypeError, ValueError):
        epoch_s, validation_s = map(float, read_json(kept))
        is_sound = 0 < epoch_s < math.inf and 0 <= validation_s < math.inf
        if is_sound and 0 <= time.time() - kept.stat().st_mtime < _COUNTS_S:
            return epoch_s, validation_s
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        step_s, validation_s = seconds_of_steps(config, training_data)
        measured = open_stream(config, training_data, Workers()).num_batches * step_s, validation_s
    finally:
        torch.set_num_threads(threads)
    with contextlib.suppress(RaysentError, OSError):  # only the next command would have had it
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, measured)
    return measured


def _guess_step_s(config: RunConfig, facts: Mapping[str, Any]) -> float:
    configs = towers(config.encoder, config.second_encoder, config.objective)
    of_few, of_more = (sum(count_parameters(configs, words)) for words in (2, 3))
    num_computed = max(1, of_few - 2 * (of_more - of_few))
    words = facts.get("num_tokens", 0) / max(1, facts.get("num_sentences", 0)) or _WORDS
    tokens = config.training.batch_size * config.num_encoded * words
    return _STEP_S + 6.0 * num_computed * tokens / _OPERATIONS_PER_S
