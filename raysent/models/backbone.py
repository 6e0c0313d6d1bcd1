"""`Backbone`: what the folder of a pretrained transformer says, without its weights; and models made from it.

A folder of sentence-transformers has pooling, further modules and prompts of its own; one of transformers gets the mean
of its states. The description is kept in a run's record and in saved models, which do not need the folder again.
transformers, sentence-transformers and peft do the work; they are imported when a model is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.packed_attention import Row, attend_in_row
from raysent.models.known import find_encoder
from raysent.models.pretrained import (
    check_tokenizer,
    check_weights,
    first_missing,
    reading,
)
from raysent.platforms import expanded
from raysent.reading import parse_json
from raysent.storage import check_name, read_json

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
# The names of older folders, in the order in which several are concatenated.
_OLDER_MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Files of the folder alone; its code is not run, and transformers does not ask whether to.
_ITS_FILES: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_CONFIG_FILE = "config.json"
_TOKENIZER_FILE = "tokenizer_config.json"
# Lists of words, which `tokenizer.json` has too, and templates of conversations.
_UNUSED_OF_TOKENIZER = ("added_tokens_decoder", "chat_template", "tokenizer_file", "name_or_path")
# The tokenizers of transformers give a number above this where there is no limit.
NO_LIMIT = 1_000_000
# Their positions begin after that of padding.
_SKIPS_POSITIONS = frozenset(
    ("camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl", "xmod")
)
# They take positions, and their layers know of other tokens by attention alone, whose function can be replaced.
_SIDE_BY_SIDE = frozenset({
    "albert", "bert", "camembert", "distilbert", "electra", "gemma", "nomic_bert", "qwen3", "roberta", "xlm-roberta",
})  # fmt: skip
_ATTENTION = "raysent"  # the name of that function
_TANH = "torch.nn.modules.activation.Tanh"  # what a Dense of sentence-transformers has by default
# Dropout by its usual names; a configuration leaves out what equals its class's default.
_DROPOUTS = (
    "attention_dropout", "attention_probs_dropout_prob", "dropout", "dropout_rate", "embedding_dropout",
    "hidden_dropout_prob", "mlp_dropout",
)  # fmt: skip


class ForeignModelError(ArtifactError, ConfigError):
    """A model of a form that cannot be trained here; sentence-transformers may read it."""


class Backbone(StrictModel):
    """What a folder says of its model.

    Attributes:
        path: The folder, or the name of a model of the hub; None for a model from scratch.
        revision: The commit of the hub that the files are of.
        license: The license that the folder's model card names.
        config: The content of `config.json`.
        tokenizer: That of `tokenizer_config.json`, without its lists of words.
        pooling: What a vector consists of, in this order.
        heads: The modules after pooling, each with its `type`, `Dense` or `Normalize`, and its settings.
        prompts: Texts by name.
        default_prompt: The name of the one that stands before every text.
        max_tokens: Tokens read of a longer text; None for no limit.
        lowercase: Whether text is lowercased before the tokenizer.
    """

    path: str | None = None
    revision: str | None = None
    license: str | None = None
    config: dict[str, Any]
    tokenizer: dict[str, Any] = pydantic.Field(default_factory=dict)
    pooling: list[PoolingMode] = pydantic.Field(default=["mean"], min_length=1)
    heads: list[dict[str, Any]] = pydantic.Field(default_factory=list)
    prompts: dict[str, str] = pydantic.Field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    lowercase: bool = False

    @property
    def is_normalized(self) -> bool:
        """Whether the vectors have unit length."""
        return bool(self.heads) and self.heads[-1]["type"] == "Normalize"

    @property
    def hidden_size(self) -> int:
        """Size of a state."""
        return int(self.size("hidden_size", "dim", "d_model", "n_embd"))

    @property
    def num_layers(self) -> int:
        """Layers."""
        return int(self.size("num_hidden_layers", "n_layers", "num_layers", "n_layer"))

    @property
    def intermediate_size(self) -> int:
        """Size of the hidden layer after each attention."""
        return int(
            self.size("intermediate_size", "hidden_dim", "d_ff", default=4 * self.hidden_size)
        )

    @property
    def head_size(self) -> int:
        """Size of a head of attention."""
        num_heads = int(
            self.size("num_attention_heads", "n_heads", "num_heads", "n_head", default=1)
        )
        return int(self.size("head_dim", default=self.hidden_size // num_heads))

    @property
    def first_position(self) -> int | None:
        """Position of a text's first token where texts can stand side by side in one row; None where they cannot."""
        has_window = self.config.get("use_sliding_window")
        if has_window or self.config["model_type"] not in _SIDE_BY_SIDE:
            return None
        return _first_position(self.config)

    @property
    def dim(self) -> int:
        """Size of a vector."""
        dense = [head for head in self.heads if head["type"] == "Dense"]
        if dense:
            return int(dense[-1]["out_features"])
        return len(self.pooling) * self.hidden_size

    def shortened(self, num_layers: int) -> Backbone:
        """Return the description of its first layers, whose states' mean is a vector of unit length."""
        config = dict(self.config)
        for name in ("num_hidden_layers", "n_layers", "num_layers", "n_layer"):
            if name in config:
                config[name] = num_layers
        if isinstance(config.get("layer_types"), list):
            config["layer_types"] = config["layer_types"][:num_layers]
        parts = {"config": config, "pooling": ["mean"], "heads": [{"type": "Normalize"}]}
        return self.model_copy(update=parts)

    def size(self, *names: str, default: int = 0) -> Any:
        """Return the first of some values of `config.json`, whose names differ between architectures."""
        text_config = self.config.get("text_config") or {}
        for name in names:
            for config in (self.config, text_config):
                if config.get(name):
                    return config[name]
        return default

    def folder(self, *, has_weights: bool = False) -> Path:
        """Return the local folder; with `has_weights` those of a model of the hub are downloaded first.

        Raises:
            ArtifactError: If it is gone.
        """
        return find_encoder(str(self.path), revision=self.revision, has_weights=has_weights).folder


