"""Text -> sentences in document order, as memory-mapped ids with a training and a validation split.

In: a `CorpusConfig` (files, folders, globs, ``s3://`` or the embedded ``docs``) and a `VocabularyConfig`. Out: a
`Corpus` in the cache, built once in bounded memory and shared by every process of the machine.
"""

from raysent.data.corpus.config import CorpusConfig
from raysent.data.corpus.embedded import DocsDocument, docs_documents
from raysent.data.corpus.preparation import prepare
from raysent.data.corpus.store import Corpus, CorpusSplit, Progress
from raysent.data.corpus.word_vectors import corpus_word_vectors
from raysent.storage import cache_folder

__all__ = [
    "Corpus",
    "CorpusConfig",
    "CorpusSplit",
    "DocsDocument",
    "Progress",
    "cache_folder",
    "corpus_word_vectors",
    "docs_documents",
    "prepare",
]
