"""Arguments and options that several commands share, and those of `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.errors import ConfigError


def opened(name: str) -> Path:
    """Return a local folder; one in a bucket is downloaded first."""
    from raysent.storage import open_folder  # torch comes with it

    return open_folder(name)


def opened_name(name: str) -> str:
    """Return a name as `load` takes it; a folder in a bucket is downloaded first."""
    return str(opened(name)) if name.startswith("s3:") else name


def split_names(tasks: list[str] | None) -> list[str] | None:
    """Return the names and files that `--tasks` lists; None if the option is absent.

    A file with settings, such as ``reviews.csv:text=body,label=stars``, is one name.

    Raises:
        ConfigError: If it lists none.
    """
    if tasks is None:
        return None
    lists = [
        [given] if given.startswith("{") or (":" in given and "=" in given) else given.split(",") for given in tasks
    ]
    names = [name.strip() for one in lists for name in one if name.strip()]
    if names == []:
        from raysent.evaluation import TASKS  # torch comes with it

        raise ConfigError(f"--tasks '{','.join(tasks)}': must name a task; known: {', '.join(TASKS)}")
    return names


SpaceArgument = Annotated[
    str, typer.Argument(metavar="SPACE", help="A search-space file, or the bare name of one in search_spaces/.")
]
ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|MODEL",
        help="Folders of trainings, trials, ensembles, or sweeps (all their trials), also in s3://; st:PATH or "
        "hf:PATH, a pretrained model; or hash:DIM, random word vectors.",
        parser=opened_name,
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a sweep or a training, also s3://BUCKET/FOLDER.", parser=opened)
]
CorpusOption = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="PATH",
        help="Text to train on: file, table, folder, glob, s3://, or 'docs', the embedded one.",
    ),
]
ColumnOption = Annotated[
    str | None,
    typer.Option("--column", metavar="NAME", help="Column of the text of a table.  [default: text, else sentence]"),
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Run folder to create, also s3://BUCKET/FOLDER.  [default: runs/NAME-DATE]",
        parser=opened,
    ),
]
TrialsOption = Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="Number of trials.")]
ConcurrentOption = Annotated[
    int | None,
    typer.Option("--concurrent", metavar="N", min=1, help="Trials at the same time.  [default: as many as fit]"),
]
WorkersPerTrialOption = Annotated[
    int | None, typer.Option("--workers-per-trial", metavar="N", min=1, help="Ray Train workers of each trial.")
]
TimeOption = Annotated[
    str | None,
    typer.Option("--time", metavar="30m", help="Wall-clock limit. Running trials stop at their next report."),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="4GiB", help="Memory of a trial's process. A space with a trial that needs more is refused."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a value of the base run and end the search over it. Repeatable."),
]
ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="NAME",
        help="auto chooses settings for the text, the machine and the time; paper uses the published ones.",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.  [default: 0]")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Task files in SentEval's layout.  [default: the embedded tasks]"),
]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        "--task",
        metavar="A,B|FILE",
        help="Tasks to evaluate on: names, own tables (reviews.csv, .tsv, .jsonl, .parquet, a folder of datasets) or "
        "task files (.yaml). Repeatable.  [default: all whose files are there]",
    ),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="Address of a running Ray cluster.")
]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="Launch this AWS cluster for the sweep, then terminate it."),
]
KeepOption = Annotated[bool, typer.Option("--keep-cluster", help="Do not terminate the cluster afterwards.")]
MarketOption = Annotated[
    str | None,
    typer.Option(
        "--market",
        metavar="NAME",
        help="spot, on-demand, or auto: spot while the deadline allows it.  [default: auto]",
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", metavar="X", min=0, help="GPUs of each worker; may be a fraction."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="40usd", help="Hard limit on dollars, evaluation included."),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", metavar="6h", help="When all training has to stop: 6h, or an ISO time (UTC)."),
]
HourlyOption = Annotated[
    str | None,
    typer.Option("--max-hourly", metavar="12usd", help="Most dollars an hour for all machines together."),
]
OnBudgetOption = Annotated[
    str | None,
    typer.Option(
        "--on-budget",
        metavar="NAME",
        help="stop: train until the budget is spent; finish-rung: do not start a rung that the budget cannot cover.",
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER:TARGET",
        help="Send trials while they run: tensorboard:DIR, optuna:sqlite:///study.db, mlflow:URI or wandb:PROJECT. "
        "Repeatable.",
    ),
]
SweepLabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="32,100,all|none",
        help="At the end, also score the best trials, their ensemble and baselines with so many labels, on tasks with "
        "classes.  [default: 32,100,300,1000, with baselines]",
        show_default=False,
    ),
]
RetrainOption = Annotated[
    int | None,
    typer.Option(
        "--retrain",
        metavar="TOP",
        min=0,
        help="Afterwards train so many of the best configurations on from their weights, inside the budget.",
    ),
]
RetrainEpochsOption = Annotated[
    float | None,
    typer.Option("--retrain-epochs", metavar="N", help="Passes over the text of --retrain.  [default: the trial's]"),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; train nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
