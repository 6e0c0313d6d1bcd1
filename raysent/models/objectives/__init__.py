"""Objectives: vectors of a batch of sentences -> a loss. One file per objective; the folder is the registry.

A file of this folder, or the value of an entry point of the group `raysent.objectives`, is an `ObjectiveModule`: a
class `Config` whose `type: Literal["..."]` is the objective's name, and a class `Objective`. The configuration says
which batches are read and how many towers are trained; the objective gets a function from sentences to vectors and one
batch, and knows nothing else of the encoders. No other file changes: batches, validation, training and the saved model
follow from the two.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pydantic
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.data.batches import Batch, Candidates, TargetSizes
from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.kernels.devices import to_device
from raysent.models.codes import Code, CodeConfig
from raysent.models.embeddings import WordTable
from raysent.models.encoders import EncoderConfig
from raysent.registry import AnyOf, Registry, by_type

CONTEXT_METRICS = ("context_accuracy", "context_nll")
"""Metrics that validation computes from two towers: which sentences are neighbours."""

PREDICTION_METRICS = ("score_pearson", "score_mse")
"""Metrics that validation computes by comparing `Objective.predict` with the scores of held-out pairs."""


@dataclass(frozen=True)
class ContextBatches:
    """Sentences of running text with their positions; a batch is a `Batch`.

    Attributes:
        context_size: Sentences on each side that count as neighbours.
        candidates: Which sentences form a batch: `contiguous` ones, `random` blocks, or each block's `nearest` ones.
        num_encoded: How often each sentence is encoded.
    """

    context_size: int = 1
    candidates: Candidates = "contiguous"
    num_encoded: int = 1
    reads: ClassVar[str] = "running text"


@dataclass(frozen=True)
class TripletBatches:
    """A sentence with the one before and the one after, grouped by length; a batch is a `Triplets`.

    Attributes:
        max_length: Words of each of the three sentences at most; None takes the limit of the corpus.
    """

    max_length: int | None = None
    num_encoded: ClassVar[int] = 3
    reads: ClassVar[str] = "running text"


@dataclass(frozen=True)
class PairBatches:
    """Two columns of sentences, with a label or a score where the file has one; a batch is a `Pairs`.

    Attributes:
        needs_scores: Whether the pairs must have scores.
        reads_further: Whether the columns `pairs.positives` and `pairs.negatives` are read.
        num_levels: The greatest score, where the least must be 1; None for scores of any size.
    """

    needs_scores: bool = False
    reads_further: bool = False
    num_levels: int | None = None
    num_encoded: ClassVar[int] = 2
    reads: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class LabelBatches:
    """Training rows of a task with their classes, balanced over classes; a batch is a `LabelBatch`."""

    num_encoded: ClassVar[int] = 1
    reads: ClassVar[str] = "labels of a task"


@dataclass(frozen=True)
class TargetBatches:
    """Sentences of running text in random order, each with what a teacher returned; a batch is a `TargetBatch`.

    Attributes:
        teacher: Folder of a model or an ensemble, or a scheme's name; None where the settings do not name it yet.
        dim: Size of the target at most; the teacher's vectors are projected to it.
        projection: `pca` keeps the directions of most variance of a sample of the text, `random` random ones.
        tasks: Tasks whose log-probabilities the teacher returns too; None for vectors alone.
        data: Folder of task files.
        max_loss: What the projection may lose, in percent.
    """

    teacher: str | None
    dim: int
    projection: Literal["pca", "random"] = "pca"
    tasks: tuple[str, ...] | None = None
    data: str | None = None
    max_loss: float = 1.0
    num_encoded: ClassVar[int] = 1
    reads: ClassVar[str] = "running text, and a teacher"


Batches: TypeAlias = ContextBatches | TripletBatches | PairBatches | LabelBatches | TargetBatches
"""What an objective reads, in words `reads`; `num_encoded` is the number of sentences of one example."""


@dataclass(frozen=True)
class StepShape:
    """Sizes of one training step, for estimates of its memory.

    Attributes:
        batch_size: Sentences, triplets or pairs.
        max_length: Words of a sentence at most.
        num_words: Rows of the vocabulary.
        dim: Size of one tower's vector.
        num_bits: Bits of a code; 0 without one.
        num_encoded: Sentences that are encoded for one example, further columns of pairs included.
    """

    batch_size: int
    max_length: int
    num_words: int
    dim: int
    num_bits: int = 0
    num_encoded: int = 2


class ObjectiveConfig(StrictModel):
    """Settings of an objective, and what a run has to know of it.

    Attributes:
        num_towers: Encoders that are trained: f, or f and g.
        across_workers: How several workers share a step, so that their losses add up to that of one. `rows`: a loss of
            contexts or pairs compares a sentence with the others of the batch; `read` returns the vectors of all
            workers' sentences, and `forward` the part of the loss that the batch's `rows` contribute. `mean` and `sum`:
            each computes the mean or the sum over its own sentences.
        in_saved_model: What a saved model holds of the objective. `kept`: its parameters. `rebuilt`: nothing, as it has
            no state of its own. `absent`: nothing, although it has state, which only checkpoints hold; a loaded model
            has no objective.
        trains_code: Whether the encoders stay fixed and the model's code is trained on their vectors.
        is_by_example: Whether the loss of a batch is the mean, or with `sum` the sum, of what each example has alone.
        scores_words: Whether the loss scores all words by the encoder's own vectors of them, so that each step changes
            all of these.
        type: The objective's name.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
    """

    num_towers: ClassVar[Literal[1, 2]] = 2
    across_workers: ClassVar[Literal["rows", "mean", "sum"]] = "mean"
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "rebuilt"
    trains_code: ClassVar[bool] = False
    is_by_example: ClassVar[bool] = False
    scores_words: ClassVar[bool] = False

    type: str
    variant: Literal["paper", "authors"] = "paper"

    @classmethod
    def values_from_initial(cls, *, num_towers: int) -> dict[str, Any]:
        """Return settings that follow from the model a run starts with; keys that are given override them.

        Args:
            num_towers: Towers of that model.
        """
        del num_towers
        return {}

    @property
    def presets(self) -> dict[str, Any]:
        """Training settings that hold where the run gives none, such as how gradients are clipped."""
        return {}

    @property
    def batches(self) -> Batches:
        """The batches that the loss reads; by default contiguous sentences of running text."""
        return ContextBatches()

    @property
    def reads(self) -> str:
        """What it is trained on, in words."""
        return self.batches.reads

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics on held-out text.

        `CONTEXT_METRICS` and `PREDICTION_METRICS` are computed by validation, others by `Objective.held_out_totals`. By
        default the former, for two towers that read contexts.
        """
        if isinstance(self.batches, ContextBatches) and self.num_towers == 2:
            return CONTEXT_METRICS
        return ()

    @property
    def learns_from_neighbours(self) -> bool:
        """Whether a sentence without a neighbour in its document teaches nothing."""
        has_context = isinstance(self.batches, ContextBatches) and self.batches.context_size > 0
        return (has_context or isinstance(self.batches, TripletBatches)) and not self.trains_code

    @property
    def encoded_at_once(self) -> int | None:
        """Sentences whose states are kept for the gradient at a time; None for those of the whole step."""
        return None

    @property
    def trained_prefixes(self) -> tuple[int, ...]:
        """Sizes to which vectors may be cut, because it trains their first numbers as vectors too."""
        return ()

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse encoders that the objective cannot train.

        Raises:
            ValueError: With what must hold.
        """
        if second is None:
            return
        if self.num_towers < 2:
            raise ValueError(
                f"second_encoder must be left out with objective {self.type}, which trains one encoder"
            )
        if first.loss_dims != second.loss_dims:
            raise ValueError(
                f"second_encoder must give vectors of the same blocks as encoder, {list(first.loss_dims)}; "
                f"given {list(second.loss_dims)}"
            )

    def check_code(self, code: CodeConfig | None) -> None:
        """Refuse a code that the objective does not train.

        Raises:
            ValueError: With what must hold.
        """
        if code is not None and getattr(code, "resolved_threshold", None) != 0:
            raise ValueError(
                f"code must be of type threshold, at 0, with objective {self.type}, which sees the bits in training; "
                "or train the code afterwards: objective.type reconstruction, initial the trained model"
            )

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return a tower's vectors [batch, dim] as dot products compare them; by default unchanged."""
        return vectors

    def num_step_values(self, shape: StepShape) -> int:
        """Return about how many numbers the objective keeps on the device in a step, beside the encoders' states.

        By default the scores of all pairs of a batch, their probabilities and their gradients.
        """
        return 3 * shape.batch_size**2


