"""`raysent cost` and the estimate of a sweep: what is typed, and what is seen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysent.cli.console import messages, print_json, print_table, results
from raysent.cli.live import format_duration
from raysent.cluster.prices import Quote, quote
from raysent.config import Override
from raysent.cost import Budget, Entry, bill_of, price_list, verdict
from raysent.errors import ArtifactError, ConfigError, did_you_mean
from raysent.simulation.estimate import CapCheck, Estimate, check_cap, estimate
from raysent.simulation.workload import MarketChoice, Scenario, scenario_for
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ESTIMATE_FILE, LEDGER_FILE
from raysent.sweeps import load_record, read_events, read_ledger
from raysent.sweeps.space import SearchSpace, find_space, read_space

MARKETS: tuple[MarketChoice, ...] = ("auto", "spot", "on-demand", "own")


def prices(types: Sequence[str], *, region: str | None, is_live: bool, as_json: bool) -> int:
    """Show what instance types cost: the shipped list, or what AWS says now."""
    listed = price_list()
    regions = [region] if region else list(listed.regions)
    quotes: list[Quote] = []
    for place in regions:
        for name in types or listed.regions.get(place, {}):
            # Without a region every one is shown that has the type.
            if is_live:
                quotes.append(quote(name, place))
            elif region or name in listed.regions[place]:
                quotes.append(Quote(name, place, listed.on_demand(name, place), {}))
    if not quotes:
        known = {name for place in listed.regions.values() for name in place}
        what = types[0] if types else region or ""
        raise ConfigError(f"{what}: no list price is known{did_you_mean(what, known if types else listed.regions)}")
    if as_json:
        print_json({"as_of": listed.as_of, "is_live": is_live, "prices": [_quote_values(one) for one in quotes]})
        return 0
    rows = [(one.instance_type, one.region, _usd(one.on_demand.usd_per_hour, 4), _spot(one)) for one in quotes]
    print_table(["type", "region", "on demand, usd/h", "spot, usd/h"], rows, num_text=2)
    results.print(f"\nEC2, Linux; {'asked now' if is_live else f'list prices of {listed.as_of}; --live asks AWS'}")
    for note in sorted({one.note for one in quotes if one.note}):
        messages.print(note, soft_wrap=True)
    return 0


def report(folder: Path, *, as_json: bool) -> int:
    """Show what a sweep has cost, trial by trial, and how its estimate did."""
    record = load_record(folder)
    entries = read_ledger(folder)
    if not entries:
        raise ArtifactError(
            f"{address_of(folder)}: holds no {LEDGER_FILE}; nothing was spent, or the sweep is older than it"
        )
    found = _costs(entries)
    limit = record.space.cost.budget_usd
    closings = [event for event in read_events(folder) if event["event"] in ("refused", "halted")]
    found |= {"budget_usd": limit, "closed": closings[-1]["reason"] if closings else ""}
    found["estimate"] = score_estimate(folder, spent_usd=found["spent_usd"])
    if as_json:
        print_json(found)
        return 0
    rows = [
        (name, str(one["rung"]), format_duration(one["seconds"]), f"{one['steps']:,}", _usd(one["usd"]))
        for name, one in sorted(found["trials"].items(), key=lambda item: -item[1]["usd"])
    ]
    print_table(["trial", "rung", "time", "steps", "usd"], rows)
    results.print()
    of = f" of {limit:.2f}" if limit else ""
    for line in (
        f"spent {_usd(found['spent_usd'])} usd{of} on {found['machine_hours']:.2f} machine hours; "
        f"{_usd(found['outside_trials_usd'])} of it outside trials' reports: starting, waiting, work that was lost",
        f"assumed {_usd(found['assumed_usd'])} usd for machines that a killed driver had left",
        f"{_usd(found['refunded_usd'])} usd came back for machines taken in their first hour"
        if found["refunded_usd"]
        else "",
        f"{_usd(found['lost_usd'])} usd for work that was lost and done again" if found["lost_usd"] else "",
        f"on demand, the same machine hours would cost {_usd(found['on_demand_usd'])} usd"
        if found["on_demand_usd"] is not None
        else "",
        f"no more training: {found['closed']}" if found["closed"] else "",
        found["estimate"].get("verdict", ""),
        "not included: disks, storage, traffic",
    ):
        if line and not line.startswith("assumed 0.00"):
            results.print(line, soft_wrap=True)
    return 0


def simulate(
    name: str,
    *,
    overrides: Sequence[Override],
    instance: str,
    region: str,
    market: str,
    num_machines: int,
    sweeps: int,
    seed: int,
    as_json: bool,
) -> int:
    """Play many sweeps of a space and say whether the cap and the estimate hold; 1 where the cap was broken."""
    space = read_space(find_space(name), overrides=overrides)
    if space.cost.budget is None:
        raise ConfigError("--budget: must be given, such as 40usd: there is no cap to test without one")
    known: dict[str, MarketChoice] = {one: one for one in MARKETS}
    if market not in known:
        raise ConfigError(f"--market {market}: no such market{did_you_mean(market, known)}")
    usd_per_hour = space.cost.usd_per_hour or price_list().on_demand(instance, region).usd_per_hour
    scenario = scenario_for(space, usd_per_hour=usd_per_hour, num_machines=num_machines, market=known[market])
    budget = _dollars_alone(space)
    found = check_cap(space, scenario, budget, num_sweeps=sweeps, seed=seed, num_processes=min(2, os.cpu_count() or 1))
    if as_json:
        print_json(found.values())
    else:
        _print_cap_check(found, budget)
    return 1 if found.violations else 0


def expected(space: SearchSpace, *, num_concurrent: int) -> Estimate | None:
    """Return what a sweep on one's own machine will cost; None where the machine is free."""
    if not space.cost.usd_per_hour:
        return None
    scenario = local_scenario(space, num_concurrent=num_concurrent)
    return estimate(space, scenario, _dollars_alone(space))