def read_backbone(path: str, revision: str | None = None) -> Backbone:
    """Return what a folder, or a model of the hub, says.

    Raises:
        ArtifactError: If there is none, or it holds modules that cannot be trained.
    """
    folder = expanded(path)
    files = [*folder.glob("*.json"), *folder.glob("*/*.json")]
    # The description is read again when a file of the folder has changed.
    return _read_backbone(path, revision, tuple(file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=64)
def _read_backbone(path: str, revision: str | None, _changed: tuple[int, ...]) -> Backbone:
    files = find_encoder(path, revision=revision, has_weights=False)
    folder = files.folder
    modules = _read(folder / "modules.json", default=[])
    kinds = _module_kinds(modules, path)
    root = transformer_folder(folder)
    config = _transformer_config(root / _CONFIG_FILE)
    parts = [_read(folder / module["path"] / _CONFIG_FILE, default={}) for module in modules[1:]]
    pooling: list[PoolingMode] = ["mean"]
    if parts:
        pooling = _modes(parts[0], path)
    settings = _read(folder / "config_sentence_transformers.json", default={})
    prompts = settings.get("prompts") or {}
    if prompts:
        # sentence-transformers reads empty ones for those that are absent.
        prompts = {"query": "", "document": "", **prompts}
    text_settings = _read(root / "sentence_bert_config.json", default={})
    tokenizer = {
        **_read(root / "special_tokens_map.json", default={}),
        **_read(root / _TOKENIZER_FILE, default={}),
    }
    return Backbone(
        path=files.name if files.revision else str(folder),
        revision=files.revision,
        license=_license(folder),
        config=config,
        tokenizer={
            name: setting for name, setting in tokenizer.items() if name not in _UNUSED_OF_TOKENIZER
        },
        pooling=pooling,
        heads=[{"type": kind, **part} for kind, part in zip(kinds[2:], parts[1:], strict=True)],
        prompts=prompts,
        default_prompt=settings.get("default_prompt_name"),
        max_tokens=_limit(config, tokenizer, text_settings),
        lowercase=bool(text_settings.get("do_lower_case")),
    )


def _module_kinds(modules: list[dict[str, Any]], path: str) -> list[str]:
    """Return the classes that `modules.json` names, without their packages; other than trainable ones are refused."""
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    begins_well = kinds[:2] in ([], ["Transformer", "Pooling"])
    if not begins_well or not {*kinds[2:]} <= {"Dense", "Normalize"}:
        raise ForeignModelError(
            f"{path}: must consist of Transformer, Pooling, Dense and Normalize to be trained; "
            f"given {', '.join(kinds)}; as a member, name it st:{path}"
        )
    return kinds


def _transformer_config(file: Path) -> dict[str, Any]:
    """Return the content of a `config.json`, with a type and what the positions of that type need."""
    config = _read(file)
    if not isinstance(config, dict) or "model_type" not in config:
        raise ArtifactError(f"{file}: must name a model_type of transformers")
    if config["model_type"] in _SKIPS_POSITIONS and config.get("pad_token_id", 1) is None:
        raise ArtifactError(
            f"{file}: must name a pad_token_id, after which positions begin; given null"
        )
    return config


def transformer_folder(folder: Path) -> Path:
    """Return where the files of the transformer are, as `modules.json` says; the folder itself without one."""
    modules = _read(folder / "modules.json", default=[])
    if not modules:
        return folder
    name = str(modules[0].get("path") or "")
    for part in PurePosixPath(name).parts:
        check_name(part, where=f"{folder}/modules.json", error=ArtifactError)
    return folder / name


def _read(path: Path, *, default: Any = None) -> Any:
    """Return what a file of JSON says; a `default` stands for a file that is not there."""
    if default is not None and not path.is_file():
        return default
    return read_json(path)


def _modes(settings: Mapping[str, Any], path: str) -> list[PoolingMode]:
    if not settings.get("include_prompt", True):
        raise ForeignModelError(
            f"{path}: must pool over prompts to be trained; as a member, name it st:{path}"
        )
    modes = settings.get("pooling_mode")
    if not modes:
        modes = [mode for name, mode in _OLDER_MODES.items() if settings.get(name)]
    if isinstance(modes, str):
        modes = [modes]
    return list(modes) or ["mean"]


def _limit(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any], text_settings: Mapping[str, Any]
) -> int | None:
    """Return the tokens that are read of a longer text, special ones included; None for no limit."""
    num_positions = (config.get("max_position_embeddings") or 0) - _first_position(config)
    limits = (
        text_settings.get("max_seq_length"),
        tokenizer.get("model_max_length"),
        max(num_positions, 0),
    )
    return min((int(limit) for limit in limits if limit and 0 < limit < NO_LIMIT), default=None)


