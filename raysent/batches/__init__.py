"""Prepared text -> the batch of any step, a pure function of the step; one stream for each kind of batch.

- `context`: `Batch`, contiguous windows of a corpus, or windows from random or like places
- `triplets`: `Triplets`, a sentence with its predecessor and its successor, batches of one length
- `pairs`: `Pairs`, two columns of sentences with an optional label or score

A global batch is shared by the workers; the blocks of all ranks, put together, are the batch that one worker would
read.
"""

from raysent.batches.context import Batch, BatchStream, Candidates, nearest_order
from raysent.batches.pairs import Pairs, PairStream
from raysent.batches.triplets import Triplets, TripletStream
from raysent.vocabulary import Sentences

AnyBatch = Batch | Triplets | Pairs
AnyStream = BatchStream | TripletStream | PairStream

__all__ = [
    "AnyBatch",
    "AnyStream",
    "Batch",
    "BatchStream",
    "Candidates",
    "PairStream",
    "Pairs",
    "Sentences",
    "TripletStream",
    "Triplets",
    "nearest_order",
]
