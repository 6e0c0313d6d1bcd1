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
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def resident_bytes() -> int:
    """Return the physical memory that this process holds, in bytes."""
    found: int = psutil.Process().memory_info().rss
    return found


def machine_bytes() -> int:
    """Return the physical memory of this machine, in bytes."""
    found: int = psutil.virtual_memory().total
    return found


def estimate_bytes(config: RunConfig) -> int:
    """Return about how many bytes a run's tensors take at their most, as its encoders and objective answer.

    The memory of the process itself, `PROCESS_BYTES`, comes on top on a CPU.
    """
    configs = towers(config.encoder, config.second_encoder, config.objective)
    longest = config.max_length
    shape = StepShape(
        batch_size=config.training.batch_size,
        max_length=min(longest, getattr(config.objective.batches, "max_length", None) or longest),
        num_words=config.vocabulary.size,
        dim=config.encoder.dim,
        num_bits=0 if config.code is None else config.code.num_bits(sum(encoded_dims(configs))),
        num_encoded=config.num_encoded,
    )
    at_once = -(-shape.batch_size // config.training.accumulate)
    if config.objective.is_by_example:
        shape = replace(shape, batch_size=at_once)
    trained, fixed = count_parameters(configs, shape.num_words)
    num_tokens = (
        config.objective.encoded_at_once or at_once * config.num_encoded
    ) * shape.max_length
    states = _STATES * num_tokens * sum(tower.activations_per_token for tower in configs)
    copies = _COPIES + (config.training.ema is not None)
    numbers = copies * trained + fixed + states + config.objective.num_step_values(shape)
    return _FLOAT_BYTES * numbers


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
    name, given, fits = _setting_to_lower(config, limit_bytes)
    fix = f"{given} fits at about {fits}" if fits else "lower it, and others"
    raise ConfigError(
        f"{name}: must let a trial fit into {show_bytes(limit_bytes)} ({source}); this one needs about "
        f"{show_bytes(need)}; {fix}"
    )


def _setting_to_lower(config: RunConfig, limit_bytes: int) -> tuple[str, int, int]:
    """Return the setting whose half lowers the estimate most, its value, and a value that fits; 0 if none does."""
    settings = {name: value for name, value in _sizes(config.model_dump()) if value > 1}
    if config.labels is not None and config.source is config.labels:
        # Where it is not set, what the encoder reads is its value.
        settings["labels.max_length"] = config.max_length
    halves = {name: _bytes_with(config, name, value // 2) for name, value in settings.items()}
    found = min(halves, key=lambda name: halves[name], default="training.batch_size")
    given = value = settings.get(found, 0)
    while value > 1:
        value //= 2
        if PROCESS_BYTES + _bytes_with(config, found, value) <= limit_bytes:
            return found, given, value
    return found, given, 0


def _bytes_with(config: RunConfig, name: str, value: int) -> int:
    """Return the estimate with another value of a setting; a huge one if the run has no such value."""
    changed = config.model_dump()
    set_dotted(changed, name, value)
    try:
        return estimate_bytes(RunConfig.model_validate(changed))
    except (RaysentError, ValueError):
        return sys.maxsize


def _sizes(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for path, value in dotted_values(values):
        is_size = isinstance(value, int) and not isinstance(value, bool)
        if is_size and path.split(".", maxsplit=1)[0] in _PARTS:
            yield path, value


def show_bytes(num_bytes: int) -> str:
    """Return a size in a unit that is easy to read, such as `1.5 GiB`."""
    size, units = float(num_bytes), iter(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = next(units)
    for larger in units:
        if round(size) < 1000:
            break
        size, unit = size / 1024, larger
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
