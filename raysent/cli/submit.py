"""CLI of sweeps on a cluster that is launched for them: `--cluster`, `raysent attach` and `raysent stop`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from raysent.cli.console import messages, print_json, results
from raysent.cli.options import JsonOption, split_names
from raysent.errors import ExitCode

if TYPE_CHECKING:
    from raysent.cluster import Submission, SubmittedSweep
    from raysent.config import Override
    from raysent.sweeps.space import SearchSpace

attach_app = typer.Typer()


SubmittedArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run of --cluster: its local folder, or its address s3://BUCKET/FOLDER."),
]


@attach_app.command()
def attach(run: SubmittedArgument, as_json: JsonOption = False) -> None:
    """Show a sweep that runs on a cluster, from its start to its end.

    Works in any folder and on any computer that may read the run. Downloads the results when the sweep ends. Ctrl-C
    detaches again; the sweep continues.
    """
    from raysent.cluster import find_run, follow_run
    from raysent.pipeline import default_run_folder

    found = find_run(run, new_run=default_run_folder(Path(run).name))

    def follow(on_event: Any, say: Any) -> SubmittedSweep:
        return follow_run(found, on_event=on_event, say=say)

    _show(follow, found.record.search_space(), remote=found.remote, folder=found.folder, as_json=as_json)


@attach_app.command()
def stop(run: SubmittedArgument, as_json: JsonOption = False) -> None:
    """Stop a sweep that runs on a cluster, from any folder or computer.

    The sweep saves its trials, and its cluster is terminated unless --keep-cluster was given. 'raysent resume'
    continues the sweep. A second call stops it at once.
    """
    from raysent.cluster import find_run, stop_run

    found = find_run(run, new_run=Path(run))
    has_ended = found.record.code is not None
    code = stop_run(found, say=(lambda _: None) if as_json else _say)
    if as_json:
        print_json({"run": found.remote, "has_stopped": code is not None, "code": code})
    elif code is None:
        messages.print(
            f"{found.remote}: has not stopped after five minutes; 'raysent stop' again stops it at once, and "
            f"'raysent cluster down' terminates the machines of {found.record.cluster or 'its cluster'}",
            soft_wrap=True,
        )
    else:
        how = "had ended" if has_ended else f"stopped; 'raysent resume {found.remote} --cluster FILE' continues it"
        results.print(f"{found.remote}: {how}", soft_wrap=True)
    raise typer.Exit(ExitCode.CHECK_FAILED if code is None else 0)


def sweep_on_cluster(
    name: str,
    cluster: Path,
    overrides: Sequence[Override],
    *,
    run: Path | None,
    seed: int | None,
    data: Path | None,
    tasks: list[str] | None,
    labels: str | None,
    is_kept: bool,
    as_json: bool,
) -> NoReturn:
    """Sweep on a cluster that is launched for the sweep, print what the sweep prints there, and exit with its code."""
    from raysent.cluster import prepare_submission, run_submission
    from raysent.pipeline import default_run_folder

    launcher, submission, notes = prepare_submission(
        name,
        cluster,
        overrides,
        run=run or default_run_folder(Path(name).stem),
        seed=seed,
        data=data,
        tasks=split_names(tasks),
        labels=labels,
        as_json=as_json,
    )
    for note in notes:
        messages.print(note, soft_wrap=True)
    _follow(run_submission, launcher, submission, is_kept=is_kept, as_json=as_json)


def resume_on_cluster(
    run: Path, cluster: Path, limits: Sequence[Override], *, is_kept: bool, as_json: bool
) -> NoReturn:
    """Resume a sweep that a cluster ran, on a cluster that is launched for it."""
    from raysent.cluster import prepare_resumption, run_submission
    from raysent.pipeline import default_run_folder

    new_run = default_run_folder(run.name)
    launcher, submission = prepare_resumption(run, cluster, limits, new_run=new_run, as_json=as_json)
    _follow(run_submission, launcher, submission, is_kept=is_kept, as_json=as_json)


def _follow(run: Any, launcher: Any, submission: Submission, *, is_kept: bool, as_json: bool) -> NoReturn:
    """Show a submitted sweep as one on this machine is shown."""

    def follow(on_event: Any, say: Any) -> SubmittedSweep:
        ended: SubmittedSweep = run(launcher, submission, on_event=on_event, say=say, keep=is_kept)
        return ended

    _show(follow, submission.space, remote=submission.remote, folder=submission.run, as_json=as_json)


def _show(
    follow: Callable[[Any, Any], SubmittedSweep], space: SearchSpace, *, remote: str, folder: Path, as_json: bool
) -> NoReturn:
    """Show a sweep while it is followed, print what it prints at its end, and exit with its code."""
    from raysent.live import SweepView

    with SweepView(messages, space, is_quiet=as_json) as view:
        ended = follow(view.on_event, (lambda _: None) if as_json else _say)
    if ended.is_detached:
        if as_json:
            commands = {"attach": f"raysent attach {remote}", "stop": f"raysent stop {remote}"}
            print_json({"run": remote, "status": "detached", **commands})
        raise typer.Exit(ended.code)
    if as_json and ended.values is not None:
        typer.echo(json.dumps(ended.values, indent=2, ensure_ascii=False))
    else:
        for line in ended.lines:
            (messages if ended.code else results).print(line, soft_wrap=True)
    if ended.message:
        messages.print(f"error: the job could not run: {ended.message}", soft_wrap=True)
    messages.print(f"results: {folder}", soft_wrap=True)
    raise typer.Exit(ended.code)


def _say(line: str) -> None:
    messages.print(line, style="dim", soft_wrap=True)
