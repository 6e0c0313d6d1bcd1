"""Running text -> sentences, by the rules of `sentencex`.

Quotation marks are hidden from the splitter, which would keep a whole speech as one sentence, and what it then
parts from its speaker (``"Who's there?" | cried John``) is joined again.

Files -> sentences in document order. In: sources and their format. Out: pieces of documents, in bounded memory.

A file is first cut into passages, in order; what a passage holds can then be read by any process.

How `auto` reads a plain file, from its first 1,000 lines with text:

1. hard-wrapped text (``text``, lines joined up to a blank line): at least half of the lines lie within a fifth of
   the long ones' length, and most do not end in closing punctuation;
2. one paragraph a line (``text``): a line holds more than 1.2 sentences on average;
3. one sentence a line (``sentences``): everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import sentencex

from raysent.data.corpus.sources import Source
from raysent.errors import DataError

# Changes whenever the same text may give other sentences: it is part of every cache key.
SPLITTING_VERSION = f"3-sentencex-{version('sentencex')}"

PARAGRAPH_BREAK = "\n\n"

# Every replacement keeps the length, so that pieces can be cut from the original. An apostrophe inside a word stays:
# "wasn t." would read as an initial. And "me." is no abbreviation here, though the splitter takes it for one.
_HIDDEN = (
    *((mark, " ") for mark in '"“”‘'),
    *((end + quote, end + " ") for end in ".!?,;:-—" for quote in "'’"),
    *((start + "'", start + " ") for start in " \n-—"),
    (" me.", " it."),
)
_OPENERS = frozenset("\"'“‘([`")
_OPENING = re.compile(r"\s(?:[\"'“‘(\[]|``)+$")
# After any of these, a lower-case letter goes on with the sentence.
_OPEN_ENDS = (*"!?\"'”’)]—–-…", "..")
_GOES_ON = re.compile(r"[-—–,;:\s]*[a-z]")
_NO_WORD = re.compile(r"\W+$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text in order; nothing but white space at their ends is lost.

    Args:
        text: One paragraph, or several with `PARAGRAPH_BREAK` between them (many at once take less time).
    """
    hidden = " " + text[1:] if text.startswith("'") else text
    for mark, stand_in in _HIDDEN:
        hidden = hidden.replace(mark, stand_in)
    sentences: list[str] = []
    start = end = 0
    first = True  # Whether the next sentence is the first of its paragraph.
    for piece in sentencex.segment("en", hidden):
        # The splitter drops some paragraph breaks, so each piece is looked for rather than counted off.
        found = hidden.find(piece, end)
        if found < 0:
            continue
        if PARAGRAPH_BREAK in hidden[end:found]:
            first = True
        end = found + len(piece)
        sentence = text[start:end].rstrip()
        if sentence[-1:] in _OPENERS and text[end : end + 1] not in ("", "\n"):
            # A mark that opens the next sentence was taken for the end of this one.
            opening = _OPENING.search(sentence)
            sentence = sentence[: opening.start()] if opening else sentence
            start += len(sentence)
        else:
            start = end
        sentence = sentence.lstrip()
        if not sentence:
            first = first or PARAGRAPH_BREAK in piece
        elif not first and not sentence[0].isupper() and _belongs(sentences[-1], sentence):
            sentences[-1] = f"{sentences[-1]} {sentence}"
        else:
            sentences.append(sentence)
            first = PARAGRAPH_BREAK in piece
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def _belongs(before: str, piece: str) -> bool:
    """Whether a piece goes on with the sentence before it."""
    return bool(_NO_WORD.match(piece) or (_GOES_ON.match(piece) and before.endswith(_OPEN_ENDS)))


Layout = Literal["sentences", "paragraphs", "wrapped"]

_NUM_SAMPLE_LINES = 1_000
_CLOSED = re.compile(r"[.!?:;][\"'”’)\]]*$|''$")
# A paragraph of wrapped lines that never sees a blank line is cut here, so that memory stays bounded.
_MAX_PARAGRAPH_LINES = 10_000


class Passage(NamedTuple):
    """A stretch of a file that holds whole sentences, so that it can be read without what is around it.

    Attributes:
        kind: How it is read: a name in `_READERS`.
        text: One sentence, one paragraph or one JSON object a line.
        ends_document: Whether the file ends with it.
        where: The file and the number of the first line, for messages.
        text_field: Name of the running text in a JSON object.
    """

    kind: str
    text: str
    ends_document: bool
    where: tuple[str, int] = ("", 1)
    text_field: str = ""


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
    return chain.from_iterable(map(read_passage, passages(source, format=format, text_field=text_field)))


def passages(source: Source, *, format: str, text_field: str) -> Iterator[Passage]:
    """Yield a file in passages of about a megabyte: what must be done in order, and takes little time.

    Args and errors are those of `read_documents`.
    """
    blocks = source.blocks()
    if source.is_json:
        number = 1
        for lines in blocks:
            yield Passage("json", "\n".join(lines), False, (source.path, number), text_field)
            number += len(lines)
        return
    first = next(blocks, [])
    layout = _layout(first, format)
    blocks = chain([first], blocks)
    if layout == "sentences":
        yield from (Passage("sentences", "\n".join(lines), ends_document=False) for lines in blocks)
        yield Passage("sentences", "", ends_document=True)
    else:
        yield from _text_passages(blocks, wrapped=layout == "wrapped")


def read_passage(passage: Passage) -> Iterator[Piece]:
    """Yield the pieces of a passage: what takes time, and may be done anywhere.

    Raises:
        DataError: If a line is not what its format asks for.
    """
    return _READERS[passage.kind](passage)


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


def _text_passages(blocks: Iterable[list[str]], *, wrapped: bool) -> Iterator[Passage]:
    """Yield the paragraphs of a file, which is one document."""
    waiting: list[str] = []  # Wrapped lines of a paragraph whose end has not come yet.
    for lines in blocks:
        paragraphs = [line.strip() for line in lines]
        if wrapped:
            paragraphs, waiting = _join_wrapped(waiting + paragraphs)
        yield Passage("paragraphs", PARAGRAPH_BREAK.join(filter(None, paragraphs)), ends_document=False)
    yield Passage("paragraphs", " ".join(waiting), ends_document=True)


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


def _read_paragraphs(passage: Passage) -> Iterator[Piece]:
    """Yield the sentences of paragraphs."""
    yield Piece(split_sentences(passage.text), passage.ends_document)


def _read_sentence_lines(passage: Passage) -> Iterator[Piece]:
    """Yield one sentence a line; a blank line ends a document."""
    lines = [line.strip() for line in passage.text.split("\n")]
    start = 0
    for index, line in enumerate(lines):
        if not line:
            yield Piece(lines[start:index], ends_document=True)
            start = index + 1
    yield Piece(lines[start:], passage.ends_document)


def _read_json_lines(passage: Passage) -> Iterator[Piece]:
    """Yield one document a line of JSON."""
    path, first = passage.where
    for number, line in enumerate(passage.text.split("\n"), start=first):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: must be one JSON object a line; {error}") from None
        yield Piece(_json_sentences(where, value, passage.text_field), ends_document=True)


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


_READERS: dict[str, Callable[[Passage], Iterator[Piece]]] = {
    "json": _read_json_lines,
    "paragraphs": _read_paragraphs,
    "sentences": _read_sentence_lines,
}
