"""onnx: a graph of a single model, and its tokenizer, for onnxruntime and other languages.

model.onnx       ids, int64 [batch, time], 0 after a sentence's end -> sentence_embedding, float32 [batch, dim]
tokenizer.json   text -> ids; add 0 at the end of shorter sentences
vocabulary.txt   the words by id

Of a model with sub-words, `words.json` divides text into words, `tokenizer.json` reads these, and -1 follows the ids.

Lengths, truncation and the rule that a sentence without a known word is one unknown word are in the graph. The graph is
built here operation by operation, because torch's exporter does not support packed sequences and freezes lengths.

Source: ONNX operators, opset 18. `GRU` with `linear_before_reset` 0 is the cell whose reset gate acts first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.data.vocabulary import PAD_ID, UNK_ID, SubwordVocabulary
from raysent.errors import ConfigError
from raysent.exports.formats import Encode
from raysent.exports.formats.sentence_transformers import check_own, write_words
from raysent.exports.tokenizer import PAD_OF_SUBWORDS, Tokenizers
from raysent.models import SentenceModel
from raysent.models.encoders.transformer import distance_buckets
from raysent.models.sentence_encoder import Float32

TARGET = "onnx"
EXTRA = "onnx"
LIBRARY = "onnx"
USAGE = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("FOLDER/model.onnx")
tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")
rows = [encoded.ids for encoded in tokenizer.encode_batch(["A sentence.", "Another one."], add_special_tokens=False)]
ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
for row, given in zip(ids, rows):
    row[: len(given)] = given
vectors = session.run(None, {"ids": ids})[0]"""
# For models with sub-words, instead.
USAGE_OF_SUBWORDS = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("FOLDER/model.onnx")
words, tokenizer = (Tokenizer.from_file(f"FOLDER/{name}.json") for name in ("words", "tokenizer"))

def divide(text):
    return [word for word, _ in words.pre_tokenizer.pre_tokenize_str(words.normalizer.normalize_str(text))]

texts = ["A sentence.", "Another one."]
rows = [encoded.ids for encoded in tokenizer.encode_batch([divide(text) for text in texts], is_pretokenized=True)]
ids = np.full((len(rows), max(map(len, rows))), -1, np.int64)
for row, given in zip(ids, rows):
    row[: len(given)] = given
vectors = session.run(None, {"ids": ids})[0]"""
DIFFERS_ON: tuple[str, ...] = ()

GRAPH_FILE = "model.onnx"
_OPSET = 18
_IR_VERSION = 10
_LIMIT = float(np.finfo(np.float32).max)
_BATCH_SIZE = 128
# The method of `_Graph` that reads an encoder's type.
_READERS = {
    "bag": "_bag",
    "cnn": "_cnn",
    "gru": "_recurrence",
    "linear": "_linear",
    "lstm": "_recurrence",
    "transformer": "_transformer",
}
# The order of torch's gates in ONNX: r, z, n -> z, r, h and i, f, g, o -> i, o, f, c.
_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


def check_model(models: Sequence[SentenceModel]) -> None:
    """Refuse ensembles, and encoders and codes of other packages."""
    if len(models) > 1:
        raise ConfigError("--to onnx: must be a single model, because an ensemble's members differ in their words")
    for part in (models[0].config.encoder, models[0].config.second_encoder, models[0].config.code):
        check_own(part, encoders=(*_READERS, "concat"), place="_READERS of exports/formats/onnx.py")


def write(models: Sequence[SentenceModel], folder: Path) -> None:
    """Write the folder."""
    write_words(models[0], folder)
    import_module("onnx").save(build_graph(models[0]), str(folder / GRAPH_FILE))


def open(folder: Path) -> Encode:
    """Return a function that encodes with onnxruntime, in blocks of similar lengths."""
    library = import_module("onnxruntime")
    session = library.InferenceSession(str(folder / GRAPH_FILE), providers=["CPUExecutionProvider"])
    tokenizers = Tokenizers.read(folder)

    def encode(sentences: list[str]) -> Float32:
        return encode_ids(session, tokenizers.ids(sentences), pad_id=tokenizers.pad_id)

    return encode


def encode_ids(session: Any, rows: Sequence[Sequence[int]], *, pad_id: int = PAD_ID) -> Float32:
    """Return the vectors [rows, dim] of rows of ids, encoded in blocks of similar lengths."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    blocks = [order[first : first + _BATCH_SIZE] for first in range(0, len(order), _BATCH_SIZE)]
    found = [session.run(None, {"ids": _padded([rows[row] for row in block], pad_id)})[0] for block in blocks]
    out = np.empty((len(rows), found[0].shape[1] if found else 0), dtype=np.float32)
    out[order] = np.concatenate(found) if found else out
    return out


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> npt.NDArray[np.int64]:
    ids = np.full((len(rows), max(map(len, rows))), pad_id, dtype=np.int64)
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = given
    return ids


