"""`raysent cluster`: machines on AWS, up and down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.options import AddressOption, JsonOption, opened
from raysent.errors import ConfigError

cluster_app = typer.Typer(
    help="Bring a cluster of spot machines up and down on AWS.", no_args_is_help=True, rich_markup_mode=None
)

ClusterArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A cluster file.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before spending.")]
_FILE = Path("cluster.yaml")


@cluster_app.command("up")
def cluster_up(file: ClusterArgument = _FILE, yes: YesOption = False) -> None:
    """Bring a cluster up.

    Makes its security group, roles and token where they are not there yet. Every machine ends itself when its time to
    live is over.
    """
    from raysent.cli import clusters  # boto3 and Ray come with it

    raise typer.Exit(clusters.up(file, is_agreed=yes))


@cluster_app.command("down")
def cluster_down(file: ClusterArgument = _FILE) -> None:
    """Take a cluster down.

    Every machine that bears its tag is ended. What is on S3 stays.
    """
    from raysent.cli import clusters  # as above

    raise typer.Exit(clusters.down(file))


@cluster_app.command("status")
def cluster_status(file: ClusterArgument = _FILE, as_json: JsonOption = False) -> None:
    """Show a cluster's machines, and what they cost an hour."""
    from raysent.cli import clusters  # as above

    raise typer.Exit(clusters.status(file, as_json=as_json))


@cluster_app.command("doctor")
def cluster_doctor(
    file: ClusterArgument = _FILE,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="Also ask the dashboard at URL whether it asks for a token."),
    ] = None,
    checkpoint: Annotated[
        float | None,
        typer.Option(
            "--checkpoint",
            metavar="MIB",
            min=0.001,
            help="Also save a checkpoint of MIB MiB 20 times, and refuse spot machines where that takes too long.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="PLACE", help="Save it below PLACE.  [default: the file's storage]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a cluster is safe and ready.

    The file, the token, credentials, prices, versions, and that Ray's ports do not answer from here. Changes nothing.
    With --checkpoint also, from the machine that it is run on, that a checkpoint is saved within half of the two
    minutes' notice that spot machines get; what was written is removed again. Exit code 1 where a check failed.
    """
    from raysent.cli import clusters  # as above

    raise typer.Exit(
        clusters.doctor(file, address=address, checkpoint_mib=checkpoint, storage=storage, as_json=as_json)
    )


@cluster_app.command("drill")
def cluster_drill(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A cluster file; without it or --address, two nodes on this machine."),
    ] = None,
    address: AddressOption = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder that all nodes share.  [default: one that is gone afterwards]",
            parser=opened,
        ),
    ] = None,
    notice: Annotated[str, typer.Option("--notice", metavar="20s", help="From the notice to the node's end.")] = "20s",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before killing a node.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a node away under a small training, and say what happens.

    The node is drained as after a notice of the cloud, and killed when that is over; training has to go on on another.
    Exit code 1 where it does not.
    """
    from raysent.cli import drilling  # torch and Ray come with it
    from raysent.cost import parse_duration  # as above

    if file is not None and (address is not None or run is not None):
        raise ConfigError("FILE: must not stand beside --address or --run")
    notice_s = parse_duration(notice)
    if file is not None:
        raise typer.Exit(drilling.drill_cluster(file, notice_s=notice_s, is_agreed=yes, as_json=as_json))
    raise typer.Exit(drilling.drill_here(address=address, run=run, notice_s=notice_s, is_agreed=yes, as_json=as_json))


@cluster_app.command("orphans")
def cluster_orphans(
    file: ClusterArgument = _FILE,
    remove: Annotated[bool, typer.Option("--remove", help="End them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List machines of any cluster of ours in the region that outlived their time to live."""
    from raysent.cli import clusters  # as above

    raise typer.Exit(clusters.orphans(file, is_removing=remove, as_json=as_json))


@cluster_app.command("policies")
def cluster_policies(
    file: ClusterArgument = _FILE,
    account: Annotated[str, typer.Option("--account", metavar="N", help="The account's number.")] = "123456789012",
) -> None:
    """Print what a cluster's machines may do in the account: its IAM policies as JSON."""
    from raysent.cli import clusters  # as above

    raise typer.Exit(clusters.policies(file, account=account))
