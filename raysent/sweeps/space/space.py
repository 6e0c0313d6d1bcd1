"""A checked search space: what each entry of `search` allows, and a `RunConfig` for what is drawn from them."""

from __future__ import annotations

import copy
import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic

from raysent.config import Document, KeyPath, explain, get_dotted, set_dotted
from raysent.cost import Budget
from raysent.errors import ConfigError, RaysentError, did_you_mean
from raysent.sweeps.space.limits import SpaceFile
from raysent.training.run import RunConfig
from raysent.training.validation import METRICS

Params = dict[str, Any]
"""Searched name -> what was drawn: a number, or the label of a choice."""

_MAX_COMBINATIONS = 4096

# A searched name that is none of the run's: each of its values sets several parts of the run at once.
FAMILY = "family"


@dataclass(frozen=True)
class Choice:
    """One of several values, each known by its label.

    Attributes:
        options: Label -> value; a value may be a whole mapping, such as an encoder.
    """

    options: Mapping[str | int | float | bool, Any]

    def edges(self) -> list[Any]:
        """Return every label."""
        return list(self.options)

    def value(self, drawn: Any) -> Any:
        """Return what a label stands for."""
        return copy.deepcopy(self.options[drawn])


@dataclass(frozen=True)
class Interval:
    """A number between two bounds, both included.

    Attributes:
        low: The least value.
        high: The greatest value.
        step: Distance between neighbouring values; None for every value between.
        is_integer: Whether values are whole numbers.
        is_log: Whether values are spread evenly over their logarithm.
    """

    low: float
    high: float
    step: float | None = None
    is_integer: bool = False
    is_log: bool = False

    def edges(self) -> list[Any]:
        """Return the two bounds."""
        return [self.low, self.high]

    def value(self, drawn: Any) -> Any:
        """Return the number itself."""
        return drawn

    def nearest(self, value: float) -> float:
        """Return the number of the interval that is nearest to a value."""
        inside = min(max(value, self.low), self.high)
        if self.step:
            inside = self.low + self.step * round((inside - self.low) / self.step)
        return round(inside) if self.is_integer else float(inside)


Domain = Choice | Interval
FORMS = {
    "choice": "choice: [a, b, …] or choice: {label: value, …}",
    "uniform": "uniform: [low, high]",
    "loguniform": "loguniform: [low, high] with 0 < low",
    "randint": "randint: [low, high], whole numbers, both included",
    "quniform": "quniform: [low, high, step]",
}


def parse_domain(written: Any) -> Domain:
    """Return the domain that one entry of `search` describes.

    Raises:
        ConfigError: With what must hold; the caller adds where.
    """
    if not isinstance(written, Mapping) or len(written) != 1:
        raise ConfigError(f"must be one of {{{' | '.join(FORMS)}}}; given {written!r}")
    ((form, values),) = written.items()
    if form not in FORMS:
        raise ConfigError(f"unknown kind of domain '{form}'{did_you_mean(str(form), FORMS)}")
    if form == "choice":
        return _parse_choice(values)
    num_values = 3 if form == "quniform" else 2
    numbers_given = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if (
        not numbers_given
        or len(values) != num_values
        or not all(math.isfinite(value) for value in values)
    ):
        raise ConfigError(f"must be {FORMS[form]}; given {values!r}")
    return _parse_interval(form, values)


def _parse_choice(values: Any) -> Choice:
    if isinstance(values, Mapping) and values:
        return Choice(dict(values))
    scalars = isinstance(values, list) and all(
        isinstance(value, str | int | float | bool) for value in values
    )
    # 1, 1.0 and true are one value in Python, and so in what draws one of them.
    if not scalars or not values or len(set(values)) < len(values):
        raise ConfigError(f"must be {FORMS['choice']} with distinct values; given {values!r}")
    return Choice({value: value for value in values})


def _parse_interval(form: str, values: Sequence[float]) -> Interval:
    low, high, *rest = values
    is_integer = form == "randint"
    if is_integer and not (isinstance(low, int) and isinstance(high, int)):
        raise ConfigError(f"must be {FORMS[form]}; given {list(values)!r}")
    if low > high or (form == "loguniform" and low <= 0) or (rest and rest[0] <= 0):
        raise ConfigError(f"must be {FORMS[form]} with low <= high; given {list(values)!r}")
    if form == "quniform":
        is_integer = all(isinstance(value, int) for value in values)
        high = low + math.floor((high - low) / rest[0] + 1e-9) * rest[0]
    kind = int if is_integer else float
    return Interval(
        kind(low), kind(high), kind(rest[0]) if rest else None, is_integer, form == "loguniform"
    )