class ContextConfig(ObjectiveConfig):
    """Settings of an objective over sentences and their neighbours.

    Attributes:
        context_size: Sentences on each side that count as neighbours.
        candidates: Which sentences form a batch: `contiguous` ones, `random` blocks, or each block's `nearest` ones.
    """

    across_workers: ClassVar[Literal["rows", "mean", "sum"]] = "rows"

    context_size: int = pydantic.Field(default=1, ge=1)
    candidates: Candidates = "contiguous"

    @property
    def batches(self) -> Batches:
        """Sentences of running text."""
        return ContextBatches(self.context_size, self.candidates)


@dataclass(frozen=True)
class BuildContext:
    """What an objective is built with.

    Attributes:
        dim: Size of one tower's vector, or of the block of it that this objective trains.
        num_words: Rows of the vocabulary, with padding and the unknown word.
        words: The word table behind the first tower's vectors; None where there is none.
        generator: Source of initial values.
        num_classes: Labels of the pairs; 0 where they have none.
        parameters: The first tower's other parameters, for penalties on all of them.
        second_parameters: The same of the second tower; empty where there is one tower.
        word_counts: Counts how often each word occurs in the training text, [vocabulary]; None where there is no text.
        code: Turns the vectors into bits; None where the model has no code.
        num_bits: Bits of the code.
        targets: Sizes of what the teacher returns for each sentence; None where there is no teacher.
        vocabulary: The words that have an id.
        token_dim: Size of the first tower's states of words; None where it has none.
        token_words: Returns the vectors of words that it reads, [vocabulary or more, word dim], for `scores_words`.
    """

    dim: int
    num_words: int
    words: WordTable | None
    generator: torch.Generator
    num_classes: int = 0
    parameters: tuple[nn.Parameter, ...] = ()
    second_parameters: tuple[nn.Parameter, ...] = ()
    word_counts: Callable[[], Tensor] | None = None
    code: Code | None = None
    num_bits: int = 0
    targets: TargetSizes | None = None
    vocabulary: Vocabulary | None = None
    token_dim: int | None = None
    token_words: Callable[[], nn.Parameter] | None = None


