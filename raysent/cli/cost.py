"""CLI of `raysent cost`: prices and bills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import DASH, format_duration, messages, print_json, print_table, results
from raysent.cli.options import JsonOption, RunArgument
from raysent.errors import ArtifactError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from raysent.cluster import Quote

cost_app = typer.Typer(help="Prices and bills.", no_args_is_help=True, rich_markup_mode=None)


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

    By trial, with the cost outside trials, and the estimate beside the bill.
    """
    from raysent.cost import bill_values, compare_estimate
    from raysent.storage import address_of
    from raysent.sweeps import load_record, read_events, read_ledger

    record, entries = load_record(run), read_ledger(run)
    if not entries:
        raise ArtifactError(
            f"{address_of(run)}: holds no ledger.jsonl; nothing was spent, or the sweep is older than ledgers"
        )
    found = bill_values(entries)
    limit = record.space.cost.budget_usd
    closings = [event for event in read_events(run) if event["event"] in ("refused", "halted")]
    found |= {"budget_usd": limit, "closed": closings[-1]["reason"] if closings else ""}
    found["estimate"] = compare_estimate(run, spent_usd=found["spent_usd"])
    if as_json:
        print_json(found)
    else:
        _print_costs(found, limit)


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
        NOT_COUNTED,
    ):
        if line and not line.startswith("assumed 0.00"):
            results.print(line, soft_wrap=True)


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
