"""A vocabulary as a `tokenizer.json` of the `tokenizers` library: the same text gives the same ids.

Normalization, the pattern and the table of words are those of `data.vocabulary.tokens`, and the form of Unicode is that
of the vocabulary: one of an earlier version reads text as it is written, and so does its file. Two rules belong to the
reader of the ids: a sentence without a known word is a single unknown word, and rows are truncated after that.

raysent changes a token's case after it matched the pattern, which recognizes `Mr.` and `N'T` by their case; a
`tokenizer.json` changes the text's case before. Periods of abbreviations and apostrophes of `N'T` therefore become
private characters first, in the text as in the words.

Differs: of a lowercase vocabulary, an abbreviation after a number or a period (`1,000Jr.`, `No.ISN'T`), rare sigmas and
combining marks, and texts that hold the private characters themselves may give other ids.

Of a vocabulary of sub-words it is the vocabulary's own tokenizer, truncated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from raysent.data.vocabulary import PAD_ID, UNK_ID, UNK_WORD, SubwordVocabulary, Vocabulary
from raysent.data.vocabulary.tokens import ABBREVIATIONS, PATTERN, REPLACEMENTS

_PERIOD = "\ue000"
_APOSTROPHE = "\ue001"
_OTHER = "\uf8ff"
_NAMES = ABBREVIATIONS.split("|")
_ABBREVIATED = {f"{name.lower()}." for name in _NAMES}
_LEAST_NEGATION = len("xn't")
TOKENIZER_FILE = "tokenizer.json"
# Where any id may occur in a sentence, that of padding too.
_PAD_OF_PRETRAINED = -1


def pad_id(vocabulary: Vocabulary) -> int:
    """Return what follows the ids of shorter sentences in a graph."""
    return PAD_ID if vocabulary.has_padding else _PAD_OF_PRETRAINED


def exported_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text as the file gives them."""
    return [encoded.ids for encoded in tokenizer.encode_batch_fast(list(texts))]


def finished_ids(
    vocabulary: Vocabulary, texts: Sequence[str], *, max_length: int
) -> list[list[int]]:
    """Return the ids that a model reads by its exported file: truncated, or one unknown word where none is known."""
    rows = exported_ids(build_tokenizer(vocabulary, max_length=max_length), texts)
    if not vocabulary.has_padding:
        return [row or [vocabulary.unknown_id] for row in rows]
    # A word may be known after the cut, so a row is looked through before it is truncated.
    has_known_word = [any(word != UNK_ID for word in row) for row in rows]
    pairs = zip(rows, has_known_word, strict=True)
    return [row[:max_length] if is_known else [UNK_ID] for row, is_known in pairs]


def numbered(name: str, number: int) -> str:
    """Return the name of a member's file: `tokenizer.json`, then `tokenizer1.json`."""
    if number:
        return name.replace(".", f"{number}.", 1)
    return name


def build_tokenizer(vocabulary: Vocabulary, *, max_length: int) -> Tokenizer:
    """Return the tokenizer of a vocabulary; that of words is not truncated, as no word may be known before the cut."""
    if isinstance(vocabulary, SubwordVocabulary):
        tokenizer = vocabulary.tokenizer
        tokenizer.enable_truncation(max_length)
        return tokenizer
    words = vocabulary.words
    pattern = PATTERN.removeprefix(r"\n|")
    # White space of `str.split` that the pattern's class of white space lacks.
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"[\x00\x1c-\x1f]"), " ")]
    if vocabulary.unicode_form == "NFC":
        steps.append(normalizers.NFC())
    if vocabulary.lowercase:
        steps.append(normalizers.Replace(Regex(f"[{_PERIOD}{_APOSTROPHE}]"), _OTHER))
    # The form of Unicode comes first, then plain characters, then the case.
    steps += _replacements()
    if vocabulary.lowercase:
        steps += _lowercase()
        pattern = pattern.replace(rf"(?:{ABBREVIATIONS})\.(?!\w)", rf"\p{{L}}+{_PERIOD}")
        pattern = pattern.replace(r"|,\d+", rf"|,\d+|{_APOSTROPHE}\w+")
        words = [_marked(word) for word in words]
    steps.append(normalizers.Replace(Regex(r"\A\s*\z"), UNK_WORD))
    tokenizer = Tokenizer(
        WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNK_WORD)
    )
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return tokenizer


def _replacements() -> list[normalizers.Normalizer]:
    forms: dict[str, list[str]] = {}
    for typographic, plain in REPLACEMENTS:
        forms.setdefault(plain, []).append(typographic)
    return [
        normalizers.Replace(Regex("|".join(map(re.escape, typographic_forms))), plain)
        for plain, typographic_forms in forms.items()
    ]


def _lowercase() -> list[normalizers.Normalizer]:
    after_break = "|".join(rf"\W{name}" for name in _NAMES)
    inside_word = "|".join(rf"\w[-.']{name}" for name in _NAMES)
    return [
        normalizers.Prepend(" "),
        normalizers.Replace(Regex(rf"(?<={after_break})\.(?!\w)"), _PERIOD),
        normalizers.Replace(Regex(rf"(?<={inside_word}){_PERIOD}"), "."),
        normalizers.Replace(Regex(r"(?<=\p{L}N)'(?=t(?!\w))"), _APOSTROPHE),
        normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς"),
        normalizers.Lowercase(),
    ]


def _marked(word: str) -> str:
    if word in _ABBREVIATED:
        return word[:-1] + _PERIOD
    is_negation = len(word) >= _LEAST_NEGATION and word.endswith("n't") and word[:-2].isalpha()
    if is_negation:
        return word.replace("'", _APOSTROPHE)
    return word
