"""The way in which an objective reads sentences: each once, in blocks, with the encoders out of sight.

Text -> what a model's towers, post-processing and code make of it; nothing is trained here.

What trains a model: vectors with gradient, the objective's losses on them, and its scores.

One or two towers and the objective that trains them: built, saved and loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.hamming import pack_bits
from raysent.kernels.packing import Packed, block_rows, pack, pack_blocks
from raysent.models.codes import Code, build_code, straight_through
from raysent.models.config import ModelConfig
from raysent.models.embeddings import CorpusVectors, EmptyTables, Tables, WordTable
from raysent.models.encoders import EncoderConfig, SentenceReader, build_encoder
from raysent.models.files import KIND, TENSORS_FILE, Record, fill, read_record, write_record
from raysent.models.objectives import BuildContext, Objective, build_objective
from raysent.models.postprocessing import Postprocessing
from raysent.models.sentence_encoder import (
    SentenceEncoder,
    check_sentences,
    encode_blocks,
    normalize_rows,
    register_loader,
)
from raysent.storage import load_tensors, save_tensors
from raysent.storage.layout import MODEL_FILE, VOCABULARY_FILE

if TYPE_CHECKING:
    from raysent.data.batches import AnyBatch
    from raysent.data.vocabulary import Sentences
    from raysent.models.objectives import Read


ReadTowers = Callable[["Sentences", bool], tuple[Tensor, ...]]
"""Sentences, and whether in training -> the vectors of each tower [batch, dim]."""


class Reading:
    """One step's vectors: a sentences object that several objectives ask for is encoded once."""

    def __init__(self, read: ReadTowers, *, has_dropout: bool = True) -> None:
        """Remember how to read; without dropout a sentence has the same vector in training and out of it."""
        self._read = read
        self._has_dropout = has_dropout
        # The sentences are kept beside their vectors, so that an identity is never given away twice.
        self._known: dict[tuple[int, bool], tuple[Sentences, tuple[Tensor, ...]]] = {}

    def know(self, sentences: Sentences, vectors: tuple[Tensor, ...], *, is_training: bool = True) -> None:
        """Take over vectors that were computed before, for instance gathered from several workers."""
        self._known[(id(sentences), is_training)] = (sentences, vectors)

    def block(self, index: int, dims: list[int]) -> Read:
        """Return a way to read the block `index` of every tower's vectors, which are made of blocks of `dims`."""

        def read(sentences: Sentences, *, is_training: bool = True) -> tuple[Tensor, ...]:
            if not is_training and not self._has_dropout:
                return tuple(tower.detach() for tower in read(sentences))
            key = (id(sentences), is_training)
            if key not in self._known:
                with torch.set_grad_enabled(torch.is_grad_enabled() and is_training):
                    self._known[key] = (sentences, self._read(sentences, is_training))
            return tuple(torch.split(tower.float(), dims, dim=1)[index] for tower in self._known[key][1])

        return read


# Sentences whose distinct words are projected together; a bound on memory.
_CHUNK = 8192

Float32 = npt.NDArray[np.float32]