def _dollars_alone(space: SearchSpace) -> Budget:
    """Return what a simulated sweep may spend; it has neither a deadline nor a limit to its dollars an hour."""
    cost = space.cost
    return Budget(cost.budget_usd, reserve=cost.reserve, window_s=cost.window_s, on_budget=cost.on_budget)


def local_scenario(space: SearchSpace, *, num_concurrent: int) -> Scenario:
    """Return the world of a sweep on this machine: a place for each trial that runs at once, each at its share."""
    at_once = space.limits.concurrent or max(1, num_concurrent // space.limits.workers_per_trial)
    at_once = max(1, min(at_once, space.limits.trials))
    usd_per_hour = (space.cost.usd_per_hour or 0.0) / at_once
    return scenario_for(space, usd_per_hour=usd_per_hour, num_machines=at_once, market="own")


def print_estimate(found: Estimate) -> None:
    """Print what a sweep is expected to cost."""
    rungs = ", ".join(f"{count} to report {index}" for index, count in found.rungs.items())
    results.print()
    rows = [
        ("dollars", *(_usd(value) for value in found.usd)),
        ("hours", *(f"{value:.2f}" for value in found.hours)),
    ]
    print_table(["estimate", "P10", "P50", "P90"], rows)
    results.print(f"trials: {rungs}", soft_wrap=True)
    for line in found.assumptions:
        results.print(f"- {line}", soft_wrap=True)


def save_estimate(folder: Path, found: Estimate | None) -> None:
    """Keep an estimate beside the sweep that it is of, to be scored when that has ended."""
    if found is not None:
        write_json(folder / ESTIMATE_FILE, found.values())


def score_estimate(folder: Path, *, spent_usd: float) -> dict[str, Any]:
    """Return a sweep's estimate beside its bill; empty where none was made."""
    if not (folder / ESTIMATE_FILE).is_file():
        return {}
    usd = read_json(folder / ESTIMATE_FILE)["usd"]
    where = verdict(usd, spent_usd=spent_usd)
    told = f"estimate {_usd(usd['p10'])} to {_usd(usd['p90'])} usd, median {_usd(usd['p50'])}: the bill is {where}"
    return {**usd, "is_inside": where == "inside", "verdict": told}


def _costs(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what a ledger comes to."""
    bill = bill_of(entries)
    trials: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["entry"] == "trial":
            one = trials.setdefault(entry["trial"], {"rung": 0, "seconds": 0.0, "usd": 0.0, "steps": 0})
            one["rung"] = max(one["rung"], entry["rung"])
            for name in ("seconds", "usd", "steps"):
                one[name] = round(one[name] + entry[name], 6)
    return {
        "spent_usd": round(bill.usd, 6),
        "machine_hours": round(bill.machine_s / 3600, 6),
        "outside_trials_usd": round(bill.outside_usd, 6),
        "assumed_usd": round(bill.assumed_usd, 6),
        "refunded_usd": round(bill.refunded_usd, 6),
        "lost_usd": round(bill.lost_usd, 6),
        "on_demand_usd": None if bill.on_demand_usd is None else round(bill.on_demand_usd, 6),
        "trials": trials,
    }


def _print_cap_check(found: CapCheck, budget: Budget) -> None:
    """Print whether cap and estimate held."""
    rows = [
        ("sweeps", f"{found.sweeps:,}"),
        ("of these ended by money", f"{found.num_capped:,}"),
        (f"billed over training's money by more than {budget.allowed_overshoot_usd:.2f} usd", str(found.violations)),
        ("most that any was billed over it, usd", f"{found.max_overshoot_usd:.4f}"),
        ("most that a ledger was under its bill, usd", f"{found.max_ledger_short_usd:.4f}"),
        ("within the estimate's P90", f"{100 * found.p90_held:.1f} %"),
        ("seconds", f"{found.seconds:.1f}"),
    ]
    print_table(["simulated", ""], rows)
    print_estimate(found.estimate)


def _quote_values(one: Quote) -> dict[str, Any]:
    """Return a quote as JSON has it."""
    return {
        "instance_type": one.instance_type,
        "region": one.region,
        "on_demand_usd_per_hour": one.on_demand.usd_per_hour,
        "source": one.on_demand.source,
        "spot": {
            zone: {"usd_per_hour": price.usd_per_hour, "source": price.source} for zone, price in one.spot.items()
        },
        "note": one.note,
    }


def _spot(one: Quote) -> str:
    """Return the range of a type's spot prices."""
    told = [price.usd_per_hour for price in one.spot.values()]
    return f"{_usd(min(told), 4)} to {_usd(max(told), 4)}" if told else "–"


def _usd(value: float, digits: int = 2) -> str:
    """Return dollars; small ones keep two figures that say something."""
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"
