"""The command `reproduce`: a paper's models trained, and their scores beside the reported ones."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

import raysent
from raysent import reproduction
from raysent.cli.console import DASH, print_json, print_table, results
from raysent.cli.options import JsonOption
from raysent.cli.wings import Command
from raysent.errors import ConfigError
from raysent.progress import messages

if TYPE_CHECKING:
    from raysent.reproduction import ClaimResult, TableResult


# A table of more columns is printed with a row for each.
_MOST_COLUMNS = 12


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER", help="Name of a shipped paper, such as quick_thoughts, or a file."
        ),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="N", help="Table of the paper. Repeatable.  [default: all]"
        ),
    ] = None,
    claims: Annotated[
        list[str] | None,
        typer.Option(
            "--claim", metavar="NAME", help="Claim to run on several seeds, or all. Repeatable."
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="FIRST-LAST", help="Seeds of each arm of a claim.")
    ] = "20-24",
    scale: Annotated[
        str, typer.Option("--scale", metavar="NAME", help="small, or paper: published settings.")
    ] = "small",
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="FOLDER", help="Folder of corpora, pairs, vectors and tasks."
        ),
    ] = Path("data"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder to write, and to continue in."
        ),
    ] = None,
    max_hours: Annotated[
        float | None,
        typer.Option("--max-hours", metavar="H", min=0, help="Begin no model after this time."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the graph and its cost, and stop.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a paper's models and print their scores beside the reported ones.

    The same command continues after an interruption. Models whose data is missing are skipped with the reason.
    """
    if scale not in ("small", "paper"):
        raise ConfigError(f"--scale {scale}: must be small or paper")
    ends = re.fullmatch(r"(\d{1,6})-(\d{1,6})", seeds)
    if ends is None or int(ends[1]) >= int(ends[2]):
        raise ConfigError(f"--seeds {seeds}: must be two rising numbers, such as 20-24")
    checked = cast("Literal['small', 'paper']", scale)
    wanted = tables if tables or not claims else []
    if dry_run:
        _print_plan(paper, checked, tables=wanted, claims=claims, data=data, as_json=as_json)
        return
    found = raysent.reproduce(
        paper,
        tables=wanted,
        claims=claims or [],
        seeds=range(int(ends[1]), int(ends[2]) + 1),
        scale=checked,
        data=data,
        output=output,
        max_hours=max_hours,
        progress=not as_json,
    )
    if as_json:
        print_json(asdict(found))
        return
    for table in found.tables:
        _print_table(table)
    if found.claims:
        _print_claims(found.claims)
    messages.print(f"{found.paper}, scale {found.scale}: {found.hours:.2f} h")


def _print_plan(
    paper: str,
    scale: Literal["small", "paper"],
    *,
    tables: list[str] | None,
    claims: list[str] | None,
    data: Path,
    as_json: bool,
) -> None:
    plan = reproduction.plan_reproduction(
        paper, tables=tables, claims=claims or [], scale=scale, data=data
    )
    absent = reproduction.absent_tasks(paper, tables=tables, claims=claims or [], data=data)
    if as_json:
        print_json({"models": [asdict(one) for one in plan], "absent_tasks": absent})
        return
    rows = [
        (
            one.name,
            one.kind,
            ", ".join(one.parts) or DASH,
            f"{one.parameters / 1e6:.3f}" if one.parameters else DASH,
            f"{one.reported:g}" if one.reported is not None else DASH,
            f"{one.steps:,}" if one.steps else DASH,
            f"{one.hours:.2f}",
            f"{one.usd:.2f}",
        )
        for one in plan
    ]
    rows.append(
        (
            "all",
            "",
            "",
            "",
            "",
            "",
            f"{sum(p.hours for p in plan):.2f}",
            f"{sum(p.usd for p in plan):.2f}",
        )
    )
    print_table(
        ["model", "made by", "of", "parameters, M", "paper's", "steps", "hours", "US$"],
        rows,
        num_text=3,
    )
    for what in dict.fromkeys(what for one in plan for what in one.missing):
        messages.print(f"missing: {what}", soft_wrap=True)
    for task in absent:
        messages.print(f"missing: task {task}, below {data / 'senteval'}", soft_wrap=True)


def _print_table(table: TableResult) -> None:
    rows = [
        (
            name,
            *(
                _cell(table.ours.get(name, {}).get(task), table.reported.get(name, {}).get(task))
                for task in table.tasks
            ),
        )
        for name in {**table.ours, **table.skipped}
    ]
    results.print(f"Table {table.number}: {table.title}", soft_wrap=True)
    heading = f"ours (paper's), protocol {table.protocol}"
    if len(table.tasks) > _MOST_COLUMNS:  # as the papers print them
        turned = zip(table.tasks, *(row[1:] for row in rows), strict=True)
        print_table([heading, *(str(row[0]) for row in rows)], turned)
    else:
        print_table([heading, *table.tasks], rows)
    for text in table.about:
        messages.print(text, soft_wrap=True)
    for task in table.absent:
        messages.print(f"without {task}, whose files are not there", soft_wrap=True)
    for name, reason in table.skipped.items():
        messages.print(f"{name}: skipped: {reason}", soft_wrap=True)
    results.print()


def _cell(ours: float | None, reported: float | None) -> str:
    text = DASH
    if ours is not None:
        # A squared error of ratings is below 1; a rank correlation in percent may be below 0.
        text = f"{ours:.3f}" if 0 <= ours < 1 else f"{ours:.1f}"
    return text if reported is None else f"{text} ({reported:g})"


def _print_claims(claims: tuple[ClaimResult, ...]) -> None:
    rows = []
    for claim in claims:
        shown = DASH
        if claim.difference is not None and claim.interval is not None:
            shown = f"{claim.difference:+.2f} [{claim.interval[0]:+.2f}, {claim.interval[1]:+.2f}]"
        rows.append(
            (
                claim.claim,
                claim.verdict,
                shown,
                f"{claim.margin:g}",
                str(len(claim.better) or DASH),
                claim.reason,
            )
        )
    print_table(
        ["claim", "verdict", "difference, 95 % interval", "margin", "seeds", "why"],
        rows,
        num_text=2,
    )


COMMANDS = {"reproduce": Command(reproduce, "Papers and components", before="components")}
