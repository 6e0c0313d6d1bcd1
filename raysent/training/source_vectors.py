"""The vectors of a fixed encoder whose codes are trained: computed once, kept in the cache, shared by a sweep's trials.

    <cache>/source_vectors/<key>/keys.npy       keys of the distinct sentences, ascending, uint64 [sentences]
    <cache>/source_vectors/<key>/vectors.npy    the towers' blocks before postprocessing, float32 [sentences, dim]

The key covers weights, encoder, kind of device and sentences. Whether a run reads them follows from its configuration
and its text alone, so that a resumed run has the same bits.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.data.batches import AnyStream, BatchStream, PairStream
from raysent.data.corpus.cache import build_once
from raysent.data.pairs import select_rows
from raysent.data.vocabulary import Sentences
from raysent.errors import ArtifactError
from raysent.models import KnownVectors, SentenceModel, sentence_keys
from raysent.storage import cache_folder, content_key, storage_errors
from raysent.training.run import RunConfig
from raysent.training.validation.metrics import HeldOut

# Part of the key: raise it when the same sentences would get other values.
_FORMAT_VERSION = 1
_LARGEST_BYTES = 64 << 30
_CHUNK = 8192
_FOLDER = "source_vectors"


def open_source_vectors(
    config: RunConfig,
    model: SentenceModel,
    stream: AnyStream,
    held_out: HeldOut | None,
    *,
    num_steps: int,
) -> KnownVectors | None:
    """Return the vectors of a run's sentences; they are computed if the cache does not have them.

    Args:
        config: The run.
        model: The run's model before its first step, on its device.
        stream: The training text.
        held_out: The batches of the objective's own metrics.
        num_steps: Steps of the run.

    Returns:
        None where the encoder is trained, `training.encode_once` is false, the run reads less than its text once, or
        the vectors of all sentences would take more than 64 GiB.

    Raises:
        ArtifactError: If the cache cannot be written, or its disk has too little room.
    """
    if not (config.objective.trains_code and config.training.encode_once):
        return None
    if not isinstance(stream, BatchStream | PairStream) or num_steps < stream.num_batches:
        return None
    dim = sum(config.model.encoded_dims)
    if 4 * dim * stream.num_sentences > _LARGEST_BYTES:
        return None
    text = _all_sentences(stream, held_out)
    text_keys = np.concatenate([sentence_keys(chunk) for chunk in text.split(_CHUNK)])
    keys, rows = np.unique(text_keys, return_index=True)
    cache = cache_folder(config.corpus.cache_dir)

    def build(folder: Path) -> dict[str, Any]:
        _check_room(folder, num_bytes=len(keys) * (4 * dim + 8))
        with storage_errors(folder):
            np.save(folder / "keys.npy", keys)
            _write_vectors(folder / "vectors.npy", model, text, rows, dim)
        return {"sentences": len(keys), "dim": dim}

    keys_hash = hashlib.sha256(keys.tobytes()).hexdigest()
    key = content_key(_FORMAT_VERSION, _encoder_key(config, model), keys_hash)
    folder = build_once(cache, f"{_FOLDER}/{key}", build)
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    return KnownVectors(np.load(folder / "keys.npy"), vectors)


def _all_sentences(stream: BatchStream | PairStream, held_out: HeldOut | None) -> Sentences:
    """Return the sentences that are trained on, and those of the held-out batches."""
    parts = [stream.sentences()]
    if held_out is not None:
        for batch in held_out.batches():
            parts += batch.parts
    return Sentences(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def _encoder_key(config: RunConfig, model: SentenceModel) -> str:
    """Return a key of the encoders: their kind of device, settings and weights."""
    weights = hashlib.sha256()
    for name, tensor in sorted(model.tensors().items()):
        if name.startswith(("f.", "g.")):
            weights.update(f"{name} {tuple(tensor.shape)}".encode())
            weights.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    towers = [tower.model_dump(mode="json") for tower in config.model.towers]
    return content_key(model.device.type, towers, weights.hexdigest())


def _check_room(folder: Path, *, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ArtifactError(
            f"{folder.parent}: the source's vectors need {num_bytes / 2**30:.1f} GiB; {free / 2**30:.1f} are free; "
            "free some space, name another cache with RAYSENT_CACHE, or set training.encode_once=false"
        )


def _write_vectors(
    path: Path, model: SentenceModel, text: Sentences, rows: np.ndarray, dim: int
) -> None:
    """Write the vectors of the sentences with these rows, in this order; not memory-mapped, as a full disk would kill.

    Always in the same chunks, whose sizes decide the last bits.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        "fortran_order": False,
        "shape": (len(rows), dim),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(rows), _CHUNK):
            chunk = select_rows(text, rows[first : first + _CHUNK])
            file.write(model.encoded(chunk).tobytes())
