"""CLI of `raysent cost`: prices, bills, and simulated sweeps under a budget."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli import console
from raysent.cli.console import DASH, format_duration, messages, print_json, print_table, results
from raysent.cli.options import BudgetOption, JsonOption, RunArgument, SeedOption, SetOption, SpaceArgument
from raysent.errors import ArtifactError, ConfigError, ExitCode, did_you_mean

if TYPE_CHECKING:
    from raysent.cluster import Quote
    from raysent.simulation import Band, CapCheck, Estimate, Forecast

cost_app = typer.Typer(help="Prices, bills, and simulated sweeps.", no_args_is_help=True, rich_markup_mode=None)


@cost_app.command("prices")
def cost_prices(
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE…]", help="Instance types.  [default: all in the list]")
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", metavar="NAME", help="An AWS region.  [default: all in the list]")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask AWS for current prices, spot too, with the credentials of boto3.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what machines cost an hour.

    Without --live, prints the list that is shipped with raysent, and its date.
    """
    from raysent.cluster import Quote, quote
    from raysent.cost import price_list

    listed = price_list()
    quotes: list[Quote] = []
    for place in [region] if region else list(listed.regions):
        for name in types or listed.regions.get(place, {}):
            # Without a region, a type is shown in every region that has it.
            if live:
                quotes.append(quote(name, place))
            elif region or name in listed.regions[place]:
                quotes.append(Quote(name, place, listed.on_demand(name, place), {}))
    if not quotes:
        known = {name for place in listed.regions.values() for name in place}
        what = types[0] if types else region or ""
        raise ConfigError(f"{what}: no list price is known{did_you_mean(what, known if types else listed.regions)}")
    if as_json:
        print_json({"as_of": listed.as_of, "is_live": live, "prices": [_quote_values(one) for one in quotes]})
        return
    rows = [(one.instance_type, one.region, usd(one.on_demand.usd_per_hour, 4), _spot(one)) for one in quotes]
    print_table(["type", "region", "on demand, usd/h", "spot, usd/h"], rows, num_text=2)
    results.print(f"\nEC2, Linux; {'current' if live else f'list prices of {listed.as_of}; --live asks AWS'}")
    for note in sorted({one.note for one in quotes if one.note}):
        messages.print(note, soft_wrap=True)


@cost_app.command("report")
def cost_report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Print what a sweep has cost.

    By trial, with the cost outside trials, and the estimate beside the bill; the forecast of the score, if one was
    made, beside the score.
    """
    from raysent.cost import bill_values
    from raysent.pipeline import Sweep
    from raysent.simulation import compare_estimate
    from raysent.storage import address_of
    from raysent.storage.layout import LEDGER_FILE
    from raysent.sweeps import load_record, read_events, read_ledger

    sweep, record, entries = Sweep(run), load_record(run), read_ledger(run)
    if not entries:
        raise ArtifactError(
            f"{address_of(run)}: holds no {LEDGER_FILE}; nothing was spent, or the sweep is older than ledgers"
        )
    found = bill_values(entries)
    limit = record.space.cost.budget_usd
    closings = [event for event in read_events(run) if event["event"] in ("refused", "halted")]
    found |= {"budget_usd": limit, "closed": closings[-1]["reason"] if closings else ""}
    found["estimate"] = compare_estimate(run, spent_usd=found["spent_usd"])
    found["forecast"] = [{**asdict(one), "verdict": one.sentence} for one in sweep.scored_forecast]
    if as_json:
        print_json(found)
    else:
        _print_costs(found, limit)


@cost_app.command("simulate")
def cost_simulate(
    space: SpaceArgument,
    budget: BudgetOption = None,
    sweeps: Annotated[int, typer.Option("--sweeps", metavar="N", min=1, help="Number of simulated sweeps.")] = 1000,
    instance: Annotated[str, typer.Option("--instance", metavar="TYPE", help="Instance type.")] = "g4dn.xlarge",
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="AWS region.")] = "us-east-1",
    market: Annotated[
        str, typer.Option("--market", metavar="NAME", help="spot, on-demand, auto (spot where available) or own.")
    ] = "auto",
    machines: Annotated[int, typer.Option("--machines", metavar="N", min=1, help="Most machines at a time.")] = 4,
    trial: Annotated[
        str | None,
        typer.Option("--trial", metavar="30m", help="Duration of a whole trial.  [default: cost.trial, 30m]"),
    ] = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate sweeps under a budget, and count how often the cap is exceeded.

    The sweep's own controller, budget and ledger run on an event clock, with moving prices, interruptions, slow stops,
    killed drivers and clock jumps. Exit code 1 if the cap was exceeded.
    """
    from raysent.cost import price_list
    from raysent.simulation import MARKETS, budget_of, check_cap, scenario_for
    from raysent.sweeps.space import find_space, read_space

    options = {"--budget": ("cost.budget", budget), "--trial": ("cost.trial", trial)}
    checked = read_space(find_space(space), overrides=console.collect_overrides(options, overrides or []))
    if checked.cost.budget is None:
        raise ConfigError("--budget: must be given, such as 40usd; without one there is no cap to check")
    if market not in MARKETS:
        raise ConfigError(f"--market {market}: no such market{did_you_mean(market, MARKETS)}")
    usd_per_hour = checked.cost.usd_per_hour or price_list().on_demand(instance, region).usd_per_hour
    scenario = scenario_for(checked, usd_per_hour=usd_per_hour, num_machines=machines, market=market)
    limits = budget_of(checked)
    if not as_json:
        messages.print(f"budget: {limits.bound_sentence(machines * usd_per_hour)}", soft_wrap=True)
    num_processes = min(2, os.cpu_count() or 1)
    found = check_cap(checked, scenario, limits, num_sweeps=sweeps, seed=seed or 0, num_processes=num_processes)
    if as_json:
        print_json(found.values())
    else:
        _print_cap_check(found)
    raise typer.Exit(ExitCode.CHECK_FAILED if found.violations else ExitCode.DONE)


