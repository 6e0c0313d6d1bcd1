"""Where a run's validation figures come from."""

from __future__ import annotations

import pydantic

from raysent.config import StrictModel
from raysent.data.pairs import PairsConfig


class DownstreamConfig(StrictModel):
    """Tasks whose probes' validation score is a figure of the run.

    Attributes:
        tasks: Names of tasks; None for those whose files are in the data folder, without one the embedded ones.
        data: Folder in SentEval's layout.
        max_rows: Rows of a task that train a probe, at most, and as many that validate it.
    """

    tasks: list[str] | None = pydantic.Field(default=None, min_length=1)
    data: str | None = None
    max_rows: int = pydantic.Field(default=2000, ge=100)


class ValidationConfig(StrictModel):
    """The examination's size and its meaning of context; independent of what a trial trains with.

    Attributes:
        num_candidates: Sentences of a block of the pool; each is scored against all others.
        num_sentences: Sentences of all blocks together, at most; also of held-out triplets and pairs.
        context_size: Sentences on each side that count as neighbours.
        seed: Choice of the blocks.
        sts: Folder of STS sets in SentEval's layout; gives `pearson`, the mean over the sets.
        similarity: File of pairs with scores; gives `pearson` too, as one more set.
        downstream: Tasks; gives `downstream`, the mean validation score of probes on the vectors, in percent.
    """

    num_candidates: int = pydantic.Field(default=1000, ge=3)
    num_sentences: int = pydantic.Field(default=10_000, ge=3)
    context_size: int = pydantic.Field(default=1, ge=1)
    seed: int = pydantic.Field(default=0, ge=0)
    sts: str | None = None
    similarity: PairsConfig | None = None
    downstream: DownstreamConfig | None = None

    @property
    def pool_settings(self) -> dict[str, int]:
        """The settings that decide the pool."""
        return {name: getattr(self, name) for name in ("num_candidates", "num_sentences", "context_size", "seed")}
