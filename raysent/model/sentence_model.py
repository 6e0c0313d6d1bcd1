"""One or two towers and the objective that trains them: reads, loses, saves and loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.artifacts import load_tensors, save_tensors
from raysent.codes import build_code, straight_through
from raysent.embeddings import CorpusVectors, EmptyTables, Tables, WordTable
from raysent.encoders import build_encoder
from raysent.errors import ArtifactError, ConfigError
from raysent.model.config import ModelConfig
from raysent.model.encoding import Encoding
from raysent.model.files import (
    KIND,
    MODEL_FILE,
    TENSORS_FILE,
    VOCABULARY_FILE,
    Record,
    fill,
    read_record,
    write_record,
)
from raysent.model.postprocessing import Postprocessing
from raysent.model.reading import Reading
from raysent.objectives import Objective, Surroundings, build_objective
from raysent.packing import Packed
from raysent.sentence_encoder import register_loader
from raysent.vocabulary import Sentences, Vocabulary

if TYPE_CHECKING:
    from raysent.batches import AnyBatch


class SentenceModel(Encoding):
    """One or two towers, f and g, and the objective that trains them.

    Attributes:
        config: What the model is.
        vocabulary: Its words.
        max_length: Tokens read of a longer sentence.
        objectives: One for each block that has a loss of its own; none in a model that was loaded and whose objective
            does not stay with it.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: Vocabulary,
        *,
        tables: Tables,
        max_length: int = 50,
        num_classes: int = 0,
        has_objective: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.num_classes = num_classes
        self.f = build_encoder(config.encoder, tables)
        if config.objective.num_towers == 2:
            self.g = build_encoder(config.towers[1], tables)
        self.postprocessing = Postprocessing(config.postprocessing, config.encoded_dims)
        self.code = (
            None
            if config.code is None
            else build_code(config.code, dim=self.postprocessing.dim(), generator=tables.generator)
        )
        if config.objective.trains_code:
            for tower in self.towers:
                tower.requires_grad_(False)
        self.objectives = nn.ModuleList(self._build_objectives(tables) if has_objective else [])

    @property
    def _loss_dims(self) -> list[int]:
        """Sizes of the blocks that have a loss of their own; of a code's training the whole vector."""
        if self.config.objective.trains_code:
            return [self.postprocessing.dim()]
        return list(self.config.encoder.loss_dims)

    def _build_objectives(self, tables: Tables, word_counts: Tensor | None = None) -> list[Objective]:
        """Return an objective for each block that has a loss of its own."""
        first, second = self.towers[0], self.towers[-1]
        nothing: list[tuple[nn.Parameter, ...]] = [()] * len(self._loss_dims)
        is_frozen = self.config.objective.trains_code
        blocks = zip(
            self._loss_dims,
            [None] if is_frozen else first.block_tables(),
            nothing if is_frozen else first.block_parameters(),
            nothing if is_frozen or second is first else second.block_parameters(),
            strict=True,
        )
        return [
            build_objective(
                self.config.objective,
                Surroundings(
                    dim=dim,
                    num_words=len(self.vocabulary),
                    words=table,
                    generator=tables.generator,
                    num_classes=self.num_classes,
                    parameters=parameters,
                    second_parameters=second_parameters,
                    word_counts=word_counts,
                    code=self.code,
                    num_bits=self.num_bits,
                ),
            )
            for dim, table, parameters, second_parameters in blocks
        ]

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        vocabulary: Vocabulary,
        *,
        seed: int,
        word_vectors: CorpusVectors | None = None,
        max_length: int = 50,
        num_classes: int = 0,
        word_counts: Tensor | None = None,
        initial: dict[str, Tensor] | None = None,
    ) -> Self:
        """Return an untrained model.

        Args:
            config: What the model is.
            vocabulary: Its words.
            seed: Fixes the first values.
            word_vectors: Dimension -> the corpus' own vectors, float32 [vocabulary, dim]; needed only where an
                encoder's `embedding.vectors` is `ppmi`. Files of word vectors are read here.
            max_length: Tokens read of a longer sentence.
            num_classes: Labels of the pairs that it will be trained on; 0 where they have none.
            word_counts: How often each word occurs [vocabulary]; needed only where the objective reads them.
            initial: Values of the encoders to begin with, by name; None draws new ones.

        Raises:
            ConfigError: If the initial values are those of other encoders, or word vectors are of another size than
                `embedding.dim`, or none are at hand.
            DataError: If a file of word vectors is missing or wrong.
        """
        generator = torch.Generator().manual_seed(seed)
        kind = Tables if initial is None else EmptyTables
        tables = kind(vocabulary, generator=generator, corpus_vectors=word_vectors)
        model = cls(
            config, vocabulary, tables=tables, max_length=max_length, num_classes=num_classes, has_objective=False
        )
        if initial is not None:
            model._take_encoders(initial)
        # Last: an objective may remember what the encoders begin with.
        model.objectives.extend(model._build_objectives(tables, word_counts))
        return model

    def _take_encoders(self, tensors: dict[str, Tensor]) -> None:
        """Take over the values of another model's encoders; of two towers the first, where this model has one.

        Raises:
            ConfigError: If they are of other shapes.
        """
        own = {name: value for name, value in self.named_parameters() if name.startswith(("f.", "g."))}
        given = {name: tensors[name] for name in own if name in tensors}
        try:
            fill(own, given, source="initial")
        except ArtifactError as error:
            raise ConfigError(f"{error}; encoder and second_encoder must be as in the model's run.json") from None

    @property
    def tables(self) -> list[WordTable]:
        """The trained word tables, each once, in a fixed order."""
        return [table for table in self._word_tables() if table.weight.requires_grad]

    def _word_tables(self) -> list[WordTable]:
        return [module for module in self.modules() if isinstance(module, WordTable)]

    def use_sparse_gradients(self, enabled: bool = True) -> None:
        """Choose whether a word table's gradient holds the rows in use only, as `RowAdam` wants it."""
        for table in self.tables:
            table.sparse_gradient = enabled

    def vectors(self, sentences: Sentences | Packed, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Encode with every tower, with gradient.

        Args:
            sentences: Ids and lengths, or the same packed.
            generator: Source of dropout's masks in training; None is torch's own.

        Returns:
            f, or f and g, each float32 [batch, dim]; where a code is trained, the finished vectors alone; where the
            objective sees the bits, these as -1 and 1.
        """
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        if self.config.objective.trains_code:
            with torch.no_grad():
                return (self.postprocessing(self._blocks(packed)),)
        for table in self._word_tables():
            table.generator = generator
        vectors = tuple(tower(packed).float() for tower in self.towers)
        if self.code is not None:
            vectors = tuple(2 * straight_through(tower) - 1 for tower in vectors)
        if not self.training:
            return vectors
        masks = self._dropout_masks(packed.batch, generator)
        return tuple(tower * mask.to(tower.device) for tower, mask in zip(vectors, masks, strict=True))

    def _dropout_masks(self, batch: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """Return each tower's factors, broadcastable to [batch, dim]."""
        first, second = self.config.encoder.dropout_masks(batch, generator=generator)
        if self.config.second_encoder is not None:
            second = self.config.second_encoder.dropout_masks(batch, generator=generator)[1]
        return (first, second)[: self.config.objective.num_towers]

    def loss(
        self,
        batch: AnyBatch,
        *vectors: Tensor,
        packed: Packed | None = None,
        generator: torch.Generator | None = None,
        reading: Reading | None = None,
        penalty_share: float = 1.0,
    ) -> Tensor:
        """Return the objective's value, a scalar; where members train separately, the sum of their losses.

        Args:
            batch: Sentences and what the objective knows of them.
            vectors: The towers' vectors of the batch's `sentences` [batch, dim] each, for instance gathered from
                several workers; by default they are encoded here.
            packed: The batch's `sentences` packed, to save doing it again.
            generator: Source of randomness in training, the encoders' and the objective's; None is torch's own.
            reading: Knows vectors already; by default one that knows none.
            penalty_share: Share of the parameters' own penalty that is added, where several workers' losses are added.
        """
        reading = reading or self.reading(generator)
        if packed is not None and not vectors:
            vectors = self.vectors(packed, generator=generator)
        if vectors:
            reading.know(batch.sentences, vectors)  # type: ignore[union-attr]  # pairs have no such column, nor these
        dims = self._loss_dims
        losses = [
            objective(reading.block(index, dims), batch, generator=generator)
            for index, objective in enumerate(self.objectives)
        ]
        penalties = [objective.penalty().to(losses[0].device) for objective in self._objectives()]
        return torch.stack(losses).sum() + penalty_share * torch.stack(penalties).sum()

    def prepare(self, batch: AnyBatch, *, generator: torch.Generator | None = None) -> AnyBatch:
        """Return a training batch as the objective wants it."""
        prepared: AnyBatch = self._objectives()[0].prepare(batch, generator=generator)
        return prepared

    @torch.no_grad()
    def scores(self, batch: AnyBatch) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of cases of each metric of the objective on a held-out batch, over blocks."""
        reading, dims = self.reading(None), self._loss_dims
        totals: dict[str, tuple[float, int]] = {}
        for index, objective in enumerate(self._objectives()):
            for name, (total, count) in objective.scores(reading.block(index, dims), batch).items():
                before = totals.get(name, (0.0, 0))
                totals[name] = (before[0] + total, before[1] + count)
        return totals

    @torch.no_grad()
    def predictions(self, batch: AnyBatch) -> npt.NDArray[np.float64]:
        """Return the score that the objective predicts for each pair, the mean over blocks, float64 [batch]."""
        reading, dims = self.reading(None), self._loss_dims
        blocks = [
            objective.predict(reading.block(index, dims), batch) for index, objective in enumerate(self._objectives())
        ]
        found: npt.NDArray[np.float64] = torch.stack(blocks).mean(dim=0).double().cpu().numpy()
        return found

    def after_step(self) -> None:
        """Let the objective keep its constraints after the optimiser's step."""
        for objective in self._objectives():
            objective.after_step()

    def _objectives(self) -> list[Objective]:
        return [cast("Objective", objective) for objective in self.objectives]

    def reading(self, generator: torch.Generator | None) -> Reading:
        """Return the way in which the objective reads in one step."""

        def read(sentences: Sentences, is_training: bool) -> tuple[Tensor, ...]:
            if is_training or not self.training:
                return self.vectors(sentences, generator=generator)
            self.eval()
            vectors = self.vectors(sentences)
            self.train()
            return vectors

        return Reading(read, has_dropout=self.training and any(tower.has_dropout for tower in self.config.towers))

    def compared(self, sentences: Sentences) -> tuple[Tensor, ...]:
        """Return each tower's vectors as a dot product may compare them: of unit length where only angles count."""
        vectors = self.vectors(sentences)
        if not self.config.objective.is_cosine:
            return vectors
        return tuple(nn.functional.normalize(tower, dim=1) for tower in vectors)

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's values by name, a shared one once."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the values that stay with a saved model: all but an objective's that is needed to train only."""
        is_kept = self.config.objective.is_kept
        return {name: value for name, value in self.tensors().items() if is_kept or not name.startswith("objectives.")}

    def load_tensors(self, tensors: dict[str, Tensor], *, source: Path | str = "model") -> None:
        """Take over values by name.

        Args:
            tensors: What `tensors` returned.
            source: Their file, for messages.

        Raises:
            ArtifactError: If names or shapes are those of another model, or a value is not finite.
        """
        fill(dict(self.named_parameters()), tensors, source=source)

    def save(self, folder: Path) -> None:
        """Write the model's three files; `model.json` comes last and says that the others are whole.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        self.vocabulary.save(folder / VOCABULARY_FILE)
        save_tensors(folder / TENSORS_FILE, self.kept_tensors(), metadata={"kind": KIND})
        write_record(folder, Record(self.config, self.max_length, len(self.vocabulary), self.num_classes))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a saved model; its vectors are the same to the last bit.

        It can be trained on where its objective stays with it or has no state of its own.

        Raises:
            ArtifactError: If a file is missing, truncated, of another kind or of another model.
        """
        record = read_record(folder)
        config = record.config
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        if len(vocabulary) != record.num_words:
            raise ArtifactError(
                f"{folder / VOCABULARY_FILE}: of another model: must hold {record.num_words} words; "
                f"given {len(vocabulary)}"
            )
        tables = EmptyTables(vocabulary, generator=torch.Generator())
        has_objective = config.objective.is_kept or not config.objective.has_state
        model = cls(
            config,
            vocabulary,
            tables=tables,
            max_length=record.max_length,
            num_classes=record.num_classes,
            has_objective=has_objective,
        )
        model.load_tensors(load_tensors(folder / TENSORS_FILE), source=folder / TENSORS_FILE)
        return model.eval()


register_loader(MODEL_FILE, SentenceModel.load)
