"""What a model is: its encoders and its objective."""

from __future__ import annotations

from typing import Self

import pydantic

from raysent.config import StrictModel
from raysent.encoders import AnyEncoder, EncoderConfig
from raysent.objectives import AnyObjective


class ModelConfig(StrictModel):
    """What a model is.

    Attributes:
        encoder: Sentences -> vectors; the first tower, f.
        objective: What training minimises; it says how many towers there are.
        second_encoder: The second tower, g; None for another of the first's kind, with parameters of its own.
    """

    encoder: AnyEncoder
    objective: AnyObjective
    second_encoder: AnyEncoder | None = None

    @pydantic.model_validator(mode="after")
    def _towers_fit(self) -> Self:
        check_towers(self.encoder, self.second_encoder, num_towers=self.objective.num_towers, name=self.objective.type)
        return self

    @property
    def towers(self) -> tuple[EncoderConfig, ...]:
        """The configuration of each tower that is trained."""
        return (self.encoder, self.second_encoder or self.encoder)[: self.objective.num_towers]


def check_towers(first: EncoderConfig, second: EncoderConfig | None, *, num_towers: int, name: str) -> None:
    """Refuse a second encoder that the objective called `name` cannot train.

    Raises:
        ValueError: With what must hold.
    """
    if second is None:
        return
    if num_towers < 2:
        raise ValueError(f"second_encoder must be left out with objective {name}, which trains one encoder")
    if first.loss_dims != second.loss_dims:
        raise ValueError(
            f"second_encoder must give vectors of the same blocks as encoder, {list(first.loss_dims)}; "
            f"given {list(second.loss_dims)}"
        )