def _print_costs(found: dict[str, Any], limit: float | None) -> None:
    """Print a bill, trial by trial."""
    from raysent.cost import NOT_COUNTED

    rows = [
        (name, str(one["rung"]), format_duration(one["seconds"]), f"{one['steps']:,}", usd(one["usd"]))
        for name, one in sorted(found["trials"].items(), key=lambda item: -item[1]["usd"])
    ]
    print_table(["trial", "rung", "time", "steps", "usd"], rows)
    results.print()
    of = f" of {limit:.2f}" if limit else ""
    for line in (
        f"spent {usd(found['spent_usd'])} usd{of} on {found['machine_hours']:.2f} machine hours; "
        f"{usd(found['outside_trials_usd'])} of it outside trials' reports: starting, waiting, lost work",
        f"assumed {usd(found['assumed_usd'])} usd for machines that a killed driver left",
        f"refunded {usd(found['refunded_usd'])} usd for machines interrupted in their first hour"
        if found["refunded_usd"]
        else "",
        f"lost {usd(found['lost_usd'])} usd of work that was repeated" if found["lost_usd"] else "",
        f"on demand, the same machine hours would cost {usd(found['on_demand_usd'])} usd"
        if found["on_demand_usd"] is not None
        else "",
        f"no more training: {found['closed']}" if found["closed"] else "",
        found["estimate"].get("verdict", ""),
        *(one["verdict"] for one in found["forecast"]),
        NOT_COUNTED,
    ):
        if line and not line.startswith("assumed 0.00"):
            results.print(line, soft_wrap=True)


def print_estimate(found: Estimate) -> None:
    """Print what a sweep is expected to cost."""
    rungs = ", ".join(f"{count} to report {index}" for index, count in found.rungs.items())
    results.print()
    rows = [
        ("dollars", *(usd(value) for value in found.usd)),
        ("hours", *(f"{value:.2f}" for value in found.hours)),
    ]
    print_table(["estimate", "P10", "P50", "P90"], rows)
    results.print(f"trials: {rungs}", soft_wrap=True)
    for line in found.assumptions:
        results.print(f"- {line}", soft_wrap=True)


def print_forecast(found: Forecast) -> None:
    """Print what a sweep is expected to score within several limits, the planned ones first."""
    has_both = any(cell.ensemble is not None for cell in found.cells)
    heads = [*(["ensemble"] if has_both else []), f"best {found.metric}"]
    rows = [
        (
            DASH if cell.budget_usd is None else usd(cell.budget_usd),
            DASH if cell.deadline_s is None else format_duration(cell.deadline_s),
            str(cell.machines),
            str(cell.trials),
            f"{cell.hours:.2f}",
            usd(cell.usd),
            *(_band_text(cell.ensemble) if has_both else ()),
            *_band_text(cell.best),
        )
        for cell in found.cells
    ]
    bands = [text for head in heads for text in (f"{head} P10", "expected", "P90")]
    results.print()
    print_table(["budget", "deadline", "machines", "trials", "hours", "usd", *bands], rows)
    results.print(f"\n{found.sentence}", soft_wrap=True)
    for line in found.assumptions:
        results.print(f"- {line}", soft_wrap=True)


def _band_text(band: Band | None) -> tuple[str, str, str]:
    if band is None:
        return (DASH, DASH, DASH)
    low, expected, high = (f"{value:.4g}" for value in band)
    return low, expected, high


def _print_cap_check(found: CapCheck) -> None:
    """Print whether cap and estimate held."""
    rows = [
        ("sweeps", f"{found.sweeps:,}"),
        ("of these ended by money", f"{found.num_capped:,}"),
        ("billed over training's money by more than the bound", str(found.violations)),
        ("most that any was billed over it, usd", f"{found.max_overshoot_usd:.4f}"),
        ("the same as a part of its bound", f"{100 * found.max_overshoot_share:.1f} %"),
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
    prices = [price.usd_per_hour for price in one.spot.values()]
    return f"{usd(min(prices), 4)} to {usd(max(prices), 4)}" if prices else DASH


def usd(value: float, digits: int = 2) -> str:
    """Return dollars as text; small amounts keep two significant digits."""
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"
