"""The exception tree. A user's mistake is a `RaysentError`: one line, exit code 2, nothing lost.

    RaysentError
    ├── ConfigError      a search space, an override or an option
    ├── DataError        a corpus, word vectors, a task's files
    ├── ArtifactError    a file that one command wrote and another reads
    ├── TrainingError    a run that cannot go on
    ├── BudgetError      the money for something is gone
    ├── CompilerError    the machine's compiler, where a compiled kernel was asked for
    └── CloudError       a cloud or a cluster that refuses or does not answer

Anything else that is raised is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RaysentError(Exception):
    """A mistake that the user can mend.

    The text is one line: path to the value - what must hold - what was given - nearest fix.
    """


class ConfigError(RaysentError):
    """A search space, an override or an option is wrong."""


class DataError(RaysentError):
    """A corpus, a file of word vectors or a task's file is missing or wrong."""


class ArtifactError(RaysentError):
    """A file of ours is missing, truncated or of another kind, or cannot be written."""


class TrainingError(RaysentError):
    """A run cannot go on, through no fault in its configuration's form."""


class BudgetError(RaysentError):
    """The money for something is gone."""


class CompilerError(RaysentError):
    """The machine has no C++ compiler, or it cannot build one of our kernels."""


class CloudError(RaysentError):
    """A cloud or a cluster refuses what it is asked, or does not answer."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or what is known.

    Args:
        given: The name as the user wrote it.
        known: The names that would have been right.
    """
    names = sorted(known)
    nearest = get_close_matches(given, names, n=1)
    if nearest:
        return f"; did you mean '{nearest[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
