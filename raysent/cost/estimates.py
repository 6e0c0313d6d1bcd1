"""What a sweep was expected to cost, from its run folder, beside what it did cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysent.errors import ArtifactError
from raysent.storage import address_of, read_json
from raysent.storage.layout import ESTIMATE_FILE


def expected_usd(folder: Path) -> dict[str, float] | None:
    """Return the percentiles of dollars, `p10`, `p50` and `p90`, that a run folder's estimate has; None without one.

    Raises:
        ArtifactError: If the file is truncated or not an estimate.
    """
    path = folder / ESTIMATE_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        return {name: float(values["usd"][name]) for name in ("p10", "p50", "p90")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{address_of(path)}: not an estimate ({type(error).__name__}: {error}); remove it"
        ) from None


def compare_estimate(folder: Path, *, spent_usd: float) -> dict[str, Any]:
    """Return a sweep's estimate beside its bill; empty if there is no estimate.

    Args:
        folder: The run folder.
        spent_usd: The bill.
    """
    usd = expected_usd(folder)
    if usd is None:
        return {}
    where = verdict(usd, spent_usd=spent_usd)
    text = f"estimate {usd['p10']:.2f} to {usd['p90']:.2f} usd, median {usd['p50']:.2f}: the bill is {where}"
    return {**usd, "is_inside": where == "inside", "verdict": text}


def verdict(estimate: Mapping[str, float], *, spent_usd: float) -> str:
    """Return whether spending is `inside` the P10 to P90 of its estimate, `below` or `above`."""
    if estimate["p10"] <= spent_usd <= estimate["p90"]:
        return "inside"
    return "below" if spent_usd < estimate["p10"] else "above"
