"""Whether there is money and time for more work. Plain values in and out; no clock, no Ray.

Work is admitted by reservation: what is owed, what stopping everything now would still cost, what the work at hand is
bound to need, and a reserve for judging must fit into the budget, every machine priced on demand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

OnBudget = Literal["stop", "finish-rung"]


@dataclass(frozen=True)
class Funds:
    """Where a sweep stands, as its ledger and its clock have it at one moment.

    Attributes:
        spent_usd: Owed already.
        commitment_usd: What stopping every machine now would still cost, at worst.
        hourly_usd: What all machines cost an hour, at worst.
        elapsed_s: Seconds since the sweep was begun, pauses included.
    """

    spent_usd: float = 0.0
    commitment_usd: float = 0.0
    hourly_usd: float = 0.0
    elapsed_s: float = 0.0

    def values(self) -> dict[str, float]:
        """Return what the journal keeps; rounded, and decided upon as it is kept."""
        return {
            "spent_usd": round(self.spent_usd, 6),
            "commitment_usd": round(self.commitment_usd, 6),
            "hourly_usd": round(self.hourly_usd, 6),
            "elapsed_s": round(self.elapsed_s, 6),
        }

    def rounded(self) -> Funds:
        """Return these funds as the journal gives them back."""
        return Funds(**self.values())

    @classmethod
    def read(cls, values: dict[str, Any] | None) -> Funds | None:
        """Return the funds that a journal's event tells of."""
        return None if values is None else cls(**values)


@dataclass(frozen=True)
class Budget:
    """What a sweep may spend.

    Attributes:
        limit_usd: Dollars for everything; None for no limit.
        deadline_s: Seconds after its beginning at which everything has stopped; None for no limit.
        max_hourly_usd: Dollars an hour that all machines may cost together; None for no limit.
        reserve: Share of the budget that is kept for judging.
        window_s: How long stopping takes at worst: until it is noticed, drained and terminated.
        on_budget: Whether running trials are stopped when the money is gone, or are let go on only where their next
            rung is paid for.
    """

    limit_usd: float | None = None
    deadline_s: float | None = None
    max_hourly_usd: float | None = None
    reserve: float = 0.05
    window_s: float = 135.0
    on_budget: OnBudget = "stop"

    @property
    def training_usd(self) -> float:
        """Dollars for training: all but the reserve."""
        return math.inf if self.limit_usd is None else self.limit_usd * (1 - self.reserve)

    @property
    def allowed_overshoot_usd(self) -> float:
        """The published bound: one per cent of the budget, or half a dollar where that is more."""
        return max(0.01 * (self.limit_usd or 0.0), 0.50)

    def refusal(self, funds: Funds, *, need_usd: float = 0.0) -> str:
        """Return why no more work is admitted, empty where it is.

        Args:
            funds: Where the sweep stands.
            need_usd: What the work to admit, and that under way, is bound to cost beyond the commitment.
        """
        due = funds.spent_usd + funds.commitment_usd + need_usd
        if due > self.training_usd:
            return (
                f"{funds.spent_usd:.2f} usd spent, {funds.commitment_usd + need_usd:.2f} committed; "
                f"{self.training_usd:.2f} of {self.limit_usd:.2f} are for training"
            )
        if self.deadline_s is not None and funds.elapsed_s + self.window_s > self.deadline_s:
            return f"the deadline is {max(0.0, self.deadline_s - funds.elapsed_s):.0f} s away"
        return ""

    def is_gone(self, funds: Funds, *, seconds: float) -> bool:
        """Return whether machines that go on for so many seconds would be past the limit by more than the bound.

        What is judged may use all of that: it is worth nothing half done.
        """
        if self.limit_usd is None:
            return False
        return funds.spent_usd + funds.hourly_usd * seconds / 3600 > self.limit_usd + self.allowed_overshoot_usd

    def seconds_left(self, funds: Funds) -> float:
        """Return for how long nothing can be refused, whatever prices do: no need to ask before."""
        left = math.inf
        if self.limit_usd is not None:
            room = self.training_usd - funds.spent_usd - funds.commitment_usd
            left = math.inf if funds.hourly_usd <= 0 and room >= 0 else 0.0
            if funds.hourly_usd > 0:
                left = max(0.0, room / funds.hourly_usd * 3600)
        if self.deadline_s is not None:
            left = min(left, max(0.0, self.deadline_s - self.window_s - funds.elapsed_s))
        return left

    def fits_hourly(self, hourly_usd: float) -> bool:
        """Return whether machines of so many dollars an hour may run together."""
        return self.max_hourly_usd is None or hourly_usd <= self.max_hourly_usd + 1e-9
