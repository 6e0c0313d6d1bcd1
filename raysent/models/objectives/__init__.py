"""Vectors of sentences -> a loss; one file per objective, and the folder is the registry.

A file of this folder defines `class Config(ObjectiveConfig)`, whose `type: Literal["..."]` names it, and
`class Objective(Objective)`. The configuration says what is read and how many towers are trained; the objective gets a
way to read sentences into vectors and one batch, and never sees an encoder's inside. Nothing else is touched:
batches, validation, training and the saved model follow what the two declare.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.data.batches import Batch, Sentences
from raysent.kernels.devices import to_device
from raysent.models.embeddings import WordTable
from raysent.registry import Registry, by_type, union

Reads = Literal["context", "triplets", "pairs"]


class ObjectiveConfig(StrictModel):
    """What every objective's configuration has.

    Attributes:
        reads: `context`: contiguous windows of a corpus. `triplets`: a sentence with the one before and the one after,
            grouped by length. `pairs`: two columns of sentences, with a label or a score where the file has one.
        num_towers: Encoders that are trained: f alone, or f and g.
        is_summed: Whether the loss is a sum over the batch, so that the workers' gradients are added up; otherwise it
            is a mean.
        has_state: Whether the objective has parameters of its own, remembers first values of the encoder's, or asks
            what a saved model no longer knows; such an objective is not loaded with a model.
        compares: Whether the loss of a sentence depends on the others of the batch, so that workers gather theirs.
        is_cosine: Whether vectors are compared by their direction alone.
        reads_counts: Whether it asks how often words occur.
        needs_map: Whether it trains the last map of a second encoder of type `linear`, over fixed words.
        num_maps: How many maps that encoder must have.
        is_kept: Whether its parameters stay with a saved model; otherwise only checkpoints hold them.
        metrics: What `Objective.scores` gives on held-out text.
        predicted_metrics: What comes of comparing `Objective.predict` with the scores of held-out pairs.
        trains_code: Whether the encoders stay as they are, and it is the model's code that is trained on their vectors.
        needs_scores: Whether its pairs must have scores.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
    """

    reads: ClassVar[Reads] = "context"
    num_towers: ClassVar[Literal[1, 2]] = 2
    is_summed: ClassVar[bool] = False
    has_state: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = False
    reads_counts: ClassVar[bool] = False
    needs_map: ClassVar[bool] = False
    num_maps: ClassVar[int] = 1
    is_kept: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = ()
    predicted_metrics: ClassVar[tuple[str, ...]] = ()
    needs_scores: ClassVar[bool] = False
    trains_code: ClassVar[bool] = False

    type: str
    variant: Literal["paper", "authors"] = "paper"

    @property
    def presets(self) -> dict[str, Any]:
        """Training settings that hold where the run names none, such as how gradients are clipped."""
        return {}


class ContextConfig(ObjectiveConfig):
    """What the objectives over contexts have in common.

    Attributes:
        context_size: Sentences on each side that count as neighbours.
        candidates: Which sentences form a batch: neighbours in the text, blocks drawn at random, or each sentence's
            likest ones.
    """

    context_size: int = pydantic.Field(default=1, ge=1)
    candidates: Literal["contiguous", "random", "nearest"] = "contiguous"


@dataclass(frozen=True)
class BuildContext:
    """What an objective with parameters of its own is built with.

    Attributes:
        dim: Size of one tower's vector, or of the block of it that this objective trains.
        num_words: Rows of the vocabulary, with padding and the unknown word.
        words: The word table behind the first tower's vectors; None where there is none.
        generator: Source of first values.
        num_classes: Labels of the pairs; 0 where they have none.
        parameters: The first tower's other parameters, for penalties that know nothing of their meaning.
        second_parameters: The same of the second tower; none where there is one tower.
        word_counts: How often each word occurs in the text [vocabulary]; None where `reads_counts` does not ask.
        code: What makes bits of the vectors; None where the model has none.
        num_bits: How many.
    """

    dim: int
    num_words: int
    words: WordTable | None
    generator: torch.Generator
    num_classes: int = 0
    parameters: tuple[nn.Parameter, ...] = ()
    second_parameters: tuple[nn.Parameter, ...] = ()
    word_counts: Tensor | None = None
    code: Any = None
    num_bits: int = 0


class Read(Protocol):
    """A way to read sentences into vectors."""

    def __call__(self, sentences: Sentences, *, is_training: bool = True) -> tuple[Tensor, ...]:
        """Return the vectors of each tower, [batch, dim] each; the same sentences object is read once.

        Args:
            sentences: Ids and lengths.
            is_training: Whether dropout acts and gradients are kept.
        """


class Objective(nn.Module):
    """What a run minimises. Parameters of its own are trained with the encoders'."""

    @abstractmethod
    def forward(self, read: Read, batch: Any, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss of one batch, a scalar.

        Args:
            read: Sentences -> vectors.
            batch: A `Batch`, `Triplets` or `Pairs`, as the configuration's `reads` says.
            generator: Source of the objective's own randomness; a function of the seed and the step.
        """

    def scores(self, read: Read, batch: Any) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of cases of each of the configuration's `metrics` on a held-out batch."""
        del read, batch
        return {}

    def prepare(self, batch: Any, *, generator: torch.Generator | None = None) -> Any:
        """Return a training batch as the loss wants it, such as with words shuffled; called before it is read."""
        del generator
        return batch

    def penalty(self) -> Tensor:
        """Return what the parameters cost by themselves, a scalar that is added to the loss."""
        return torch.zeros(())

    def predict(self, read: Read, batch: Any) -> Tensor:
        """Return the predicted score of each pair [batch]; only where `predicted_metrics` names figures."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Move parameters once more after the optimiser has; for constraints that gradients do not keep."""


class ContextObjective(Objective):
    """An objective over the sentences of a contiguous block; workers gather their vectors for it."""

    def forward(self, read: Read, batch: Batch, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss of one block."""
        del generator
        f, g = read(batch.sentences)
        positions = to_device(batch.positions, f.device)
        documents = to_device(batch.documents, f.device)
        # Scores are a thousandth of a step's work: they stay in float32 under mixed precision.
        with torch.autocast(f.device.type, enabled=False):
            return self.compare(f, g, positions=positions, documents=documents)

    @abstractmethod
    def compare(
        self,
        f: Tensor,
        g: Tensor,
        *,
        positions: Tensor,
        documents: Tensor,
        candidate_positions: Tensor | None = None,
        candidate_documents: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            f: Vectors of the source sentences [batch, dim].
            g: Vectors of the candidates [candidates, dim].
            positions: Place of each source sentence in the corpus [batch].
            documents: Its document [batch].
            candidate_positions: Place of each candidate [candidates]; None where they are the source sentences.
            candidate_documents: Its document [candidates].
        """


class ScoredContext(ContextObjective):
    """An objective over contexts that needs no more than the scores f . g, and who is whose neighbour."""

    def __init__(self, config: ContextConfig, build_context: BuildContext | None = None) -> None:
        """Have no parameters."""
        super().__init__()
        del build_context
        self._context_size = config.context_size

    def compare(
        self,
        f: Tensor,
        g: Tensor,
        *,
        positions: Tensor,
        documents: Tensor,
        candidate_positions: Tensor | None = None,
        candidate_documents: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the sentences that have a neighbour; see `ContextObjective.compare`."""
        neighbours, others = neighbour_masks(
            positions, documents, candidate_positions, candidate_documents, context_size=self._context_size
        )
        return self.loss(f.float() @ g.float().T, neighbours=neighbours, others=others)

    @abstractmethod
    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean over the sentences that have a neighbour, a scalar.

        Args:
            scores: f . g [batch, candidates].
            neighbours: Whether a candidate is a sentence's neighbour, bool [batch, candidates].
            others: Whether it is neither that nor the sentence itself.
        """


def neighbour_masks(
    positions: Tensor,
    documents: Tensor,
    candidate_positions: Tensor | None = None,
    candidate_documents: Tensor | None = None,
    *,
    context_size: int,
) -> tuple[Tensor, Tensor]:
    """Return which candidates are neighbours of each source sentence, and which are neither that nor itself.

    Args:
        positions: Place of each source sentence in the corpus [batch].
        documents: Its document [batch].
        candidate_positions: Place of each candidate [candidates]; None where they are the source sentences.
        candidate_documents: Its document [candidates].
        context_size: Sentences on each side that count as neighbours.

    Returns:
        bool [batch, candidates] each.
    """
    # One number a sentence, in which documents lie far apart: a comparison of all pairs is most of what this takes.
    places = candidates = positions + (documents << 36)
    if candidate_positions is not None and candidate_documents is not None:
        candidates = candidate_positions + (candidate_documents << 36)
    distance = (places[:, None] - candidates[None, :]).abs_()
    others, itself = distance > context_size, distance == 0
    return (others | itself).logical_not_(), others


def build_objective(config: ObjectiveConfig, build_context: BuildContext | None = None) -> Objective:
    """Return the objective that the configuration names; one without parameters needs no surroundings."""
    objective: Objective = OBJECTIVES[config.type].Objective(config, build_context)
    return objective


OBJECTIVES: Registry[Any] = Registry("objective", package=__name__, folders=__path__, read=by_type)

if TYPE_CHECKING:
    AnyObjective: TypeAlias = ObjectiveConfig
else:
    AnyObjective = union(OBJECTIVES)


def known_objectives() -> dict[str, type[ObjectiveConfig]]:
    """Return the configuration of every objective by name."""
    return {name: module.Config for name, module in OBJECTIVES.items()}