def _first_position(config: Mapping[str, Any]) -> int:
    """Return the position of a text's first token."""
    if config["model_type"] not in _SKIPS_POSITIONS:
        return 0
    return int(config.get("pad_token_id", 1)) + 1


def _license(folder: Path) -> str | None:
    """Return the license in the YAML that a model card begins with; None without a card or a license."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(errors="replace")[:4096]
    license_line = re.match(r"---\n.*?^license: *([^\n]+)\n.*?^---", text, re.DOTALL | re.MULTILINE)
    if license_line is None:
        return None
    return license_line[1].strip().strip("'\"")


# -- models -----------------------------------------------------------------------------------------------------------


def library(name: str, *, where: str) -> Any:
    """Return a library of the extra `pretrained`.

    Raises:
        ConfigError: If it is not installed.
    """
    if find_spec(name.partition(".")[0]) is None:
        raise ConfigError(f"{where}: needs {name.replace('_', '-')}; install raysent[pretrained]")
    return import_module(name)


@contextmanager
def drawing(generator: torch.Generator | None) -> Iterator[None]:
    """Let libraries draw from torch's global generator as `generator` says, and leave that as it was."""
    with torch.random.fork_rng():
        if generator is not None:
            seed = torch.randint(1 << 62, (), generator=generator, device=generator.device)
            torch.manual_seed(int(seed))
        yield


