"""Text -> what a model's towers, post-processing and code make of it; nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.codes import Code
from raysent.encoders import EncoderConfig, SentenceReader
from raysent.errors import ConfigError
from raysent.model.config import ModelConfig
from raysent.model.postprocessing import Postprocessing
from raysent.packed_codes import pack_bits
from raysent.packing import Packed, block_rows, pack, pack_blocks
from raysent.sentence_encoder import SentenceEncoder, check_sentences, encode_blocks, normalize_rows
from raysent.vocabulary import Sentences, Vocabulary

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
