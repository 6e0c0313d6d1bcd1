"""What a model is: its encoders and its objective."""

from __future__ import annotations

from typing import Self

import pydantic

from raysent.config import StrictModel
from raysent.models.codes import AnyCode, CodeConfig
from raysent.models.encoders import AnyEncoder, EncoderConfig
from raysent.models.objectives import AnyObjective, ObjectiveConfig
from raysent.models.postprocessing import PostprocessingConfig


class ModelConfig(StrictModel):
    """What a model is.

    Attributes:
        encoder: Sentences -> vectors; the first tower, f.
        objective: What training minimises; it says how many towers there are.
        second_encoder: The second tower, g; None for another of the first's kind, with parameters of its own.
        postprocessing: What becomes of the towers' blocks.
        code: How the vector becomes bits; None leaves it as it is.
    """

    encoder: AnyEncoder
    objective: AnyObjective
    second_encoder: AnyEncoder | None = None
    postprocessing: PostprocessingConfig = PostprocessingConfig()
    code: AnyCode | None = None

    @pydantic.model_validator(mode="after")
    def _towers_fit(self) -> Self:
        check_parts(self.encoder, self.second_encoder, self.objective, self.postprocessing, self.code)
        return self

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """Sizes of all towers' blocks as `encode` normalises them."""
        return encoded_dims(self.towers)

    @property
    def towers(self) -> tuple[EncoderConfig, ...]:
        """The configuration of each tower that is trained."""
        return towers(self.encoder, self.second_encoder, self.objective)


def towers(first: EncoderConfig, second: EncoderConfig | None, objective: ObjectiveConfig) -> tuple[EncoderConfig, ...]:
    """Return the configuration of each tower that the objective trains."""
    return (first, second or first)[: objective.num_towers]


def encoded_dims(configs: tuple[EncoderConfig, ...]) -> tuple[int, ...]:
    """Return the sizes of all towers' blocks as `encode` normalises them."""
    return tuple(dim for tower in configs for dim in tower.encoded_dims)


def check_parts(
    first: EncoderConfig,
    second: EncoderConfig | None,
    objective: ObjectiveConfig,
    postprocessing: PostprocessingConfig,
    code: CodeConfig | None = None,
) -> None:
    """Refuse encoders that the objective cannot train, blocks that cannot be combined, and codes it has no use for.

    Raises:
        ValueError: With what must hold.
    """
    _check_towers(first, second, objective)
    _check_code(code, objective)
    dims = set(encoded_dims(towers(first, second, objective)))
    if postprocessing.combine == "average" and len(dims) > 1:
        raise ValueError(f"postprocessing.combine must be concat with blocks of several sizes; given {sorted(dims)}")


def _check_code(code: CodeConfig | None, objective: ObjectiveConfig) -> None:
    """Refuse a code that the objective does not train, and its absence where it trains nothing else."""
    if code is None:
        if objective.trains_code:
            raise ValueError(f"code.type must be set for objective {objective.type}; it says how vectors become bits")
        return
    if not objective.trains_code and getattr(code, "resolved_threshold", None) != 0:
        raise ValueError(
            f"code must be of type threshold, at 0, with objective {objective.type}, which sees the bits in training; "
            "or train the code afterwards: objective.type reconstruction, initial the trained model"
        )


def _check_towers(first: EncoderConfig, second: EncoderConfig | None, objective: ObjectiveConfig) -> None:
    """Refuse a second encoder that the objective cannot train.

    Raises:
        ValueError: With what must hold.
    """
    if objective.needs_map:
        _check_map(first, second, objective)
    if second is None:
        return
    if objective.num_towers < 2:
        raise ValueError(f"second_encoder must be left out with objective {objective.type}, which trains one encoder")
    if first.loss_dims != second.loss_dims:
        raise ValueError(
            f"second_encoder must give vectors of the same blocks as encoder, {list(first.loss_dims)}; "
            f"given {list(second.loss_dims)}"
        )


def _check_map(first: EncoderConfig, second: EncoderConfig | None, objective: ObjectiveConfig) -> None:
    """Refuse what has no map to decode with."""
    words = getattr(first, "embedding", None)
    if words is None or words.trained:
        raise ValueError(f"encoder.embedding.trained must be false with objective {objective.type}; fix its words")
    if getattr(second, "num_maps", None) != objective.num_maps or getattr(second, "embedding", None) != words:
        raise ValueError(
            f"second_encoder must be of type linear with num_maps: {objective.num_maps} and the embedding of encoder; "
            f"objective {objective.type} trains its map as decoder"
        )
