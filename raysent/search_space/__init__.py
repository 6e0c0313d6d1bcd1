"""search_spaces/*.yaml -> checked domains and a `RunConfig` per trial; no Ray."""

from raysent.search_space.domains import Choice, Domain, Interval
from raysent.search_space.limits import JudgeConfig, Limits, SchedulerConfig
from raysent.search_space.local_files import named_files, with_absolute_paths, with_files
from raysent.search_space.parsing import parse_space, schema
from raysent.search_space.reading import apply_overrides, find_space, read_space
from raysent.search_space.space import Params, SearchSpace

__all__ = [
    "Choice",
    "Domain",
    "Interval",
    "JudgeConfig",
    "Limits",
    "Params",
    "SchedulerConfig",
    "SearchSpace",
    "apply_overrides",
    "find_space",
    "named_files",
    "parse_space",
    "read_space",
    "schema",
    "with_absolute_paths",
    "with_files",
]
