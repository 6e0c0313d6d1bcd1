"""Text -> sentences -> ids -> batches.

- `corpus`: files of text -> sentences in document order, prepared once into memory-mapped ids
- `pairs`: files of sentence pairs, labelled or scored
- `vocabulary`: tokens <-> ids; vectors for words
- `batches`: ids -> the batch of any training step
"""
