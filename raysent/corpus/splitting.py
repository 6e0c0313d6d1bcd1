"""Running text -> sentences, by the rules of `sentencex`.

Quotation marks are hidden from the splitter, which would keep a whole speech as one sentence, and what it then
parts from its speaker (``"Who's there?" | cried John``) is joined again.
"""

from __future__ import annotations

import re
from importlib.metadata import version

import sentencex

# Changes whenever the same text may give other sentences: it is part of every cache key.
SPLITTING_VERSION = f"1-sentencex-{version('sentencex')}"

# An apostrophe inside a word stays: "wasn t." would read as an initial.
_QUOTES = re.compile(r"[\"“”‘]|(?<!\w)['’]|['’](?!\w)")
# The splitter reads "me." as an abbreviation, which in a novel it never is.
_NOT_ABBREVIATED = re.compile(r"\bme\.")
_OPENING = re.compile(r"\s(?:[\"'“‘(\[]|``)+$")
# After any of these, a lower-case letter goes on with the sentence.
_OPEN_END = re.compile(r"(?:[!?\"'”’)\]—–-]|\.\.|…)$")
_GOES_ON = re.compile(r"[-—–,;:\s]*[a-z]")
_NO_WORD = re.compile(r"\W+$")


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph in order; nothing but white space at their ends is lost."""
    sentences: list[str] = []
    start = end = 0
    hidden = _NOT_ABBREVIATED.sub("it.", _QUOTES.sub(" ", paragraph))  # Same length: pieces are cut from the original.
    for piece in sentencex.segment("en", hidden):
        end += len(piece)
        sentence = paragraph[start:end]
        opening = _OPENING.search(sentence) if end < len(paragraph) else None
        if opening:  # A mark that opens the next sentence was taken for the end of this one.
            sentence = sentence[: opening.start() + 1]
        start += len(sentence)
        sentence = sentence.strip()
        if sentences and _belongs(sentences[-1], sentence):
            sentences[-1] = f"{sentences[-1]} {sentence}"
        elif sentence:
            sentences.append(sentence)
    return sentences


def _belongs(before: str, piece: str) -> bool:
    """Whether a piece goes on with the sentence before it."""
    return bool(_NO_WORD.match(piece) or (_OPEN_END.search(before) and _GOES_ON.match(piece)))