def transformer(backbone: Backbone, *, has_weights: bool, dropout: float | None = None) -> Any:
    """Return the transformer, in float32; of an encoder-decoder, the encoder.

    Args:
        backbone: What the folder says.
        has_weights: Whether the folder's weights are read; otherwise initial values are drawn.
        dropout: Fraction of values set to zero in training, wherever it has dropout; None is the folder's own.

    Raises:
        ConfigError: If transformers does not know the architecture.
        ArtifactError: If it cannot read the folder, or weights are missing or not finite.
    """
    name = backbone.path or "encoder"
    transformers = _transformers(backbone)
    settings = dict(backbone.config)
    if dropout is not None:
        settings |= dict.fromkeys(_dropout_names(settings), dropout)
    config = transformers.CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    config.use_cache = False
    if backbone.first_position is not None:
        transformers.AttentionInterface.register(_ATTENTION, _attention_of_groups)
        transformers.AttentionMaskInterface.register(
            _ATTENTION, transformers.masking_utils.sdpa_mask
        )
        config._attn_implementation = _ATTENTION
    auto_class = transformers.AutoModel
    if type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        # Of an encoder-decoder, this one reads the encoder alone.
        auto_class = transformers.AutoModelForTextEncoding
    if not has_weights:
        return auto_class.from_config(config, dtype=torch.float32)
    folder = backbone.folder(has_weights=True)
    root = transformer_folder(folder)
    with reading(name, folder, library="transformers"):
        model, report = auto_class.from_pretrained(
            str(root),
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            **_ITS_FILES,
        )
    first_missing(name, report["missing_keys"])
    check_weights(name, model)
    return model


def _dropout_names(config: Mapping[str, Any]) -> list[str]:
    """Return the usual names of dropout, and those that a configuration has besides."""
    further = [
        name
        for name, setting in config.items()
        if "drop" in name and isinstance(setting, int | float)
    ]
    return [*_DROPOUTS, *further]


