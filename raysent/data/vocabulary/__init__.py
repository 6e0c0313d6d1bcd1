"""Tokenization, vocabularies (tokens <-> int32 ids), and word vectors from files or from a corpus."""

from raysent.data.vocabulary.subwords import train_subwords
from raysent.data.vocabulary.tokens import (
    PAD_ID,
    PAD_WORD,
    TOKENIZER_VERSION,
    UNK_ID,
    UNK_WORD,
    ChunkTable,
    Numbering,
    as_rows,
    tokenize,
)
from raysent.data.vocabulary.vectors import (
    LinearMap,
    WordVectors,
    fit_linear_map,
    new_words,
    read_word_vectors,
    shared_words,
)
from raysent.data.vocabulary.words import (
    MAX_UNKNOWN_SHARE,
    SubwordVocabulary,
    Vocabulary,
    VocabularyConfig,
    VocabularyType,
    build_vocabulary,
)
from raysent.kernels.ragged import Sentences

__all__ = [
    "MAX_UNKNOWN_SHARE",
    "PAD_ID",
    "PAD_WORD",
    "TOKENIZER_VERSION",
    "UNK_ID",
    "UNK_WORD",
    "ChunkTable",
    "LinearMap",
    "Numbering",
    "Sentences",
    "SubwordVocabulary",
    "Vocabulary",
    "VocabularyConfig",
    "VocabularyType",
    "WordVectors",
    "as_rows",
    "build_vocabulary",
    "fit_linear_map",
    "new_words",
    "read_word_vectors",
    "shared_words",
    "tokenize",
    "train_subwords",
]
