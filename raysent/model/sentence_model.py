"""One or two towers and the objective that trains them: built, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from raysent.artifacts import load_tensors, save_tensors
from raysent.codes import build_code
from raysent.embeddings import CorpusVectors, EmptyTables, Tables
from raysent.encoders import build_encoder
from raysent.errors import ArtifactError, ConfigError
from raysent.model.config import ModelConfig
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
from raysent.model.learning import Learning
from raysent.model.postprocessing import Postprocessing
from raysent.objectives import Objective, Surroundings, build_objective
from raysent.sentence_encoder import register_loader
from raysent.vocabulary import Vocabulary


class SentenceModel(Learning):
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
