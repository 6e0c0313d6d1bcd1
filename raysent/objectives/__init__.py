"""Vectors of two towers -> a loss; one file per objective, and the folder is the registry.

A file of this folder defines `class Config(ObjectiveConfig)`, whose `type: Literal["..."]` names it, and
`class Objective`. An objective sees vectors and where their sentences stand, never an encoder's inside.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, Union, get_args

import pydantic
from torch import Tensor

from raysent.config import StrictModel


class ObjectiveConfig(StrictModel):
    """What every objective's configuration has.

    Attributes:
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
    """

    type: str
    variant: Literal["paper", "authors"] = "paper"


class Loss(Protocol):
    """What an objective computes."""

    def __call__(
        self,
        f: Tensor,
        g: Tensor,
        *,
        positions: Tensor,
        documents: Tensor,
        candidate_positions: Tensor | None = None,
        candidate_documents: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            f: Vectors of the source sentences [batch, dim].
            g: Vectors of the candidates [candidates, dim].
            positions: Place of each source sentence in the corpus [batch].
            documents: Its document [batch].
            candidate_positions: Place of each candidate [candidates]; None where they are the source sentences.
            candidate_documents: Its document [candidates].
        """


def build_objective(config: ObjectiveConfig) -> Loss:
    """Return the objective that the configuration names."""
    objective: Loss = _MODULES[config.type].Objective(config)
    return objective


def scan() -> dict[str, ModuleType]:
    """Import every file of this folder; the name is that of its configuration's type."""
    found = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return {get_args(module.Config.model_fields["type"].annotation)[0]: module for module in found}


def union(modules: Mapping[str, ModuleType]) -> Any:
    """Return the type that holds any of the configurations, told apart by `type`."""
    kinds = tuple(module.Config for module in modules.values())
    return Annotated[Union[kinds], pydantic.Field(discriminator="type")] if len(kinds) > 1 else kinds[0]  # noqa: UP007


_MODULES = scan()

if TYPE_CHECKING:
    AnyObjective: TypeAlias = ObjectiveConfig
else:
    AnyObjective = union(_MODULES)


def known_objectives() -> dict[str, type[ObjectiveConfig]]:
    """Return the configuration of every objective by name."""
    return {name: module.Config for name, module in _MODULES.items()}
