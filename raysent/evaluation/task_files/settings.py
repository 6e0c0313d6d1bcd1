"""Settings of a user's own task, and the names that describe one on a command line or in a task file."""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from raysent.config import Document, StrictModel, read_yaml, validate
from raysent.data.tables import is_table
from raysent.errors import ConfigError, did_you_mean, shown
from raysent.platforms import expanded
from raysent.storage import is_remote, is_safe_name, safe_name, shortened_name, shown_name

TASK_FILE_SUFFIXES = (".yaml", ".yml")
# What makes a folder one of queries and passages.
CORPUS_FILE = "corpus.jsonl"
# Of a file's name on most systems.
_MOST_BYTES = 255
# Of a task's name.
_MAX_CHARACTERS = 80
# Of a task's name that is made of a file's.
_MAX_STEM_BYTES = 200


class Fractions(StrictModel):
    """Parts of the rows that are drawn for validation and test; whole groups, if rows have groups.

    Attributes:
        validation: Fraction for validation; 0 for none.
        test: Fraction for test.
        seed: Of the draw.
    """

    validation: float = pydantic.Field(default=0.15, ge=0, lt=1)
    test: float = pydantic.Field(default=0.15, gt=0, lt=1)
    seed: int = pydantic.Field(default=0, ge=0)


class TaskSettings(StrictModel):
    """How a table becomes a task. Columns that are not named are found by their names.

    Attributes:
        path: The table; or one for each of ``train``, ``validation`` and ``test``; or a folder in BEIR's form.
        name: The task's name; by default the file's.
        text: Column of the text; or two columns, for pairs.
        text_a: Column of the first text of a pair.
        text_b: Column of the second text of a pair.
        ordered: Whether the order of a pair matters.
        label: Column of the class, or of a list of labels; or several columns, each a yes/no question.
        join_labels: Whether labels that say the same, such as ``1`` and ``1.0`` or ``Yes`` and ``yes``, are one class,
            by the name of the most frequent; otherwise a warning names them.
        separator: Separates several labels in one value of a CSV file, such as ``|``. ``no`` says that each value is
            one label, however it looks.
        score: Column of the score of a pair.
        query: Column of the query, of a table of queries and passages.
        passage: Column of the passage.
        relevance: Column of how relevant the passage is; above 0 it is. By default every passage beside a query is.
        range: The lowest and the highest possible score; by default of the scores themselves.
        split: Column that says train, validation or test; or fractions to draw. ``no`` leaves out a column that would
            be found by its name.
        folds: Number of folds of cross-validation, or the column of the fold of each row.
        group: Column of what belongs together: rows with the same value are in the same fold or split. ``no`` leaves
            out a column that would be found by its name.
        copies: Whether rows whose texts are nearly the same belong together, as rows of the same text always do.
        metric: What counts: accuracy or macro_f1. By default accuracy; macro_f1 where one class has over 80 % of the
            rows, as its name alone would have that accuracy.
        header: Whether the first line of a CSV or TSV file names its columns; without it they are ``0``, ``1``, …. By
            default it does, and a first line that looks like a row is refused.
        seed: Of the division into folds.
    """

    path: str | dict[str, str]
    name: str | None = pydantic.Field(default=None, min_length=1, max_length=_MAX_CHARACTERS)
    text: str | list[str] | None = None
    text_a: str | None = None
    text_b: str | None = None
    ordered: bool = False
    label: str | list[str] | None = None
    join_labels: bool = False
    separator: Annotated[str, pydantic.Field(min_length=1)] | Literal[False] | None = None
    score: str | None = None
    query: str | None = None
    passage: str | None = None
    relevance: str | None = None
    range: list[float] | None = pydantic.Field(default=None, min_length=2, max_length=2)
    split: str | Fractions | Literal[False] | None = None
    folds: int | str | None = None
    group: str | Literal[False] | None = None
    copies: bool = True
    metric: Literal["accuracy", "macro_f1"] | None = None
    header: bool | None = None
    seed: int = pydantic.Field(default=0, ge=0)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _as_written(cls, values: Any) -> Any:
        """Read ``yes`` and ``no`` of YAML, and names of columns that are numbers there."""
        if not isinstance(values, Mapping):
            return values
        return {key: _setting(key, value) for key, value in values.items()}

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        """Return the name in one Unicode form: files of each run are named by it."""
        if name is None:
            return None
        composed = unicodedata.normalize("NFC", name)
        if not is_safe_name(composed):
            raise ValueError(
                'must be fit to name files on every system, so without any of / \\ : * ? " < > | and '
                "invisible characters, and with no point or blank at its ends; "
                f"given {shown_name(name)}; try '{name_of_file(name)}'"
            )
        return composed

    @pydantic.model_validator(mode="after")
    def _check(self) -> TaskSettings:
        if (self.text_a is None) != (self.text_b is None):
            raise ValueError("text_a and text_b must be given together")
        if self.text is not None and self.text_a is not None:
            raise ValueError("text and text_a must not both be given")
        if isinstance(self.text, list) and len(self.text) != 2:
            raise ValueError("text must name one column, or two for pairs")
        if self.label is not None and self.score is not None:
            raise ValueError("label and score must not both be given; make two tasks")
        if isinstance(self.folds, int) and not 3 <= self.folds <= 20:
            raise ValueError(f"folds must be from 3 to 20; given {self.folds}")
        if self.split is not None and self.folds is not None:
            raise ValueError("split and folds must not both be given")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError("range must be two rising numbers")
        if not self.path:
            raise ValueError("path must name a table; given nothing")
        for path in [self.path] if isinstance(self.path, str) else self.path.values():
            if not is_remote(path) and _is_no_path(path):
                raise ValueError(f"path must be the name of a file; given '{shown(path)}'")
        if (
            isinstance(self.split, Fractions)
            and (drawn := self.split.validation + self.split.test) >= 1
        ):
            raise ValueError(
                f"split: validation and test must leave rows to train on; given {drawn:g} of all"
            )
        return self


