"""The memory that a run needs at its most, the refusal of a run that cannot fit, and what a process of runs holds.

The estimate adds up what encoders and objective answer. The error names the setting that lowers it most.

Runs of different sizes that follow each other in one process leave holes in glibc's heap, because glibc raises the
threshold above which an allocation is a mapping of its own. The heap is therefore trimmed after each run
(`platforms.trim_heap`), and oneDNN's cache of compiled products is bounded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psutil

from raysent.config import dotted_values, set_dotted
from raysent.errors import ConfigError, RaysentError
from raysent.models.config import encoded_dims, towers
from raysent.models.encoders import count_parameters
from raysent.models.objectives import StepShape
from raysent.training.run import RunConfig

GIB = 2**30
# For this process and those that are started from it. oneDNN reads it at its first product.
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}
# A process with Python, torch and Ray, and a few blocks of text, before it has a model.
PROCESS_BYTES = 500 << 20
# Tensors of a trained parameter's size: its value, two moments, and its gradient or the copy that is being saved.
_COPIES = 4
# Tensors of a token's states: gates, products, states and gradients.
_STATES = 12
_FLOAT_BYTES = 4
# The parts of a run whose sizes determine its memory.
_PARTS = frozenset(
    {"encoder", "second_encoder", "objective", "training", "vocabulary", "corpus", "labels"}
)


def limit_primitive_cache() -> None:
    """Bound the products that oneDNN keeps compiled; a value of the environment wins."""
    for name, setting in ENVIRONMENT.items():
        os.environ.setdefault(name, setting)


def resident_bytes() -> int:
    """Return the physical memory that this process holds, in bytes."""
    num_bytes: int = psutil.Process().memory_info().rss
    return num_bytes


def machine_bytes() -> int:
    """Return the physical memory of this machine, in bytes."""
    num_bytes: int = psutil.virtual_memory().total
    return num_bytes


def estimate_bytes(config: RunConfig) -> int:
    """Return about how many bytes a run's tensors take at their most, as its encoders and objective answer.

    The memory of the process itself, `PROCESS_BYTES`, comes on top on a CPU.
    """
    configs = towers(config.encoder, config.second_encoder, config.objective)
    longest = config.max_length
    batch_length = getattr(config.objective.batches, "max_length", None) or longest
    num_bits = 0
    if config.code is not None:
        num_bits = config.code.num_bits(sum(encoded_dims(configs)))
    shape = StepShape(
        batch_size=config.training.batch_size,
        max_length=min(longest, batch_length),
        num_words=config.vocabulary.size,
        dim=config.encoder.dim,
        num_bits=num_bits,
        num_encoded=config.num_encoded,
    )
    at_once = -(-shape.batch_size // config.training.accumulate)
    if config.objective.is_by_example:
        shape = replace(shape, batch_size=at_once)
    num_trained, num_fixed = count_parameters(configs, shape.num_words)
    num_sentences = config.objective.encoded_at_once or at_once * config.num_encoded
    num_tokens = num_sentences * shape.max_length
    num_states = _STATES * num_tokens * sum(tower.activations_per_token for tower in configs)
    num_copies = _COPIES
    if config.training.ema is not None:
        num_copies += 1
    num_parameters = num_copies * num_trained + num_fixed
    num_floats = num_parameters + num_states + config.objective.num_step_values(shape)
    return _FLOAT_BYTES * num_floats


def check_memory(config: RunConfig, limit_bytes: int, *, source: str) -> None:
    """Refuse a run whose process would need more memory than it may have.

    Args:
        config: The run.
        limit_bytes: What the process may hold.
        source: Where the limit comes from, for the message.

    Raises:
        ConfigError: With the setting that lowers the memory most, and about how far it has to go.
    """
    need = PROCESS_BYTES + estimate_bytes(config)
    if need <= limit_bytes:
        return
    name, setting, fitting = _setting_to_lower(config, limit_bytes)
    fix = f"{setting} fits at about {fitting}" if fitting else "lower it, and others"
    raise ConfigError(
        f"{name}: must let a trial fit into {show_bytes(limit_bytes)} ({source}); this one needs about "
        f"{show_bytes(need)}; {fix}"
    )


def _setting_to_lower(config: RunConfig, limit_bytes: int) -> tuple[str, int, int]:
    """Return the setting whose half lowers the estimate most, its value, and a value that fits; 0 if none does."""
    settings = {name: size for name, size in _sizes(config.model_dump()) if size > 1}
    if config.labels is not None and config.source is config.labels:
        # Where it is not set, what the encoder reads is its value.
        settings["labels.max_length"] = config.max_length
    halved = {name: _bytes_with(config, name, size // 2) for name, size in settings.items()}
    lowest = min(halved, key=lambda name: halved[name], default="training.batch_size")
    setting = settings.get(lowest, 0)
    smaller = setting
    while smaller > 1:
        smaller //= 2
        if PROCESS_BYTES + _bytes_with(config, lowest, smaller) <= limit_bytes:
            return lowest, setting, smaller
    return lowest, setting, 0


def _bytes_with(config: RunConfig, name: str, value: int) -> int:
    """Return the estimate with another value of a setting; a huge one if the run has no such value."""
    changed = config.model_dump()
    set_dotted(changed, name, value)
    try:
        return estimate_bytes(RunConfig.model_validate(changed))
    except (RaysentError, ValueError):
        return sys.maxsize


def _sizes(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the dotted names of the whole numbers among a run's settings, and the numbers."""
    for name, setting in dotted_values(settings):
        is_size = isinstance(setting, int) and not isinstance(setting, bool)
        if is_size and name.split(".", maxsplit=1)[0] in _PARTS:
            yield name, setting


def show_bytes(num_bytes: int) -> str:
    """Return a size in a unit that is easy to read, such as `1.5 GiB`."""
    size = float(num_bytes)
    unit = "bytes"
    for larger_unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if round(size) < 1000:
            break
        size /= 1024
        unit = larger_unit
    if size >= 1e6:
        return f"{size:.1e} {unit}"
    return f"{size:,.3g} {unit}"
