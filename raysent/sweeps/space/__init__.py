"""search_spaces/*.yaml -> checked domains and a `RunConfig` per trial; no Ray."""

from raysent.sweeps.space.limits import ComponentChoice, EvaluationConfig, Limits
from raysent.sweeps.space.reading import (
    absolute_paths,
    apply_overrides,
    find_space,
    named_files,
    parse_space,
    read_space,
    schema,
    with_absolute_paths,
    with_files,
    with_overrides,
)
from raysent.sweeps.space.space import Choice, Domain, Interval, Params, SearchSpace

__all__ = [
    "Choice",
    "ComponentChoice",
    "Domain",
    "EvaluationConfig",
    "Interval",
    "Limits",
    "Params",
    "SearchSpace",
    "absolute_paths",
    "apply_overrides",
    "find_space",
    "named_files",
    "parse_space",
    "read_space",
    "schema",
    "with_absolute_paths",
    "with_files",
    "with_overrides",
]
