"""How a model's values came about: what its record says of it, and one sentence for cards.

In: a model's parts and its `Origin`. Out: the sentence. A model says that it was trained only where its record, or the
`run.json` beside a model of an earlier version, says so.
"""

from __future__ import annotations

from typing import Literal

from raysent.config import StrictModel
from raysent.models.config import ModelConfig


class Origin(StrictModel):
    """Where a model's values are from.

    Attributes:
        kind: `trained` by a run. `code`: a run made a code of an encoder that it did not change. `start`: the values of
            a run before its first step. `words`: the word vectors of a trained model. `start_words`: word vectors that
            no training changed, counted from text, drawn or read. `vectors`: a file of word vectors.
            `pretrained`: the weights of a folder or of the hub, as they are. `static`: the static table of such an
            encoder.
        encoder: Type of the encoder that was trained; of `words` the one that has these vectors; of
            `pretrained` and `static` its name.
        objective: What it was trained for; None where nothing was trained.
    """

    kind: Literal[
        "trained", "code", "start", "words", "start_words", "vectors", "pretrained", "static"
    ]
    encoder: str
    objective: str | None = None

    @property
    def is_trained(self) -> bool:
        """Whether training changed the values."""
        return self.kind in ("trained", "words")


def trained(config: ModelConfig) -> Origin:
    """Return the origin of a model that a run with these parts trains."""
    assert config.objective is not None
    kind: Literal["trained", "code"] = "trained"
    if config.objective.trains_code:
        kind = "code"
    return Origin(kind=kind, encoder=config.encoder.type, objective=config.objective.type)


def of_words(origin: Origin | None, *, has_trained_words: bool) -> Origin | None:
    """Return the origin of the mean of a model's word vectors; None where that of the model is not recorded.

    Args:
        origin: The model's.
        has_trained_words: Whether its training changes its word vectors.
    """
    if origin is None:
        return None
    kind: Literal["words", "start_words"] = "start_words"
    if origin.is_trained and has_trained_words:
        kind = "words"
    objective = origin.objective if kind == "words" else None
    return Origin(kind=kind, encoder=origin.encoder, objective=objective)


def described(origin: Origin | None, encoder: str) -> str:
    """Return what a model is and what it was trained for, in one line without a full stop.

    Args:
        origin: The model's; None where nothing records one.
        encoder: The type of its first tower.
    """
    if origin is None:
        return f"{encoder}, of which no training is recorded"
    sentences = {
        "trained": f"{encoder} trained for {origin.objective}",
        "code": f"{encoder} as it was, with a code that was made for {origin.objective}",
        "start": f"{encoder} as it was before its first training step",
        "words": f"mean of the word vectors of a {origin.encoder} trained for {origin.objective}",
        "start_words": f"mean of the word vectors that a {origin.encoder} begins with, untrained",
        "vectors": "mean of the word vectors of a file, untrained",
        "pretrained": f"{origin.encoder} as it is, not trained further",
        "static": f"mean of the vectors of sub-words in a table of {origin.encoder}, not trained further",
    }
    return sentences[origin.kind]
