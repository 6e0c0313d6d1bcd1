"""`ModelConfig`: the encoders, objective, postprocessing and code of a model."""

from __future__ import annotations

from typing import Self

import pydantic

from raysent.config import StrictModel
from raysent.models.codes import AnyCode, CodeConfig
from raysent.models.encoders import AnyEncoder, EncoderConfig
from raysent.models.objectives import AnyObjective, ObjectiveConfig
from raysent.models.postprocessing import PostprocessingConfig


class ModelConfig(StrictModel):
    """The parts of a model.

    Attributes:
        encoder: The first tower, f: sentences -> vectors.
        objective: The loss; it also determines how many towers the model has. None for a model that is no encoder of a
            training, such as a mean of word vectors: it has a second tower where `second_encoder` is set.
        second_encoder: The second tower, g; None for the settings of the first, with parameters of its own.
        postprocessing: How the towers' blocks become one vector.
        code: How that vector becomes bits; None for no code.
    """

    encoder: AnyEncoder
    objective: AnyObjective | None = None
    second_encoder: AnyEncoder | None = None
    postprocessing: PostprocessingConfig = PostprocessingConfig()
    code: AnyCode | None = None

    @pydantic.model_validator(mode="after")
    def _towers_fit(self) -> Self:
        check_parts(
            self.encoder, self.second_encoder, self.objective, self.postprocessing, self.code
        )
        return self

    @property
    def normalizes(self) -> bool:
        """Whether each block gets unit length."""
        return self.postprocessing.unit_length and any(tower.is_normalized for tower in self.towers)

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """Sizes of all towers' blocks as `encode` normalizes them."""
        return encoded_dims(self.towers)

    @property
    def towers(self) -> tuple[EncoderConfig, ...]:
        """The configuration of each tower."""
        return towers(self.encoder, self.second_encoder, self.objective)


def towers(
    first: EncoderConfig, second: EncoderConfig | None, objective: ObjectiveConfig | None
) -> tuple[EncoderConfig, ...]:
    """Return the configuration of each tower that the objective reads; without one, of each that is set."""
    if objective is not None:
        return (first, second or first)[: objective.num_towers]
    if second is None:
        return (first,)
    return (first, second)


def encoded_dims(configs: tuple[EncoderConfig, ...]) -> tuple[int, ...]:
    """Return the sizes of all towers' blocks as `encode` normalizes them."""
    return tuple(dim for tower in configs for dim in tower.encoded_dims)


def check_parts(
    first: EncoderConfig,
    second: EncoderConfig | None,
    objective: ObjectiveConfig | None,
    postprocessing: PostprocessingConfig,
    code: CodeConfig | None = None,
) -> None:
    """Refuse encoders and codes that the objective cannot train, and blocks that cannot be combined.

    Raises:
        ValueError: With what must hold.
    """
    if objective is not None:
        objective.check_towers(first, second)
        objective.check_code(code)
    dims = encoded_dims(towers(first, second, objective))
    sizes = sorted(set(dims))
    is_average = postprocessing.combine == "average"
    if is_average and len(sizes) > 1:
        raise ValueError(
            f"postprocessing.combine must be concat with blocks of several sizes; given {sizes}"
        )
    size = dims[0] if is_average else sum(dims)
    if (postprocessing.whitening or 0) > size:
        raise ValueError(
            f"postprocessing.whitening must be at most {size}, the size of the vector; given {postprocessing.whitening}"
        )


def spoken_name(encoder: EncoderConfig, code: CodeConfig | None = None) -> str:
    """Return what a model is, as a person says it: `GRU both ways, 300 numbers`, or a binary code of that."""
    if code is None:
        return encoder.spoken_name
    return f"binary code of a {encoder.spoken_name}"