class SearchSpace(SpaceFile):
    """A checked search space; the attributes of its file, and these.

    Attributes:
        name: The space's name.
        document: What was read, for messages and for the sweep's record.
        domains: Searched name -> domain, in the file's order.
        conditions: Searched name -> (other searched name -> labels under which it is searched).
        is_recorded: Whether a sweep has begun with it.
    """

    name: str
    document: Document
    domains: dict[str, Domain]
    conditions: dict[str, dict[str, list[Any]]]
    is_recorded: bool = False

    def written(self) -> dict[str, Any]:
        """Return a copy of the plain values that the space was read from, of all its sections."""
        return copy.deepcopy(self.document.values)

    def setting(self, name: str) -> Any:
        """Return the value of a name of the run, such as ``corpus.path``, as `base` has it; None where it has none."""
        return get_dotted(self.base, name)

    def budget(self, start: datetime.datetime | None = None) -> Budget:
        """Return what a sweep that started at `start` may spend, in dollars and time; without it, of no deadline.

        Raises:
            ConfigError: If the deadline is not after the start.
        """
        return replace(self.cost.for_sweep(start), time_s=self.limits.time_s)

    @property
    def mode(self) -> Literal["max", "min"]:
        """Whether the metric is to be maximised or minimised."""
        return METRICS[self.metric]

    @property
    def kinds(self) -> list[Any]:
        """Kinds of encoders of which one each is kept: values of `evaluation.stratify_by`; none where there is one."""
        name = self.evaluation.stratify_by
        domain = self.domains.get(name) if name is not None and self.evaluation.kinds else None
        labels = list(domain.options) if isinstance(domain, Choice) else []
        return labels if len(labels) > 1 else []

    def kind_of(self, params: Mapping[str, Any]) -> Any:
        """Return the kind of encoder that parameters draw; None where the space has no kinds."""
        return params.get(self.evaluation.stratify_by or "") if self.kinds else None

    @property
    def num_configurations(self) -> float:
        """How many configurations there are, or more, as conditions leave some out; infinite if none can be counted."""
        return math.prod(_num_values(domain) for domain in self.domains.values())

    def is_active(self, name: str, params: Params) -> bool:
        """Return whether `name` is searched, given what has been drawn for the names before it."""
        return all(
            params.get(other) in labels for other, labels in self.conditions.get(name, {}).items()
        )

    def restricted(self, params: Mapping[str, Any]) -> Params:
        """Return of settings what the space can try, numbers moved into its intervals; nothing without its family.

        Settings of a space without families are those of the only family of this one that has what they fix.
        """
        found: Params = {}
        if FAMILY in self.domains and FAMILY not in params:
            params = {**params, FAMILY: self._family_of(params)}
        for name, domain in self.domains.items():
            if not self.is_active(name, found):
                continue
            value = params.get(name)
            if isinstance(domain, Choice):
                if value in domain.options:
                    found[name] = value
                elif name == FAMILY:
                    return {}
            elif isinstance(value, int | float):
                found[name] = domain.nearest(value)
        return found

    def _family_of(self, params: Mapping[str, Any]) -> Any:
        """Return the only family whose own settings are those that a space without families searched; else None."""
        domain = self.domains[FAMILY]
        fixed = {name: value for name, value in params.items() if name not in self.domains}
        if not isinstance(domain, Choice) or not fixed:
            return None
        found = []
        for label in domain.options:
            first = next(one for one in self.edges() if one[FAMILY] == label)
            run = self.config(first).model_dump()
            if all(get_dotted(run, name) == value for name, value in fixed.items()):
                found.append(label)
        return found[0] if len(found) == 1 else None

    def first_params(self) -> Params:
        """Return the parameters at each domain's first edge."""
        return next(self.edges())

    def edges(self) -> Iterator[Params]:
        """Yield parameters that together show every edge, under every combination of the names that others depend on.

        Conditions are respected; of very many combinations the first are taken.
        """
        switches = [name for name in self.domains if self._is_switch(name)]
        varied_names = [name for name in self.domains if name not in switches] or [""]
        combinations = itertools.product(*(self.domains[name].edges() for name in switches))
        for labels in itertools.islice(combinations, _MAX_COMBINATIONS):
            chosen = dict(zip(switches, labels, strict=True))
            for varied in varied_names:
                for edge in self.domains[varied].edges() if varied else [None]:
                    params: Params = {}
                    for name, domain in self.domains.items():
                        if self.is_active(name, params):
                            params[name] = chosen.get(
                                name, edge if name == varied else domain.edges()[0]
                            )
                    yield params

    def _is_switch(self, name: str) -> bool:
        """Whether other names depend on this one's value, or its values are whole parts of a run."""
        domain = self.domains[name]
        return any(name in tests for tests in self.conditions.values()) or (
            isinstance(domain, Choice)
            and any(isinstance(value, Mapping) for value in domain.options.values())
        )

    def located(self, error: RaysentError, params: Params) -> RaysentError:
        """Return an error of the run that `params` describes with the place where the value it names was written.

        Args:
            error: Its text begins with a dotted name of the run, as in ``training.batch_size: must be ...``; one that
                begins otherwise, such as with a file's name, is returned as it is.
            params: What was drawn.
        """
        name, _, message = str(error).partition(": ")
        path = tuple(name.split("."))
        if path[0] not in RunConfig.model_fields:
            return error
        origin = _origin(self, params, path)
        where = self.document.where(origin)
        if origin not in self.document.options:
            return type(error)(f"{where}{error}")
        given = where.replace("=", " ").rstrip().rpartition(" ")[2]
        return type(error)(
            where + message.removeprefix(f"{given} ")
        )  # the option's value is not named twice

    def values(self, params: Params) -> dict[str, Any]:
        """Return the run that `params` describes, as plain nested values; wider names are set before narrower ones."""
        values: dict[str, Any] = copy.deepcopy(self.document.values.get("base", {}))
        for name in sorted(params, key=lambda name: (name != FAMILY, name.count("."))):
            value = self.domains[name].value(params[name])
            if name == FAMILY:
                lay_over(values, value)
            else:
                set_dotted(values, name, value)
        return values

    def config(self, params: Params) -> RunConfig:
        """Return the checked run that `params` describes.

        Raises:
            ConfigError: With file, line and path of the value that is at fault.
        """
        try:
            values = self.values(params)
        except ConfigError as error:
            raise _unreachable(self, error) from None
        try:
            return RunConfig.model_validate(values)
        except pydantic.ValidationError as error:
            path, message = explain(error, values, RunConfig)
            raise self.document.error(_origin(self, params, path), message) from None