_SWITCHES = ("ordered", "header", "copies", "join_labels")
# Settings that may also be off, and those that name columns.
_OFF = ("separator", "split", "group")
_COLUMNS = (
    "text", "text_a", "text_b", "label", "score", "query", "passage", "relevance", "split", "group", "name",
)  # fmt: skip
_YES = ("true", "yes", "1")
_NO = ("false", "no", "0")


def _setting(key: str, value: Any) -> Any:
    """Return the value of a setting as it is meant: a switch, a name, or as it is."""
    if isinstance(value, str):
        if key in _SWITCHES and value.lower() in (*_YES, *_NO):
            return value.lower() in _YES
        return False if key in _OFF and value.lower() in ("no", "false") else value
    if key not in _COLUMNS:
        return value
    if isinstance(value, list):
        return [_setting(key, inner) for inner in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def name_of_file(text: str) -> str:
    """Return the name of a task that has that of its file: of its letters, digits, marks of these and ``-_.``."""
    composed = unicodedata.normalize("NFC", text)
    plain = "".join(sign if _is_plain(sign) else "-" for sign in composed)[:_MAX_CHARACTERS]
    name = shortened_name(plain.strip(".") or "task", _MAX_STEM_BYTES)
    return name if is_safe_name(name) else safe_name(f"task-{name}")


def _is_plain(sign: str) -> bool:
    return sign.isalnum() or sign in "-_." or unicodedata.category(sign).startswith("M")


def is_task_file(name: str, *, known: Collection[str] = ()) -> bool:
    """Return whether a name is that of a table or a task file rather than of a registered task.

    Args:
        name: What the user wrote.
        known: Names of registered tasks, lower case without hyphens and underscores.
    """
    if name.lower().replace("-", "").replace("_", "") in known:
        return False
    if name.startswith("{"):
        return True
    path = split_task_name(name)[1]
    if (
        path.lower().endswith(TASK_FILE_SUFFIXES)
        or is_table(path)
        or is_remote(path)
        or "/" in path
    ):
        return True
    return _is_there(path)


def split_task_name(name: str) -> tuple[str | None, str, str]:
    """Return the task's name if one is given, the path, and the options of ``[name=]path[:key=value,...]``."""
    # A file of this name is meant, whatever signs are in it.
    if _is_there(name):
        return None, name, ""
    if _is_there(before_options := name.rpartition(":")[0]) and "=" in name[len(before_options) :]:
        return None, before_options, name[len(before_options) + 1 :]
    head, _, path = name.partition("=")
    own = head if path and not set(head) & set("/:.") and head else None
    rest = path if own is not None else name
    colon = rest.find(":", rest.find("://") + 3 if "://" in rest else 0)
    if colon < 0 or "=" not in rest[colon:]:
        return own, rest, ""
    return own, rest[:colon], rest[colon + 1 :]


def _is_no_path(path: str) -> bool:
    parts = Path(path).parts
    return "\0" in path or any(len(part.encode(errors="replace")) > _MOST_BYTES for part in parts)


def _is_there(path: str) -> bool:
    try:
        return bool(path) and not is_remote(path) and expanded(path).exists()
    except (OSError, RuntimeError):  # a text that is no path
        return False


def read_settings(name: str) -> list[TaskSettings]:
    """Return the settings of each task of a table or a task file.

    Args:
        name: ``[NAME=]PATH[:KEY=VALUE,...]``, with the keys of `TaskSettings`.

    Raises:
        ConfigError: If a setting is wrong.
        DataError: If the file cannot be read.
    """
    own, path, options = split_task_name(name)
    if path.lower().endswith(TASK_FILE_SUFFIXES):
        if options:
            raise ConfigError(f"{path}: options must be written in the task file; given {options}")
        return _read_task_file(expanded(path), own)
    values: dict[str, Any] = {"path": path, **_options(name, options)}
    if own is not None:
        values["name"] = own
    return [validate(TaskSettings, Document(values, source=name))]


def written_name(settings: TaskSettings) -> str | None:
    """Return the name of a table's task as `read_settings` reads it; None where a name cannot say all of it."""
    if not isinstance(settings.path, str) or not (
        is_table(settings.path) or is_remote(settings.path)
    ):
        return None
    options = []
    for key, value in settings.model_dump(exclude={"path", "name"}, exclude_defaults=True).items():
        text = _written_option(value)
        if text is None:
            return None
        options.append(f"{key}={text}")
    start = "" if settings.name is None else f"{settings.name}="
    return f"{start}{settings.path}:{','.join(options)}"


def how_to(settings: TaskSettings, key: str, value: str | bool) -> str:
    """Return how a user sets one more setting of a table's task: what is typed, or in words."""
    name = written_name(settings.model_copy(update={key: value}))
    if name is not None:
        return f"--task {shlex.quote(name)}"
    of_python = repr(value)
    of_yaml = json.dumps(value, ensure_ascii=False)
    return f"'{key}: {of_yaml}' in a task file, or {key}={of_python} of raysent.Task,"


def _written_option(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        value = "+".join(map(str, value))
    is_typed = isinstance(value, str | int) and not set(str(value)) & set(",=")
    if not is_typed or not str(value).isprintable():
        return None
    return str(value)


_OPTION_NAMES = tuple(name for name in TaskSettings.model_fields if name != "path")


def _options(name: str, options: str) -> dict[str, Any]:
    """Return ``key=value,key=value`` as settings; a value with ``+`` names several columns."""
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        if not equals or key not in _OPTION_NAMES:
            raise ConfigError(
                f"{name}: {key}: unknown setting of a task{did_you_mean(key, _OPTION_NAMES)}"
            )
        values[key] = _option_value(key, value)
    return values


def _option_value(key: str, value: str) -> Any:
    if key in ("folds", "seed") and value.isdecimal():
        return int(value)
    if key == "range":
        with suppress(ValueError):
            return [float(end) for end in value.split("+")]
    return value.split("+") if key in ("text", "label") and "+" in value else value


def _read_task_file(path: Path, own: str | None) -> list[TaskSettings]:
    document = read_yaml(path)
    several = document.get("tasks")
    if several is None:
        values = {"name": _stem_of(path), **document.get(), **({"name": own} if own else {})}
        return [_from_values(replace(document, values=values), path.parent)]
    if set(document.get()) != {"tasks"} or not isinstance(several, dict):
        raise ConfigError(f"{path}: tasks: must be the only key, with a mapping of names to tasks")
    found = []
    for name, values in several.items():
        if not isinstance(values, dict):
            raise document.error(("tasks", name), "must be a mapping with path, text and label")
        lines = {
            key[2:]: line for key, line in document.lines.items() if key[:2] == ("tasks", name)
        }
        found.append(
            _from_values(Document({"name": name, **values}, str(path), lines), path.parent)
        )
    return found


def _stem_of(path: Path) -> str:
    """Return the name of a task file without its end, or what of it may name files."""
    is_short = len(path.stem) <= _MAX_CHARACTERS
    return path.stem if is_short and is_safe_name(path.stem) else name_of_file(path.stem)


def _from_values(document: Document, folder: Path) -> TaskSettings:
    """Return the settings of a file's values; paths are relative to the file's folder."""
    given = document.get("path", default=document.get("files"))
    if given is None:
        raise document.error(("path",), "must name a table; given nothing")
    paths = (
        {part: _located(path, folder) for part, path in given.items()}
        if isinstance(given, dict)
        else given
    )
    values = {key: value for key, value in document.get().items() if key != "files"}
    values["path"] = paths if isinstance(paths, dict) else _located(str(paths), folder)
    return validate(TaskSettings, replace(document, values=values))


def _located(path: Any, folder: Path) -> Any:
    return path if not isinstance(path, str) or is_remote(path) else str(folder / expanded(path))
