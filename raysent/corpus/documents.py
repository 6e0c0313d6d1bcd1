"""Files -> sentences in document order. In: sources and their format. Out: pieces of documents, in bounded memory.

How `auto` reads a plain file, from its first 1,000 lines with text:

1. hard-wrapped text (``text``, lines joined up to a blank line): at least half of the lines lie within a fifth of
   the long ones' length, and most do not end in closing punctuation;
2. one paragraph a line (``text``): a line holds more than 1.2 sentences on average;
3. one sentence a line (``sentences``): everything else.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from raysent.corpus.sources import Source
from raysent.corpus.splitting import PARAGRAPH_BREAK, split_sentences
from raysent.errors import DataError

Layout = Literal["sentences", "paragraphs", "wrapped"]

_NUM_SAMPLE_LINES = 1_000
_CLOSED = re.compile(r"[.!?:;][\"'”’)\]]*$|''$")
# A paragraph of wrapped lines that never sees a blank line is cut here, so that memory stays bounded.
_MAX_PARAGRAPH_LINES = 10_000


class Piece(NamedTuple):
    """Consecutive sentences of one document, and whether the document ends with them."""

    sentences: list[str]
    ends_document: bool


def read_documents(source: Source, *, format: str, text_field: str) -> Iterator[Piece]:
    """Yield a file's documents in order, piece by piece.

    Args:
        source: The file.
        format: ``auto``, ``sentences`` or ``text``; a ``.jsonl`` file tells by its own names.
        text_field: Name of the running text in a JSON object.

    Raises:
        DataError: If the file cannot be read or a line is not what its format asks for.
    """
    blocks = source.blocks()
    if source.is_json:
        yield from _read_json_lines(source, blocks, text_field)
        return
    first = next(blocks, [])
    layout = _layout(first, format)
    blocks = itertools.chain([first], blocks)
    if layout == "sentences":
        yield from _read_sentence_lines(blocks)
    else:
        yield from _read_text(blocks, wrapped=layout == "wrapped")


def _layout(first: list[str], format: str) -> Layout:
    """Return how the lines are to be read; see the module's head for the rule."""
    if format == "sentences":
        return "sentences"
    lines = [line.strip() for line in first if line.strip()][:_NUM_SAMPLE_LINES]
    if not lines:
        return "sentences"
    if _is_wrapped(lines):
        return "wrapped"
    if format == "text":
        return "paragraphs"
    num_sentences = len(split_sentences(PARAGRAPH_BREAK.join(lines)))
    return "paragraphs" if num_sentences > 1.2 * len(lines) else "sentences"


def _is_wrapped(lines: list[str]) -> bool:
    lengths = np.array([len(line) for line in lines])
    long = np.percentile(lengths, 95)
    full = np.mean(lengths >= 0.8 * long)
    closed = np.mean([bool(_CLOSED.search(line)) for line in lines])
    return bool(len(lines) >= 10 and long <= 120 and full >= 0.5 and closed < 0.5)


def _read_sentence_lines(blocks: Iterable[list[str]]) -> Iterator[Piece]:
    """Yield one sentence a line; a blank line ends a document."""
    for lines in blocks:
        stripped = [line.strip() for line in lines]
        start = 0
        for index, line in enumerate(stripped):
            if not line:
                yield Piece(stripped[start:index], ends_document=True)
                start = index + 1
        yield Piece(stripped[start:], ends_document=False)
    yield Piece([], ends_document=True)


def _read_text(blocks: Iterable[list[str]], *, wrapped: bool) -> Iterator[Piece]:
    """Yield the sentences of a file's paragraphs as one document."""
    waiting: list[str] = []  # Wrapped lines of a paragraph whose end has not come yet.
    for lines in blocks:
        paragraphs = [line.strip() for line in lines]
        if wrapped:
            paragraphs, waiting = _join_wrapped(waiting + paragraphs)
        yield Piece(split_sentences(PARAGRAPH_BREAK.join(filter(None, paragraphs))), ends_document=False)
    yield Piece(split_sentences(" ".join(waiting)), ends_document=True)


def _join_wrapped(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the paragraphs that end among the lines, each as one line, and the lines of the one that does not."""
    paragraphs: list[str] = []
    waiting: list[str] = []
    for line in lines:
        if line and len(waiting) < _MAX_PARAGRAPH_LINES:
            waiting.append(line)
        else:
            paragraphs.append(" ".join(waiting))
            waiting = [line] if line else []
    return paragraphs, waiting


def _read_json_lines(source: Source, blocks: Iterable[list[str]], text_field: str) -> Iterator[Piece]:
    """Yield one document a line of JSON."""
    for number, line in enumerate(itertools.chain.from_iterable(blocks), start=1):
        if not line.strip():
            continue
        where = f"{source.path}:{number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: must be one JSON object a line; {error}") from None
        yield Piece(_json_sentences(where, value, text_field), ends_document=True)


def _json_sentences(where: str, value: Any, text_field: str) -> list[str]:
    """Return the sentences of one JSON object."""
    readers: dict[str, Callable[[Any], list[str]]] = {
        text_field: lambda text: split_sentences(PARAGRAPH_BREAK.join(filter(None, map(str.strip, text.split("\n"))))),
        "sentences": lambda sentences: [_one_line(sentence) for sentence in sentences],
        "paragraphs": lambda paragraphs: [s for paragraph in paragraphs for s in _paragraph_sentences(paragraph)],
    }
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be a JSON object; given {type(value).__name__}")
    name = next((name for name in readers if name in value), None)
    if name is None:
        given = ", ".join(map(str, value)) or "nothing"
        raise DataError(f"{where}: must hold '{text_field}', 'sentences' or 'paragraphs'; given {given}; "
                        "name the field in corpus.text_field")  # fmt: skip
    try:
        return [sentence for sentence in readers[name](value[name]) if sentence]
    except (AttributeError, TypeError):
        kinds = "text" if name == text_field else "a list of texts"
        raise DataError(f"{where}: '{name}' must be {kinds}; given {type(value[name]).__name__}") from None


def _paragraph_sentences(paragraph: Any) -> list[str]:
    if isinstance(paragraph, str):
        return split_sentences(_one_line(paragraph))
    return [_one_line(sentence) for sentence in paragraph]


def _one_line(text: str) -> str:
    return " ".join(text.split())
