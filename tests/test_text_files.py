"""Lines of files that are read in blocks: the same in blocks of any size, and a long one is joined once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysent.data import text_files
from raysent.data.corpus import sources
from raysent.data.corpus.sources import Source
from raysent.data.text_files import complete_lines, iterate_lines, lines_of
from raysent.errors import DataError

NUM_BLOCKS = 200


def _by_joining(texts: list[str], *, splits_lines: bool) -> list[str]:
    """Return what `complete_lines` does by joining what is unfinished to each text, which takes its square in time."""
    found, rest = [], ""
    for text in texts:
        joined = rest + text
        cut = joined.rfind("\n") + 1 or (joined.rfind(" ") + 1 if splits_lines else 0)
        rest = joined[cut:]
        found += [joined[:cut]] if cut else []
    return [*found, rest] if rest else found


@given(st.lists(st.text("a \n", max_size=6), max_size=8), st.booleans())
def test_texts_are_cut_where_they_were_when_all_was_joined(texts, splits_lines):
    """At the last line feed, else at the last blank, if lines may be split."""
    made = list(complete_lines(texts, splits_lines=splits_lines))
    assert made == _by_joining(texts, splits_lines=splits_lines)
    assert "".join(made) == "".join(texts)


@given(st.text("ab \r\n"))
def test_lines_are_those_of_a_split_at_line_feeds(text):
    """Carriage returns before them are left out."""
    lines = [line for complete in complete_lines([text]) for line in lines_of(complete)]
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    assert lines == (expected[:-1] if text.endswith("\n") or not text else expected)


class _Block(str):
    """A text that counts the characters before it that are copied when it is joined to them by ``+``."""

    num_copied = 0

    def __radd__(self, before: str) -> _Block:
        _Block.num_copied += len(before)
        return _Block(str(before) + str(self))


@pytest.mark.parametrize("reads", ["lines", "JSON lines", "a text"])
def test_a_line_of_many_blocks_is_not_copied_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """A small compressed file can hold one of gigabytes."""

    def blocks(*_: object, **__: object) -> Iterator[str]:
        yield _Block("begins\n")
        yield from (_Block("a" * 100) for _ in range(NUM_BLOCKS))
        yield _Block("\nends")

    _Block.num_copied = 0
    monkeypatch.setattr(text_files, "text_blocks", blocks)
    monkeypatch.setattr(sources, "text_blocks", blocks)
    path = tmp_path / ("a.jsonl" if reads == "JSON lines" else "a.txt")
    path.touch()
    if reads == "lines":
        lines = list(iterate_lines(str(path)))
    else:
        lines = [line for block in Source(str(path)).blocks() for line in block]
    assert lines == ["begins", "a" * 100 * NUM_BLOCKS, "ends"]
    assert _Block.num_copied <= 100 * NUM_BLOCKS


def test_name_with_a_nul_character_is_refused_in_a_line():
    """The system's own error is a traceback."""
    with pytest.raises(DataError, match="must be the name of a file; given a NUL character"):
        list(iterate_lines("a\0b.csv"))
