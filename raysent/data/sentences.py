"""Running text -> its language -> sentences.

`sentencex` splits running text, by the rules of its language. In English, quotation marks are hidden from it, since it
would keep a whole speech as one sentence; where it then separates a speech from its speaker (``"Who's there?" | cried
John``), the two are joined again.

The language is found by its script, by English function words, or by `py3langid`, which is loaded for text in neither
English nor a script that says the language; it needs no download.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

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


# Languages that write no blanks between words.
WITHOUT_BLANKS = frozenset({"bo", "ja", "km", "lo", "my", "th", "zh"})
_READ = 600  # characters of a text that are looked at
_FEWEST_LETTERS = 40  # of a text that the library classifies
_SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "zh": re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]"),
    "ko": re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "th": re.compile(r"[\u0e01-\u0e4e]"),
}
# Of these languages.
_UNSPACED = re.compile(r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_NUM_SAMPLED = 100  # texts of which a language is found
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[a-z]+")
# Words of English that other languages in Latin letters do not have, and their least share of a text in English.
_ENGLISH = re.compile(r"and|are|but|for|from|have|her|his|it|my|not|of|she|that|the|they|this|to|was|we|were|with|you")
_LEAST_ENGLISH = 0.12


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
        found = compiled_sentences(text, _segment)
        if found is not None:
            return found
    return _split_plainly(text)


def _segment(text: str) -> list[str]:
    pieces: list[str] = sentencex.segment("en", text)
    return pieces


def _split_plainly(text: str) -> list[str]:
    """Return what `split_sentences` returns, without a compiler."""
    hidden = " " + text[1:] if text.startswith("'") else text
    for mark, stand_in in _HIDDEN:
        hidden = hidden.replace(mark, stand_in)
    if not hidden.isascii():
        hidden = _UNREADABLE.sub(r"\1 ", hidden)
    sentences: list[str] = []
    start = end = 0
    first = True  # whether the next sentence is the first of its paragraph
    for piece in _segment(hidden):
        # The splitter drops some paragraph breaks, so search for each piece instead of adding up lengths.
        found = hidden.find(piece, end)
        if found < 0:
            continue
        if PARAGRAPH_BREAK in hidden[end:found]:
            first = True
        end = found + len(piece)
        sentence = text[start:end].rstrip()
        if sentence[-1:] in _OPENERS and text[end : end + 1] not in ("", "\n"):
            # The splitter put the opening quotation mark of the next sentence at the end of this one.
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
    return bool(_NO_WORD.match(piece) or (_CONTINUATION.match(piece) and before.endswith(_OPEN_ENDS)))


class TextLanguage(NamedTuple):
    """The language of a text: of all of it, or of most of its documents.

    Attributes:
        code: Its code of ISO 639.
        is_given: Whether all documents are in it; otherwise that of each is looked for.
    """

    code: str = "en"
    is_given: bool = False

    def split(self, text: str) -> list[str]:
        """Return the sentences of a document or a part of one."""
        return split_sentences(text, self.code if self.is_given else find_language(text, default=self.code))


def find_language(text: str, *, default: str) -> str:
    """Return the code of the language of a text, from its middle; the default where too few letters say which."""
    first = max(0, (len(text) - _READ) // 2)
    text = text[first : first + _READ]
    num_letters = len(_LETTER.findall(text))
    counts = {code: len(letters.findall(text)) for code, letters in _SCRIPTS.items()}
    if sum(counts.values()) > num_letters / 2:
        if counts["ja"] + counts["zh"] > counts["ko"] + counts["th"]:
            is_japanese = 10 * counts["ja"] > counts["zh"] or (default == "ja" and num_letters < _FEWEST_LETTERS)
            return "ja" if is_japanese else "zh"
        return max("ko", "th", key=lambda code: counts[code])
    words = _WORD.findall(text.lower())
    if sum(_ENGLISH.fullmatch(word) is not None for word in words) > _LEAST_ENGLISH * len(words):
        return "en"
    return str(import_module("py3langid").classify(text)[0]) if num_letters >= _FEWEST_LETTERS else default


def main_language(texts: Iterable[str], *, default: str = "en") -> str:
    """Return the language of most parts of texts."""
    text = "\n".join(texts)
    parts = [text[first : first + _READ] for first in range(0, len(text), _READ)]
    found = Counter(find_language(part, default=default) for part in parts)
    return max(found, key=lambda code: (found[code], code)) if found else default


def unspaced_language(texts: Sequence[str]) -> str | None:
    """Return the language of most of a sample of texts if it writes no blanks between words, else None."""
    sample = [text[:_READ] for text in texts[:: max(1, len(texts) // _NUM_SAMPLED)]]
    joined = " ".join(sample)
    if 2 * len(_UNSPACED.findall(joined)) <= len(_LETTER.findall(joined)):
        return None
    found = main_language(sample)
    return found if found in WITHOUT_BLANKS else None
