"""search_spaces/*.yaml -> checked domains and a `RunConfig` per trial; no Ray."""

from raysent.search_space.domains import Choice, Domain, Interval
from raysent.search_space.limits import JudgeConfig, Limits, SchedulerConfig, parse_duration
from raysent.search_space.reading import find_space, read_space
from raysent.search_space.space import Params, SearchSpace, parse_space, schema

__all__ = [
    "Choice",
    "Domain",
    "Interval",
    "JudgeConfig",
    "Limits",
    "Params",
    "SchedulerConfig",
    "SearchSpace",
    "find_space",
    "parse_duration",
    "parse_space",
    "read_space",
    "schema",
]
