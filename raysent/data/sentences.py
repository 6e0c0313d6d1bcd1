"""Running text -> sentences.

`sentencex` splits running text, by the rules of its language. In English, quotation marks are hidden from it, since it
would keep a whole speech as one sentence; where it then separates a speech from its speaker (``"Who's there?" | cried
John``), the two are joined again.
"""

from __future__ import annotations

import re
from importlib.metadata import version

import sentencex

from raysent.kernels.text import compiled_sentences, has_compiled_text

# Part of every cache key: must change whenever the same text gives different sentences.
SPLITTING_VERSION = f"4-sentencex-{version('sentencex')}"

PARAGRAPH_BREAK = "\n\n"

# Every replacement keeps the length, so that sentences can be sliced from the original. An apostrophe inside a word is
# kept: "wasn t." would look like an initial. And "me." is not an abbreviation, though the splitter treats it as one.
_HIDDEN = (
    *((mark, " ") for mark in '"“”‘'),
    *((end + quote, end + " ") for end in ".!?,;:-—" for quote in "'’"),
    *((start + "'", start + " ") for start in " \n-—"),
    (" me.", " it."),
)
# The splitter fails on such a space: "plan B\u00a0."
_UNREADABLE = re.compile(r"(?<=[A-Z])(\s*)[^\S\x00-\x7f](?=\.)")
_OPENERS = frozenset("\"'“‘([`")
_OPENING = re.compile(r"\s(?:[\"'“‘(\[]|``)+$")
# After any of these, a lowercase letter continues the sentence.
_OPEN_ENDS = (*"!?\"'”’)]—–-…", "..")
_CONTINUATION = re.compile(r"[-—–,;:\s]*[a-z]")
_NO_WORD = re.compile(r"\W+$")
# For shorter text the compiled kernel is not worth its start.
_MIN_COMPILED = 1 << 14


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of a text in order; only white space at their ends is lost.

    Args:
        text: One paragraph, or several separated by `PARAGRAPH_BREAK` (one call for many paragraphs is faster).
        language: Code of ISO 639, such as ``de``; English has rules of its own, the others are `sentencex`'s.
    """
    if language != "en":
        pieces = sentencex.segment(language, _UNREADABLE.sub(r"\1 ", text))
        return [piece for piece in map(str.strip, pieces) if piece]
    if len(text) >= _MIN_COMPILED and has_compiled_text():
        sentences = compiled_sentences(text, _segment)
        if sentences is not None:
            return sentences
    return _split_plainly(text)


def _segment(text: str) -> list[str]:
    pieces: list[str] = sentencex.segment("en", text)
    return pieces


def _split_plainly(text: str) -> list[str]:
    hidden = " " + text[1:] if text.startswith("'") else text
    for mark, stand_in in _HIDDEN:
        hidden = hidden.replace(mark, stand_in)
    if not hidden.isascii():
        hidden = _UNREADABLE.sub(r"\1 ", hidden)
    sentences: list[str] = []
    start = 0
    end = 0
    first = True  # whether the next sentence is the first of its paragraph
    for piece in _segment(hidden):
        # The splitter drops some paragraph breaks, so search for each piece instead of adding up lengths.
        position = hidden.find(piece, end)
        if position < 0:
            continue
        if PARAGRAPH_BREAK in hidden[end:position]:
            first = True
        end = position + len(piece)
        sentence = text[start:end].rstrip()
        if sentence[-1:] in _OPENERS and text[end : end + 1] not in ("", "\n"):
            # The splitter put the opening quotation mark of the next sentence at the end of this one.
            opening = _OPENING.search(sentence)
            if opening:
                sentence = sentence[: opening.start()]
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
    last_sentence = text[start:].strip()
    return [*sentences, last_sentence] if last_sentence else sentences


def _belongs(before: str, piece: str) -> bool:
    return bool(
        _NO_WORD.match(piece) or (_CONTINUATION.match(piece) and before.endswith(_OPEN_ENDS))
    )
