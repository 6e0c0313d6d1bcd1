"""`skip-thoughts:PATH`: the weights that the authors of Skip-Thoughts released.

PATH is a folder with the files of the release: `dictionary.txt`, and `uni_skip.npz` with `utable.npy`, `bi_skip.npz`
with `btable.npy`, or both, whose vectors of unit length then stand one after another: combine-skip.

    r = s(W_r x + U_r h + b_r)   u = s(W_u x + U_u h + b_u)   c = tanh(W x + b + r * (U h))   h' = u h + (1 - u) c

Source: Kiros et al., 2015, and the released code (`skipthoughts.py`: `load_model`, `encode`, without `use_eos`).
Differs: raysent's tokenizer in place of NLTK's, with the same words for most English text.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary
from raysent.errors import ArtifactError
from raysent.models.config import ModelConfig
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.gru import Config as Gru
from raysent.models.files import Record
from raysent.models.model import SentenceModel
from raysent.models.objectives.paraphrase_margin import Config as ParaphraseMargin
from raysent.models.pretrained import PretrainedFolders
from raysent.models.sentence_encoder import JoinedEncoders, SentenceEncoder

FORM = "skip-thoughts:PATH"

_WORDS_FILE = "dictionary.txt"
# Weights, words' vectors, and the prefix of the parameters of each direction.
_PARTS = (("uni_skip.npz", "utable.npy", ("encoder",)), ("bi_skip.npz", "btable.npy", ("encoder", "encoder_r")))
_UNKNOWN = "UNK"
_MAX_LENGTH = 1000


_FOLDERS = PretrainedFolders("skip-thoughts", "the files that Skip-Thoughts' authors released", is_named=True)
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> SentenceEncoder:
    """Return the model of a folder.

    Raises:
        ArtifactError: If a file is missing, truncated or of another kind.
    """
    folder = _FOLDERS.folder(rest)
    parts = [part for part in _PARTS if (folder / part[0]).is_file()]
    if not parts:
        raise ArtifactError(f"skip-thoughts:{rest}: must hold uni_skip.npz or bi_skip.npz; found neither")
    words = _read_words(folder / _WORDS_FILE)
    models = [_model(folder / weights, folder / table, prefixes, words) for weights, table, prefixes in parts]
    return models[0] if len(models) == 1 else JoinedEncoders(models)


def _read_words(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; it is part of the release") from None
    except UnicodeDecodeError:
        raise ArtifactError(f"{path}: must be UTF-8 text, a word a line; download it again") from None


def _model(weights: Path, table: Path, prefixes: tuple[str, ...], words: list[str]) -> SentenceModel:
    vectors = _load_array(table)
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise ArtifactError(
            f"{table}: must hold a vector for each of the {len(words)} words of {_WORDS_FILE}; given {vectors.shape}"
        )
    if _UNKNOWN not in words:
        raise ArtifactError(f"{table.parent / _WORDS_FILE}: must have the word {_UNKNOWN}; given none")
    tensors: dict[str, Tensor] = {}
    arrays = _load_arrays(weights)
    for prefix, suffix in zip(prefixes, ("", "_reverse"), strict=False):
        for name, tensor in _gru(arrays, prefix, source=weights).items():
            tensors[f"f.gru.{name}_l0{suffix}"] = tensor
    hidden = tensors["f.gru.weight_hh_l0"].shape[1]
    if tensors["f.gru.weight_ih_l0"].shape[1] != vectors.shape[1]:
        raise ArtifactError(
            f"{table}: must hold vectors of {tensors['f.gru.weight_ih_l0'].shape[1]} numbers, as {weights.name} reads; "
            f"given {vectors.shape[1]}"
        )
    unknown = vectors[words.index(_UNKNOWN)]
    tensors["f.words.weight"] = torch.from_numpy(np.vstack([np.zeros_like(unknown), unknown, vectors]))
    encoder = Gru(
        hidden_size=hidden * len(prefixes),
        bidirectional=len(prefixes) == 2,
        embedding=EmbeddingConfig(dim=vectors.shape[1]),
    )
    # The decoder is not read: the objective is one without parameters.
    config = ModelConfig(encoder=encoder, objective=ParaphraseMargin())
    vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *words])
    record = Record(config=config, max_length=_MAX_LENGTH, num_words=len(vocabulary))
    return SentenceModel.from_tensors(record, vocabulary, tensors, source=weights)


def _gru(arrays: Mapping[str, np.ndarray], prefix: str, *, source: Path) -> dict[str, Tensor]:
    """Return the parameters of one direction as torch names and lays them out; the candidate is the third block."""
    found = {}
    for name in ("W", "U", "b", "Wx", "Ux", "bx"):
        if f"{prefix}_{name}" not in arrays:
            raise ArtifactError(f"{source}: must hold {prefix}_{name}; it is no release of Skip-Thoughts")
        found[name] = arrays[f"{prefix}_{name}"].astype(np.float32)
    dim, hidden = found["Wx"].shape
    shapes = {"W": (dim, 2 * hidden), "U": (hidden, 2 * hidden), "b": (2 * hidden,), "Ux": (hidden, hidden)}
    for name, shape in {**shapes, "bx": (hidden,)}.items():
        if found[name].shape != shape:
            raise ArtifactError(f"{source}: {prefix}_{name} must have the shape {shape}; given {found[name].shape}")
    tensors = {
        "weight_ih": np.vstack([found["W"].T, found["Wx"].T]),
        "weight_hh": np.vstack([found["U"].T, found["Ux"].T]),
        "bias_ih": np.concatenate([found["b"], found["bx"]]),
        "bias_hh": np.zeros(3 * hidden, dtype=np.float32),
    }
    return {name: torch.from_numpy(value) for name, value in tensors.items()}


def _load_array(path: Path) -> np.ndarray:
    """Return an array of numbers; pickled objects are refused."""
    try:
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.float32)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; it is part of the release") from None
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path}: must be an array of numbers ({error}); download it again") from None


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the encoder's arrays; pickled objects beside them are not read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name.startswith("encoder_")}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path}: must be an archive of arrays ({error}); download it again") from None
