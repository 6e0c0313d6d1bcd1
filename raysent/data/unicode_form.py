"""The form of Unicode in which models read text: the one owner of this rule.

The same character may be written composed (``é``, NFC) or decomposed (``e`` and an accent, NFD), as some exporters,
PDF readers and file systems write it. Vocabularies of words, TF-IDF and hashed words read the composed form, so that
both are one word. BM25 and own sub-words go further and read NFKC. The tokenizer of a pretrained model gets the text as
it is written, since it was trained so.

What was trained by a version that had no such rule keeps reading text as it is written; its record says no form.

Source: Unicode Standard Annex 15 (normalization forms).
"""

from __future__ import annotations

import unicodedata
from typing import Literal

UnicodeForm = Literal["NFC", "as_written"]

# What new models read, and what a record says that names no form.
OF_NEW: UnicodeForm = "NFC"
OF_EARLIER: UnicodeForm = "as_written"


def in_form(text: str, form: UnicodeForm) -> str:
    """Return a text as a model of this form reads it; composing adds and removes no white space."""
    if form == "as_written" or text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


def is_in_form(text: str, form: UnicodeForm) -> bool:
    """Return whether a model of this form reads a text as it is written."""
    return form == "as_written" or text.isascii() or unicodedata.is_normalized("NFC", text)
