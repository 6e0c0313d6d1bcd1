"""The nearest sentences of a corpus, exactly, by cosine or by Hamming distance; analogies among sentences.

In: models, a text and queries. Out: what each model finds, side by side. A text's distinct sentences and each model's
vectors of them are kept in the cache, memory-mapped, so that asking again costs the search alone.
"""

from raysent.analysis.neighbours.analogies import AnalogyScore, read_analogies, score_analogies
from raysent.analysis.neighbours.comparison import (
    Column,
    Comparison,
    Neighbour,
    neighbours,
    read_comparison,
    save_comparison,
)
from raysent.analysis.neighbours.search import Hits, Index, nearest_codes, nearest_vectors, open_index
from raysent.storage.layout import NEIGHBOURS_FILE

__all__ = [
    "NEIGHBOURS_FILE",
    "AnalogyScore",
    "Column",
    "Comparison",
    "Hits",
    "Index",
    "Neighbour",
    "nearest_codes",
    "nearest_vectors",
    "neighbours",
    "open_index",
    "read_analogies",
    "read_comparison",
    "save_comparison",
    "score_analogies",
]
