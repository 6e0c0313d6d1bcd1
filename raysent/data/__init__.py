"""Training data: text -> sentences -> ids -> batches.

- `corpus`: files of text -> sentences in document order, prepared once as memory-mapped ids
- `pairs`: files of sentence pairs, labelled or scored
- `vocabulary`: tokens <-> ids; word vectors
- `text_files`: small files of lines
- `batches`: ids -> the batch of any training step
"""

from raysent.data.text_files import read_counts, read_lines

__all__ = ["read_counts", "read_lines"]
