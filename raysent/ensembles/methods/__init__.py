"""From members' answers on labelled rows to a combination; one file per family of methods.

The folder is the registry: every file in it holds a table `METHODS`, name -> rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.ensembles.combination import Combination
from raysent.ensembles.predictions import Answers, Float64, Source, Truth, as_answers, as_truth
from raysent.errors import ConfigError, did_you_mean

# What a rule found out while fitting: figures by name.
Diagnostics = Mapping[str, float]
Rule = Callable[[Answers, Truth], tuple[Combination, Diagnostics]]


@dataclass(frozen=True)
class Fit:
    """A fitted combination.

    Attributes:
        combination: Members' log-probabilities -> one's.
        method: The rule that made it.
        scores: Members' scores on the rows given, from 0 to 1, float64 [members]: accuracies, or correlations.
        diagnostics: What the rule found out: the duality gap, the strength chosen, and the like.
    """

    combination: Combination
    method: str
    scores: Float64
    diagnostics: Diagnostics

    @property
    def shares(self) -> Float64:
        """How much each member counts, float64 [members]: not negative, sum to one."""
        return self.combination.shares


def _found() -> dict[str, Rule]:
    tables = (importlib.import_module(f"{__name__}.{module.name}").METHODS for module in _modules())
    return {name: rule for table in tables for name, rule in table.items()}


def _modules() -> list[pkgutil.ModuleInfo]:
    return sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)


METHODS: Mapping[str, Rule] = _found()


def check_method(name: str, *, others: Sequence[str] = ()) -> None:
    """Check that there is a method of that name.

    Args:
        name: As the user wrote it.
        others: Names that mean something here without being a method.

    Raises:
        ConfigError: If there is none.
    """
    known = [*METHODS, *others]
    if name not in known:
        raise ConfigError(f"--method {name}: unknown method{did_you_mean(name, known)}")


def fit(
    log_probabilities: Answers | Sequence[Source] | np.ndarray,
    labels: Truth | npt.ArrayLike,
    *,
    method: str = "validation",
) -> Fit:
    """Fit a combination of members.

    Args:
        log_probabilities: Of rows that trained no member's probe, [members, rows, classes]: one array, or one array
            or `.npy` file per member, which are read a block at a time.
        labels: The rows' classes, [rows]; of scored pairs a `Truth`.
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown.
        DataError: If the shapes do not fit, there is no member or no row, or a value is NaN.
    """
    check_method(method)
    answers = as_answers(log_probabilities)
    truth = as_truth(labels, answers)
    combination, diagnostics = METHODS[method](answers, truth)
    return Fit(combination, method, truth.member_scores(answers), diagnostics)
