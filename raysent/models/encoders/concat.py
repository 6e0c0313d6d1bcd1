"""Several encoders side by side: their vectors concatenated.

The paper's combine (uni and bi) and multichannel (fixed and trained word vectors) are two such compositions.

Source: Logeswaran and Lee, 2018, section 4.2.
"""

from __future__ import annotations

from typing import Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn

from raysent.kernels.packing import Packed
from raysent.models.embeddings import Tables, WordTable
from raysent.models.encoders import AnyEncoder, EncoderConfig, Tower, build_encoder


class Config(EncoderConfig):
    """Settings of a composition.

    Attributes:
        members: The encoders by name, each of any type.
        training: `separate` gives each member a loss of its own, as if it were trained alone; `joint` trains the
            whole vector with one loss.
    """

    model_config = pydantic.ConfigDict(
        defer_build=True
    )  # its members may be of types that are not imported yet

    type: Literal["concat"] = "concat"
    members: dict[str, AnyEncoder] = pydantic.Field(min_length=1)
    training: Literal["separate", "joint"] = "separate"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return members of several types, a composition inside another, and one loss for all."""
        words = {"dim": 5}
        bag = {"type": "bag", "embedding": words}
        gru = {"type": "gru", "hidden_size": 4, "embedding": words}
        nested = {"type": "concat", "members": {"bag": bag}}
        return (
            cls.model_validate({"members": {"uni": gru, "bag": bag}}),
            cls.model_validate({"members": {"nested": nested, "bag": bag}}),
            cls.model_validate({"members": {"uni": gru, "bag": bag}, "training": "joint"}),
        )

    @property
    def spoken_kind(self) -> str:
        """What its members are, in a few words; one whose word vectors are not trained says so."""
        kinds = []
        for member in self.members.values():
            tables = member.word_tables().values()
            is_fixed = bool(tables) and not any(table.trained for table in tables)
            kinds.append(
                f"{member.spoken_kind} on fixed vectors" if is_fixed else member.spoken_kind
            )
        return " + ".join(kinds)

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return sum(self.block_dims)

    @property
    def block_dims(self) -> tuple[int, ...]:
        """Sizes of the members' blocks."""
        return tuple(dim for member in self.members.values() for dim in member.block_dims)

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """Sizes of the members' blocks in `encode`."""
        return tuple(dim for member in self.members.values() for dim in member.encoded_dims)

    @property
    def loss_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that have a loss of their own."""
        if self.training == "joint":
            return (self.dim,)
        return tuple(dim for member in self.members.values() for dim in member.loss_dims)

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector in training differs from its vector outside of training."""
        return any(member.has_dropout for member in self.members.values())

    def dropout_masks(
        self, batch: int, *, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return the members' factors side by side."""
        pairs = [
            member.dropout_masks(batch, generator=generator) for member in self.members.values()
        ]
        f, g = ([mask.expand(batch, -1) for mask in side] for side in zip(*pairs, strict=True))
        return torch.cat(f, dim=1), torch.cat(g, dim=1)

    @property
    def activations_per_token(self) -> int:
        """The members' together."""
        return sum(member.activations_per_token for member in self.members.values())


class Encoder(Tower):
    """The members' towers on one packed batch."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self._is_joint = config.training == "joint"
        self.members = nn.ModuleList(
            build_encoder(member, tables) for member in config.members.values()
        )

    def _towers(self) -> list[Tower]:
        return [cast("Tower", member) for member in self.members]

    def block_tables(self) -> list[WordTable | None]:
        """Return the members' tables; where one loss trains all, the first table."""
        tables = [table for member in self._towers() for table in member.block_tables()]
        if self._is_joint:
            return [next((table for table in tables if table is not None), None)]
        return tables

    def block_parameters(self) -> list[tuple[nn.Parameter, ...]]:
        """Return the members' other parameters, in one block where one loss trains all."""
        if self._is_joint:
            return super().block_parameters()
        return [parameters for member in self._towers() for parameters in member.block_parameters()]

    def lay_out(self, packed: Packed) -> None:
        """Lay out what the members read."""
        for member in self._towers():
            member.lay_out(packed)

    def compile_layers(self, *, backend: str = "inductor") -> None:
        """Compile what the members have."""
        for member in self._towers():
            member.compile_layers(backend=backend)

    def use_small_groups(self) -> bool:
        """Let the members take groups with little padding; returns whether one does so that did not."""
        # A list, so that every member is asked.
        changed = [member.use_small_groups() for member in self._towers()]
        return any(changed)

    def project(self, words: Tensor) -> list[object]:
        """Return what each member projects."""
        return [member.project(words) for member in self._towers()]

    def read(self, packed: Packed, projected: list[object]) -> Tensor:
        """Return the vectors [batch, dim]."""
        towers = zip(self._towers(), projected, strict=True)
        return torch.cat([member.read(packed, words) for member, words in towers], dim=1)

    def read_encoded(self, packed: Packed, projected: list[object]) -> Tensor:
        """Return the members' blocks as `encode` normalizes them."""
        towers = zip(self._towers(), projected, strict=True)
        return torch.cat([member.read_encoded(packed, words) for member, words in towers], dim=1)
