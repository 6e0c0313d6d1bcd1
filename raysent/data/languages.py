"""Which language a text is in, by its script, by English function words, or by `py3langid`.

The library is loaded for text in neither English nor a script that says the language; it needs no download.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NamedTuple

from raysent.data.sentences import split_sentences
from raysent.storage import storage_errors

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
_ENGLISH = re.compile(
    r"and|are|but|for|from|have|her|his|it|my|not|of|she|that|the|they|this|to|was|we|were|with|you"
)
_LEAST_ENGLISH = 0.12

# Codes of ISO 639 -> names, of languages that are often met.
_NAMES = {
    "ar": "Arabic",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "pt": "Portuguese",
    "ru": "Russian",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


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
        code = self.code
        if not self.is_given:
            code = find_language(text, default=self.code)
        return split_sentences(text, code)


def find_language(text: str, *, default: str) -> str:
    """Return the code of the language of a text, from its middle; the default where too few letters say which."""
    first = max(0, (len(text) - _READ) // 2)
    text = text[first : first + _READ]
    num_letters = len(_LETTER.findall(text))
    counts = {code: len(letters.findall(text)) for code, letters in _SCRIPTS.items()}
    if sum(counts.values()) > num_letters / 2:
        if counts["ja"] + counts["zh"] > counts["ko"] + counts["th"]:
            is_japanese = 10 * counts["ja"] > counts["zh"] or (
                default == "ja" and num_letters < _FEWEST_LETTERS
            )
            return "ja" if is_japanese else "zh"
        return max("ko", "th", key=lambda code: counts[code])
    words = _WORD.findall(text.lower())
    if sum(_ENGLISH.fullmatch(word) is not None for word in words) > _LEAST_ENGLISH * len(words):
        return "en"
    if num_letters < _FEWEST_LETTERS:
        return default
    return _classified(text)


def _classified(text: str) -> str:
    """Return the code that the library finds.

    Raises:
        ArtifactError: If the folder of temporary files is full, where the library unpacks its model.
    """
    with storage_errors(tempfile.gettempdir()):
        return str(import_module("py3langid").classify(text)[0])


def main_language(texts: Iterable[str]) -> str:
    """Return the language of most parts of texts."""
    text = "\n".join(texts)
    parts = [text[first : first + _READ] for first in range(0, len(text), _READ)]
    counts = Counter(find_language(part, default="en") for part in parts)
    if not counts:
        return "en"
    return max(counts, key=lambda code: (counts[code], code))


def language_name(code: str) -> str:
    """Return the English name of a language by its code, where it is one of the frequent ones."""
    return _NAMES.get(code, f"the language '{code}'")


def language_of_texts(texts: Sequence[str]) -> str:
    """Return the code of the language of most of a sample of texts, which may be short."""
    sample = texts[:: max(1, len(texts) // _NUM_SAMPLED)]
    return main_language(text[:_READ] for text in sample)


def unspaced_language(texts: Sequence[str]) -> str | None:
    """Return the language of most of a sample of texts if it writes no blanks between words, else None."""
    sample = [text[:_READ] for text in texts[:: max(1, len(texts) // _NUM_SAMPLED)]]
    joined = " ".join(sample)
    if 2 * len(_UNSPACED.findall(joined)) <= len(_LETTER.findall(joined)):
        return None
    language = main_language(sample)
    return language if language in WITHOUT_BLANKS else None
