"""Text -> sentences in document order, as memory-mapped ids with a training and a validation split.

In: a `CorpusConfig` (files, folders, globs, ``s3://`` or the embedded ``docs``) and a `VocabularyConfig`. Out: a
`Corpus` in the cache, built once in bounded memory and shared by every process of the machine.
"""

from raysent.artifacts import cache_folder
from raysent.corpus.config import CorpusConfig
from raysent.corpus.docs import DocsDocument, docs_documents
from raysent.corpus.preparation import prepare
from raysent.corpus.store import Corpus, CorpusSplit
from raysent.corpus.text_store import Progress

__all__ = [
    "Corpus",
    "CorpusConfig",
    "CorpusSplit",
    "DocsDocument",
    "Progress",
    "cache_folder",
    "docs_documents",
    "prepare",
]
