"""What counts as the same text, label or name: the one owner of this rule.

Texts are compared by what a reader sees in them. Two ways of writing a character (NFC and NFD, full-width letters,
ligatures), case, characters that are never shown (U+200B, soft hyphens, joiners), marks of HTML (``&eacute;``,
``<br />``) and typographic forms of quotation marks and dashes make no other text. Nothing is compared but the forms
that this module returns, and nothing of them is ever written out: a user's text stays as it is.

    as_read         what a reader sees, with its punctuation: names, queries
    is_blank        whether that is nothing at all
    words_of        its words alone: texts that are compared as copies
    as_label        of a label: numbers by what they say, `_`, `-` and blanks between words alike

Sources: Unicode Standard Annex 15 (NFKC) and section 3.13 (caseless matching); DerivedCoreProperties.txt, version 15
(Default_Ignorable_Code_Point).
"""

from __future__ import annotations

import html
import re
import unicodedata
from decimal import Decimal

# Default_Ignorable_Code_Point: characters that are shown as nothing at all.
_NEVER_SHOWN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# What a reader sees: neither a blank nor a character that is never shown.
_SEEN = re.compile(f"[^\\s{_NEVER_SHOWN.pattern[1:-2]}]")
# `a < b` and `<3` are no tags.
_TAG = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d|#[xX][\da-fA-F]|[a-zA-Z])")
# An exporter that escapes what another one has escaped writes `&amp;eacute;`.
_MOST_ESCAPED = 3
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
    }
)
_WORD = re.compile(r"\w+")
_BETWEEN_WORDS = re.compile(r"(?<=\w)[\s_-]+(?=\w)|_+|\s+")
_AROUND_LABEL = "\"' \t.,;:"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?")
# What a table's numbers and truth values say alike.
_TRUTH = {"true": "1", "false": "0"}


def as_read(text: str) -> str:
    """Return what a reader sees of a text: equal for texts that look alike, in any form, case and mark-up."""
    if text.isascii() and "&" not in text and "<" not in text:
        return " ".join(text.casefold().split())
    unescaped = _unescaped(text)
    without_tags = _TAG.sub(" ", unescaped)
    # A name such as `<NA>` is no mark-up of anything.
    text = without_tags if without_tags.strip() else unescaped
    text = _NEVER_SHOWN.sub("", text.translate(_PLAIN))
    # Folding the case may leave a form that is composed otherwise, or hold a character that is never shown.
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(_NEVER_SHOWN.sub("", text).translate(_PLAIN).split())


def is_blank(text: str) -> bool:
    """Return whether a reader sees nothing in a text: blanks, and characters that are never shown, alone."""
    first = _SEEN.search(text)
    if first is None or first[0] != "&":  # marks of HTML begin with this one
        return first is None
    return _SEEN.search(_unescaped(text)) is None


def words_of(text: str) -> str:
    """Return the words of a text between blanks, by which copies are found; of a text without words all of it.

    Punctuation separates words. Marks that belong to a letter and are not composed with it are left out.
    """
    read = as_read(text)
    return " ".join(_WORD.findall(read)) or read or text


def as_label(label: str) -> str:
    """Return what a label says: equal for labels that a person takes for one, such as ``1`` and ``1.0``."""
    read = as_read(label)
    plain = _BETWEEN_WORDS.sub(" ", read).strip(_AROUND_LABEL) or read
    plain = _TRUTH.get(plain, plain)
    if _NUMBER.fullmatch(plain):
        return f"{Decimal(plain).normalize() + 0:f}"
    return plain


def _unescaped(text: str) -> str:
    for _ in range(_MOST_ESCAPED):
        if _ENTITY.search(text) is None:
            break
        text = html.unescape(text)
    return text
