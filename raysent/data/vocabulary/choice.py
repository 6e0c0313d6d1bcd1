"""Words or sub-words: which vocabulary `auto` takes for a text, of whatever form the text is."""

from __future__ import annotations

from collections.abc import Callable

from raysent.data.languages import WITHOUT_BLANKS
from raysent.data.vocabulary.words import MAX_UNKNOWN_SHARE, VocabularyConfig, VocabularyType


def choose_type(
    config: VocabularyConfig, *, language: Callable[[], str], unknown_share: Callable[[], float]
) -> tuple[VocabularyType, str]:
    """Return the type of vocabulary, and why, in words.

    Args:
        config: The vocabulary; `auto` leaves its type to the text.
        language: Returns the code of the text's language; called for `auto` alone.
        unknown_share: Returns the part of the tokens of held-out text that words of the other text would leave unknown;
            called where the language does not decide.
    """
    if config.type != "auto":
        return config.type, "given"
    code = language()
    if code in WITHOUT_BLANKS:
        return "subwords", f"the text is in {code}, which writes no blanks between words"
    share = unknown_share()
    reason = f"words would leave {share:.1%} of the tokens of held-out text unknown"
    if share > MAX_UNKNOWN_SHARE:
        return "subwords", reason
    return "words", reason
