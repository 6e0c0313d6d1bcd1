"""Text -> sentences in document order, as memory-mapped ids with a training and a validation split.

`prepare` takes a `CorpusConfig` (files, folders, globs, ``s3://`` or the embedded ``docs``) and a `VocabularyConfig`,
and returns a `Corpus` in the cache, which is built once, in bounded memory, and shared by all processes of the machine.

sources.py       configuration; paths -> files -> blocks of lines
documents.py     lines and rows of tables -> documents -> sentences
preparation.py   sentences -> ids of all distinct words -> splits, and ids of a vocabulary
store.py         the prepared corpus
embedded.py      the embedded corpus `docs`
written.py       the sentences of a text as they are written
word_vectors.py  word vectors computed from a corpus
cache.py         folders of the cache
"""

from raysent.data.corpus.cache import shared_address, shared_cache
from raysent.data.corpus.embedded import DocsDocument, docs_documents
from raysent.data.corpus.preparation import (
    SentenceTexts,
    corpus_language,
    corpus_notes,
    count_text,
    prepare,
    sentence_texts,
    vocabulary_type,
)
from raysent.data.corpus.sources import CorpusConfig
from raysent.data.corpus.store import Corpus, CorpusSplit
from raysent.data.corpus.word_vectors import corpus_word_vectors
from raysent.storage import cache_folder

__all__ = [
    "Corpus",
    "CorpusConfig",
    "CorpusSplit",
    "DocsDocument",
    "SentenceTexts",
    "cache_folder",
    "corpus_language",
    "corpus_notes",
    "corpus_word_vectors",
    "count_text",
    "docs_documents",
    "prepare",
    "sentence_texts",
    "shared_address",
    "shared_cache",
    "vocabulary_type",
]
