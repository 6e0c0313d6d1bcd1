"""Passages of text -> what a function makes of them, in order, by as many processes as pay."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TypeVar

from raysent.corpus.config import CorpusConfig
from raysent.corpus.documents import Passage, passages
from raysent.corpus.sources import Source
from raysent.processes import choose_num_processes, mapped

Result = TypeVar("Result")

# Passages are handed over in groups of at least so many characters: a file may be a line long.
_GROUP_CHARACTERS = 1 << 19
# So many are read in a second or two.
_NUM_FIRST_GROUPS = 8
# A process with its libraries, the distinct words of a large text and the passages at hand.
_PROCESS_BYTES = 600 << 20


def in_processes(
    function: Callable[[Sequence[Passage]], Result], sources: Sequence[Source], config: CorpusConfig
) -> Generator[Result]:
    """Yield what a function makes of the passages of all sources, in order.

    Where the number is left to the machine, this process reads what takes less time than to start others.

    Raises:
        DataError: If the text cannot be read.
    """
    reading = {"format": config.format, "text_field": config.text_field}
    groups = _grouped(passage for source in sources for passage in passages(source, **reading))
    if config.num_processes is None:
        yield from map(function, islice(groups, _NUM_FIRST_GROUPS))
        first = list(islice(groups, 1))
        if not first:
            return
        groups = chain(first, groups)
    num_processes = choose_num_processes(config.num_processes, bytes_each=_PROCESS_BYTES)
    with closing(mapped(function, groups, num_processes=num_processes)) as results:
        yield from results


def _grouped(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Yield passages in groups of about equal size."""
    group: list[Passage] = []
    num_characters = 0
    for passage in passages:
        group.append(passage)
        num_characters += len(passage.text)
        if num_characters >= _GROUP_CHARACTERS:
            yield group
            group, num_characters = [], 0
    if group:
        yield group
