"""Usual names of the columns of tables: what is found without being named, and where a line of names is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

# Of a column of text, the most usual first.
TEXT_COLUMNS = (
    "text", "sentence", "content", "body", "review", "comment", "question", "utterance", "message", "document",
)  # fmt: skip
# Of the two columns of pairs.
PAIRS = (
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "stars")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "relatedness")
SPLITS = ("split", "set", "partition")
GROUPS = ("group", "group_id", "document_id", "doc_id")
QUERIES = ("query", "passage")

# Of columns that hold no text to read.
NO_TEXT = frozenset({*LABELS, *SCORES, *SPLITS, *GROUPS})
USUAL = frozenset({*TEXT_COLUMNS, *chain.from_iterable(PAIRS), *NO_TEXT})
_TEXTS = frozenset({*TEXT_COLUMNS, *chain.from_iterable(PAIRS), *QUERIES})


def plain_name(name: str) -> str:
    """Return a column's name as usual names are compared."""
    return name.strip().lower()


def is_usual(names: Sequence[str]) -> bool:
    """Return whether one of some names is usual."""
    return not (USUAL | set(QUERIES)).isdisjoint(map(plain_name, names))


def is_header(cells: Sequence[str], *, is_alone: bool) -> bool:
    """Return whether the cells of a line are the names of columns, and not a row that holds one of these words.

    Args:
        cells: The cells.
        is_alone: Whether one usual name of a text says it; otherwise there must be a second usual name.
    """
    names = [plain_name(cell) for cell in cells]
    while names and not names[-1]:
        names.pop()
    if not all(names) or len(set(names)) < len(names):
        return False
    num_texts = sum(name in _TEXTS for name in names)
    num_others = sum(name in NO_TEXT for name in names)
    is_pair = any(set(pair) <= set(names) for pair in (*PAIRS, QUERIES))
    return is_pair or (num_texts > 0 and (is_alone or num_others > 0))
