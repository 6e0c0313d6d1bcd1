"""`raysent train`: what is typed, and what is seen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from raysent.cli.console import ProgressLines, default_folder, messages, print_json, results
from raysent.cli.live import format_duration, format_value
from raysent.config import Override
from raysent.errors import ArtifactError, RaysentError
from raysent.report import write as write_report
from raysent.storage import address_of
from raysent.storage.layout import RUN_FILE, SWEEP_FILE
from raysent.sweeps.space import find_space, read_space, with_absolute_paths
from raysent.training.data import open_training_data
from raysent.training.outcome import Report, load_outcome, load_reports
from raysent.training.plan import check_run
from raysent.training.ray_train import train as train_run
from raysent.training.run import RunConfig, describe, load_run

NOT_FINITE = 5


def train(
    name: str,
    *,
    overrides: Sequence[Override],
    run: Path | None,
    num_workers: int,
    gpus_per_worker: float | None,
    address: str | None,
    as_json: bool,
) -> int:
    """Train the base run of a space and say how it goes; returns the exit code."""
    space = read_space(find_space(name), overrides=overrides)
    if address is not None:
        space = with_absolute_paths(space)
    config = space.config({})
    folder = run or default_folder(space.name)
    _check_free(folder, config)
    try:
        with ProgressLines(is_quiet=as_json) as progress:
            check_run(config, open_training_data(config, progress=progress), num_workers=num_workers)
        if not as_json:
            _announce(config, folder)
        outcome = train_run(
            config,
            folder,
            num_workers=num_workers,
            gpus_per_worker=gpus_per_worker,
            address=address,
            on_report=None if as_json else _tell,
            interruptions_per_hour=space.cost.interruptions_per_hour,
        )
    except RaysentError as error:
        raise space.located(error, {}) from None
    except KeyboardInterrupt:
        again = f"--run {shlex.quote(address_of(folder))}"
        messages.print(f"interrupted; with {again} the same command goes on from its last checkpoint", soft_wrap=True)
        raise
    page = write_report(folder)
    if as_json:
        print_json({"run": address_of(folder), **asdict(outcome), "report": address_of(page)})
    else:
        results.print(f"{outcome.status}: {address_of(folder)}  report: {address_of(page)}", soft_wrap=True)
        if outcome.message:
            messages.print(outcome.message, style="red", soft_wrap=True)
    return NOT_FINITE if outcome.status == "nan" else 0


def _check_free(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that is something else's; a training of the same run goes on in its own.

    Raises:
        ArtifactError: If a sweep, another run or a file stands there.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{address_of(folder)}: a file stands where the run folder is needed; name another --run")
    if (folder / SWEEP_FILE).exists():
        raise ArtifactError(f"{address_of(folder)}: holds a sweep; name another --run")
    if (folder / RUN_FILE).exists() and load_run(folder).key != config.key:
        raise ArtifactError(f"{address_of(folder)}: holds a run with another configuration; name another --run")


def _announce(config: RunConfig, folder: Path) -> None:
    """Say what will be trained, and what of it is done."""
    messages.print(f"{describe(config)}, into {address_of(folder)}", soft_wrap=True)
    before = load_outcome(folder, key=config.key)
    if before is not None and before.status != "stopped":
        messages.print("it was trained to its end before; nothing is trained again")
    elif reports := load_reports(folder):
        messages.print(f"goes on after report {reports[-1].index} of {reports[-1].num_reports}")


def _tell(report: Report) -> None:
    """Print one report."""
    scores = "  ".join(f"{key} {format_value(value)}" for key, value in report.metrics.items())
    messages.print(
        f"{report.index}/{report.num_reports}  {scores}  {report.sentences:,} sentences  "
        f"{format_duration(report.seconds)}",
        soft_wrap=True,
    )
