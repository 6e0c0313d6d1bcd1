"""Samplers, schedulers and trackers by name: each kind's folder, and the entry points of other packages.

A name stands for a class with these parts:

    Config            the model of its settings, those that a search space gives beside `type`
    __init__          takes the space, its settings, and `seed`; a tracker `folder`, the run folder, where it may write
    TARGET            of a tracker, optional: the setting that `raysent track --to NAME:TARGET` gives

`build` makes one for a space. Constructing a component checks it: it raises `ConfigError` where its settings do not
fit the space, so that a mistake is found when the space is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raysent.config import StrictModel, validate
from raysent.errors import ConfigError
from raysent.registry import Registry, by_table
from raysent.sweeps.space.limits import ComponentChoice
from raysent.sweeps.space.space import SearchSpace


def _registry(kind: str) -> Registry[Any]:
    folder = Path(__file__).parent / f"{kind}s"
    table = by_table(f"{kind}s".upper())
    return Registry(kind, package=f"{__package__}.{kind}s", folders=[str(folder)], read=table)


SAMPLERS = _registry("sampler")
SCHEDULERS = _registry("scheduler")
TRACKERS = _registry("tracker")


class NoSettings(StrictModel):
    """The settings of a component that has none."""


def build(
    registry: Registry[Any], space: SearchSpace, choice: ComponentChoice, *, at: str, **options: Any
) -> Any:
    """Return the component that a space names.

    Args:
        registry: The components of its kind.
        space: The space.
        choice: The name and its settings.
        at: Dotted path of the choice in the space, for messages.
        options: What the kind's classes take beside the space and the settings, such as a seed.

    Raises:
        ConfigError: With file, line and path, if there is no such component, or its settings are wrong.
    """
    path = tuple(at.split("."))
    try:
        kind = registry.find(choice.type, where=at)
    except ConfigError as error:
        raise ConfigError(f"{space.document.where((*path, 'type'))}{error}") from None
    config = validate(kind.Config, replace(space.document, values=choice.settings), at=path)
    try:
        return kind(space, config, **options)
    except ConfigError as error:
        raise space.document.error(path, str(error)) from None
    except Exception as error:
        if registry is not TRACKERS:
            raise
        reason = " ".join(str(error).split())  # whatever the tracker's library raises
        raise space.document.error(path, f"{type(error).__name__}: {reason}") from None


def check_components(space: SearchSpace) -> None:
    """Make the sampler, the scheduler and the trackers of a space, which checks them, and drop them.

    Raises:
        ConfigError: With file, line and path of the first that is wrong.
    """
    build(SAMPLERS, space, space.limits.sampler, at="limits.sampler", seed=0)
    build(SCHEDULERS, space, space.limits.scheduler, at="limits.scheduler", seed=0)
    for place, choice in enumerate(space.trackers):
        build(TRACKERS, space, choice, at=f"trackers.{place}", folder=Path())
