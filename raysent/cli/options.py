"""Arguments and options that several commands share; those of settings are made from the settings' own declarations."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
import typer

from raysent.config import described_fields, parse_override
from raysent.errors import ConfigError, did_you_mean
from raysent.platforms import expanded
from raysent.sweeps.space import SETTINGS

# What a number or text of a setting looks like, where its type does not say it.
_METAVARS = {
    "time": "30m",
    "budget": "40usd",
    "deadline": "6h",
    "learn_from": "RUN,…",
    int: "N",
    float: "X",
}
# Arguments of functions that the commands pass themselves.
_PASSED = ("set", "progress", "seed", "command", "listeners", "token", "dry_run")


def opened(name: str) -> Path:
    """Return a local folder; one in a bucket is downloaded first."""
    from raysent.storage import open_folder  # torch comes with it

    return open_folder(name)


def opened_name(name: str) -> str:
    """Return a name as `load` takes it; a folder in a bucket is downloaded first."""
    return str(opened(name)) if name.startswith("s3:") else name


def split_names(tasks: list[str] | None) -> list[str] | None:
    """Return the names and files that `--tasks` lists; None if the option is absent.

    A file with settings, such as ``reviews.csv:text=body,label=stars``, is one name, and so is a file that is there,
    such as ``reviews, final.csv``.

    Raises:
        ConfigError: If it lists none.
    """
    if tasks is None:
        return None
    lists = [[text] if _is_one_name(text) else text.split(",") for text in tasks]
    names = [name.strip() for one in lists for name in one if name.strip()]
    if not names:
        import raysent

        known = raysent.components("tasks")["name"]
        raise ConfigError(f"tasks '{','.join(tasks)}': must name a task; known: {', '.join(known)}")
    return names


def _is_one_name(text: str) -> bool:
    has_settings = ":" in text and "=" in text
    return text.startswith("{") or has_settings or ("," in text and expanded(text).exists())


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these settings; those that are typed are its argument `settings`.

    Args:
        names: Arguments of `raysent.sweep` that stand for settings, such as ``trials`` for ``limits.trials``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=_setting_option(name),
            )
            for name in names
        ]
        parameters = [
            one
            for given in signature.parameters.values()
            for one in (
                options
                if given.name == "settings"
                else [given.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            )
        ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(
                settings={name: value for name, value in given.items() if value is not None},
                **values,
            )

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _setting_option(name: str) -> Any:
    """Return the annotation of the option of a setting: its type, limits and help are those of the setting's field."""
    _, model = SETTINGS[name]
    field = model.model_fields[name]
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    inner = [
        one
        for one in typing.get_args(field.annotation) or (field.annotation,)
        if one is not types.NoneType
    ]
    kind = next((one for one in (int, float) if inner == [one]), str)
    about = described_fields(model)[name].replace("`", "'")
    default = "  [default: the space's]" if field.get_default(call_default_factory=True) else ""
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=_METAVARS.get(name, _METAVARS.get(kind)),
        min=least,
        help=about + default,
    )
    return Annotated[kind | None, option]


def arguments_of(function: Callable[..., Any], texts: Sequence[str] | None) -> dict[str, Any]:
    """Return what `--set` sets as arguments of a function of the public API.

    A name of an argument of the function is that argument; other names are settings, in its argument `set` or, where it
    takes any keyword, beside the others.

    Raises:
        ConfigError: If a text is not ``NAME=VALUE``, a name is unknown, or a value is of another kind.
    """
    signature = inspect.signature(function).parameters
    parameters = [
        name
        for name, one in signature.items()
        if one.default is not one.empty and name not in _PASSED
    ]
    takes_settings = any(one.kind is one.VAR_KEYWORD for one in signature.values())
    hints = typing.get_type_hints(function) if texts else {}
    arguments: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in map(parse_override, texts or ()):
        if name in parameters:
            arguments[name] = _checked(name, value, hints[name])
        elif "set" in signature:
            settings[name] = value
        elif takes_settings:
            arguments[name] = value
        elif name == "seed" and name in signature:
            raise ConfigError(f"set seed={value}: has an option of its own; write --seed {value}")
        else:
            raise ConfigError(
                f"set {name}={value}: unknown argument{did_you_mean(name, parameters)}"
            )
    return {**arguments, **({"set": settings} if settings else {})}


def _checked(name: str, value: Any, kind: Any) -> Any:
    try:
        return pydantic.TypeAdapter(kind, config={"arbitrary_types_allowed": True}).validate_python(
            value
        )
    except pydantic.ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise ConfigError(f"set {name}={value}: must be {text}") from None


def as_typed(message: str, options: Mapping[str, str]) -> str:
    """Return an error of the library with the argument that it begins with as the option that was typed.

    Args:
        message: As ``trials=0: must be …``, ``protocol fats: …`` or ``top: …``.
        options: Name of an argument, as in Python -> the option.
    """
    found = re.match(r"(\w+)(?:=| (?=\S+: | '.*?': )|(?=: ))", message)
    if found is None or found[1] not in options:
        return message
    return (
        f"{options[found[1]]}{'' if found.end() == found.end(1) else ' '}{message[found.end() :]}"
    )


SpaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPACE", help="A search-space file, or the bare name of one in search_spaces/."
    ),
]
SpaceOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="SPACE",
        help="A search-space file, or the bare name of one in search_spaces/; with --task, by default everything.",
        show_default=False,
    ),
]
ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|MODEL",
        help="Folders of trainings, trials, ensembles, or sweeps (all their trials), also in s3://; st:PATH, "
        "hf:PATH or static:PATH, a pretrained model; or hash:DIM, random word vectors.",
        parser=opened_name,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Folder of a sweep, a training, a trial or an ensemble, also in s3://; or hash:DIM, st:PATH or hf:PATH.",
        parser=opened_name,
    ),
]
PredictingArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="Folder of a sweep, whose best model predicts, an ensemble, or a training or trial that was evaluated on "
        "the task; also in s3://.",
        parser=opened_name,
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a sweep or a training, also s3://BUCKET/FOLDER.",
        parser=opened,
    ),
]
CorpusOption = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="PATH",
        help="Text: file, table, folder, glob, s3://, or 'docs', the embedded one.",
    ),
]
ColumnOption = Annotated[
    str | None,
    typer.Option(
        "--column",
        metavar="NAME",
        help="Column of the text of a table.  [default: text, else sentence]",
    ),
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
EpochsOption = Annotated[
    float | None,
    typer.Option("--epochs", metavar="N", min=0, help="Passes over the text in this training."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Set any other setting or argument, as listed above. Repeatable.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.  [default: 0]"),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Task files in SentEval's layout.  [default: the embedded tasks]",
    ),
]
WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME|FOLDER",
        help="A pretrained encoder that takes part in the answer; by default one that this machine has; none for none.",
    ),
]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        "--task",
        metavar="A,B|FILE",
        help="Tasks: names, own tables (reviews.csv, .tsv, .jsonl, .parquet, a folder of datasets) or task files "
        "(.yaml). Repeatable.  [default: all whose files are there, or as described above]",
    ),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="ADDR", help="Address of a running Ray cluster.")
]
NewModelOption = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Folder of the new model; must not hold one yet."
    ),
]
VectorsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VECTORS", help="GloVe, word2vec or fastText vectors, text or .bin, also .gz."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and print the plan; train nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