def _num_values(domain: Domain) -> float:
    if isinstance(domain, Choice):
        return len(domain.options)
    step = domain.step or int(domain.is_integer)
    return 1 + (round((domain.high - domain.low) / step) if step else math.inf)


def _unreachable(space: SearchSpace, error: ConfigError) -> ConfigError:
    """Return the error of a searched name that lies inside a single value, at that value where `base` gives it."""
    name, _, message = str(error).partition(": ")
    node: Any = space.document.values
    for end, part in enumerate(path := ("base", *name.split("."))):
        node = node.get(part)
        if node is not None and not isinstance(node, Mapping):
            text = f"must be a mapping of names to values; given {node!r}; '{name}' is searched inside it"
            return space.document.error(path[: end + 1], text)
        if node is None:
            break
    return space.document.error(("search", name), message)


def lay_over(values: dict[str, Any], parts: Any) -> None:
    """Set several parts of a run at once: a part of another `type` replaces what is there, others add to it."""
    for name, part in parts.items():
        before = values.get(name)
        is_added = isinstance(part, dict) and isinstance(before, dict) and "type" not in part
        values[name] = {**before, **part} if is_added and isinstance(before, dict) else part


def _origin(space: SearchSpace, params: Params, path: KeyPath) -> KeyPath:
    """Return where in the file the value at `path` of a run was written."""
    is_given = ("base", *path) in space.document.options and ".".join(
        path
    ) not in params  # for all that is searched
    for end in range(0 if is_given else len(path), 0, -1):
        name = ".".join(path[:end])
        if name in params:
            inside = path[end:]
            domain = space.domains[name]
            is_mapping = isinstance(domain, Choice) and isinstance(
                domain.options[params[name]], Mapping
            )
            label = (str(params[name]),) if is_mapping else ()
            return ("search", name, *(("choice", *label, *inside) if is_mapping else inside))
    family = None if is_given else space.domains.get(FAMILY)
    if (
        isinstance(family, Choice)
        and FAMILY in params
        and path
        and path[0] in family.options[params[FAMILY]]
    ):
        return ("search", FAMILY, "choice", str(params[FAMILY]), *path)
    return ("base", *path)
