"""Encoders + objective: a `ModelConfig` and a vocabulary -> a model that trains, encodes, saves and loads.

    vectors   ids -> f and g, each [batch, dim], with gradient
    loss      a batch -> a scalar
    encode    text -> [f ; g], each block of unit length, float32 [sentences, 2 * dim]

A saved model is three files in one folder: `model.json` (what it is), `model.safetensors` (its values) and
`vocabulary.txt`. `load` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent import config as configuration
from raysent.artifacts import load_tensors, read_json, save_tensors, write_json
from raysent.config import StrictModel
from raysent.embeddings import CorpusVectors, EmptyTables, Tables, WordTable
from raysent.encoders import AnyEncoder, SentenceReader, build_encoder
from raysent.errors import ArtifactError, ConfigError
from raysent.objectives import AnyObjective, build_objective
from raysent.packing import Packed, block_rows, pack, pack_blocks
from raysent.sentence_encoder import SentenceEncoder, check_sentences, load, normalize_rows, register_loader
from raysent.vocabulary import Sentences, Vocabulary

if TYPE_CHECKING:
    from raysent.batches import Batch

MODEL_FILE = "model.json"
TENSORS_FILE = "model.safetensors"
VOCABULARY_FILE = "vocabulary.txt"

__all__ = ["MODEL_FILE", "TENSORS_FILE", "VOCABULARY_FILE", "ModelConfig", "SentenceModel", "load", "register_loader"]

_KIND = "raysent model"
_FORMAT = 1
# Sentences whose distinct words are projected together; a bound on memory.
_CHUNK = 4096

Float32 = npt.NDArray[np.float32]


class ModelConfig(StrictModel):
    """What a model is.

    Attributes:
        encoder: Sentences -> vectors; f and g are two of the kind, with parameters of their own.
        objective: What training minimises.
    """

    encoder: AnyEncoder
    objective: AnyObjective


class SentenceModel(nn.Module, SentenceEncoder):
    """Two towers, f and g, and the objective that trains them.

    Attributes:
        config: What the model is.
        vocabulary: Its words.
        max_length: Tokens read of a longer sentence.
    """

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary, *, tables: Tables, max_length: int = 50) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.f = build_encoder(config.encoder, tables)
        self.g = build_encoder(config.encoder, tables)
        self._objective = build_objective(config.objective)

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        vocabulary: Vocabulary,
        *,
        seed: int,
        word_vectors: CorpusVectors | None = None,
        max_length: int = 50,
    ) -> Self:
        """Return an untrained model.

        Args:
            config: What the model is.
            vocabulary: Its words.
            seed: Fixes the first values.
            word_vectors: Dimension -> the corpus' own vectors, float32 [vocabulary, dim]; needed only where an
                encoder's `embedding.vectors` is `ppmi`. Files of word vectors are read here.
            max_length: Tokens read of a longer sentence.

        Raises:
            ConfigError: If word vectors are of another size than `embedding.dim`, or none are at hand.
            DataError: If a file of word vectors is missing or wrong.
        """
        generator = torch.Generator().manual_seed(seed)
        tables = Tables(vocabulary, generator=generator, corpus_vectors=word_vectors)
        return cls(config, vocabulary, tables=tables, max_length=max_length)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def tables(self) -> list[WordTable]:
        """The trained word tables, each once, in a fixed order."""
        found = [module for module in self.modules() if isinstance(module, WordTable)]
        return [table for table in found if table.weight.requires_grad]

    def use_sparse_gradients(self, enabled: bool = True) -> None:
        """Choose whether a word table's gradient holds the rows in use only, as `RowAdam` wants it."""
        for table in self.tables:
            table.sparse_gradient = enabled

    def pack(self, sentences: Sentences) -> Packed:
        """Prepare a batch once; `vectors` and `loss` take it in place of the sentences. `words` are its rows."""
        return pack(sentences, device=self.device)

    def vectors(
        self, sentences: Sentences | Packed, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode with both towers, with gradient.

        Args:
            sentences: Ids and lengths, or the same packed.
            generator: Source of dropout's masks in training; None is torch's own.

        Returns:
            f and g, each float32 [batch, dim].
        """
        packed = sentences if isinstance(sentences, Packed) else self.pack(sentences)
        f, g = self.f(packed).float(), self.g(packed).float()
        if self.training:
            masks = self.config.encoder.dropout_masks(packed.batch, generator=generator)
            f, g = f * masks[0].to(f.device), g * masks[1].to(g.device)
        return f, g

    def loss(
        self,
        batch: Batch,
        f: Tensor | None = None,
        g: Tensor | None = None,
        *,
        packed: Packed | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the objective's value, a scalar; where members train separately, the sum of their losses.

        Args:
            batch: Sentences and where they stand. With `f` and `g` given, only positions and documents are read.
            f: Vectors of the batch [batch, dim], for instance gathered from several workers.
            g: The same of the other tower.
            packed: The batch's sentences, packed.
            generator: Source of dropout's masks.
        """
        if f is None or g is None:
            f, g = self.vectors(packed if packed is not None else batch.sentences, generator=generator)
        positions = torch.from_numpy(batch.positions).to(f.device)
        documents = torch.from_numpy(batch.documents).to(f.device)
        dims = list(self.config.encoder.loss_dims)
        blocks = zip(torch.split(f.float(), dims, dim=1), torch.split(g.float(), dims, dim=1), strict=True)
        # Scores are a thousandth of a step's work: they stay in float32 under mixed precision.
        with torch.autocast(f.device.type, enabled=False):
            losses = [self._objective(one, other, positions=positions, documents=documents) for one, other in blocks]
        return torch.stack(losses).sum()

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence: both towers."""
        return 2 * self.config.encoder.dim

    def encode(
        self,
        sentences: list[str],
        *,
        batch_size: int = 512,
        normalize_embeddings: bool = False,
        towers: Literal["both", "f"] = "both",
    ) -> Float32:
        """Encode text; a vector depends on its sentence alone.

        Args:
            sentences: Text; an empty sentence is a single unknown word.
            batch_size: Sentences computed at once; without effect on the vectors.
            normalize_embeddings: Whether the whole vector gets unit length.
            towers: `both` for [f ; g], `f` for the first alone.

        Returns:
            Each tower's blocks, each of unit length, one after another, float32 [sentences, dim].

        Raises:
            RaysentError: If `sentences` is not a list of strings.
        """
        check_sentences(sentences)
        readers = [self.f] if towers == "f" else [self.f, self.g]
        out = np.empty((len(sentences), len(readers) * self.config.encoder.dim), dtype=np.float32)
        was_training = self.training
        self.eval()
        with torch.inference_mode():
            for first in range(0, len(sentences), _CHUNK):
                chunk = self.vocabulary.ids(sentences[first : first + _CHUNK], max_length=self.max_length)
                for rows, vectors in self._encode_blocks(chunk, readers, batch_size):
                    out[first + rows] = vectors
        self.train(was_training)
        return normalize_rows(out) if normalize_embeddings else out

    def _encode_blocks(
        self, chunk: Sentences, readers: list[SentenceReader], batch_size: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], Float32]]:
        """Yield rows of the chunk and their vectors; a distinct word is projected once for all blocks."""
        blocks = pack_blocks(chunk, batch_size=batch_size, device=self.device)
        projected: list[Any] = []
        for rows, packed in zip(block_rows(chunk.lengths, batch_size=batch_size), blocks, strict=True):
            projected = projected or [reader.project(packed.words) for reader in readers]
            towers = [
                self._unit_blocks(reader.read(packed, one)) for reader, one in zip(readers, projected, strict=True)
            ]
            yield rows, torch.cat(towers, dim=1).cpu().numpy()

    def _unit_blocks(self, vectors: Tensor) -> Tensor:
        """Give every block of vectors [batch, dim] unit length; a zero block stays zero."""
        blocks = torch.split(vectors.float(), list(self.config.encoder.block_dims), dim=1)
        return torch.cat([nn.functional.normalize(block, dim=1) for block in blocks], dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's values by name, a shared one once."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_tensors(self, tensors: dict[str, Tensor], *, source: Path | str = "model") -> None:
        """Take over values by name.

        Args:
            tensors: What `tensors` returned.
            source: Their file, for messages.

        Raises:
            ArtifactError: If names or shapes are those of another model, or a value is not finite.
        """
        own = dict(self.named_parameters())
        if tensors.keys() != own.keys():
            odd = sorted(tensors.keys() ^ own.keys())[0]
            raise ArtifactError(f"{source}: of another model ('{odd}' is in one of the two only); restore it")
        for name, parameter in own.items():
            given = tensors[name]
            if given.shape != parameter.shape:
                raise ArtifactError(
                    f"{source}: of another model: '{name}' must be {tuple(parameter.shape)}; given {tuple(given.shape)}"
                )
            if not torch.isfinite(given).all():
                raise ArtifactError(f"{source}: '{name}' holds values that are not finite; train again or restore it")
            parameter.data.copy_(given)

    def save(self, folder: Path) -> None:
        """Write the model's three files; `model.json` comes last and says that the others are whole.

        Raises:
            ArtifactError: If the folder cannot be written.
        """
        self.vocabulary.save(folder / VOCABULARY_FILE)
        save_tensors(folder / TENSORS_FILE, self.tensors(), metadata={"kind": _KIND})
        about = {
            "kind": _KIND,
            "format": _FORMAT,
            "config": self.config.model_dump(mode="json"),
            "max_length": self.max_length,
            "num_words": len(self.vocabulary),
        }
        write_json(folder / MODEL_FILE, about)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a saved model; its vectors are the same to the last bit.

        Raises:
            ArtifactError: If a file is missing, truncated, of another kind or of another model.
        """
        path = folder / MODEL_FILE
        about = read_json(path)
        if not isinstance(about, dict) or about.get("kind") != _KIND or about.get("format") != _FORMAT:
            raise ArtifactError(f"{path}: not a model of this version of raysent; name the folder of a trained model")
        try:
            document = configuration.Document(values=about["config"], source=str(path))
            config = configuration.validate(ModelConfig, document)
            num_words, max_length = int(about["num_words"]), int(about["max_length"])
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path}: changed or of another version ({error}); restore it or train again") from None
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        if len(vocabulary) != num_words:
            raise ArtifactError(
                f"{folder / VOCABULARY_FILE}: of another model: must hold {num_words} words; given {len(vocabulary)}"
            )
        tables = EmptyTables(vocabulary, generator=torch.Generator())
        model = cls(config, vocabulary, tables=tables, max_length=max_length)
        model.load_tensors(load_tensors(folder / TENSORS_FILE), source=folder / TENSORS_FILE)
        return model.eval()


register_loader(MODEL_FILE, SentenceModel.load)
