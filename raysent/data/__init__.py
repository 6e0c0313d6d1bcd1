"""Training data: text -> sentences -> ids -> batches.

- `corpus`: files of text -> sentences in document order, prepared once as memory-mapped ids
- `pairs`: files of sentence pairs, labelled or scored
- `vocabulary`: tokens <-> ids; word vectors
- `batches`: ids -> the batch of any training step
"""
