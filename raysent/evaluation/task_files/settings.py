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

_TASK_FILE_SUFFIXES = (".yaml", ".yml")
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
        return self

    @pydantic.model_validator(mode="after")
    def _check_paths_and_fractions(self) -> TaskSettings:
        if not self.path:
            raise ValueError("path must name a table; given nothing")
        if isinstance(self.path, str):
            paths = [self.path]
        else:
            paths = [*self.path.values()]
        for path in paths:
            if not is_remote(path) and _is_no_path(path):
                raise ValueError(f"path must be the name of a file; given '{shown(path)}'")
        if isinstance(self.split, Fractions):
            drawn = self.split.validation + self.split.test
            if drawn >= 1:
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
        if key in _OFF and value.lower() in ("no", "false"):
            return False
        return value
    if key not in _COLUMNS:
        return value
    if isinstance(value, list):
        return [_setting(key, column) for column in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        # YAML reads a column that is named 1 as a number.
        return str(value)
    return value


def name_of_file(text: str) -> str:
    """Return the name of a task that has that of its file: of its letters, digits, marks of these and ``-_.``."""
    composed = unicodedata.normalize("NFC", text)
    plain = "".join(map(_plain_sign, composed))[:_MAX_CHARACTERS]
    name = shortened_name(plain.strip(".") or "task", _MAX_STEM_BYTES)
    if is_safe_name(name):
        return name
    # Some systems keep names such as `con` for themselves.
    return safe_name(f"task-{name}")


def _plain_sign(sign: str) -> str:
    is_mark = unicodedata.category(sign).startswith("M")
    if sign.isalnum() or sign in "-_." or is_mark:
        return sign
    return "-"


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
    if path.lower().endswith(_TASK_FILE_SUFFIXES) or is_table(path):
        return True
    return is_remote(path) or "/" in path or _is_there(path)


def split_task_name(name: str) -> tuple[str | None, str, str]:
    """Return the task's name if one is given, the path, and the options of ``[name=]path[:key=value,...]``."""
    # A file of this name is meant, whatever signs are in it.
    if _is_there(name):
        return None, name, ""
    file_name, _, last_part = name.rpartition(":")
    if _is_there(file_name) and "=" in last_part:
        return None, file_name, last_part
    task_name: str | None
    task_name, _, path = name.partition("=")
    if not task_name or not path or set(task_name) & set("/:."):
        # The sign is one of the path or of its options.
        task_name = None
        path = name
    # The colon after the scheme of an address begins no options.
    options_from = 0
    if "://" in path:
        options_from = path.find("://") + 3
    colon = path.find(":", options_from)
    if colon < 0 or "=" not in path[colon:]:
        return task_name, path, ""
    return task_name, path[:colon], path[colon + 1 :]


def _is_no_path(path: str) -> bool:
    parts = Path(path).parts
    return "\0" in path or any(len(part.encode(errors="replace")) > _MOST_BYTES for part in parts)


def _is_there(path: str) -> bool:
    try:
        return bool(path) and not is_remote(path) and expanded(path).exists()
    except (OSError, RuntimeError):
        # The text is no path, for one because it is too long.
        return False


def read_settings(name: str) -> list[TaskSettings]:
    """Return the settings of each task of a table or a task file.

    Args:
        name: ``[NAME=]PATH[:KEY=VALUE,...]``, with the keys of `TaskSettings`.

    Raises:
        ConfigError: If a setting is wrong.
        DataError: If the file cannot be read.
    """
    task_name, path, options = split_task_name(name)
    if path.lower().endswith(_TASK_FILE_SUFFIXES):
        if options:
            raise ConfigError(f"{path}: options must be written in the task file; given {options}")
        return _read_task_file(expanded(path), task_name)
    settings: dict[str, Any] = {"path": path, **_options(name, options)}
    if task_name is not None:
        settings["name"] = task_name
    return [validate(TaskSettings, Document(settings, source=name))]


def _written_name(settings: TaskSettings) -> str | None:
    """Return the name of a table's task as `read_settings` reads it; None where a name cannot say all of it."""
    if not isinstance(settings.path, str):
        return None
    if not is_table(settings.path) and not is_remote(settings.path):
        return None
    changed = settings.model_dump(exclude={"path", "name"}, exclude_defaults=True)
    options = []
    for key, setting in changed.items():
        text = _written_option(setting)
        if text is None:
            return None
        options.append(f"{key}={text}")
    name = f"{settings.path}:{','.join(options)}"
    if settings.name is None:
        return name
    return f"{settings.name}={name}"


def how_to(settings: TaskSettings, key: str, value: str | bool) -> str:
    """Return how a user sets one more setting of a table's task: what is typed, or in words."""
    name = _written_name(settings.model_copy(update={key: value}))
    if name is not None:
        return f"--task {shlex.quote(name)}"
    of_python = repr(value)
    of_yaml = json.dumps(value, ensure_ascii=False)
    return f"'{key}: {of_yaml}' in a task file, or {key}={of_python} of raysent.Task,"


def _written_option(setting: Any) -> str | None:
    """Return a setting as an option of a name; None where an option cannot say it."""
    if setting is True:
        return "yes"
    if setting is False:
        return "no"
    if isinstance(setting, list):
        setting = "+".join(map(str, setting))
    if not isinstance(setting, str | int):
        return None
    text = str(setting)
    # These two signs divide options.
    if set(text) & set(",=") or not text.isprintable():
        return None
    return text


_OPTION_NAMES = tuple(name for name in TaskSettings.model_fields if name != "path")


def _options(name: str, options: str) -> dict[str, Any]:
    """Return ``key=value,key=value`` as settings; a value with ``+`` names several columns."""
    settings: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, equals, text = option.partition("=")
        if not equals or key not in _OPTION_NAMES:
            raise ConfigError(
                f"{name}: {key}: unknown setting of a task{did_you_mean(key, _OPTION_NAMES)}"
            )
        settings[key] = _option_setting(key, text)
    return settings


def _option_setting(key: str, text: str) -> Any:
    """Return an option's text as what the setting holds: a number, a list, or the text."""
    if key in ("folds", "seed") and text.isdecimal():
        return int(text)
    if key == "range":
        # What is no number is refused with the other settings, where the error names the key.
        with suppress(ValueError):
            return [float(end) for end in text.split("+")]
    if key in ("text", "label") and "+" in text:
        return text.split("+")
    return text


def _read_task_file(path: Path, task_name: str | None) -> list[TaskSettings]:
    document = read_yaml(path)
    tasks = document.get("tasks")
    if tasks is None:
        settings = {"name": _stem_of(path), **document.get()}
        if task_name:
            settings["name"] = task_name
        return [_from_document(replace(document, values=settings), path.parent)]
    if set(document.get()) != {"tasks"} or not isinstance(tasks, dict):
        raise ConfigError(f"{path}: tasks: must be the only key, with a mapping of names to tasks")
    all_settings = []
    for name, settings in tasks.items():
        if not isinstance(settings, dict):
            raise document.error(("tasks", name), "must be a mapping with path, text and label")
        # The lines of this task's keys, so that errors of its settings name theirs.
        lines = {
            key[2:]: line for key, line in document.lines.items() if key[:2] == ("tasks", name)
        }
        of_task = Document({"name": name, **settings}, str(path), lines)
        all_settings.append(_from_document(of_task, path.parent))
    return all_settings


def _stem_of(path: Path) -> str:
    """Return the name of a task file without its end, or what of it may name files."""
    if len(path.stem) <= _MAX_CHARACTERS and is_safe_name(path.stem):
        return path.stem
    return name_of_file(path.stem)


def _from_document(document: Document, folder: Path) -> TaskSettings:
    """Return the settings that a document holds; paths are relative to the folder of its file."""
    paths = document.get("path", default=document.get("files"))
    if paths is None:
        raise document.error(("path",), "must name a table; given nothing")
    if isinstance(paths, dict):
        paths = {part: _located(path, folder) for part, path in paths.items()}
    else:
        paths = _located(str(paths), folder)
    settings = {key: setting for key, setting in document.get().items() if key != "files"}
    settings["path"] = paths
    return validate(TaskSettings, replace(document, values=settings))


def _located(path: Any, folder: Path) -> Any:
    """Return a path of a folder's file as one of this process; what is no path is left to the check of settings."""
    if not isinstance(path, str) or is_remote(path):
        return path
    return str(folder / expanded(path))
