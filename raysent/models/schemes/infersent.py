"""`infersent:PATH`: the weights that the authors of InferSent released, without running the code of their pickle.

PATH is a folder with `infersent1.pkl` or `infersent2.pkl` and the file of word vectors that it was trained on, GloVe
(`.txt`) or fastText (`.vec`). A sentence's known words are read between a mark of its begin and of its end (`<s>` and
`</s>`; `<p>` and `</p>` for version 2); its vector is the greatest value of each number over all states.

Source: Conneau et al., 2017, and the released code (`models.py`: `prepare_samples`, `forward`).
Differs: raysent's tokenizer in place of NLTK's; a sentence's vector does not depend on the others of its batch, whose
padding the released code compares too.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysent.data.vocabulary import PAD_WORD, UNK_ID, UNK_WORD, Sentences, Vocabulary, read_word_vectors
from raysent.errors import ArtifactError
from raysent.models.config import ModelConfig
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.lstm import Config as Lstm
from raysent.models.files import Record
from raysent.models.model import SentenceModel
from raysent.models.objectives.paraphrase_margin import Config as ParaphraseMargin
from raysent.models.pretrained import PretrainedFolders
from raysent.models.sentence_encoder import Float32, SentenceEncoder

FORM = "infersent:PATH"

_VECTOR_FILES = (".txt", ".vec", ".txt.gz", ".vec.gz", ".bin")
_MARKS = {"infersent2": ("<p>", "</p>")}
_FIRST_MARKS = ("<s>", "</s>")
_PREFIX = "enc_lstm."
_MAX_LENGTH = 1000
# Sentences whose words are looked up at once.
_CHUNK = 8192


_FOLDERS = PretrainedFolders("infersent", "InferSent's weights and word vectors", is_named=True)
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> InferSent:
    """Return the model of a folder.

    Raises:
        ArtifactError: If a file is missing, truncated or of another kind, or the pickle holds more than tensors.
        DataError: If the word vectors cannot be read.
    """
    return InferSent(_FOLDERS.folder(rest))


class InferSent(SentenceEncoder):
    """A BiLSTM whose states are compared number by number."""

    def __init__(self, folder: Path) -> None:
        """Read a folder; see `load`."""
        self._folder = folder
        weights = _only(folder, (".pkl",), what="file of weights (.pkl)")
        vectors = read_word_vectors(_only(folder, _VECTOR_FILES, what="file of word vectors (.txt or .vec)"))
        dim = vectors.vectors.shape[1]
        tensors = _read_weights(weights)
        size = tensors["f.lstm.weight_ih_l0"].shape[1]
        if size != dim:
            raise ArtifactError(f"{weights}: must go with word vectors of {size} numbers; given {dim}")
        self._begin, self._end = _MARKS.get(weights.stem, _FIRST_MARKS)
        tensors["f.words.weight"] = torch.from_numpy(np.vstack([np.zeros((2, dim), np.float32), vectors.vectors]))
        hidden = 2 * tensors["f.lstm.weight_hh_l0"].shape[1]
        # The classifier is not part of the release: the objective is one without parameters.
        encoder = Lstm(hidden_size=hidden, embedding=EmbeddingConfig(dim=dim))
        config = ModelConfig(encoder=encoder, objective=ParaphraseMargin())
        vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *vectors.words])
        record = Record(config=config, max_length=_MAX_LENGTH, num_words=len(vocabulary))
        self.model = SentenceModel.from_tensors(record, vocabulary, tensors, source=weights)

    def __reduce__(self) -> tuple[Any, ...]:
        return InferSent, (self._folder,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return self.model.postprocessing.dim()

    @property
    def max_seq_length(self) -> int:
        """Tokens read of a longer sentence."""
        return _MAX_LENGTH

    def use_device(self, device: torch.device) -> None:
        """Move the model."""
        self.model.use_device(device)

    def encode_texts(self, sentences: list[str], *, batch_size: int = 64) -> Float32:
        """Return the vectors, float32 [sentences, dim], whose lengths are those of the release."""
        out = np.empty((len(sentences), self.get_sentence_embedding_dimension()), dtype=np.float32)
        for first in range(0, len(sentences), _CHUNK):
            rows = self._ids(sentences[first : first + _CHUNK])
            out[first : first + len(rows.lengths)] = self.model.encoded(rows, batch_size=batch_size)
        return out

    def _ids(self, sentences: list[str]) -> Sentences:
        """Return the ids of the known words of each sentence between the marks; of nothing, an unknown word."""
        vocabulary = self.model.vocabulary
        text = vocabulary.ids(sentences, max_length=_MAX_LENGTH)
        is_known = text.ids != UNK_ID
        lengths = np.add.reduceat(is_known, np.cumsum(text.lengths) - text.lengths, dtype=np.int64)
        ids, ends = text.ids[is_known], np.cumsum(lengths)
        for mark, is_end in ((self._end, True), (self._begin, False)):
            if mark in vocabulary:
                ids = np.insert(ids, ends if is_end else ends - lengths, vocabulary.id(mark))
                lengths, ends = lengths + 1, ends + np.arange(1, len(ends) + 1)
        empty = np.flatnonzero(lengths == 0)
        starts = np.cumsum(lengths) - lengths
        return Sentences(np.insert(ids, starts[empty], UNK_ID).astype(np.int32), np.maximum(lengths, 1))


def _only(folder: Path, suffixes: tuple[str, ...], *, what: str) -> Path:
    """Return the file of a folder that has one of these endings.

    Raises:
        ArtifactError: If there is none, or there are several.
    """
    found = sorted(path for path in folder.iterdir() if path.name.endswith(suffixes))
    if len(found) != 1:
        given = ", ".join(path.name for path in found) or "none"
        raise ArtifactError(f"infersent:{folder}: must hold one {what}; given {given}")
    return found[0]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the encoder's parameters under raysent's names.

    Raises:
        ArtifactError: If there are none, or reading them would run code.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the age of the pickle's format
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise ArtifactError(
            f"{path}: must hold tensors alone; reading what else it holds would run its code; name a file of the "
            "release, a `state_dict`"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read ({' '.join(str(error).split())}); download it again") from None
    found = {
        f"f.lstm.{name.removeprefix(_PREFIX)}": value.float()
        for name, value in (tensors.items() if isinstance(tensors, dict) else ())
        if str(name).startswith(_PREFIX) and isinstance(value, Tensor)
    }
    if not {"f.lstm.weight_ih_l0", "f.lstm.weight_hh_l0"} <= found.keys():
        raise ArtifactError(f"{path}: must hold the parameters {_PREFIX}*; it is no release of InferSent")
    return found
