"""A stage whose workers are spot machines, at prices that are asked for while the sweep runs."""

from __future__ import annotations

import time
from typing import ClassVar

from chaos.prices import PriceSource
from chaos.stage import USD_PER_HOUR, Stage
from chaos.verdict import Found
from raysent.cost import Entry

TYPE, SPOT_USD_PER_HOUR = "big.machine", USD_PER_HOUR / 2
# From a question that is not answered to the other price: every try at it, each as long as the driver waits.
_NOTICED_S = 2.0
_PATIENCE_S = 1.0


class PricedStage(Stage):
    """A stage with a source of prices; the head is on demand."""

    cost: ClassVar[str] = f"machines: {{{TYPE}: {USD_PER_HOUR}}}, region: us-east-1, poll: 0.1s"
    source: ClassVar[PriceSource]

    @property
    def options(self) -> tuple[str, ...]:
        """A cluster: one's own machine has no spot price."""
        return ("--address", "simulated")

    @property
    def env(self) -> dict[str, str]:
        """Where prices are asked for."""
        return {**super().env, "AWS_ENDPOINT_URL_EC2": self.source.url}

    def labels(self, machine: str) -> dict[str, str]:
        """Type and market."""
        return {"instance-type": TYPE, "market": "on-demand" if machine == "head" else "spot"}

    def wait_asked(self) -> None:
        """Wait until the source was asked in vain, where the driver asks while it waits: when it judges."""
        until_s = time.monotonic() + _PATIENCE_S
        while self.source.failed_s is None and time.monotonic() < until_s:
            time.sleep(0.01)

    def usd(self, machine: str, begun_s: float, ended_s: float) -> float:
        """Half price as long as the source answers."""
        full_usd = super().usd(machine, begun_s, ended_s)
        if machine == "head":
            return full_usd
        assert self.source.failed_s is not None
        known_s = self.source.failed_s + _NOTICED_S
        return full_usd - super().usd(machine, begun_s, min(ended_s, known_s)) / 2


def check_prices(stage: PricedStage, found: Found) -> None:
    """A spot machine is paid for at its price as long as that is told, then on demand, and the ledger says so."""
    told = [f"spot price of 2026-01-01T00:00+00:00 at {SPOT_USD_PER_HOUR}"]
    unknown = [f"unknown, counted as on-demand at {USD_PER_HOUR}"]
    for machine in stage.machines:
        lines = [
            line for line in found.ledger if line.get("node") == machine and line["entry"] == "node"
        ]
        assert lines
        expected = [f"cost.machines at {USD_PER_HOUR}"] if machine == "head" else told + unknown
        assert list(dict.fromkeys(_named(line) for line in lines)) == expected
        if machine != "head":
            assert _named(lines[-1]) == unknown[0]


def _named(line: Entry) -> str:
    return f"{line['source']} at {line['usd_per_hour']}"
