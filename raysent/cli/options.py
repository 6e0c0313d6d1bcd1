"""Arguments and options that several commands share, and the many of `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def opened(name: str) -> Path:
    """Return the local folder of what is named; one in a bucket is brought home first."""
    from raysent.storage import open_folder  # torch comes with it

    return open_folder(name)


def opened_name(name: str) -> str:
    """Return what is named as `load` takes it; what is in a bucket is brought home first."""
    return str(opened(name)) if name.startswith("s3:") else name


SpaceArgument = Annotated[
    str, typer.Argument(metavar="SPACE", help="A search-space file, or the bare name of one in search_spaces/.")
]
ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|MODEL",
        help="Run folders (all trials of a sweep), trial folders, ensembles' folders, each also in s3://; or hash:DIM, "
        "random vectors.",
        parser=opened_name,
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, also s3://BUCKET/FOLDER.", parser=opened)
]
CorpusOption = Annotated[
    str | None,
    typer.Option(
        "--corpus", metavar="PATH", help="Text to train on: file, folder, glob, s3://, or 'docs', the embedded one."
    ),
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Run folder to make, also s3://BUCKET/FOLDER.  [default: runs/NAME-DATE]",
        parser=opened,
    ),
]
TrialsOption = Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="Trials in all.")]
ConcurrentOption = Annotated[
    int | None,
    typer.Option("--concurrent", metavar="N", min=1, help="Trials at once.  [default: as many as fit]"),
]
WorkersPerTrialOption = Annotated[
    int | None, typer.Option("--workers-per-trial", metavar="N", min=1, help="Ray Train workers of each trial.")
]
TimeOption = Annotated[
    str | None,
    typer.Option("--time", metavar="30m", help="Wall-clock limit; running trials stop at their next report."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a value of the base run; ends the search over it. Repeatable."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.  [default: 0]")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Task files in SentEval's layout.  [default: the embedded tasks]"),
]
TasksOption = Annotated[
    str | None,
    typer.Option("--tasks", metavar="A,B", help="Tasks to judge on.  [default: all whose files are there]"),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="A Ray cluster that already stands.")
]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="A cluster on AWS that comes for the sweep and goes after it."),
]
KeepOption = Annotated[bool, typer.Option("--keep-cluster", help="Leave the cluster up afterwards.")]
MarketOption = Annotated[
    str | None,
    typer.Option(
        "--market",
        metavar="NAME",
        help="spot, on-demand, or auto: spot as long as the deadline allows.  [default: auto]",
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", metavar="X", min=0, help="GPUs of each worker, may be a fraction."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="40usd", help="Dollars for everything, judging included; a hard cap."),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", metavar="6h", help="When all training has stopped: 6h, or an ISO time (UTC)."),
]
HourlyOption = Annotated[
    str | None,
    typer.Option("--max-hourly", metavar="12usd", help="Dollars an hour that all machines may cost together."),
]
OnBudgetOption = Annotated[
    str | None,
    typer.Option(
        "--on-budget",
        metavar="NAME",
        help="stop: train until the money is gone; finish-rung: begin no way to a rung that is not paid for.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would be done.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
