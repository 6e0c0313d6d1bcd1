"""Running text -> sentences, by the rules of `sentencex`.

Quotation marks are hidden from the splitter, which would keep a whole speech as one sentence, and what it then
parts from its speaker (``"Who's there?" | cried John``) is joined again.
"""

from __future__ import annotations

import re
from importlib.metadata import version

import sentencex

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
