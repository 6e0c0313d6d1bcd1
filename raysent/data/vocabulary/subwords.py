"""Sub-words of a text: byte-pair encoding, trained by the `tokenizers` library.

Text is normalized by NFKC and divided at white space and punctuation; the first sub-word of each piece begins with
`WORD_START`. A character that the vocabulary lacks is read as its bytes in UTF-8, so that no text has an unknown token.
The first two ids are the padding and the unknown word, as of words. The same text gives the same sub-words, which the
library's unigram models do not.

Source: Sennrich, Haddow and Birch, 2016, "Neural machine translation of rare words with subword units".
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from raysent.data.text_files import batched, grouped
from raysent.data.vocabulary.tokens import PAD_WORD, SURROGATE, UNK_WORD, WORD_START
from raysent.data.vocabulary.words import SubwordVocabulary, VocabularyConfig
from raysent.errors import ConfigError
from raysent.reading import parse_json

# Sub-words are trained on at most this much text.
_MAX_TEXT_BYTES = 32 << 20
# Characters of distinct runs, of which the library keeps about 130 bytes each.
_MAX_CHARACTERS = 1 << 20
# Occurrences of a piece that count: a more frequent one is a sub-word long before the last ones are chosen.
_MAX_COUNTED = 1_000
# What `str.split` and the tables of chunks take for white space.
_WHITE_SPACE = r"[\s\x00\x1c-\x1f]+"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# What the tokenizer's splitter makes of text in ASCII, in less time.
_ASCII_PIECES = re.compile(r"[^\W_]+|[^\w\s\x00]|_", re.ASCII)
_SEPARATOR = "\n"  # in no piece
_BLOCK_SENTENCES = 1_000
_BLOCK_CHARACTERS = 1 << 12
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
        sentences: The text, in random order: it is read up to `_MAX_TEXT_BYTES`, less of text without blanks.
        config: The number of ids, of which a small text has fewer, and case.

    Raises:
        ConfigError: If `size` has no room for the bytes.
    """
    if config.size < _MIN_SIZE:
        raise ConfigError(
            f"vocabulary.size: must be at least {_MIN_SIZE} for sub-words; given {config.size}"
        )
    runs = _runs_by_count(sentences)
    alphabet = _alphabet(runs, config)
    case: list[normalizers.Normalizer] = []
    if config.lowercase:
        case = [normalizers.Lowercase()]
    normalizer = normalizers.Sequence([normalizers.NFKC(), *case])
    marks = pre_tokenizers.Split(Regex(r"[^\w\s]|_"), "isolated")
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WHITE_SPACE), "removed"), marks]
    )
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token=UNK_WORD))
    # Trained on text that is divided already: a text repeats its words, and dividing took most of the time.
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(_SEPARATOR)
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        min_frequency=max(_MIN_OCCURRENCES, config.min_count),
        special_tokens=[PAD_WORD, UNK_WORD, *_BYTES],
        initial_alphabet=alphabet,
        # Not left to the trainer, which breaks ties at random.
        limit_alphabet=len(alphabet),
        max_token_length=len(WORD_START) + _MAX_RUN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(runs, normalizer, splitter), trainer)
    starts = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, starts])
    # As added tokens, the bytes' names would be found in text.
    description = {**parse_json(tokenizer.to_str()), "added_tokens": []}
    return SubwordVocabulary(json.dumps(description, ensure_ascii=False))


def _runs_by_count(sentences: Iterable[str]) -> dict[int, list[str]]:
    """Return the distinct runs between blanks of the text to train on, by how often they occur."""
    counts: Counter[str] = Counter()
    num_characters = 0
    num_bytes = 0
    for block in batched(sentences, _BLOCK_SENTENCES):
        text = SURROGATE.sub("\ufffd", "\n".join(block))
        num_known = len(counts)
        counts.update(text.split())
        num_characters += sum(map(len, islice(counts, num_known, None)))
        num_bytes += len(text.encode())
        if num_characters >= _MAX_CHARACTERS or num_bytes >= _MAX_TEXT_BYTES:
            break
    runs: dict[int, list[str]] = {}
    for run, count in counts.items():
        runs.setdefault(count, []).append(run)
    return runs


def _alphabet(runs: Mapping[int, list[str]], config: VocabularyConfig) -> list[str]:
    totals = Counter({WORD_START: config.min_count})
    for count, runs_alike in runs.items():
        for character, number in Counter("".join(runs_alike)).items():
            plain = unicodedata.normalize("NFKC", character)
            for letter in plain.lower() if config.lowercase else plain:
                totals[letter] += count * number
    alphabet = [
        letter
        for letter, count in totals.items()
        if count >= config.min_count and not letter.isspace()
    ]
    alphabet.sort(key=lambda letter: (letter != WORD_START, -totals[letter], letter))
    return alphabet[: int(_MAX_ALPHABET_SHARE * config.size)]


def _pieces(
    runs: Mapping[int, list[str]],
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
) -> Iterator[str]:
    """Yield the pieces that the tokenizer makes of runs, marked, a line each that repeats it as often as it occurs."""
    counts: Counter[str] = Counter()
    for count, runs_alike in runs.items():
        parts = chain.from_iterable(map(_RUNS.findall, sorted(runs_alike, key=str.isascii)))
        for block in grouped(parts, len, at_least=_BLOCK_CHARACTERS):
            plain = normalizer.normalize_str(_SEPARATOR.join(block))
            if plain.isascii():
                pieces = _ASCII_PIECES.findall(plain)
            else:
                pieces = [piece for piece, _ in splitter.pre_tokenize_str(plain)]
            for piece, number in Counter(pieces).items():
                counts[piece] += count * number
    for piece, count in counts.items():
        # The tokenizer marks a piece that is the mark itself no second time.
        yield (WORD_START + piece.removeprefix(WORD_START) + _SEPARATOR) * min(count, _MAX_COUNTED)
