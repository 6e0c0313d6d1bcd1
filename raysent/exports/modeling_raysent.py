"""A model trained with raysent, as a module of sentence-transformers. This file needs no raysent.

The folder holds, besides this file:

raysent.json            the parts of each member; a model that is no ensemble has one member
model.safetensors       the parameters, named NUMBER.NAME after the member's number
tokenizer.json          text -> word ids, one file for each member: tokenizer.json, tokenizer1.json, ...
vocabulary.txt          the words by id, with which raysent reads the folder; one file for each member

`SentenceTransformer(folder, trust_remote_code=True)` returns the vectors of raysent's `encode`: each member's towers
read a sentence, each block of their vectors gets unit length, and blocks are concatenated or averaged. A member with a
code returns bits, 0 or 1. In an ensemble each member's vector gets unit length. Encoders can be trained on; codes,
fixed word vectors and what was fitted to text after the training have no gradient.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:  # where raysent exports to ONNX, which needs the members alone
    InputModule = nn.Module

UNKNOWN = 1
TANH = "torch.nn.modules.activation.Tanh"
DENSE = ("in_features", "out_features", "bias", "use_residual")


class Batch:
    """Sentences of one batch, padded.

    Attributes:
        ids: Word ids, 0 after a sentence's end [batch, time].
        lengths: Words of each sentence [batch].
        mask: 1 inside a sentence, else 0 [batch, time, 1].
    """

    def __init__(self, ids: Tensor, lengths: Tensor) -> None:
        self.ids = ids
        self.lengths = lengths
        self.mask = self.before(lengths, ids.shape[1])

    def before(self, ends: Tensor, time: int) -> Tensor:
        """Return 1 before each sentence's end, else 0 [batch, time, 1]."""
        positions = torch.arange(time, device=self.ids.device)
        return (positions[None] < ends[:, None]).float()[..., None]