def _attention_of_groups(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers does; with `groups` or `row`, within texts of [1, heads, tokens, size].

    `groups` are (texts, tokens) of each length; `row` is a `Row` of the flash attention that PyTorch has for them.
    """
    groups: list[tuple[int, int]] | None = settings.pop("groups", None)
    row: Row | None = settings.pop("row", None)
    if row is not None:
        is_causal = settings.get("is_causal")
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        attended = attend_in_row(
            query[0],
            key[0],
            value[0],
            row,
            scale=settings.get("scaling"),
            is_causal=bool(is_causal),
        )
        return attended[None], None
    attention_module = library("transformers.integrations.sdpa_attention", where="encoder")
    attend = attention_module.sdpa_attention_forward
    if groups is None:
        return attend(module, query, key, value, mask, **settings)  # type: ignore[no-any-return]
    num_tokens = [texts * time for texts, time in groups]
    group_queries = torch.split(query[0], num_tokens, dim=1)
    group_keys = torch.split(key[0], num_tokens, dim=1)
    group_values = torch.split(value[0], num_tokens, dim=1)
    attended_groups = []
    for shape, *inputs in zip(groups, group_queries, group_keys, group_values, strict=True):
        # [heads, texts * time, size] to [texts, heads, time, size]
        by_text = [torch.unflatten(states, 1, shape).transpose(0, 1) for states in inputs]
        attended_groups.append(attend(module, *by_text, None, **settings)[0].flatten(0, 1))
    return torch.cat(attended_groups)[None], None


def _transformers(backbone: Backbone) -> Any:
    """Return the library; an architecture that only code of the folder knows is refused before any of it is read."""
    name = backbone.path or "encoder"
    kind = backbone.config["model_type"]
    transformers = library("transformers", where=name)
    if kind not in transformers.CONFIG_MAPPING:
        raise ForeignModelError(
            f"{name}: must be an architecture of transformers; given {kind}; as a member, name it st:{name}"
        )
    return transformers


def missing_weights(folder: Path, module: Any, **options: Any) -> list[str]:
    """Return the weights that transformers drew because a folder lacks them, without reading values again.

    Args:
        folder: A folder of transformers.
        module: What sentence-transformers made of it.
        options: Arguments of `from_pretrained`.
    """
    kind: Any = type(getattr(module, "auto_model", None))
    if not hasattr(kind, "from_pretrained"):
        return []
    report = kind.from_pretrained(
        str(folder), device_map="meta", output_loading_info=True, **options
    )[1]
    return sorted(report["missing_keys"])


def heads(backbone: Backbone, *, has_weights: bool) -> list[nn.Module]:
    """Return pooling and the modules after it, each a module of sentence-transformers.

    Raises:
        ArtifactError: If weights cannot be read.
    """
    name = backbone.path or "encoder"
    modules = library("sentence_transformers.sentence_transformer.modules", where=name)
    head_modules: list[Any] = [modules.Pooling(backbone.hidden_size, tuple(backbone.pooling))]
    for settings in backbone.heads:
        if settings["type"] == "Normalize":
            head_modules.append(modules.Normalize())
            continue
        activation = _activation(str(settings.get("activation_function", _TANH)), where=name)
        options = {
            option: settings[option]
            for option in ("in_features", "out_features", "bias", "use_residual")
            if option in settings
        }
        head_modules.append(modules.Dense(**options, activation_function=activation))
    if has_weights and any(isinstance(module, modules.Dense) for module in head_modules):
        folder = backbone.folder(has_weights=True)
        paths = [folder / module["path"] for module in read_json(folder / "modules.json")[1:]]
        with reading(name, folder, library="sentence-transformers"):
            # A folder of more modules than were described gives weights to those that were.
            for module, path in zip(head_modules, paths, strict=False):
                if isinstance(module, modules.Dense):
                    modules.Dense.load_torch_weights(str(path), model=module)
    return head_modules


def _activation(name: str, *, where: str) -> nn.Module:
    """Return the module that a folder names, which may be a stranger's: nothing but a class of torch.nn is called.

    Args:
        name: Name of the class, as ``torch.nn.modules.activation.Tanh`` or ``torch.nn.Tanh``.
        where: The folder, for the error.

    Raises:
        ArtifactError: If there is no such class, or it does not turn numbers into as many without an argument.
    """
    refusal = f"{where}: activation_function must be a class of torch.nn, such as {_TANH}; given {name:.200}"
    kind = vars(nn).get(name.rpartition(".")[2])
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ArtifactError(refusal)
    if name not in (f"torch.nn.{kind.__name__}", f"{kind.__module__}.{kind.__name__}"):
        raise ArtifactError(refusal)
    numbers = torch.zeros(2, 2)
    try:
        module = kind()
        is_activation = module(numbers).shape == numbers.shape
    except (TypeError, ValueError, RuntimeError, AttributeError):
        is_activation = False
    if not is_activation:
        raise ArtifactError(
            f"{where}: activation_function must turn numbers into as many without an argument; given {name:.200}"
        )
    return module


def read_tokenizer(backbone: Backbone) -> str:
    """Return the content of `tokenizer.json` for a folder's tokenizer.

    Raises:
        ArtifactError: If the folder has none, or one without such a form.
    """
    name = str(backbone.path)
    folder = backbone.folder()
    root = transformer_folder(folder)
    transformers = _transformers(backbone)
    with reading(name, folder, library="transformers"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(root), **_ITS_FILES)
        check_tokenizer(name, root, tokenizer)
        if not tokenizer.is_fast:
            raise ForeignModelError(
                f"{name}: its tokenizer must have a fast form, tokenizer.json; as a member, name it st:"
            )
        description = parse_json(tokenizer.backend_tokenizer.to_str())
    if backbone.lowercase:
        normalizers = [{"type": "Lowercase"}]
        if description.get("normalizer"):
            normalizers.append(description["normalizer"])
        description["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    return json.dumps(description, ensure_ascii=False)
