"""Reads what version 0.1 wrote: the retired keys of `sweep.json`, search spaces and journals become their new names.

Only names change, so a sweep of version 0.1 is loaded, resumed, replayed and reported like any other. A journal that
two versions wrote is read event by event. The names of searched values stay as they were, since samplers draw in their
order; the runs of such a space are validated with `config.UPGRADE`. A search space that a user writes is not upgraded:
its models refuse a retired key with one line that gives the new one, through `retired_names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Section of a search space (empty for the top level) -> retired key -> new key.
RETIRED_KEYS: Mapping[str, Mapping[str, str]] = {"": {"judge": "evaluation"}, "evaluation": {"each": "stratify_by"}}
# Samplers of version 0.1 that are gone -> what to use.
RETIRED_SAMPLERS = {"ei_per_usd": "tpe with limits.rung_unit: usd"}
# Embedded tasks of version 0.1 that are gone -> the task that is evaluated in their place.
RETIRED_TASKS = {"docs-order": "docs-neighbours"}
_RECORD_KEYS = {"judging": "evaluation"}
_EVENT_KEYS = {"session": {"spent_s": "earlier_s"}}


def upgrade_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `sweep.json` under the names of this version."""
    upgraded = _renamed(values, _RECORD_KEYS)
    if isinstance(upgraded.get("space"), Mapping):
        upgraded["space"] = upgrade_space(upgraded["space"])
    evaluation = upgraded.get("evaluation")
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("tasks"), list):
        tasks = [RETIRED_TASKS.get(name, name) for name in evaluation["tasks"]]
        upgraded["evaluation"] = {**evaluation, "tasks": tasks}
    return upgraded


def upgrade_space(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a search space under the names of this version."""
    upgraded = _renamed(values, RETIRED_KEYS[""])
    for section, keys in RETIRED_KEYS.items():
        if isinstance(upgraded.get(section), Mapping):
            upgraded[section] = _renamed(upgraded[section], keys)
    return upgraded


def upgrade_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of a journal under the names of this version."""
    return _renamed(event, _EVENT_KEYS.get(event["event"], {}))


def _renamed(values: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {keys.get(name, name): value for name, value in values.items()}