class Read(Protocol):
    """A function from sentences to vectors."""

    def __call__(
        self, sentences: Sentences, *, is_training: bool = True, tokens: bool = False
    ) -> tuple[Tensor, ...]:
        """Return the vectors of each tower, [batch, dim] each; the same sentences object is encoded once.

        With a batch that has `rows`, the vectors are those of all workers' sentences [candidates, dim].

        Args:
            sentences: Ids and lengths.
            is_training: Whether dropout acts and gradients are kept.
            tokens: Whether the states of the sentences' words are returned instead, [tokens, size of a state] each.
        """


class Objective(nn.Module):
    """The loss of a run. Parameters of its own are trained with the encoders'."""

    @abstractmethod
    def forward(
        self, read: Read, batch: Any, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss of one batch, a scalar.

        Args:
            read: Sentences -> vectors.
            batch: A `Batch`, `Triplets`, `Pairs`, `LabelBatch` or `TargetBatch`, as the configuration's `batches` says.
            generator: Source of the objective's own randomness; a function of the seed and the step.
        """

    def held_out_totals(self, read: Read, batch: Any) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of cases of each of the objective's own metrics on a held-out batch."""
        del read, batch
        return {}

    def prepare(self, batch: Any, *, generator: torch.Generator | None = None) -> Any:
        """Return a training batch as the loss needs it, for instance with shuffled words; called before it is read.

        The generator is the same on all workers. A batch gets new words only with `scores_words`.
        """
        del generator
        return batch

    def penalty(self) -> Tensor:
        """Return the penalty on parameters, a scalar that is added to the loss."""
        return torch.zeros(())

    def fit(self, vectors: Tensor) -> None:
        """Fit what needs no steps to a sample of finished vectors [rows, dim]; called for models with a code."""

    def before_step(self, done: float) -> None:
        """Prepare for a training step, for a loss that changes in the course of a run.

        Args:
            done: The part of the run's steps that are done, from 0 to below 1.
        """

    def predict(self, read: Read, batch: Any) -> Tensor:
        """Return the predicted score of each pair [batch]; required for `PREDICTION_METRICS`."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Change parameters after the optimizer's step, for constraints that gradients do not keep."""


class ObjectiveModule(Protocol):
    """The form of an objective's module.

    Call order:

    1. `Config` is validated from the `objective` section of a run; `check_towers` and `check_code` refuse parts that do
       not fit. `batches`, `metrics`, `presets` and `num_step_values` are read from it before anything is built.
    2. `Objective(config, build_context)` is built once for each block that has a loss of its own.
    3. In each step `before_step(done)`, `prepare(batch)`, `forward(read, batch)` and `penalty()`; after the
       optimizer's step `after_step()`.
    4. At each report `held_out_totals(read, batch)`, or `predict(read, batch)`, on held-out batches.
    """

    Config: type[ObjectiveConfig]
    Objective: Callable[[Any, BuildContext | None], Objective]


class ContextObjective(Objective):
    """An objective over the sentences of a block; workers gather their vectors for it."""

    def __init__(self, config: ContextConfig, build_context: BuildContext | None = None) -> None:
        """Make an objective without parameters."""
        super().__init__()
        del build_context
        self._context_size = config.context_size

    def forward(
        self, read: Read, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss of one block, or what the rows of this worker contribute to it."""
        del generator
        vectors = read(batch.sentences)
        device = vectors[0].device
        source_places = places_of(batch.positions, batch.documents, device)
        rows = batch.rows or slice(None)
        # Scores are a thousandth of a step's work, so they stay in float32 under mixed precision.
        with torch.autocast(device.type, enabled=False):
            loss = self.compare(vectors, source_places, rows)
            if batch.rows is None:
                return loss
            # This worker has a share of them, 0 where there are none.
            counted = self.has_target(source_places)
            return loss * (counted[rows].sum() / counted.sum().clamp(min=1))

    @abstractmethod
    def compare(self, vectors: tuple[Tensor, ...], places: Tensor, rows: slice) -> Tensor:
        """Return the mean over the source sentences that have a neighbour among the candidates, a scalar.

        Args:
            vectors: Those of the candidates by each tower [candidates, dim].
            places: Places of the candidates [candidates]; see `places_of`.
            rows: The source sentences' rows among them; all where one worker has the whole batch.
        """

    def has_target(self, places: Tensor) -> Tensor:
        """Return which of the sentences at some places [candidates] have a correct candidate, bool [candidates]."""
        return has_neighbour(places, context_size=self._context_size)


class ScoredContext(ContextObjective):
    """An objective over contexts that depends only on the scores f . g and on which sentences are neighbours."""

    def compare(self, vectors: tuple[Tensor, ...], places: Tensor, rows: slice) -> Tensor:
        """Return the mean over the sentences that have a neighbour; see `ContextObjective.compare`."""
        f, g = vectors
        neighbours, is_other = neighbour_masks(
            places[rows], places, context_size=self._context_size
        )
        return self.loss(f[rows].float() @ g.float().T, neighbours=neighbours, others=is_other)

    @abstractmethod
    def loss(self, scores: Tensor, *, neighbours: Tensor, others: Tensor) -> Tensor:
        """Return the mean over the sentences that have a neighbour, a scalar.

        Args:
            scores: f . g [batch, candidates].
            neighbours: Whether a candidate is a sentence's neighbour, bool [batch, candidates].
            others: Whether it is neither a neighbour nor the sentence itself.
        """


def places_of(
    positions: npt.NDArray[np.int64], documents: npt.NDArray[np.int64], device: torch.device
) -> Tensor:
    """Return one number a sentence, int64 [batch], which neighbours in a document differ by as positions do.

    Documents are far apart, so that one comparison of all pairs, which takes most of the time, is enough.

    Args:
        positions: Position of each sentence in the corpus, int64 [batch]; no two are the same.
        documents: Its document, int64 [batch].
        device: Where the result is.
    """
    return to_device(positions + (documents << 36), device)


def neighbour_masks(
    sources: Tensor, candidates: Tensor, *, context_size: int
) -> tuple[Tensor, Tensor]:
    """Return which candidates are neighbours of each source sentence, and which are neither that nor itself.

    Args:
        sources: Places of the source sentences [batch]; see `places_of`.
        candidates: Those of the candidates [candidates].
        context_size: Sentences on each side that count as neighbours.

    Returns:
        bool [batch, candidates] each.
    """
    distance = (sources[:, None] - candidates[None, :]).abs_()
    is_other = distance > context_size
    itself = distance == 0
    # In place: these matrices are the largest that a step has.
    return (is_other | itself).logical_not_(), is_other


def has_neighbour(places: Tensor, *, context_size: int) -> Tensor:
    """Return which sentences have a neighbour among the others, bool [batch], without comparing all pairs.

    Args:
        places: Places of the sentences [batch]; see `places_of`.
        context_size: Sentences on each side that count as neighbours.
    """
    ascending, order = places.sort()
    # In ascending order the nearest sentence is the one before or the one after.
    is_near = ascending.diff() <= context_size
    no = is_near.new_zeros(1)
    is_neighbour = torch.cat([is_near, no]) | torch.cat([no, is_near])
    return torch.empty_like(is_neighbour).index_copy_(0, order, is_neighbour)


def build_objective(
    config: ObjectiveConfig, build_context: BuildContext | None = None
) -> Objective:
    """Return a new objective of the type that the configuration names; one without parameters needs no context."""
    return OBJECTIVES[config.type].Objective(config, build_context)


OBJECTIVES: Registry[ObjectiveModule] = Registry(
    "objective", package=__name__, folders=__path__, read=by_type
)

AnyObjective: TypeAlias = Annotated[ObjectiveConfig, AnyOf(OBJECTIVES)]
