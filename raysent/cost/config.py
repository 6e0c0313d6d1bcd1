"""The section `cost` of a search space: what machines cost and what a sweep may spend."""

from __future__ import annotations

import datetime
import math
import re
from typing import Annotated, Literal

import pydantic

from raysent.config import StrictModel
from raysent.cost.budget import Budget, OnBudget
from raysent.errors import ConfigError

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MONEY = re.compile(r"\$?\s*(?P<number>\d+(?:\.\d+)?)\s*(?:usd|USD)?")


def parse_duration(text: str) -> float:
    """Return the seconds that ``90s``, ``30m``, ``2h``, ``1d`` or ``1h30m`` stands for.

    Raises:
        ConfigError: If the text is none of these.
    """
    parts = list(_DURATION.finditer(text.strip()))
    if not parts or "".join(part.group(0) for part in parts) != text.strip():
        raise ConfigError(f"a duration must look like 90s, 30m, 2h or 1h30m; given '{text}'")
    return sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)


def parse_money(value: str | float) -> float:
    """Return the dollars that ``40usd``, ``$40`` or ``40`` stands for.

    Raises:
        ConfigError: If it is none of these, or not above 0.
    """
    found = _MONEY.fullmatch(str(value).strip())
    dollars = float(found["number"]) if found else math.nan
    if not dollars > 0:
        raise ConfigError(f"an amount must look like 40usd or 0.50usd and be above 0; given '{value}'")
    return dollars


def parse_deadline(text: str, *, begun: datetime.datetime) -> float:
    """Return the seconds from a sweep's beginning to a deadline, a duration or an ISO time; one of no zone is UTC.

    Raises:
        ConfigError: If the text is neither, or the time has passed.
    """
    try:
        return parse_duration(text)
    except ConfigError:
        pass
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"a deadline must look like 6h or 2026-11-21T18:00; given '{text}'") from None
    seconds = ((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)) - begun).total_seconds()
    if seconds <= 0:
        raise ConfigError(f"a deadline must be in the future; given '{text}'")
    return seconds


def _checked(value: str | float | None, parse: object) -> str | float | None:
    """Return a value that a parser takes; its refusal is pydantic's."""
    try:
        if value is not None and callable(parse):
            parse(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


def _is_deadline(text: str) -> float:
    """Check a deadline's form; whether it is past is asked when a sweep begins."""
    return parse_deadline(text, begun=datetime.datetime.min.replace(tzinfo=datetime.UTC))


Duration = Annotated[str, pydantic.AfterValidator(lambda text: _checked(text, parse_duration))]
Money = Annotated[str | float | int, pydantic.AfterValidator(lambda value: _checked(value, parse_money))]
Deadline = Annotated[str, pydantic.AfterValidator(lambda text: _checked(text, _is_deadline))]

UsdPerHour = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class CostConfig(StrictModel):
    """What machines cost and what a sweep may spend.

    Attributes:
        usd_per_hour: Dollars an hour of each machine; None for one's own that cost nothing.
        machines: Where they are of several types: type -> dollars an hour on demand (`raysent.cost.prices`).
        region: Where spot prices are asked for, as in us-east-1; None where nobody asks.
        market: Of which market machines come: `spot`, `on-demand`, or `auto`, spot as long as the deadline allows.
        budget: Dollars for everything, such as `40usd`; None for no limit.
        deadline: When everything has stopped: a duration from the beginning, or an ISO time.
        max_hourly: Dollars an hour that all machines may cost together.
        on_budget: `stop` lets trials run until the money is gone; `finish-rung` begins no way to a rung that is not
            paid for.
        reserve: Share of the budget that is kept for evaluation and the ensemble.
        trial: How long a whole trial is thought to take on one machine, for the estimate before the launch.
        poll: How often what is owed is counted up.
        drain: How long stopping what runs may take.
        terminate: How long a machine may be billed after it was told to end.
        boot: How long a machine is billed before its node is there.
        interruptions_per_hour: How often a machine is taken without notice. Above 0, runs save between reports too,
            at the interval that loses least for what saving takes; notices are saved for in any case.
    """

    usd_per_hour: float | None = pydantic.Field(default=None, ge=0)
    machines: dict[str, UsdPerHour] = pydantic.Field(default_factory=dict)
    region: str | None = None
    market: Literal["auto", "spot", "on-demand"] = "auto"
    budget: Money | None = None
    deadline: Deadline | None = None
    max_hourly: Money | None = None
    on_budget: OnBudget = "stop"
    reserve: float = pydantic.Field(default=0.05, ge=0, lt=1)
    trial: Duration | None = None
    poll: Duration = "15s"
    drain: Duration = "60s"
    terminate: Duration = "60s"
    boot: Duration = "0s"
    interruptions_per_hour: float = pydantic.Field(default=0.0, ge=0, allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _has_one_price(self) -> CostConfig:
        if self.machines and self.usd_per_hour is not None:
            raise ValueError("usd_per_hour and machines exclude each other")
        return self

    @property
    def is_priced(self) -> bool:
        """Whether anything costs anything."""
        return bool(self.machines or self.usd_per_hour)

    @property
    def window_s(self) -> float:
        """How long stopping takes at worst, in seconds."""
        return sum(parse_duration(text) for text in (self.poll, self.drain, self.terminate))

    @property
    def poll_s(self) -> float:
        """How often what is owed is counted up, in seconds."""
        return parse_duration(self.poll)

    @property
    def boot_s(self) -> float:
        """How long a machine is billed before its node is there, in seconds."""
        return parse_duration(self.boot)

    @property
    def trial_s(self) -> float | None:
        """How long a whole trial is thought to take, in seconds."""
        return None if self.trial is None else parse_duration(self.trial)

    @property
    def budget_usd(self) -> float | None:
        """Dollars for everything; None for no limit."""
        return None if self.budget is None else parse_money(self.budget)

    @property
    def max_hourly_usd(self) -> float | None:
        """Dollars an hour that all machines may cost together; None for no limit."""
        return None if self.max_hourly is None else parse_money(self.max_hourly)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit to hold."""
        return (self.budget, self.deadline, self.max_hourly) != (None, None, None)

    def for_sweep(self, begun: datetime.datetime) -> Budget:
        """Return the budget of a sweep that was begun then.

        Raises:
            ConfigError: If its deadline was past already.
        """
        return Budget(
            limit_usd=self.budget_usd,
            deadline_s=None if self.deadline is None else parse_deadline(self.deadline, begun=begun),
            max_hourly_usd=self.max_hourly_usd,
            reserve=self.reserve,
            window_s=self.window_s,
            on_budget=self.on_budget,
        )
