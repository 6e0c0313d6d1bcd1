"""`SentenceModel`: one or two encoders (towers) and the objective that trains them.

build                   a `ModelConfig`, a vocabulary and a seed -> an untrained model
vectors, loss           a batch -> vectors of each tower [batch, dim], and a scalar, both with gradient
held_out_totals         a held-out batch -> sums of the objective's metrics; `predictions`: the predicted scores
encode                  text -> float32 [sentences, dim]: the towers' blocks, each of unit length
save, load              a folder of `model.json`, `model.safetensors` and `vocabulary.txt`
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.devices import in_float32, is_gpu, to_device
from raysent.kernels.packing import Packed, PackedAhead, block_rows, pack, pack_blocks
from raysent.models.codes import Code, build_code, pack_bits, straight_through
from raysent.models.config import ModelConfig
from raysent.models.embeddings import CorpusVectors, EmptyTables, KnownVectors, Tables, WordTable
from raysent.models.encoders import EncoderConfig, Tower, build_encoder
from raysent.models.files import (
    KIND,
    Record,
    check_parameters,
    fill,
    read_record,
    verify_files,
    write_record,
)
from raysent.models.objectives import BuildContext, Objective, ObjectiveConfig, build_objective
from raysent.models.origin import Origin
from raysent.models.postprocessing import Postprocessing
from raysent.models.sentence_encoder import Float32, SentenceEncoder, check_size, encode_blocks
from raysent.parallel import lock_for_forks
from raysent.storage import load_tensors, save_tensors
from raysent.storage.layout import TENSORS_FILE, VOCABULARY_FILE

if TYPE_CHECKING:
    from raysent.data.batches import AnyBatch, TargetSizes
    from raysent.models.objectives import Read

# Sentences whose distinct words are projected together; bounds memory and does not change the vectors.
_CHUNK = 8192
# Held while a model enters or leaves training mode for `encode`.
_MODE = lock_for_forks()


class StepReader:
    """Reads sentences into vectors within one step; a sentences object that is read again is not encoded again."""

    def __init__(
        self,
        encode: Callable[[Sentences, bool, bool], tuple[Tensor, ...]],
        *,
        dims: list[int],
        has_dropout: bool,
    ) -> None:
        """Start a step in which nothing is encoded yet.

        Args:
            encode: Sentences, whether dropout acts, and whether states of words are wanted -> the vectors of each
                tower, [batch, sum of dims] each, or states.
            dims: Sizes of the blocks that a tower's vector is made of.
            has_dropout: Whether a sentence's vector in training differs from its vector outside of training.
        """
        self._encode = encode
        self._dims = dims
        self._has_dropout = has_dropout
        # The sentences are kept with their vectors, so that no other object gets the same id.
        self._known: dict[tuple[int, bool], tuple[Sentences, tuple[Tensor, ...]]] = {}

    def add(
        self, sentences: Sentences, vectors: tuple[Tensor, ...], *, is_training: bool = True
    ) -> None:
        """Store vectors that were computed elsewhere."""
        self._known[(id(sentences), is_training)] = (sentences, vectors)

    def block(self, index: int) -> Read:
        """Return a function that reads sentences into the block `index` of every tower's vectors."""
        return functools.partial(self._read, index)

    def _read(
        self, index: int, sentences: Sentences, *, is_training: bool = True, tokens: bool = False
    ) -> tuple[Tensor, ...]:
        if tokens:
            return self._encode(sentences, is_training, True)
        if not is_training and not self._has_dropout:
            return tuple(tower.detach() for tower in self._read(index, sentences))
        key = (id(sentences), is_training)
        if key not in self._known:
            with torch.set_grad_enabled(torch.is_grad_enabled() and is_training):
                self._known[key] = (sentences, self._encode(sentences, is_training, False))
        vectors = self._known[key][1]
        # On a CPU gradients are added up per reading, in the order that its runs have had.
        if len(self._dims) == 1 and is_gpu(vectors[0].device):
            return tuple(in_float32(tower) for tower in vectors)
        return tuple(torch.split(in_float32(tower), self._dims, dim=1)[index] for tower in vectors)


