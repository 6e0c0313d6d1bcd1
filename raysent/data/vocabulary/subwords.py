"""Sub-words of a text: byte-pair encoding, trained by the `tokenizers` library.

Text is normalized by NFKC and divided at white space and punctuation; nothing marks where a word begins. A character
that the vocabulary lacks is read as its bytes in UTF-8, so that no text has an unknown token. The first two ids are the
padding and the unknown word, as of words. The same text gives the same sub-words, which the library's unigram models do
not.

Source: Sennrich, Haddow and Birch, 2016, "Neural machine translation of rare words with subword units".
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from raysent.data.vocabulary.tokens import PAD_WORD, UNK_WORD
from raysent.data.vocabulary.words import SubwordVocabulary, VocabularyConfig
from raysent.errors import ConfigError
from raysent.reading import parse_json

# Sub-words are trained on at most this much text.
MAX_TEXT_BYTES = 64 << 20
# Characters of distinct runs, of which the library keeps about 130 bytes each.
_MAX_CHARACTERS = 1 << 21
# What `str.split` and the tables of chunks take for white space.
_WHITE_SPACE = r"[\s\x00\x1c-\x1f]+"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_MIN_SIZE = 512
# Text without blanks is cut into runs of this length before it is counted, and a sub-word is not longer.
_MAX_RUN = 16
_RUNS = re.compile(rf"\S{{1,{_MAX_RUN}}}")
# A rarer sub-word has too few places to learn a vector from; its parts have more.
_MIN_OCCURRENCES = 5
# Ids that characters may have.
_MAX_ALPHABET_SHARE = 0.4


def train_subwords(sentences: Iterable[str], config: VocabularyConfig) -> SubwordVocabulary:
    """Return the sub-words of a text.

    Args:
        sentences: The text, in random order: it is read up to `MAX_TEXT_BYTES`, less of text without blanks.
        config: The number of ids, of which a small text has fewer, and case.

    Raises:
        ConfigError: If `size` has no room for the bytes.
    """
    if config.size < _MIN_SIZE:
        raise ConfigError(f"vocabulary.size: must be at least {_MIN_SIZE} for sub-words; given {config.size}")
    lines, alphabet = _sample(sentences, config)
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token=UNK_WORD))
    steps: list[normalizers.Normalizer] = [normalizers.NFKC()]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if config.lowercase else steps)
    marks = pre_tokenizers.Split(Regex(r"[^\w\s]|_"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WHITE_SPACE), "removed"), marks])
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        min_frequency=max(_MIN_OCCURRENCES, config.min_count),
        special_tokens=[PAD_WORD, UNK_WORD, *_BYTES],
        initial_alphabet=alphabet,
        # Not left to the trainer, which breaks ties at random.
        limit_alphabet=len(alphabet),
        max_token_length=_MAX_RUN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    # As added tokens, the bytes' names would be found in text.
    values = {**parse_json(tokenizer.to_str()), "added_tokens": []}
    return SubwordVocabulary(json.dumps(values, ensure_ascii=False))


def _sample(sentences: Iterable[str], config: VocabularyConfig) -> tuple[list[str], list[str]]:
    """Return the text to train on, in runs between blanks, and the characters that have an id."""
    lines: list[str] = []
    runs: set[str] = set()
    counts: Counter[str] = Counter()
    num_characters = num_bytes = 0
    for sentence in sentences:
        found = sentence.split() if sentence.isascii() else _RUNS.findall(sentence)
        new = set(found) - runs
        runs |= new
        counts.update(sentence)
        lines.append(" ".join(found))
        num_characters += sum(map(len, new))
        num_bytes += len(sentence.encode("utf-8", "replace"))
        if num_characters >= _MAX_CHARACTERS or num_bytes >= MAX_TEXT_BYTES:
            break
    totals: Counter[str] = Counter()
    for character, count in counts.items():
        plain = unicodedata.normalize("NFKC", character)
        for one in plain.lower() if config.lowercase else plain:
            totals[one] += count
    known = [one for one, count in totals.items() if count >= config.min_count and not one.isspace()]
    known.sort(key=lambda one: (-totals[one], one))
    return lines, known[: int(_MAX_ALPHABET_SHARE * config.size)]