def pool(values: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return values [batch, time, dim] pooled over the places where the mask is 1 [batch, dim]."""
    if pooling in ("sum", "mean"):
        total = (values * mask).sum(dim=1)
        if pooling == "sum":
            return total
        return total / mask.sum(dim=1)
    limit = torch.finfo(values.dtype).max
    if pooling == "max":
        return values.masked_fill(mask == 0, -limit).amax(dim=1)
    return values.masked_fill(mask == 0, limit).amin(dim=1)


class Words(nn.Module):
    """A table of word vectors."""

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_words, dim), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return word vectors [batch, time, dim]."""
        return functional.embedding(ids, self.weight)


class WordEncoder(nn.Module):
    """An encoder that reads word vectors."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__()
        self.config = config
        self.dim = config["embedding"]["dim"]
        self.words = Words(num_words, self.dim)

    @property
    def poolings(self) -> list[str]:
        """The poolings whose results are concatenated."""
        return self.config.get("encode_pooling") or [self.config["pooling"]]

    @property
    def block_dims(self) -> list[int]:
        """Sizes of the blocks that get unit length."""
        return [self.config["hidden_size"] * len(self.poolings)]


class Bag(WordEncoder):
    """The sum or the mean of the word vectors."""

    @property
    def block_dims(self) -> list[int]:
        """One block of the size of a word vector."""
        return [self.dim]

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        return pool(self.words(batch.ids), batch.mask, self.config["pooling"])


class Linear(WordEncoder):
    """Maps of word vectors, pooled."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__(config, num_words)
        self.maps = nn.ParameterList(
            torch.empty(config["hidden_size"], self.dim) for _ in range(config["num_maps"])
        )

    @property
    def block_dims(self) -> list[int]:
        """A block for each map."""
        return super().block_dims * len(self.maps)

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        vectors = self.words(batch.ids)
        last = at(vectors, batch.lengths - 1)
        blocks = []
        for weight in self.maps:
            mapped = functional.linear(vectors, weight)
            for pooling in self.poolings:
                if pooling == "last":
                    blocks.append(functional.linear(last, weight))
                else:
                    blocks.append(pool(mapped, batch.mask, pooling))
        return torch.cat(blocks, dim=1)


class Convolution(WordEncoder):
    """Windows of several widths, each pooled over the places where it fits; at least one place."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__(config, num_words)
        filters = config["num_filters"]
        self.weights = nn.ParameterList(
            torch.empty(width * filters, self.dim) for width in config["windows"]
        )
        self.biases = nn.ParameterList(torch.empty(filters) for _ in config["windows"])

    @property
    def block_dims(self) -> list[int]:
        """One block of all filters."""
        return [len(self.config["windows"]) * self.config["num_filters"]]

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        vectors = (self.words(batch.ids) * batch.mask).transpose(1, 2)
        blocks = []
        for width, weight, bias in zip(
            self.config["windows"], self.weights, self.biases, strict=True
        ):
            kernel = weight.view(width, len(bias), -1).permute(1, 2, 0)
            # The window at place t covers the words t, t + 1, ...
            values = functional.conv1d(
                functional.pad(vectors, (0, width - 1)), kernel, bias
            ).transpose(1, 2)
            if self.config["activation"] == "tanh":
                values = torch.tanh(values)
            fitting_positions = batch.before(
                (batch.lengths - width + 1).clamp(min=1), values.shape[1]
            )
            blocks.append(pool(values, fitting_positions, self.config["pooling"]))
        return torch.cat(blocks, dim=1)


class Recurrence(WordEncoder):
    """A GRU or an LSTM, its states pooled."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__(config, num_words)
        self.name = config["type"]
        directions = 2 if config["bidirectional"] else 1
        kind = nn.GRU if self.name == "gru" else nn.LSTM
        network = kind(
            self.dim,
            config["hidden_size"] // directions,
            num_layers=config.get("num_layers", 1),
            bidirectional=directions == 2,
            batch_first=True,
        )
        self.add_module(self.name, network)
        reset = config.get("reset")
        if not reset:
            reset = "before" if config["variant"] == "authors" else "after"
        self.resets_before = self.name == "gru" and reset == "before"

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        values = self.words(batch.ids)
        network = getattr(self, self.name)
        num_directions = 2 if network.bidirectional else 1
        for layer in range(network.num_layers):
            weights = network.all_weights[layer * num_directions : (layer + 1) * num_directions]
            # Padding comes after a sentence, also of one that is read backwards, and no state before it depends on it.
            states = [self.states(values, weights[0])]
            if network.bidirectional:
                states.append(self.states(backwards(values, batch.lengths), weights[1]))
            at_end = batch.lengths - 1
            ends = torch.cat([at(direction, at_end) for direction in states], dim=1)
            values = torch.cat(
                [states[0], *(backwards(direction, batch.lengths) for direction in states[1:])],
                dim=2,
            )
        pooled = [
            ends if pooling == "last" else pool(values, batch.mask, pooling)
            for pooling in self.poolings
        ]
        return torch.cat(pooled, dim=1)

    def states(self, vectors: Tensor, weights: list[Tensor]) -> Tensor:
        """Return the states of one direction of a layer [batch, time, size]."""
        if torch.compiler.is_exporting():
            options = {}
            if self.name == "gru":
                options["linear_before_reset"] = int(not self.resets_before)
            return onnx_states(self.name.upper(), vectors, weights, options)
        if self.resets_before:
            return gru_reset_before(vectors, *weights)
        start = vectors.new_zeros(1, len(vectors), weights[1].shape[1])
        # In order: with biases, one layer, no dropout, not in training, one direction, the batch first.
        if self.name == "gru":
            states, _ = torch.gru(vectors, start, weights, True, 1, 0.0, False, False, True)
        else:
            states, *_ = torch.lstm(
                vectors, (start, start), weights, True, 1, 0.0, False, False, True
            )
        return states


# The order of torch's gates in ONNX: r, z, n -> z, r, h and i, f, g, o -> i, o, f, c.
ONNX_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


def onnx_states(
    kind: str, vectors: Tensor, weights: list[Tensor], options: dict[str, int]
) -> Tensor:
    """Return the states of ONNX's operator `GRU` or `LSTM`, of one direction; its values exist in the graph alone."""
    size = weights[1].shape[1]
    inputs, recurrent, *biases = (
        torch.cat([weight[gate * size : (gate + 1) * size] for gate in ONNX_GATES[kind]])
        for weight in weights
    )
    states = torch.onnx.ops.symbolic(
        kind,
        (vectors.transpose(0, 1), inputs[None], recurrent[None], torch.cat(biases)[None]),
        {"hidden_size": size, **options},
        dtype=vectors.dtype,
        shape=(vectors.shape[1], 1, vectors.shape[0], size),
        version=18,
    )
    return states[:, 0].transpose(0, 1)


def gru_reset_before(
    vectors: Tensor, input_weight: Tensor, weight: Tensor, input_bias: Tensor, bias: Tensor
) -> Tensor:
    """Return the states of a GRU whose reset gate acts before the product, as TensorFlow's; torch has none.

    r, z = sigmoid(W x + b + U h),  c = tanh(W x + b + U (r * h)),  h = z * h + (1 - z) * c
    """
    size = weight.shape[1]
    projected = functional.linear(vectors, input_weight, input_bias + bias)
    state = vectors.new_zeros(len(vectors), size)
    states = []
    for position in range(vectors.shape[1]):
        gates, candidate = projected[:, position].split([2 * size, size], dim=1)
        r, z = torch.sigmoid(gates + functional.linear(state, weight[: 2 * size])).chunk(2, dim=1)
        state = z * state + (1 - z) * torch.tanh(
            candidate + functional.linear(r * state, weight[2 * size :])
        )
        states.append(state)
    return torch.stack(states, dim=1)


def at(values: Tensor, positions: Tensor) -> Tensor:
    """Return the value at each sentence's place [batch, dim]."""
    return values.gather(1, positions[:, None, None].expand(-1, 1, values.shape[2]))[:, 0]


def backwards(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Return each sentence's vectors in the opposite order, padding still after them."""
    positions = torch.arange(vectors.shape[1], device=vectors.device)[None]
    sources = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return vectors.gather(1, sources[..., None].expand_as(vectors))


def activation_of(name: str) -> nn.Module:
    """Return a new module of a class of torch.nn; a name of anything else is refused, and nothing of it is called."""
    kind = vars(nn).get(name.rpartition(".")[2])
    is_class = isinstance(kind, type) and issubclass(kind, nn.Module)
    if not is_class or name not in (
        f"torch.nn.{kind.__name__}",
        f"{kind.__module__}.{kind.__name__}",
    ):
        raise ValueError(f"activation_function must be a class of torch.nn; given {name}")
    return kind()


class Transformer(nn.Module):
    """A transformer of Hugging Face's transformers, then pooling and further modules of sentence-transformers."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__()
        import transformers  # noqa: PLC0415 - only these encoders need it
        from sentence_transformers.sentence_transformer import modules  # noqa: PLC0415 - as above

        backbone = config.get("backbone") or from_scratch(config)
        backbone_config = transformers.CONFIG_MAPPING[backbone["config"]["model_type"]].from_dict(
            backbone["config"]
        )
        backbone_config.use_cache = False
        is_mapped = type(backbone_config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
        if is_mapped:
            auto = transformers.AutoModelForTextEncoding
        else:
            auto = transformers.AutoModel
        self.model = auto.from_config(backbone_config, dtype=torch.float32)
        if config["type"] == "transformer":
            self.model.set_input_embeddings(nn.Identity())
            self.table = Words(num_words, backbone_config.hidden_size)
        heads = [modules.Pooling(backbone_config.hidden_size, tuple(backbone["pooling"]))]
        for head in backbone["heads"]:
            if head["type"] == "Normalize":
                heads.append(modules.Normalize())
            else:
                activation = activation_of(head.get("activation_function", TANH))
                dense_options = {name: head[name] for name in DENSE if name in head}
                heads.append(modules.Dense(**dense_options, activation_function=activation))
        self.heads = nn.ModuleList(heads)
        dim = len(backbone["pooling"]) * backbone_config.hidden_size
        for head in backbone["heads"]:
            if head["type"] == "Dense":
                dim = head["out_features"]
        self.block_dims = [dim]

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        mask = batch.mask[:, :, 0].long()
        if hasattr(self, "table"):
            words = {"inputs_embeds": self.table(batch.ids)}
        else:
            words = {"input_ids": batch.ids * mask}
        states = self.model(**words, attention_mask=mask).last_hidden_state
        features = {"token_embeddings": states, "attention_mask": mask}
        for head in self.heads:
            features = head(features)
        return features["sentence_embedding"]


def from_scratch(config: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a transformer of raysent's own words."""
    names = {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
    }
    sizes = {name: config[setting] for setting, name in names.items()}
    backbone_config = {"model_type": "bert", "vocab_size": 1, "type_vocab_size": 1, **sizes}
    return {"config": backbone_config, "pooling": [config["pooling"]], "heads": []}


class Concatenation(nn.Module):
    """Several encoders side by side."""

    def __init__(self, config: dict[str, Any], num_words: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            build_encoder(member, num_words) for member in config["members"].values()
        )

    @property
    def block_dims(self) -> list[int]:
        """The members' blocks."""
        return [dim for member in self.members for dim in member.block_dims]

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        return torch.cat([member(batch) for member in self.members], dim=1)


ENCODERS = {
    "bag": Bag,
    "cnn": Convolution,
    "concat": Concatenation,
    "gru": Recurrence,
    "linear": Linear,
    "lstm": Recurrence,
    "pretrained": Transformer,
    "transformer": Transformer,
}


def build_encoder(config: dict[str, Any], num_words: int) -> Any:
    """Return an encoder without values."""
    return ENCODERS[config["type"]](config, num_words)


class Postprocessing(nn.Module):
    """Each block loses its projection on a component, where there are any, and gets unit length; whitening follows."""

    def __init__(self, config: dict[str, Any], dims: list[int], *, normalizes: bool = True) -> None:
        super().__init__()
        self.normalizes = normalizes
        self.dims = dims
        self.is_average = config["combine"] == "average"
        self.dim = dims[0] if self.is_average else sum(dims)
        component_dims = dims if config["remove_component"] else ()
        self.components = nn.ParameterList(torch.empty(dim) for dim in component_dims)
        self.center = None
        self.projection = None
        num_whitened = config.get("whitening")
        if num_whitened:
            self.center = nn.Parameter(torch.empty(self.dim))
            self.projection = nn.Parameter(torch.empty(self.dim, num_whitened))
            self.dim = num_whitened

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the finished vectors [batch, dim]."""
        blocks = list(torch.split(vectors, self.dims, dim=1))
        if len(self.components):
            blocks = [block.to(self.components[0].dtype) for block in blocks]
            pairs = zip(blocks, self.components, strict=True)
            blocks = [
                block - (block @ component)[:, None] * component for block, component in pairs
            ]
        if self.normalizes:
            blocks = [functional.normalize(block, dim=1) for block in blocks]
        if self.is_average:
            combined = torch.stack(blocks).mean(dim=0)
        else:
            combined = torch.cat(blocks, dim=1)
        if self.center is None:
            return combined
        combined = combined.to(self.center.dtype)
        return functional.normalize((combined - self.center) @ self.projection, dim=1)


class Code(nn.Module):
    """Bits: 1 where a number, or its projection, is positive."""

    def __init__(self, method: str, dim: int, num_bits: int) -> None:
        super().__init__()
        self.method = method
        self.dim = num_bits
        if method == "threshold":
            self.thresholds = nn.Parameter(torch.empty(dim))
            return
        self.center = nn.Parameter(torch.empty(dim))
        if method == "autoencoder":
            self.scale = nn.Parameter(torch.empty(()))
            self.layer = nn.Linear(dim, num_bits)
        else:
            self.weight = nn.Parameter(torch.empty(num_bits, dim))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return bits, 0 or 1 [batch, bits], computed in the type of the parameters, which may be half."""
        kind = vectors.dtype
        vectors = vectors.to(next(self.parameters()).dtype)
        if self.method == "threshold":
            logits = vectors - self.thresholds
        elif self.method == "autoencoder":
            logits = self.layer((vectors - self.center) / self.scale)
        else:
            logits = (vectors - self.center) @ self.weight.T
        return (logits > 0).to(kind)


class Member(nn.Module):
    """One trained model: its towers, postprocessing and code. Parameters have raysent's names.

    Attributes:
        about: Its entry of `raysent.json`.
        dim: Size of its vectors.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__()
        self.about = about
        config = about["config"]
        num_words = about["num_words"]
        self.f = build_encoder(config["encoder"], num_words)
        if about["num_towers"] == 2:
            self.g = build_encoder(config["second_encoder"] or config["encoder"], num_words)
        dims = [dim for tower in self.towers for dim in tower.block_dims]
        self.postprocessing = Postprocessing(
            config["postprocessing"], dims, normalizes=about["normalizes"]
        )
        method = config["code"] and config["code"]["type"]
        self.code = None
        if method:
            self.code = Code(method, self.postprocessing.dim, about["num_bits"])
        if self.code is None:
            self.dim = self.postprocessing.dim
        else:
            self.dim = self.code.dim
        # Parameters that several parts read are in the file once.
        for name, source in about["shared"].items():
            parent, _, attribute = name.rpartition(".")
            setattr(self.get_submodule(parent), attribute, self.get_parameter(source))
        # A code's bits have no gradient; what was fitted to text after the training stays as it is.
        self.requires_grad_(self.code is None)
        self.postprocessing.requires_grad_(False)
        for part in self.modules():
            if isinstance(part, WordEncoder):
                part.words.requires_grad_(
                    self.code is None and part.config["embedding"].get("trained", True)
                )

    @property
    def towers(self) -> list[Any]:
        """The encoders: f, or f and g."""
        if self.about["num_towers"] == 2:
            return [self.f, self.g]
        return [self.f]

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors [batch, dim]."""
        vectors = self.postprocessing(torch.cat([tower(batch) for tower in self.towers], dim=1))
        if self.code is None:
            return vectors
        return self.code(vectors)


class RaysentModule(InputModule):
    """The members' vectors, one after another.

    Attributes:
        members: The models.
        tokenizers: The members' tokenizers.
        vocabularies: The members' files of words.
    """

    save_in_root = True
    config_file_name = "raysent.json"

    def __init__(
        self, config: dict[str, Any], tokenizers: list[Tokenizer], vocabularies: list[str]
    ) -> None:
        super().__init__()
        self.config = config
        self.members = nn.ModuleList(Member(about) for about in config["members"])
        self.tokenizers = tokenizers
        self.vocabularies = vocabularies
        self.eval()

    @property
    def tokenizer(self) -> Tokenizer:
        """The first member's tokenizer."""
        return self.tokenizers[0]

    @property
    def max_seq_length(self) -> int:
        """Words read of a longer sentence."""
        return max(member.about["max_length"] for member in self.members)

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        for member in self.members:
            member.about["max_length"] = length

    def preprocess(
        self, inputs: list[str], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Return each member's word ids, padded [batch, time], and lengths [batch].

        Where no prompt is given, each member has its own; nor is "" one where there is a task, since
        sentence-transformers gives it for queries and documents of an ensemble.

        Raises:
            TypeError: If a text is no string.
        """
        wrong_text = next((text for text in inputs if not isinstance(text, str)), "")
        if wrong_text != "":
            raise TypeError(f"texts must be strings; given {type(wrong_text).__name__}")
        features = {}
        task = kwargs.get("task")
        is_own = prompt is None or (task and not prompt)
        for number, member in enumerate(self.members):
            start = prompt
            if is_own:
                start = member.about["prompts"].get(task, member.about["prompt"])
            texts = [f"{start}{text}" for text in inputs]
            cut = [torch.tensor(row) for row in self.ids(number, texts, member.about)]
            features[f"ids_{number}"] = nn.utils.rnn.pad_sequence(cut, batch_first=True)
            features[f"lengths_{number}"] = torch.tensor([len(row) for row in cut])
        features["input_ids"] = features["ids_0"]
        return features

    def ids(self, number: int, texts: list[str], about: dict[str, Any]) -> list[list[int]]:
        """Return the ids that a member reads of each text."""
        tokenizer = self.tokenizers[number]
        max_length = about["max_length"]
        if not about["has_padding"]:
            tokenizer.enable_truncation(max_length)
            return [
                encoded.ids or [about["unknown_id"]] for encoded in tokenizer.encode_batch(texts)
            ]
        rows = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
        # A word may be known after the cut, so a sentence is looked through before it is truncated.
        has_known_word = [any(word != UNKNOWN for word in row) for row in rows]
        return [
            row[:max_length] if is_known else [UNKNOWN]
            for row, is_known in zip(rows, has_known_word, strict=True)
        ]

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Add `sentence_embedding` [batch, dim]."""
        vectors = [
            member(Batch(features[f"ids_{number}"], features[f"lengths_{number}"]))
            for number, member in enumerate(self.members)
        ]
        if len(vectors) > 1:
            vectors = [functional.normalize(vector, dim=1) for vector in vectors]
        features["sentence_embedding"] = torch.cat(vectors, dim=1)
        return features

    def get_embedding_dimension(self) -> int:
        """Return the size of a vector."""
        return sum(member.dim for member in self.members)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the content of `raysent.json`."""
        return self.config

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the folder's files; sentence-transformers copies this one."""
        self.save_config(output_path)
        folder = Path(output_path)
        tensors = {
            name: value.detach().contiguous() for name, value in self.members.named_parameters()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for number, (tokenizer, words) in enumerate(
            zip(self.tokenizers, self.vocabularies, strict=True)
        ):
            tokenizer.save(str(folder / f"tokenizer{number or ''}.json"))
            (folder / f"vocabulary{number or ''}.txt").write_bytes(words.encode())

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> RaysentModule:
        """Read a folder, or a repository of the Hugging Face hub."""
        options = {
            name: kwargs[name]
            for name in ("token", "cache_folder", "revision", "local_files_only")
            if name in kwargs
        }

        def path_of(file: str) -> Path:
            return Path(
                cls.load_file_path(model_name_or_path, file, subfolder=subfolder, **options)
            )

        config = json.loads(path_of("raysent.json").read_text(encoding="utf-8"))
        numbers = ["", *range(1, len(config["members"]))]
        module = cls(
            config,
            [Tokenizer.from_file(str(path_of(f"tokenizer{number}.json"))) for number in numbers],
            [path_of(f"vocabulary{number}.txt").read_bytes().decode() for number in numbers],
        )
        tensors = load_file(path_of("model.safetensors"))
        parameters = dict(module.members.named_parameters())
        if parameters.keys() != tensors.keys():
            raise ValueError(
                f"model.safetensors: of another model: {sorted(parameters.keys() ^ tensors.keys())[0]!r}"
            )
        for name, parameter in parameters.items():
            parameter.data.copy_(tensors[name])
        return module