class _Recomputed(torch.autograd.Function):
    """Vectors whose states are not kept: backward encodes a few sentences at a time again, with the same dropout.

    The first argument is a scalar with a gradient, so that backward is called.

    Source: Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup".
    """

    @staticmethod
    def forward(
        ctx: Any,
        start: Tensor,
        model: SentenceModel,
        sentences: Sentences,
        size: int,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, ...]:
        del start
        generator = generator or torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        ctx.model = model
        ctx.chunks = list(sentences.split(size))
        ctx.states = []
        vectors = []
        for chunk in ctx.chunks:
            ctx.states.append(generator.get_state())
            vectors.append(model.vectors(chunk, generator=generator))
        device = model.device.type
        ctx.autocast = {
            "dtype": torch.get_autocast_dtype(device),
            "enabled": torch.is_autocast_enabled(device),
        }
        return tuple(torch.cat(tower) for tower in zip(*vectors, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        sizes = [len(chunk.lengths) for chunk in ctx.chunks]
        tower_gradients = [torch.split(gradient, sizes) for gradient in gradients]
        chunk_gradients = zip(*tower_gradients, strict=True)
        for chunk, state, towers in zip(ctx.chunks, ctx.states, chunk_gradients, strict=True):
            generator = torch.Generator()
            generator.set_state(state)
            with torch.enable_grad(), torch.autocast(ctx.model.device.type, **ctx.autocast):
                vectors = ctx.model.vectors(chunk, generator=generator)
            torch.autograd.backward(vectors, towers)
        # One for each argument of `forward`: the gradients of parameters are added up where they belong.
        return (None,) * 5


class SentenceModel(nn.Module, SentenceEncoder):
    """One or two towers, f and g, and the objective that trains them.

    Attributes:
        config: The parts of the model.
        vocabulary: The words that have an id.
        max_length: Tokens read of a longer sentence.
        num_classes: Labels of the training pairs; 0 where they have none.
        origin: How its values came about; None where that is not known.
        f: The first tower.
        g: The second tower, where the objective trains two.
        postprocessing: Turns the towers' blocks into the vector that `encode` returns.
        code: Turns that vector into bits; None where the model has no code.
        objectives: One for each block that has a loss of its own; empty in a loaded model whose objective is not saved.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: Vocabulary,
        *,
        tables: Tables,
        max_length: int = 50,
        num_classes: int = 0,
    ) -> None:
        """Make the towers, postprocessing and code; `build` and `load` add the objective.

        Args:
            config: The parts of the model.
            vocabulary: The words that have an id.
            tables: Makes the word tables, and holds the generator of the initial values.
            max_length: Tokens read of a longer sentence.
            num_classes: Labels of the training pairs; 0 where they have none.
        """
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.num_classes = num_classes
        self.prompts, self.default_prompt_name = config.encoder.named_prompts
        self.f = build_encoder(config.encoder, tables)
        if len(config.towers) == 2:
            self.g = build_encoder(config.towers[1], tables)
        self.postprocessing = Postprocessing(
            config.postprocessing,
            config.encoded_dims,
            normalizes=config.normalizes,
        )
        dim = self.postprocessing.dim()
        self.code: Code | None = None
        if config.code is not None:
            self.code = build_code(config.code, dim=dim, generator=tables.generator)
        self.origin: Origin | None = None
        self._trains_code = config.objective is not None and config.objective.trains_code
        if self._trains_code:
            for tower in self.towers:
                tower.requires_grad_(False)
        self.objectives = nn.ModuleList()
        self._known: KnownVectors | None = None
        self._num_encoding = 0
        self._was_training = False

    # -- building and loading -----------------------------------------------------------------------------------

    @classmethod
    def build(  # noqa: PLR0913 - what a run knows of its text
        cls,
        config: ModelConfig,
        vocabulary: Vocabulary,
        *,
        seed: int,
        word_vectors: CorpusVectors | None = None,
        max_length: int = 50,
        num_classes: int = 0,
        word_counts: Callable[[], Tensor] | None = None,
        targets: TargetSizes | None = None,
        initial: dict[str, Tensor] | None = None,
        has_objective: bool = True,
    ) -> Self:
        """Return an untrained model.

        Args:
            config: The parts of the model.
            vocabulary: The words that have an id.
            seed: Fixes the initial values.
            word_vectors: Dimension -> word vectors counted from the corpus, float32 [vocabulary, dim]; required only
                where an encoder's `embedding.vectors` is `ppmi`. Files of word vectors are read here.
            max_length: Tokens read of a longer sentence.
            num_classes: Labels of the training pairs; 0 where they have none.
            word_counts: Counts how often each word occurs in the training text, [vocabulary]; called only by objectives
                that need it.
            targets: Sizes of a teacher's targets, for an objective that learns them.
            initial: Initial values of the encoders by name; None draws them.
            has_objective: Whether it is to be trained; some objectives need counts of words or a teacher's sizes.

        Raises:
            ConfigError: If `initial` belongs to other encoders, or word vectors are missing or do not have
                `embedding.dim` numbers.
            DataError: If a file of word vectors is missing or malformed.
        """
        generator = torch.Generator().manual_seed(seed)
        tables_class = Tables if initial is None else EmptyTables
        tables = tables_class(vocabulary, generator=generator, corpus_vectors=word_vectors)
        model = cls(
            config, vocabulary, tables=tables, max_length=max_length, num_classes=num_classes
        )
        model.origin = Origin(kind="start", encoder=config.encoder.type)
        if initial is not None:
            model._set_encoders(initial)
        # Last, because an objective may remember the encoders' initial values.
        if has_objective:
            model._add_objectives(generator, word_counts, targets)
        return model

    def _set_encoders(self, tensors: dict[str, Tensor]) -> None:
        parameters = {
            name: parameter
            for name, parameter in self.named_parameters()
            if name.startswith(("f.", "g."))
        }
        # Where this model has one tower of the two, the tensors of the other are left out.
        initial = {name: tensors[name] for name in parameters if name in tensors}
        try:
            fill(parameters, initial, source="initial")
        except ArtifactError as error:
            raise ConfigError(
                f"{error}; encoder and second_encoder must be as in the model's run.json"
            ) from None

    def _add_objectives(
        self,
        generator: torch.Generator,
        word_counts: Callable[[], Tensor] | None = None,
        targets: TargetSizes | None = None,
    ) -> None:
        objective = self._objective
        dims = self._loss_dims
        no_parameters: list[tuple[nn.Parameter, ...]] = [()] * len(dims)
        first = no_parameters
        second = no_parameters
        tables: list[WordTable | None] = [None] * len(dims)
        if not self._trains_code:
            first = self.f.block_parameters()
            tables = self.f.block_tables()
        if not self._trains_code and len(self.towers) == 2:
            second = self.g.block_parameters()
        for dim, table, first_parameters, second_parameters in zip(
            dims, tables, first, second, strict=True
        ):
            build_context = BuildContext(
                dim=dim,
                num_words=len(self.vocabulary),
                words=table,
                generator=generator,
                num_classes=self.num_classes,
                parameters=first_parameters,
                second_parameters=second_parameters,
                word_counts=word_counts,
                code=self.code,
                num_bits=self.num_bits,
                targets=targets,
                vocabulary=self.vocabulary,
                token_dim=self.config.encoder.token_dim,
                token_words=self.f.token_words if objective.scores_words else None,
            )
            self.objectives.append(build_objective(objective, build_context))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a saved model; its vectors are bit-identical to those of the model that was saved.

        Raises:
            ArtifactError: If a file is missing, truncated, of another kind or of another model.
        """
        record = read_record(folder)
        verify_files(folder)
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        if len(vocabulary) != record.num_words:
            raise ArtifactError(
                f"{folder / VOCABULARY_FILE}: of another model: must hold {record.num_words} words; "
                f"given {len(vocabulary)}"
            )
        if vocabulary.unicode_form != record.unicode_form:
            raise ArtifactError(
                f"{folder / VOCABULARY_FILE}: of another model: must read text in the form "
                f"{record.unicode_form}; given {vocabulary.unicode_form}; restore it"
            )
        path = folder / TENSORS_FILE
        return cls.from_tensors(record, vocabulary, load_tensors(path), source=path)

    @classmethod
    def from_tensors(
        cls,
        record: Record,
        vocabulary: Vocabulary,
        tensors: dict[str, Tensor],
        *,
        source: Path | str = "model",
    ) -> Self:
        """Return a model with the given parameters, ready to encode.

        It can be trained further where its objective has no parameters of its own, or they are saved with the model.

        Args:
            record: The content of `model.json`.
            vocabulary: The words that have an id.
            tensors: The parameters by name, as `kept_tensors` returns them.
            source: The tensors' file, for messages.

        Raises:
            ArtifactError: If names or shapes are those of another model, or a value is not finite.
        """
        check_parameters(record, tensors, source=source)
        config = record.config
        tables = EmptyTables(vocabulary, generator=torch.Generator())
        model = cls(
            config,
            vocabulary,
            tables=tables,
            max_length=record.max_length,
            num_classes=record.num_classes,
        )
        # An export has the encoders alone.
        is_rebuilt = config.objective is not None and config.objective.in_saved_model == "rebuilt"
        if is_rebuilt or any(name.startswith("objectives.") for name in tensors):
            model._add_objectives(tables.generator)
        model.load_tensors(tensors, source=source)
        model.learned_tasks = record.learned_tasks
        model.origin = record.origin
        return model.eval()

    # -- parts --------------------------------------------------------------------------------------------------

    @property
    def towers(self) -> list[Tower]:
        """The encoders: f, or f and g."""
        if len(self.config.towers) == 1:
            return [self.f]
        return [self.f, self.g]

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def num_bits(self) -> int:
        """Bits of a code; 0 for a model without one."""
        if self.config.code is None:
            return 0
        return self.config.code.num_bits(self.postprocessing.dim())

    @property
    def tables(self) -> list[WordTable]:
        """The trained word tables, each once, in a fixed order."""
        tables = [module for module in self.modules() if isinstance(module, WordTable)]
        return [table for table in tables if table.weight.requires_grad]

    @property
    def _objective(self) -> ObjectiveConfig:
        """The settings of the loss, of a model that has one.

        Raises:
            ConfigError: If it has none.
        """
        if self.config.objective is None:
            raise ConfigError(
                "MODEL: has no objective, as it was made without training; start a run with it"
            )
        return self.config.objective

    def _objectives(self) -> list[Objective]:
        return [cast("Objective", objective) for objective in self.objectives]

    @property
    def _loss_dims(self) -> list[int]:
        """Sizes of the blocks that have a loss of their own; where a code is trained, the size of the whole vector."""
        if self._trains_code:
            return [self.postprocessing.dim()]
        return list(self.config.encoder.loss_dims)

    # -- training -----------------------------------------------------------------------------------------------

    def use_sparse_gradients(self, enabled: bool = True) -> None:
        """Choose whether a word table's gradient holds only the rows in use, as `RowAdam` requires."""
        for table in self.tables:
            table.sparse_gradient = enabled

    def use_known_vectors(self, known: KnownVectors) -> None:
        """Look up what `encoded` returned before, instead of encoding again; the encoder must not change."""
        self._known = known

    def prepare(self, batch: AnyBatch, *, generator: torch.Generator | None = None) -> AnyBatch:
        """Return a training batch as the objective changes it, for instance with shuffled words."""
        prepared: AnyBatch = self._objectives()[0].prepare(batch, generator=generator)
        return prepared

    @property
    def has_schedule(self) -> bool:
        """Whether an objective changes in the course of a run."""
        return any(
            type(objective).before_step is not Objective.before_step
            for objective in self._objectives()
        )

    def use_small_groups(self) -> bool:
        """Let the encoders take groups with little padding; returns whether one does so that did not."""
        changed = [tower.use_small_groups() for tower in self.towers]
        return any(changed)

    def pack_ahead(self, sentences: Sentences) -> Packed:
        """Lay out sentences with all that the encoders read of them, in the current mode of autocast."""
        packed = self.pack(sentences)
        for tower in self.towers:
            tower.lay_out(packed)
        return packed

    def pack(self, sentences: Sentences) -> Packed:
        """Lay out sentences for the encoders; `vectors` also takes the result, whose `words` are the rows to read."""
        return pack(sentences, device=self.device)

    def vectors(
        self,
        sentences: Sentences | Packed,
        *,
        generator: torch.Generator | None = None,
        tokens: bool = False,
    ) -> tuple[Tensor, ...]:
        """Encode with every tower, with gradient.

        Args:
            sentences: Ids and lengths, or the same packed.
            generator: Source of dropout masks in training; None is torch's global one.
            tokens: Whether to return the states of words instead, [tokens, `token_dim`] each.

        Returns:
            The vectors of f, or of f and g, each float32 [batch, dim]. Where the objective trains a code, the finished
            vectors only. Where the objective sees bits, these as -1 and 1.
        """
        if self._trains_code:
            with torch.no_grad():
                return (self.postprocessing(self._blocks(sentences)),)
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        for module in self.modules():
            if isinstance(module, WordTable | Tower):
                module.generator = generator
        if tokens:
            return tuple(tower.tokens(packed).float() for tower in self.towers)
        vectors = tuple(in_float32(tower(packed)) for tower in self.towers)
        if self.code is not None:
            vectors = tuple(2 * straight_through(tower) - 1 for tower in vectors)
        if not (self.training and self._has_dropout):
            return vectors
        first, second = self.config.encoder.dropout_masks(packed.batch, generator=generator)
        if self.config.second_encoder is not None:
            _, second = self.config.second_encoder.dropout_masks(packed.batch, generator=generator)
        masks = (first, second)[: len(vectors)]
        return tuple(
            tower * to_device(mask, tower.device)
            for tower, mask in zip(vectors, masks, strict=True)
        )

    @property
    def _has_dropout(self) -> bool:
        """Whether a tower's vectors in training differ from those outside of training."""
        return any(tower.has_dropout for tower in self.config.towers)

    def step_reader(
        self,
        generator: torch.Generator | None = None,
        *,
        gather: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None,
        num_parts: int = 1,
        packed: PackedAhead | None = None,
    ) -> StepReader:
        """Return what the objectives read sentences with in one step.

        Args:
            generator: Source of dropout masks in training; None is torch's global one.
            gather: Each tower's vectors [batch, dim] -> those of all workers' sentences [candidates, dim]; None where
                there are no others.
            num_parts: Parts of the sentences whose states are kept one after another; 1 keeps all.
            packed: Sentences that are laid out already; by default none.
        """
        laid_out = packed or PackedAhead()

        def encode(sentences: Sentences, is_training: bool, tokens: bool) -> tuple[Tensor, ...]:
            if tokens:
                return self.vectors(sentences, generator=generator, tokens=True)
            size = self._objective.encoded_at_once
            if num_parts > 1:
                size = -(-len(sentences.lengths) // num_parts)
            if is_training and size is not None and torch.is_grad_enabled():
                start = torch.zeros((), requires_grad=True)
                vectors = _Recomputed.apply(start, self, sentences, size, generator)  # type: ignore[no-untyped-call]
            elif is_training or not self.training:
                packed_ahead = laid_out.find(sentences)
                vectors = self.vectors(packed_ahead or sentences, generator=generator)
            else:
                self.eval()
                vectors = self.vectors(sentences)
                self.train()
            return vectors if gather is None else gather(vectors)

        has_dropout = self.training and self._has_dropout
        return StepReader(encode, dims=self._loss_dims, has_dropout=has_dropout)

    def loss(
        self,
        batch: AnyBatch,
        *,
        generator: torch.Generator | None = None,
        reader: StepReader | None = None,
        penalty_weight: float = 1.0,
    ) -> Tensor:
        """Return the objective's loss, a scalar; where blocks train separately, the sum of their losses.

        Args:
            batch: A batch of the kind that the objective reads.
            generator: Source of randomness of encoders and objective; None is torch's global one.
            reader: A reader that knows some of the batch's vectors; by default all are encoded here.
            penalty_weight: Factor of the penalty on parameters, where several workers' losses are added up.
        """
        reader = reader or self.step_reader(generator)
        losses = [
            objective(reader.block(index), batch, generator=generator)
            for index, objective in enumerate(self.objectives)
        ]
        total: Tensor = losses[0]
        if len(losses) > 1:
            total = torch.stack(losses).sum()
        penalties = [
            to_device(objective.penalty(), total.device)
            for objective in self._objectives()
            if type(objective).penalty is not Objective.penalty
        ]
        if not penalties:
            return total
        return total + penalty_weight * torch.stack(penalties).sum()

    def before_step(self, done: float) -> None:
        """Prepare the objectives for a training step; `done` is the part of the run's steps that are done."""
        for objective in self._objectives():
            objective.before_step(done)

    def after_step(self) -> None:
        """Restore the objective's constraints after the optimizer's step."""
        for objective in self._objectives():
            objective.after_step()

    # -- validation ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def held_out_totals(self, batch: AnyBatch) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of cases of each of the objective's metrics on a held-out batch."""
        reader = self.step_reader()
        totals: dict[str, tuple[float, int]] = {}
        for index, objective in enumerate(self._objectives()):
            block_totals = objective.held_out_totals(reader.block(index), batch)
            for name, (total, count) in block_totals.items():
                earlier_total, earlier_count = totals.get(name, (0.0, 0))
                totals[name] = (earlier_total + total, earlier_count + count)
        return totals

    @torch.no_grad()
    def predictions(self, batch: AnyBatch) -> npt.NDArray[np.float64]:
        """Return the objective's predicted score of each pair, the mean over blocks, float64 [batch]."""
        reader = self.step_reader()
        blocks = [
            objective.predict(reader.block(index), batch)
            for index, objective in enumerate(self._objectives())
        ]
        mean: npt.NDArray[np.float64] = torch.stack(blocks).mean(dim=0).double().cpu().numpy()
        return mean

    def comparable_vectors(self, sentences: Sentences) -> tuple[Tensor, ...]:
        """Return each tower's vectors [batch, dim] as the objective compares them, for instance of unit length."""
        return tuple(self._objective.comparable(tower) for tower in self.vectors(sentences))

    @torch.no_grad()
    def encode_ids(self, sentences: Sentences) -> Tensor:
        """Return what `encode` returns, for ids instead of text, float32 [batch, dim].

        Bits are -1 and 1 here, so that the cosine of two codes falls with their Hamming distance.
        """
        vectors = self._finish(self._blocks(sentences))
        if self.code is None:
            return vectors
        return 2 * vectors - 1

    # -- parts that are fitted ----------------------------------------------------------------------------------

    @torch.no_grad()
    def fit_postprocessing(self, sentences: Sentences) -> None:
        """Fit the postprocessing to a sample of sentences; the model must not be in training mode.

        Raises:
            DataError: If whitening keeps more dimensions than the sample's vectors vary in.
        """
        self.postprocessing.fit(self._blocks_of_all(sentences))

    @torch.no_grad()
    def fit_code(self, sentences: Sentences) -> None:
        """Fit what the code learns without steps to the finished vectors of a sample of sentences."""
        if self.code is not None:
            vectors = self.postprocessing(self._blocks_of_all(sentences))
            self.code.fit(vectors)
            for objective in self._objectives():
                objective.fit(vectors)

    @torch.no_grad()
    def combined_vectors(self, sentences: Sentences) -> Tensor:
        """Return the vectors of many sentences before whitening [batch, dim]; see `Postprocessing.combine`."""
        return self.postprocessing.combine(self._blocks_of_all(sentences))

    def _blocks_of_all(self, sentences: Sentences) -> Tensor:
        return torch.cat([self._blocks(chunk) for chunk in sentences.split(_CHUNK)])

    def _blocks(self, sentences: Sentences | Packed) -> Tensor:
        """Return the blocks of all towers before postprocessing [batch, sum of `encoded_dims`]."""
        if self._known is not None and isinstance(sentences, Sentences):
            vectors = self._known.find(sentences)
            if vectors is not None:
                return to_device(torch.from_numpy(vectors), self.device)
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        return torch.cat([tower.encoded(packed).float() for tower in self.towers], dim=1)

    def _finish(self, vectors: Tensor) -> Tensor:
        """Return what `encode` returns for the blocks of all towers [batch, dim]."""
        finished: Tensor = self.postprocessing(vectors)
        return finished if self.code is None else self.code(finished)

    # -- saving -------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return all parameters by name; one that two parts share appears once."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the parameters of a saved model: without the objective's where only training needs them."""
        objective = self.config.objective
        is_kept = objective is not None and objective.in_saved_model == "kept"
        return {
            name: tensor
            for name, tensor in self.tensors().items()
            if is_kept or not name.startswith("objectives.")
        }

    def load_tensors(self, tensors: dict[str, Tensor], *, source: Path | str = "model") -> None:
        """Set all parameters by name.

        Args:
            tensors: What `tensors` returned.
            source: Their file, for messages.

        Raises:
            ArtifactError: If names or shapes are those of another model, or a value is not finite.
        """
        fill(dict(self.named_parameters()), tensors, source=source)

    @property
    def record(self) -> Record:
        """The content of `model.json`."""
        return Record(
            config=self.config,
            max_length=self.max_length,
            num_words=len(self.vocabulary),
            num_classes=self.num_classes,
            learned_tasks=dict(self.learned_tasks),
            unicode_form=self.vocabulary.unicode_form,
            origin=self.origin,
        )

    def save(self, folder: Path) -> None:
        """Write the model's three files; `model.json` comes last and marks the others as complete.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        self.vocabulary.save(folder / VOCABULARY_FILE)
        save_tensors(folder / TENSORS_FILE, self.kept_tensors(), metadata={"kind": KIND})
        write_record(folder, self.record)

    # -- encoding text ------------------------------------------------------------------------------------------

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence: all towers, or the bits of the code."""
        return self.num_bits or self.postprocessing.dim()

    @property
    def cut_sizes(self) -> Sequence[int]:
        """All where it is whitened, as directions are in the order of their variance; else those that were trained."""
        dim = self.get_sentence_embedding_dimension()
        if self.code is None and self.postprocessing.is_whitening:
            return range(1, dim + 1)
        return (*self.trained_prefixes, dim)

    @property
    def trained_prefixes(self) -> tuple[int, ...]:
        """Sizes to which vectors may be cut because training said so; none of bits."""
        if self.code is not None or self.config.objective is None:
            return ()
        return self.config.objective.trained_prefixes

    @property
    def max_seq_length(self) -> int:
        """Tokens read of a longer sentence."""
        return self.max_length

    def use_device(self, device: torch.device) -> None:
        """Move the model; no other thread may use it meanwhile."""
        self.to(device)

    def encode_texts(
        self,
        sentences: list[str],
        *,
        batch_size: int = 512,
        towers: Literal["both", "f"] = "both",
        bfloat16: bool = False,
        num_processes: int = 1,
    ) -> Float32:
        """Encode text; `encode` takes these arguments besides its own.

        The same call gives the same bits, whatever was encoded before and whatever other threads encode meanwhile. A
        sentence alone has the bits that it has among others if the encoder is a bag of words or one layer of raysent's
        own GRU, in float32. In other encoders the number of rows that are multiplied together may change the last bits:
        in float32 by about 1e-7, in bfloat16 by up to 1e-3.

        Args:
            sentences: Text; an empty sentence is a single unknown word.
            batch_size: Sentences computed at once; changes at most the last bits, see below.
            towers: `both` for all that were trained, [f ; g] where there are two; `f` for the first only.
            bfloat16: Whether matrices are multiplied in bfloat16: faster on processors that support it; each vector's
                cosine with its float32 value is at least 0.9999.
            num_processes: Processes to use on a CPU, one thread each; 1 encodes in this process.

        Returns:
            Each tower's blocks, each of unit length, concatenated or averaged, float32 [sentences, dim]. For a model
            with a code its bits, 0 or 1; `encode_packed` returns these as bytes.

        Raises:
            ConfigError: If an argument has a value that is not supported.
        """
        check_size("batch_size", batch_size)
        if towers not in ("both", "f"):
            raise ConfigError(f"towers: must be 'both' or 'f'; given {towers!r}")
        if check_size("num_processes", num_processes) > 1 and len(sentences) > _CHUNK:
            blocks = (
                sentences[first : first + _CHUNK] for first in range(0, len(sentences), _CHUNK)
            )
            encoded = encode_blocks(
                self,
                blocks,
                num_processes=num_processes,
                # The sentences have their prompt already.
                prompt="",
                batch_size=batch_size,
                towers=towers,
                bfloat16=bfloat16,
            )
            return np.concatenate(list(encoded))
        readers = self._readers()
        if towers == "f":
            readers = readers[:1]
        if len(readers) < len(self.towers):
            self._check_first_alone()
        num_blocks = sum(len(tower.encoded_dims) for tower, _ in readers)
        dim = self.num_bits or self.postprocessing.dim(num_blocks)
        out = np.empty((len(sentences), dim), dtype=np.float32)
        with (
            self._evaluating(),
            torch.inference_mode(),
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16),
        ):
            for first in range(0, len(sentences), _CHUNK):
                chunk = self.vocabulary.ids(
                    sentences[first : first + _CHUNK], max_length=self.max_length
                )
                for rows, vectors in self._encode_blocks(chunk, readers, batch_size):
                    # Postprocessing is cheap and stays in float32.
                    with torch.autocast(self.device.type, enabled=False):
                        out[first + rows] = self._finish(vectors).cpu().numpy()
        return out

    def _check_first_alone(self) -> None:
        """Refuse the vectors of the first of two towers where they have no finished form."""
        reader = None
        if self.code is not None:
            reader = "a code"
        elif self.postprocessing.is_whitening:
            reader = "whitening"
        if reader is not None:
            raise ConfigError(
                f"towers: must be 'both' for a model with {reader}, which reads them all; given 'f'"
            )

    def _readers(self) -> list[tuple[EncoderConfig, Tower]]:
        """Return the towers with their settings."""
        return list(zip(self.config.towers, self.towers, strict=True))

    def num_tokens(self, sentences: list[str]) -> npt.NDArray[np.int64]:
        """Return how many tokens of the vocabulary are read of each sentence, int64 [sentences]."""
        start = self._prompt(None, None)
        texts = [start + sentence for sentence in sentences]
        ids = self.vocabulary.ids(texts, max_length=self.max_length)
        return np.asarray(ids.lengths, np.int64)

    def encoded(self, sentences: Sentences, *, batch_size: int = 512) -> Float32:
        """Return all towers' blocks before postprocessing, float32 [sentences, sum of `encoded_dims`].

        The same sentences in the same order give the same bits.
        """
        out = np.empty((len(sentences.lengths), sum(self.config.encoded_dims)), dtype=np.float32)
        with self._evaluating(), torch.inference_mode():
            for rows, blocks in self._encode_blocks(sentences, self._readers(), batch_size):
                out[rows] = blocks.cpu().numpy()
        return out

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Leave training mode while this or another thread encodes; the last one to end restores it."""
        with _MODE:
            if not self._num_encoding:
                self._was_training = self.training
                self.eval()
            self._num_encoding += 1
        try:
            yield
        finally:
            with _MODE:
                self._num_encoding -= 1
                if self._was_training and not self._num_encoding:
                    self.train()

    def _encode_blocks(
        self, chunk: Sentences, readers: list[tuple[EncoderConfig, Tower]], batch_size: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
        """Yield rows of the chunk and their blocks in float32; a distinct word is projected once for all."""
        blocks_of_rows = block_rows(chunk.lengths, batch_size=batch_size)
        packed_blocks = pack_blocks(chunk, batch_size=batch_size, device=self.device)
        projections: list[Any] = []
        for rows, packed in zip(blocks_of_rows, packed_blocks, strict=True):
            if not projections:
                # All blocks of a chunk have the same distinct words.
                projections = [tower.project(packed.words) for _, tower in readers]
            vectors = [
                tower.read_encoded(packed, projection)
                for (_, tower), projection in zip(readers, projections, strict=True)
            ]
            yield rows, torch.cat(vectors, dim=1).float()

    def encode_packed(
        self, sentences: list[str], *, batch_size: int = 512
    ) -> npt.NDArray[np.uint8]:
        """Encode text as packed bits, uint8 [sentences, ceil(bits / 8)]; see `codes.pack_bits`.

        Raises:
            ConfigError: If the model has no code.
        """
        if self.code is None:
            raise ConfigError(
                "precision: must be float32 for a model without a code; train one with code.type"
            )
        return pack_bits(self.encode(sentences, batch_size=batch_size))

    @property
    def similarity_measure(self) -> str:
        """`hamming` for codes, else `cosine`."""
        return "cosine" if self.code is None else "hamming"
