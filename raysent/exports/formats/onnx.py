"""onnx: a graph of a single model, and its tokenizer, for onnxruntime and other languages.

model.onnx       ids, int64 [batch, time], 0 after a sentence's end -> sentence_embedding, float32 [batch, dim]
tokenizer.json   text -> ids; add 0 at the end of shorter sentences
vocabulary.txt   the words by id

Of a model with the sub-words of a pretrained one, -1 follows the ids; a default prompt must be put before each text.

Lengths, truncation and the rule that a sentence without a known word is one unknown word are in the graph. torch's
exporter traces the module of `modeling_raysent.py`, the same that sentence-transformers runs.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from raysent.data.vocabulary import PAD_ID, UNK_ID, Vocabulary
from raysent.errors import ConfigError
from raysent.exports.formats import Encode
from raysent.exports.formats.sentence_transformers import check_model as check_parts
from raysent.exports.formats.sentence_transformers import exported_code, plain_member, write_words
from raysent.exports.tokenizer import TOKENIZER_FILE, exported_ids, pad_id
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import Float32
from raysent.storage.layout import VOCABULARY_FILE

TARGET = "onnx"
EXTRA = "onnx"
LIBRARY = "onnx"
USAGE = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("FOLDER/model.onnx")
tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")
rows = [encoded.ids for encoded in tokenizer.encode_batch(["PROMPTA sentence.", "PROMPTAnother one."])]
ids = np.full((len(rows), max(map(len, rows))), PADDING, np.int64)
for row, given in zip(ids, rows):
    row[: len(given)] = given
vectors = session.run(None, {"ids": ids})[0]"""
DIFFERS_ON: tuple[str, ...] = ()
PROMPT = ""  # of the graph, before which a user puts the model's own

GRAPH_FILE = "model.onnx"
_OPSET = 18
_BATCH_SIZE = 128


def check_model(models: Sequence[SentenceModel]) -> None:
    """Refuse ensembles, and encoders and codes that the exported code does not have."""
    if len(models) > 1:
        raise ConfigError(
            "to onnx: must be a single model, because an ensemble's members differ in their words"
        )
    check_parts(models)


def usage_of(models: Sequence[SentenceModel]) -> str:
    """Return the lines of Python that read the folder, with the model's default prompt before each text."""
    model = models[0]
    prompt = model.prompts.get(model.default_prompt_name or "", "")
    escaped = json.dumps(prompt, ensure_ascii=False)[1:-1]
    return USAGE.replace("PADDING", str(pad_id(model.vocabulary))).replace("PROMPT", escaped)


def write(models: Sequence[SentenceModel], folder: Path) -> None:
    """Write the folder."""
    write_words(models[0], folder)
    _build_graph(models[0]).save(str(folder / GRAPH_FILE))


def _build_graph(model: SentenceModel) -> Any:
    """Return the graph as torch's exporter gives it, a program with `save` and `model_proto`."""
    graph = _Graph(model).eval()
    example = torch.full((3, 5), UNK_ID + 1)
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about itself
            return torch.onnx.export(
                graph,
                (example,),
                input_names=["ids"],
                output_names=["sentence_embedding"],
                opset_version=_OPSET,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},),
                verbose=False,
            )
    finally:
        exporter.setLevel(level)


def open(folder: Path) -> Encode:
    """Return a function that encodes with onnxruntime, in blocks of similar lengths."""
    library = import_module("onnxruntime")
    session = library.InferenceSession(str(folder / GRAPH_FILE), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    padding = pad_id(Vocabulary.load(folder / VOCABULARY_FILE))

    def encode(sentences: list[str]) -> Float32:
        return encode_ids(session, exported_ids(tokenizer, sentences), padding=padding)

    return encode


def encode_ids(session: Any, rows: Sequence[Sequence[int]], *, padding: int = PAD_ID) -> Float32:
    """Return the vectors [rows, dim] of rows of ids, encoded in blocks of similar lengths."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    blocks = [order[first : first + _BATCH_SIZE] for first in range(0, len(order), _BATCH_SIZE)]
    vectors = [
        session.run(None, {"ids": _padded([rows[row] for row in block], padding)})[0]
        for block in blocks
    ]
    if not vectors:
        return np.empty((0, 0), dtype=np.float32)
    out = np.empty((len(rows), vectors[0].shape[1]), dtype=np.float32)
    out[order] = np.concatenate(vectors)
    return out


def _padded(rows: Sequence[Sequence[int]], padding: int) -> npt.NDArray[np.int64]:
    ids = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for row, row_ids in zip(ids, rows, strict=True):
        row[: len(row_ids)] = row_ids
    return ids


class _Graph(nn.Module):
    """Word ids as a tokenizer gives them, padded [batch, time] -> vectors [batch, dim]."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__()
        self._member = plain_member(model)
        self._max_length = model.max_length
        self._padding = pad_id(model.vocabulary)
        self._unknown = model.vocabulary.unknown_id
        self._batch: Any = exported_code().Batch
        for part in self._member.modules():
            # Plain products of matrices can be converted whatever the architecture.
            if hasattr(part, "set_attn_implementation"):
                part.set_attn_implementation("eager")

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [batch, dim]."""
        # One place more: a batch of nothing but empty texts may have no ids, and they are one unknown word.
        ids = nn.functional.pad(ids, (0, 1), value=self._padding)
        lengths = (ids != self._padding).sum(dim=1)
        if self._padding != PAD_ID:
            ids = torch.where((lengths == 0)[:, None], self._unknown, ids.clamp(min=0))
        else:
            has_known = ((ids != PAD_ID) & (ids != UNK_ID)).any(dim=1)
            lengths = torch.where(has_known, lengths, 1)
            ids = torch.where(has_known[:, None], ids, UNK_ID)
        vectors: Tensor = self._member(
            self._batch(ids[:, : self._max_length], lengths.clamp(1, self._max_length))
        )
        return vectors
