"""The exception tree. A user's mistake raises a `RaysentError`: one line, exit code 2, no data lost.

    RaysentError
    ├── ConfigError      a search space, an override or an option
    ├── DataError        a corpus, word vectors, a task's files
    ├── ArtifactError    a file that one command writes and another reads
    ├── TrainingError    a run that cannot continue
    ├── BudgetError      the budget is spent
    ├── WorkerError      a process that died before its work was done
    ├── CompilerError    the machine's C++ compiler
    └── CloudError       a cloud or a cluster that refuses or does not answer

Any other exception is a bug in raysent and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum

from raysent.redaction import without_secrets

# Of a value or a name in a message.
_SHOWN_CHARACTERS = 100
# Of names that may have been meant: a registry has tens, a table may have thousands.
_MOST_KNOWN = 60
_COMPARED_CHARACTERS = 200


class ExitCode(IntEnum):
    """How a command ended.

    Attributes:
        meaning: In words, for help and docs.
    """

    meaning: str

    DONE = 0, "done"
    CHECK_FAILED = 1, "a check found a fault, or a bug with its traceback"
    MISTAKE = 2, "a mistake in usage, input or machine: one line says what to fix"
    NOTHING_TRAINED = 4, "nothing was trained"
    INCOMPLETE = 5, "some trials failed, or a limit left files to encode"
    INTERRUPTED = 130, "interrupted by Ctrl-C, SIGTERM or a closed terminal"

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Return a member with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    @classmethod
    def sentence(cls) -> str:
        """Return all codes as one sentence."""
        return f"Exit codes: {'; '.join(f'{code.value} {code.meaning}' for code in cls)}."


class RaysentError(Exception):
    """An error that the user can fix.

    The text is one line: path to the value - what must hold - what was given - nearest fix. It has no secrets of
    addresses, whatever was given.
    """

    def __str__(self) -> str:
        """Return the line."""
        return without_secrets(super().__str__())


class ConfigError(RaysentError):
    """A search space, an override or an option is wrong."""


class DataError(RaysentError):
    """A corpus, a file of word vectors or a task's file is missing or wrong."""


class ArtifactError(RaysentError):
    """A file that raysent wrote is missing, truncated or of another kind, or a file cannot be written."""


class TrainingError(RaysentError):
    """A run cannot continue, although its configuration is valid."""


class BudgetError(RaysentError):
    """The budget is spent."""


class WorkerError(RaysentError):
    """A process that did part of the work died."""


class CompilerError(RaysentError):
    """The machine has no C++ compiler, or the compiler cannot build a kernel."""


class CloudError(RaysentError):
    """A cloud or a cluster refuses a request, or does not answer."""


def shown(value: object) -> str:
    """Return a value for a message, on one line and short: a cell or a name may be a whole file."""
    text = " ".join(str(value)[: 4 * _SHOWN_CHARACTERS].split())
    if len(text) <= _SHOWN_CHARACTERS and len(str(value)) <= 4 * _SHOWN_CHARACTERS:
        return text
    return f"{text[: _SHOWN_CHARACTERS - 1]}…"


def listed(names: Iterable[object], *, most: int = 20) -> str:
    """Return names for a message, between commas: the first ones, each of them short.

    Args:
        names: The names.
        most: How many are shown.
    """
    texts = [shown(name) for name in names]
    others = [f"… ({len(texts):,} in all)"] if len(texts) > most else []
    return ", ".join([*texts[:most], *others])


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or a list of known names.

    Args:
        given: The name as the user wrote it.
        known: The valid names.
    """
    names = sorted(known)
    nearest = get_close_matches(given[:_COMPARED_CHARACTERS], names, n=1)
    if nearest:
        return f"; did you mean '{shown(nearest[0])}'?"
    return f"; known: {listed(names, most=_MOST_KNOWN)}" if names else ""
