"""`hf:PATH`: a local folder of a transformer of Hugging Face's transformers, with its tokenizer.

A sentence's vector is the mean of the last hidden states of its tokens, special tokens included and padding excluded;
that is what sentence-transformers computes for a folder without settings of its own. Nothing is downloaded. A folder
with code of its own is refused unless that code is trusted; see `raysent.models.pretrained`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from raysent.errors import ArtifactError, ConfigError
from raysent.models.pretrained import (
    PretrainedFolders,
    check_code,
    check_tokenizer,
    check_weights,
    first_script,
    reading,
)
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import read_json

FORM = "hf:PATH"

_LIBRARY = "transformers"
_CONFIG_FILES = ("config.json", "tokenizer_config.json")
# Part of the key: a change of how vectors are made makes new records.
_VERSION = 1
_BATCH_SIZE = 64
# Parameters after the last hidden states, which many folders lack.
_UNUSED = ("pooler.", "lm_head.", "cls.")
# The tokenizers of transformers give a number above this where there is no limit.
_NO_LIMIT = 1_000_000


_FOLDERS = PretrainedFolders("hf", _LIBRARY, keys=("hf", _VERSION))
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> TransformerModel:
    """Return the model of a folder.

    Raises:
        ArtifactError: If there is no such folder, or transformers cannot read it.
        ConfigError: If transformers is not installed, or the folder needs code that is not trusted.
    """
    folder = _FOLDERS.folder(rest)
    if find_spec(_LIBRARY) is None:
        raise ConfigError(f"hf:{rest}: needs transformers; install raysent[pretrained]")
    return TransformerModel(folder, is_trusted=check_code(f"hf:{rest}", _foreign_code(folder)))


def _foreign_code(folder: Path) -> str | None:
    """Return the first class that the folder's configuration takes from code; None if there is none."""
    for name in _CONFIG_FILES:
        values = read_json(folder / name) if (folder / name).is_file() else {}
        classes = values.get("auto_map") if isinstance(values, dict) else None
        if isinstance(classes, dict) and classes:
            return str(next(iter(classes.values())))
    return first_script(folder)


class TransformerModel(SentenceEncoder):
    """A transformer and its tokenizer.

    Attributes:
        model: The transformer, in float32; of an encoder-decoder, the encoder.
        tokenizer: Its tokenizer.
    """

    def __init__(self, folder: Path, *, is_trusted: bool = False) -> None:
        """Read a folder.

        Args:
            folder: A folder that `save_pretrained` of a model and of its tokenizer wrote.
            is_trusted: Whether code of the folder may run.

        Raises:
            ArtifactError: If transformers cannot read it, it has no tokenizer, or weights are missing or not finite.
        """
        name = f"hf:{folder}"
        self._folder, self._is_trusted = folder, is_trusted
        self._lock = Lock()
        library = import_module(_LIBRARY)
        options = {"local_files_only": True, "trust_remote_code": is_trusted}
        with reading(name, folder, library=_LIBRARY), torch.random.fork_rng(devices=[]):
            self.tokenizer = library.AutoTokenizer.from_pretrained(str(folder), **options)
            check_tokenizer(name, folder, self.tokenizer)
            model, report = library.AutoModel.from_pretrained(
                str(folder), dtype=torch.float32, output_loading_info=True, **options
            )
        missing = sorted(key for key in report["missing_keys"] if not any(part in key for part in _UNUSED))
        if missing:
            raise ArtifactError(f"{name}: must hold every weight; {missing[0]} is missing, of {len(missing)}")
        self.model = (model.get_encoder() if model.config.is_encoder_decoder else model).eval()
        check_weights(name, self.model)
        self._prepare_tokenizer()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TransformerModel, is_trusted=self._is_trusted), (self._folder,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of the hidden states."""
        return int(self.model.config.hidden_size)

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read of a longer sentence, special tokens included; None where all are read."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        # In RoBERTa and its kin, positions begin after that of padding.
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        positions = positions - padding - 1 if positions and padding is not None else positions
        limits = [limit for limit in (positions, self.tokenizer.model_max_length) if limit and limit < _NO_LIMIT]
        return min(limits, default=None)

    def encode_texts(self, sentences: list[str], *, batch_size: int = _BATCH_SIZE) -> Float32:
        """Return the mean of each sentence's last hidden states, float32 [sentences, dim]; see `SentenceEncoder`."""
        vectors = np.zeros((len(sentences), self.get_sentence_embedding_dimension()), dtype=np.float32)
        if not sentences:
            return vectors
        ids = self._ids(sentences)
        for rows in _batches_by_length(ids, min(batch_size, _BATCH_SIZE)):
            vectors[rows] = self._means([ids[row] for row in rows])
        return vectors

    def use_device(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)

    def _prepare_tokenizer(self) -> None:
        # Positions count from the left, so padding has to follow the sentence.
        self.tokenizer.padding_side = "right"
        self._pad_id = next(
            (one for one in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if one is not None), 0
        )

    def _ids(self, sentences: list[str]) -> list[list[int]]:
        limit = self.max_seq_length
        # A lone surrogate is no text for the tokenizer.
        texts = [text.encode(errors="replace").decode() for text in sentences]
        with self._lock:  # the tokenizer's settings are not for several threads
            found = self.tokenizer(texts, truncation=limit is not None, max_length=limit)
        ids: list[list[int]] = found["input_ids"]
        return ids

    def _means(self, ids: Sequence[Sequence[int]]) -> Float32:
        """Return the mean hidden states of sentences of at least one token each, float32 [batch, dim]."""
        lengths = torch.tensor([len(row) for row in ids])
        words = torch.full((len(ids), int(lengths.max())), self._pad_id)
        for row, own in enumerate(ids):
            words[row, : len(own)] = torch.tensor(own)
        mask = torch.arange(words.shape[1])[None, :] < lengths[:, None]
        device = self.model.device
        with torch.inference_mode():
            states = self.model(input_ids=words.to(device), attention_mask=mask.long().to(device)).last_hidden_state
            weights = mask.to(device)[:, :, None]
            means = (states * weights).sum(dim=1) / weights.sum(dim=1)
        found: Float32 = means.float().cpu().numpy()
        return found


def _batches_by_length(ids: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield the places of sentences of similar length; one without a token is left out."""
    order = sorted((row for row in range(len(ids)) if ids[row]), key=lambda row: len(ids[row]))
    for first in range(0, len(order), size):
        yield order[first : first + size]