def build_graph(model: SentenceModel) -> Any:
    """Return the ONNX model, checked."""
    onnx = import_module("onnx")
    graph = _Graph(model.max_length, has_subwords=isinstance(model.vocabulary, SubwordVocabulary))
    blocks = [
        block
        for tower, config in zip(model.towers, model.config.towers, strict=True)
        for block in graph.encode(tower, config)
    ]
    vectors = graph.finish(model, blocks)
    graph.add("Identity", vectors, output="sentence_embedding")
    helper, types = onnx.helper, onnx.TensorProto
    dim = model.get_sentence_embedding_dimension()
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "raysent",
            [helper.make_tensor_value_info("ids", types.INT64, ["batch", "time"])],
            [helper.make_tensor_value_info("sentence_embedding", types.FLOAT, ["batch", dim])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    onnx.checker.check_model(made)
    return made


class _Graph:
    """Nodes and constants of a graph that reads sentences. A value is known by its name.

    Attributes:
        nodes: The operations in order.
        constants: The parameters and other constants.
        ids: Word ids; a sentence without a known word is one unknown word [batch, time].
        lengths: Words of each sentence [batch].
        mask: 1 inside a sentence, else 0 [batch, time, 1].
    """

    def __init__(self, max_length: int, *, has_subwords: bool) -> None:
        """Read `ids`, cut to `max_length` words; any of sub-words, which have no unknown sentence, is known."""
        onnx = import_module("onnx")
        self._helper, self._from_array = onnx.helper, onnx.numpy_helper.from_array
        self._float, self._int32, self._int64 = (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.INT32,
            onnx.TensorProto.INT64,
        )
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._vectors: dict[int, str] = {}
        self._read_ids(max_length, has_subwords=has_subwords)

    def _read_ids(self, max_length: int, *, has_subwords: bool) -> None:
        # One place more: a batch of nothing but empty texts has no ids, and they are one unknown word.
        ids = "ids" if has_subwords else self.add("Pad", "ids", self.ints(0, 0, 0, 1), self.constant(np.int64(PAD_ID)))
        is_pad = self.add("Equal", ids, self.ints(PAD_OF_SUBWORDS if has_subwords else PAD_ID))
        lengths = self._count(self.add("Not", is_pad))
        if has_subwords:
            ids = self.add("Max", ids, self.ints(0))
        else:
            is_known = self.add("Not", self.add("Or", is_pad, self.add("Equal", ids, self.ints(UNK_ID))))
            known = self.add("Greater", self._count(is_known), self.ints(0))
            lengths = self.add("Where", known, lengths, self.ints(1))
            ids = self.add("Where", self.add("Unsqueeze", known, self.ints(1)), ids, self.ints(UNK_ID))
        self.lengths = self.add("Min", lengths, self.ints(max_length))
        self.ids = self.add("Slice", ids, self.ints(0), self.ints(max_length), self.ints(1))
        time = self.add("Squeeze", self.add("Gather", self.add("Shape", self.ids), self.ints(1)))
        places = self.add("Range", self.constant(np.int64(0)), time, self.constant(np.int64(1)))
        self._places = self.add("Unsqueeze", places, self.ints(0))
        self._is_inside = self.before(self.lengths)
        self.mask = self.add("Cast", self._is_inside, to=self._float)

    def _count(self, values: str) -> str:
        """Return how many values of each sentence are true [batch]."""
        return self.add("ReduceSum", self.add("Cast", values, to=self._int64), self.ints(1), keepdims=0)

    # -- nodes --------------------------------------------------------------------------------------------------

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation and return its result."""
        return self.add_all(kind, *inputs, num_outputs=1, output=output, **attributes)[0]

    def add_all(
        self, kind: str, *inputs: str, num_outputs: int, output: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add an operation and return its results."""
        number = len(self.nodes)
        outputs = [output] if output else [f"{kind.lower()}_{number}_{index}" for index in range(num_outputs)]
        self.nodes.append(self._helper.make_node(kind, list(inputs), outputs, **attributes))
        return tuple(outputs)

    def constant(self, value: Tensor | npt.ArrayLike) -> str:
        """Add a constant."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a constant of integers, int64 [values]."""
        return self.constant(np.array(values, dtype=np.int64))

    def before(self, ends: str) -> str:
        """Return whether each place is before each sentence's end [batch, time, 1]."""
        inside = self.add("Less", self._places, self.add("Unsqueeze", ends, self.ints(1)))
        return self.add("Unsqueeze", inside, self.ints(2))

    # -- encoders -----------------------------------------------------------------------------------------------

    def encode(self, tower: Any, config: Any) -> list[str]:
        """Return the blocks of a tower that get unit length [batch, dim] each."""
        if config.type == "concat":
            members = zip(tower.members, config.members.values(), strict=True)
            return [block for member, member_config in members for block in self.encode(member, member_config)]
        reader: Callable[[Any, Any], list[str]] = getattr(self, _READERS[config.type])
        return reader(tower, config)

    def words(self, tower: Any) -> str:
        """Return the word vectors [batch, time, dim]."""
        weight = tower.words.weight
        if id(weight) not in self._vectors:
            self._vectors[id(weight)] = self.add("Gather", self.constant(weight), self.ids)
        return self._vectors[id(weight)]

    def _bag(self, tower: Any, config: Any) -> list[str]:
        return [self.pool(self.words(tower), config.pooling)]

    def _linear(self, tower: Any, config: Any) -> list[str]:
        vectors, poolings = self.words(tower), config.encode_pooling or [config.pooling]
        blocks = []
        for weight in tower.maps:
            matrix = self.constant(weight.T)
            mapped = self.add("MatMul", vectors, matrix)
            # The image of the mean is the mean of the images.
            pooled = [
                self.add("MatMul", self.pool(vectors, pooling), matrix)
                if pooling == "mean"
                else self.pool(mapped, pooling)
                for pooling in poolings
            ]
            blocks.append(self.add("Concat", *pooled, axis=1))
        return blocks

    def _cnn(self, tower: Any, config: Any) -> list[str]:
        vectors = self.add("Transpose", self.add("Mul", self.words(tower), self.mask), perm=[0, 2, 1])
        blocks = []
        for width, weight, bias in zip(config.windows, tower.weights, tower.biases, strict=True):
            kernel = weight.detach().view(width, len(bias), -1).permute(1, 2, 0)
            padded = self.add("Pad", vectors, self.ints(0, 0, 0, 0, 0, width - 1))
            values = self.add("Conv", padded, self.constant(kernel), self.constant(bias))
            values = self.add("Transpose", values, perm=[0, 2, 1])
            values = self.add("Tanh", values) if config.activation == "tanh" else values
            counts = self.add("Max", self.add("Sub", self.lengths, self.ints(width - 1)), self.ints(1))
            blocks.append(self.pool(values, config.pooling, ends=counts))
        return [self.add("Concat", *blocks, axis=1)]

    def _recurrence(self, tower: Any, config: Any) -> list[str]:
        kind = config.type.upper()
        network = cast("nn.GRU | nn.LSTM", getattr(tower, config.type))
        directions = 2 if network.bidirectional else 1
        options: dict[str, Any] = {
            "hidden_size": network.hidden_size,
            "direction": "bidirectional" if directions == 2 else "forward",
        }
        if kind == "GRU":
            options["linear_before_reset"] = int(config.resolved_reset == "after")
        values = self.add("Transpose", self.words(tower), perm=[1, 0, 2])
        lengths = self.add("Cast", self.lengths, to=self._int32)
        weights = network.all_weights
        for first in range(0, len(weights), directions):
            parameters = _ordered(weights[first : first + directions], kind)
            # Y [time, directions, batch, hidden] and Y_h [directions, batch, hidden]; of an LSTM also the cells.
            states, last, *_ = self.add_all(
                kind,
                values,
                *map(self.constant, parameters),
                lengths,
                num_outputs=3 if kind == "LSTM" else 2,
                **options,
            )
            values = self.add("Reshape", self.add("Transpose", states, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))
        ends = self.add("Reshape", self.add("Transpose", last, perm=[1, 0, 2]), self.ints(0, -1))
        values = self.add("Transpose", values, perm=[1, 0, 2])
        poolings = getattr(config, "encode_pooling", None) or [config.pooling]
        pooled = [ends if pooling == "last" else self.pool(values, pooling) for pooling in poolings]
        return [self.add("Concat", *pooled, axis=1)]

    def _transformer(self, tower: Any, config: Any) -> list[str]:
        time = self.add("Gather", self.add("Shape", self.ids), self.ints(1))
        positions = self.add("Slice", self.constant(tower.positions), self.ints(0), time, self.ints(0))
        vectors = self.add("Gather", self.constant(tower.table.weight), self.ids)
        x = self._normalized(tower.norm, self.add("Add", vectors, positions))
        # [batch, 1, 1, time]: nothing for a sentence's tokens, and minus infinity for padding.
        inside = self.add("Unsqueeze", self.add("Transpose", self._is_inside, perm=[0, 2, 1]), self.ints(1))
        mask = self.add("Where", inside, self.constant(np.float32(0)), self.constant(np.float32(-np.inf)))
        if tower.distances is not None:
            mask = self.add("Add", mask, self._biases(tower, config))
        for layer in tower.layers:
            x = self._layer(layer, x, mask, config)
        if config.pooling == "mean":
            return [self.pool(x, "mean")]
        return [self.add("Gather", x, self.constant(np.int64(0)), axis=1)]

    def _layer(self, layer: Any, x: str, mask: str, config: Any) -> str:
        """Return the next states of a transformer [batch, time, size]."""
        size, heads = config.hidden_size, config.num_heads
        shape = self.ints(0, 0, 3, heads, size // heads)
        split = self.add("Reshape", self._product(layer.query_key_value, x), shape)
        parts = [
            self.add("Gather", split, self.constant(np.int64(part)), axis=2)  # [batch, time, heads, size of a head]
            for part in range(3)
        ]
        query, value = (self.add("Transpose", parts[part], perm=[0, 2, 1, 3]) for part in (0, 2))
        key = self.add("Transpose", parts[1], perm=[0, 2, 3, 1])
        scale = self.constant(np.float32((size // heads) ** -0.5))
        scores = self.add("Add", self.add("Mul", self.add("MatMul", query, key), scale), mask)
        found = self.add("MatMul", self.add("Softmax", scores, axis=3), value)
        joined = self.add("Reshape", self.add("Transpose", found, perm=[0, 2, 1, 3]), self.ints(0, 0, size))
        x = self._normalized(layer.norm, self.add("Add", x, self._product(layer.out, joined)))
        up = self._product(layer.up, x)
        # gelu: up / 2 * (1 + erf(up / sqrt(2)))
        error = self.add("Erf", self.add("Mul", up, self.constant(np.float32(0.5**0.5))))
        half = self.add("Mul", up, self.constant(np.float32(0.5)))
        hidden = self.add("Mul", half, self.add("Add", error, self.constant(np.float32(1))))
        return self._normalized(layer.last_norm, self.add("Add", x, self._product(layer.down, hidden)))

    def _biases(self, tower: Any, config: Any) -> str:
        """Return the biases by distance [heads, time, time], cut from those of the longest sentence."""
        buckets = distance_buckets(config.max_positions, len(tower.distances))
        # One row for each distance, from the last token before to the last after.
        rows = torch.cat([buckets[-1, :-1], buckets[0]]).numpy()
        places = self.add("Squeeze", self._places, self.ints(0))
        columns, lines = self.add("Unsqueeze", places, self.ints(0)), self.add("Unsqueeze", places, self.ints(1))
        distance = self.add("Add", self.add("Sub", columns, lines), self.ints(config.max_positions - 1))
        bucket = self.add("Gather", self.constant(rows), distance)
        return self.add("Transpose", self.add("Gather", self.constant(tower.distances), bucket), perm=[2, 0, 1])

    def _product(self, linear: Any, x: str) -> str:
        """Return a product and a bias."""
        return self.add("Add", self.add("MatMul", x, self.constant(linear.weight.T)), self.constant(linear.bias))

    def _normalized(self, norm: Any, x: str) -> str:
        """Return each state normalized."""
        weights = self.constant(norm.weight), self.constant(norm.bias)
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def pool(self, values: str, pooling: str, *, ends: str = "") -> str:
        """Return values [batch, time, dim] pooled over the places before each sentence's end [batch, dim].

        Args:
            values: A value for each place.
            pooling: `sum`, `mean`, `max`, `min` or `last`.
            ends: Number of places of each sentence [batch]; by default its length.
        """
        inside = self.before(ends) if ends else self._is_inside
        if pooling in ("max", "min"):
            limit = self.constant(np.float32(-_LIMIT if pooling == "max" else _LIMIT))
            kept = self.add("Where", inside, values, limit)
            return self.add(f"Reduce{pooling.title()}", kept, self.ints(1), keepdims=0)
        counts = self.add("Unsqueeze", ends or self.lengths, self.ints(1))
        if pooling == "last":
            place = self.add("Unsqueeze", self.add("Sub", counts, self.ints(1)), self.ints(2))
            is_last = self.add("Equal", self.add("Unsqueeze", self._places, self.ints(2)), place)
            mask = self.add("Cast", is_last, to=self._float)
        else:
            mask = self.add("Cast", inside, to=self._float)
        total = self.add("ReduceSum", self.add("Mul", values, mask), self.ints(1), keepdims=0)
        return self.add("Div", total, self.add("Cast", counts, to=self._float)) if pooling == "mean" else total

    # -- the finished vector ------------------------------------------------------------------------------------

    def finish(self, model: SentenceModel, blocks: Sequence[str]) -> str:
        """Return the finished vectors, or bits [batch, dim]."""
        postprocessing, finished = model.postprocessing, []
        for number, given in enumerate(blocks):
            block = given
            if len(postprocessing.components):
                component = cast("Tensor", postprocessing.components[number])[:, None]
                length = self.add("MatMul", block, self.constant(component))
                block = self.add("Sub", block, self.add("MatMul", length, self.constant(component.T)))
            finished.append(self._unit(block))
        if model.config.postprocessing.combine == "average":
            vectors = self.add("Div", self.add("Sum", *finished), self.constant(np.float32(len(finished))))
        else:
            vectors = self.add("Concat", *finished, axis=1)
        if postprocessing.center is not None and postprocessing.projection is not None:
            centred = self.add("Sub", vectors, self.constant(postprocessing.center))
            vectors = self._unit(self.add("MatMul", centred, self.constant(postprocessing.projection)))
        return vectors if model.code is None else self._bits(model.code, vectors)

    def _unit(self, vectors: str) -> str:
        """Return vectors [batch, dim] with length 1; a vector of zeros stays."""
        norm = self.add("ReduceL2", vectors, self.ints(1), keepdims=1)
        return self.add("Div", vectors, self.add("Max", norm, self.constant(np.float32(1e-12))))

    def _bits(self, code: Any, vectors: str) -> str:
        """Return a code's bits, 0 or 1 [batch, bits]."""
        if hasattr(code, "thresholds"):
            logits = self.add("Sub", vectors, self.constant(code.thresholds))
        else:
            centred = self.add("Sub", vectors, self.constant(code.center))
            if hasattr(code, "layer"):
                scaled = self.add("Div", centred, self.constant(code.scale))
                product = self.add("MatMul", scaled, self.constant(code.layer.weight.T))
                logits = self.add("Add", product, self.constant(code.layer.bias))
            else:
                logits = self.add("MatMul", centred, self.constant(code.weight.T))
        positive = self.add("Greater", logits, self.constant(np.float32(0)))
        return self.add("Cast", positive, to=self._float)


def _ordered(directions: Sequence[Sequence[Tensor]], kind: str) -> tuple[Float32, Float32, Float32]:
    """Return W, R and B of ONNX, gates in its order, from torch's weights of each direction.

    Returns:
        W [directions, gates * hidden, inputs], R [directions, gates * hidden, hidden] and
        B [directions, 2 * gates * hidden].
    """
    gates = _GATES[kind]

    def ordered(parameter: Tensor) -> Float32:
        blocks = np.split(parameter.detach().cpu().numpy(), len(gates))
        return np.concatenate([blocks[gate] for gate in gates])

    inputs, recurrent, first, second = zip(*([*map(ordered, one)] for one in directions), strict=True)
    biases = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    return np.stack(inputs), np.stack(recurrent), np.stack(biases)
