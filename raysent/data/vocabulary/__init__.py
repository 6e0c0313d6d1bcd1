"""Tokenization, vocabularies (tokens <-> int32 ids), and word vectors from files or from a corpus."""

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
from raysent.data.vocabulary.words import SubwordVocabulary, Vocabulary, VocabularyConfig, build_vocabulary
from raysent.kernels.ragged import Sentences

__all__ = [
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
    "WordVectors",
    "as_rows",
    "build_vocabulary",
    "fit_linear_map",
    "new_words",
    "read_word_vectors",
    "shared_words",
    "tokenize",
]
