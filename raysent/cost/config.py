"""The section `cost` of a search space: prices, budget, deadline and the times that stopping takes."""

from __future__ import annotations

import datetime
import functools
import math
import re
from typing import Annotated, Literal

import pydantic

from raysent.config import StrictModel
from raysent.cost.budget import Budget, Funds, OnBudget
from raysent.errors import ConfigError

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MONEY = re.compile(r"\$?\s*(?P<number>\d+(?:\.\d+)?)\s*(?:usd|USD)?")


@functools.lru_cache(maxsize=256)  # a running sweep reads its times at every event
def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``90s``, ``30m``, ``2h``, ``1d`` or ``1h30m``.

    Raises:
        ConfigError: If the text is not a duration.
    """
    parts = list(_DURATION.finditer(text.strip()))
    if not parts or "".join(part.group(0) for part in parts) != text.strip():
        raise ConfigError(f"a duration must look like 90s, 30m, 2h or 1h30m; given '{text}'")
    return sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)


def parse_money(value: str | float) -> float:
    """Return the dollars of an amount such as ``40usd``, ``$40`` or ``40``.

    Raises:
        ConfigError: If the value is not an amount above 0.
    """
    match = _MONEY.fullmatch(str(value).strip())
    if match:
        dollars = float(match["number"])
    else:
        dollars = math.nan
    if not dollars > 0:
        raise ConfigError(
            f"an amount must look like 40usd or 0.50usd and be above 0; given '{value}'"
        )
    return dollars


def parse_deadline(text: str, *, start: datetime.datetime) -> float:
    """Return the seconds from the start of a sweep to its deadline.

    Args:
        text: A duration, or an ISO time; UTC if it has no time zone.
        start: When the sweep started.

    Raises:
        ConfigError: If the text is neither, or the time is not after the start.
    """
    try:
        return parse_duration(text)
    except ConfigError:
        pass
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"a deadline must look like 6h or 2026-11-21T18:00; given '{text}'"
        ) from None
    seconds = ((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)) - start).total_seconds()
    if seconds <= 0:
        raise ConfigError(f"a deadline must be in the future; given '{text}'")
    return seconds


def _checked(value: str | float | None, parse: object) -> str | float | None:
    """Return a value that a parser accepts; its ConfigError becomes a ValueError for pydantic."""
    try:
        if value is not None and callable(parse):
            parse(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


def _check_above_zero(text: str) -> str:
    if not parse_duration(text):
        raise ValueError(f"must be above 0; given '{text}'")
    return text


Duration = Annotated[str, pydantic.AfterValidator(lambda text: _checked(text, parse_duration))]
PositiveDuration = Annotated[Duration, pydantic.AfterValidator(_check_above_zero)]
Money = Annotated[
    str | float | int, pydantic.AfterValidator(lambda value: _checked(value, parse_money))
]
# Only the form: whether a deadline has passed is checked when a sweep starts.
_form = functools.partial(parse_deadline, start=datetime.datetime.min.replace(tzinfo=datetime.UTC))
Deadline = Annotated[str, pydantic.AfterValidator(lambda text: _checked(text, _form))]

UsdPerHour = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class CostConfig(StrictModel):
    """What machines cost and what a sweep may spend.

    Attributes:
        usd_per_hour: Dollars an hour of each machine; None for your own machines that cost nothing.
        machines: Instance type -> dollars an hour on demand, for machines of several types.
        attached: Dollars an hour of the disk and the public address of each machine of `machines`, beside its price.
        region: The region for spot prices, as in us-east-1; None to use no spot prices.
        market: Market of the machines: `spot`, `on-demand`, or `auto`, which uses spot as long as the deadline allows.
        budget: Dollars for the whole sweep, such as `40usd`; None for no limit.
        deadline: When everything has stopped: a duration from the start, or an ISO time.
        max_hourly: The most that all machines together may cost an hour, such as `3usd`.
        on_budget: `stop` runs trials until the budget is spent; `finish-rung` does not start a rung that the budget
            cannot cover.
        reserve: Fraction of the budget that is kept for evaluation and the ensemble.
        trial: Estimated time of a whole trial on one machine, for the cost estimate before the start.
        poll: How often spending is updated.
        drain: How long running work may take to stop.
        terminate: How long a machine may be billed after it was terminated.
        boot: How long a machine is billed before its node joins the cluster.
        interruptions_per_hour: Expected interruptions without notice, per machine and hour. Above 0, runs also save
            between reports, at the interval with the least expected loss. Runs always save after a notice.
        accept_bound: Whether machines are launched although the bill may exceed the budget by more than a quarter of
            it, or although there is no budget and they cost more than 5 usd an hour.
    """

    usd_per_hour: float | None = pydantic.Field(default=None, ge=0)
    machines: dict[str, UsdPerHour] = pydantic.Field(default_factory=dict)
    attached: float = pydantic.Field(default=0.0, ge=0, allow_inf_nan=False)
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
    accept_bound: bool = False

    @pydantic.model_validator(mode="after")
    def _has_one_price(self) -> CostConfig:
        if self.machines and self.usd_per_hour is not None:
            raise ValueError("usd_per_hour and machines exclude each other")
        return self

    @property
    def is_priced(self) -> bool:
        """Whether any machine has a price above 0."""
        return bool(self.machines or self.usd_per_hour)

    @property
    def least_usd_per_hour(self) -> float:
        """What a machine of the cheapest type costs an hour with what is attached; 0 for your own that cost nothing."""
        return self.usd_per_hour or min(
            (usd + self.attached for usd in self.machines.values()), default=0.0
        )

    @property
    def window_s(self) -> float:
        """The longest that stopping takes, in seconds."""
        return sum(parse_duration(text) for text in (self.poll, self.drain, self.terminate))

    @property
    def poll_s(self) -> float:
        """How often spending is updated, in seconds."""
        return parse_duration(self.poll)

    @property
    def boot_s(self) -> float:
        """How long a machine is billed before its node joins the cluster, in seconds."""
        return parse_duration(self.boot)

    @property
    def trial_s(self) -> float | None:
        """Estimated time of a whole trial, in seconds; None if not given."""
        if self.trial is None:
            return None
        return parse_duration(self.trial)

    @property
    def budget_usd(self) -> float | None:
        """Dollars for the whole sweep; None for no limit."""
        if self.budget is None:
            return None
        return parse_money(self.budget)

    @property
    def max_hourly_usd(self) -> float | None:
        """The most that all machines together may cost an hour, in dollars; None for no limit."""
        if self.max_hourly is None:
            return None
        return parse_money(self.max_hourly)

    @property
    def too_small(self) -> str:
        """Why the budget starts no trial on one machine of the cheapest type, and which could; empty if it does."""
        if self.budget_usd is None or not self.is_priced:
            return ""
        hourly_usd = self.least_usd_per_hour
        funds = Funds(0.0, hourly_usd * self.window_s / 3600, hourly_usd, 0.0)
        refusal = self.for_sweep().refusal(funds)
        # The first seconds cost too.
        least_usd = (funds.commitment_usd + hourly_usd * self.poll_s / 3600) / (1 - self.reserve)
        return refusal and (
            f"cost.budget {self.budget}: no trial can start: {refusal}; a machine is paid for {self.window_s:.0f} s "
            f"after the last poll; at least {math.ceil(100 * least_usd) / 100:.2f}usd are needed"
        )

    def for_sweep(self, start: datetime.datetime | None = None) -> Budget:
        """Return the budget of a sweep that started at `start`; without a start it has no deadline.

        Raises:
            ConfigError: If the deadline is not after the start.
        """
        deadline_s = None
        if self.deadline is not None and start is not None:
            deadline_s = parse_deadline(self.deadline, start=start)
        return Budget(
            limit_usd=self.budget_usd,
            deadline_s=deadline_s,
            max_hourly_usd=self.max_hourly_usd,
            reserve=self.reserve,
            window_s=self.window_s,
            on_budget=self.on_budget,
        )