class Encoding(nn.Module, SentenceEncoder):
    """One or two towers and what follows them.

    Attributes:
        config: What the model is.
        vocabulary: Its words.
        max_length: Tokens read of a longer sentence.
        f: The first tower.
        g: The second one, where the objective trains two.
        postprocessing: What becomes of the towers' blocks.
        code: What makes bits of the vector; None leaves it.
    """

    config: ModelConfig
    vocabulary: Vocabulary
    max_length: int
    f: SentenceReader
    g: SentenceReader
    postprocessing: Postprocessing
    code: Code | None

    @property
    def num_bits(self) -> int:
        """Bits of a code; 0 without one."""
        return 0 if self.config.code is None else self.config.code.num_bits(self.postprocessing.dim())

    @property
    def towers(self) -> list[SentenceReader]:
        """The encoders that are trained: f, or f and g."""
        return [self.f] if self.config.objective.num_towers == 1 else [self.f, self.g]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def pack(self, sentences: Sentences) -> Packed:
        """Prepare a batch once; `vectors` and `loss` take it in place of the sentences. `words` are its rows."""
        return pack(sentences, device=self.device)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence: all towers."""
        return self.num_bits or self.postprocessing.dim()

    def encode(
        self,
        sentences: list[str],
        *,
        batch_size: int = 512,
        normalize_embeddings: bool = False,
        towers: Literal["both", "f"] = "both",
        bfloat16: bool = False,
        num_processes: int = 1,
    ) -> Float32:
        """Encode text; a vector depends on its sentence alone.

        Args:
            sentences: Text; an empty sentence is a single unknown word.
            batch_size: Sentences computed at once; without effect on the vectors.
            normalize_embeddings: Whether the whole vector gets unit length.
            towers: `both` for all that were trained, [f ; g] where there are two; `f` for the first alone.
            bfloat16: Whether matrices are multiplied in bfloat16: faster on processors with such products, and each
                vector's cosine with its exact one is at least 0.9999.
            num_processes: Processes to use on a CPU, with one thread each; 1 encodes here.

        Returns:
            Each tower's blocks, each of unit length, one after another or averaged, float32 [sentences, dim]; of a
            model with a code its bits, 0 or 1; `encode_packed` gives these as bytes.

        Raises:
            RaysentError: If `sentences` is not a list of strings.
        """
        check_sentences(sentences)
        if num_processes > 1 and len(sentences) > _CHUNK:
            blocks = (sentences[first : first + _CHUNK] for first in range(0, len(sentences), _CHUNK))
            options = {"batch_size": batch_size, "towers": towers, "bfloat16": bfloat16}
            vectors = np.concatenate(list(encode_blocks(self, blocks, num_processes=num_processes, **options)))
            return normalize_rows(vectors) if normalize_embeddings else vectors
        readers = list(zip(self.config.towers, self.towers, strict=True))[: 1 if towers == "f" else None]
        num_blocks = sum(len(tower.encoded_dims) for tower, _ in readers)
        if self.code is not None and len(readers) < len(self.towers):
            raise ConfigError("towers: must be 'both' for a model with a code, which reads them all; given 'f'")
        out = np.empty((len(sentences), self.num_bits or self.postprocessing.dim(num_blocks)), dtype=np.float32)
        was_training = self.training
        self.eval()
        with torch.inference_mode(), torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            for first in range(0, len(sentences), _CHUNK):
                chunk = self.vocabulary.ids(sentences[first : first + _CHUNK], max_length=self.max_length)
                for rows, vectors in self._encode_blocks(chunk, readers, batch_size):
                    out[first + rows] = vectors
        self.train(was_training)
        return normalize_rows(out) if normalize_embeddings else out

    def _encode_blocks(
        self, chunk: Sentences, readers: list[tuple[EncoderConfig, SentenceReader]], batch_size: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], Float32]]:
        """Yield rows of the chunk and their vectors; a distinct word is projected once for all blocks."""
        blocks = pack_blocks(chunk, batch_size=batch_size, device=self.device)
        projected: list[Any] = []
        for rows, packed in zip(block_rows(chunk.lengths, batch_size=batch_size), blocks, strict=True):
            projected = projected or [reader.project(packed.words) for _, reader in readers]
            towers = [reader.read_encoded(packed, one) for (_, reader), one in zip(readers, projected, strict=True)]
            # What follows the towers costs little and is computed exactly.
            with torch.autocast(self.device.type, enabled=False):
                yield rows, self._finished(torch.cat(towers, dim=1).float()).cpu().numpy()

    def _finished(self, vectors: Tensor) -> Tensor:
        """Return what `encode` gives for the blocks of all towers [batch, dim]."""
        finished: Tensor = self.postprocessing(vectors)
        return finished if self.code is None else self.code(finished)

    def encode_packed(self, sentences: list[str], *, batch_size: int = 512) -> npt.NDArray[np.uint8]:
        """Encode text as packed bits, uint8 [sentences, ceil(bits / 8)]; see `packed_codes`.

        Raises:
            ConfigError: If the model has no code.
        """
        if self.code is None:
            raise ConfigError("precision: must be float32 for a model without a code; train one with code.type")
        return pack_bits(self.encode(sentences, batch_size=batch_size))

    @property
    def similarity_measure(self) -> str:
        """`hamming` for codes, else `cosine`."""
        return "cosine" if self.code is None else "hamming"

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
        """Return minus the number of differing bits of codes, else the cosine, [rows, columns]."""
        if self.code is None:
            return super().similarity(a, b)
        first, second = (np.atleast_2d(np.asarray(side, dtype=np.float32)) for side in (a, b))
        agreement: Float32 = ((2 * first - 1) @ (2 * second - 1).T - first.shape[1]) / 2
        return agreement

    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Float32:
        """Return minus the number of differing bits of codes, else the cosine, row by row [rows]."""
        if self.code is None:
            return super().similarity_pairwise(a, b)
        first, second = (np.atleast_2d(np.asarray(side, dtype=np.float32)) for side in (a, b))
        distance: Float32 = np.abs(first - second).sum(axis=1)
        return -distance

    @torch.no_grad()
    def unit_vectors(self, sentences: Sentences) -> Tensor:
        """Return what `encode` gives for sentences that are ids already, float32 [batch, dim], without gradient.

        Bits are -1 and 1 here, so that the cosine of two codes goes with minus their Hamming distance.
        """
        vectors = self._finished(self._blocks(sentences))
        return vectors if self.code is None else 2 * vectors - 1

    def _blocks(self, sentences: Sentences | Packed) -> Tensor:
        """Return the blocks of all towers before post-processing [batch, sum of `encoded_dims`]."""
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        return torch.cat([tower.encoded(packed).float() for tower in self.towers], dim=1)

    @torch.no_grad()
    def fit_postprocessing(self, sentences: Sentences) -> None:
        """Fit what post-processing learns from a sample of sentences; the model must not be in training."""
        self.postprocessing.fit(self._blocks_of_all(sentences))

    @torch.no_grad()
    def fit_code(self, sentences: Sentences) -> None:
        """Fit what the code learns without steps, from the finished vectors of a sample of sentences."""
        if self.code is not None:
            self.code.fit(self.postprocessing(self._blocks_of_all(sentences)))

    def _blocks_of_all(self, sentences: Sentences) -> Tensor:
        """Return `_blocks` of many sentences, a few at a time."""
        return torch.cat([self._blocks(chunk) for chunk in chunks(sentences, size=_CHUNK)])


def chunks(sentences: Sentences, *, size: int) -> Iterator[Sentences]:
    """Yield sentences a few at a time."""
    ends = np.cumsum(sentences.lengths)
    for first in range(0, len(ends), size):
        lengths = sentences.lengths[first : first + size]
        stop = int(ends[first + len(lengths) - 1])
        yield Sentences(sentences.ids[stop - int(lengths.sum()) : stop], lengths)


class Learning(Encoding):
    """Towers and the objectives that read them.

    Attributes:
        objectives: One for each block that has a loss of its own; none in a model that was loaded and whose objective
            does not stay with it.
    """

    objectives: nn.ModuleList

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

    @property
    def _loss_dims(self) -> list[int]:
        """Sizes of the blocks that have a loss of their own; of a code's training the whole vector."""
        if self.config.objective.trains_code:
            return [self.postprocessing.dim()]
        return list(self.config.encoder.loss_dims)


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
                BuildContext(
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
