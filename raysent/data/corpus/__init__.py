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

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
