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
_CONFIG_FILE, _TOKENIZER_FILE = "config.json", "tokenizer_config.json"
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
        can = self.config["model_type"] in _SIDE_BY_SIDE and not self.config.get(
            "use_sliding_window"
        )
        return _first_position(self.config) if can else None

    @property
    def dim(self) -> int:
        """Size of a vector."""
        dense = [head for head in self.heads if head["type"] == "Dense"]
        return int(dense[-1]["out_features"]) if dense else len(self.pooling) * self.hidden_size

    def shortened(self, num_layers: int) -> Backbone:
        """Return the description of its first layers, whose states' mean is a vector of unit length."""
        names = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
        config = {**self.config, **{name: num_layers for name in names if name in self.config}}
        if isinstance(config.get("layer_types"), list):
            config["layer_types"] = config["layer_types"][:num_layers]
        parts = {"config": config, "pooling": ["mean"], "heads": [{"type": "Normalize"}]}
        return self.model_copy(update=parts)

    def size(self, *names: str, default: int = 0) -> Any:
        """Return the first of some values of `config.json`, whose names differ between architectures."""
        inner = self.config.get("text_config") or {}
        return next(
            (part[name] for name in names for part in (self.config, inner) if part.get(name)),
            default,
        )

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
    files = (file for form in ("*.json", "*/*.json") for file in expanded(path).glob(form))
    return _read_backbone(path, revision, tuple(file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=64)
def _read_backbone(path: str, revision: str | None, _changed: tuple[int, ...]) -> Backbone:
    files = find_encoder(path, revision=revision, has_weights=False)
    folder, commit = files.folder, files.revision
    modules = _read(folder / "modules.json", default=[])
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    known = kinds[:2] in ([], ["Transformer", "Pooling"]) and {*kinds[2:]} <= {"Dense", "Normalize"}
    if not known:
        raise ForeignModelError(
            f"{path}: must consist of Transformer, Pooling, Dense and Normalize to be trained; "
            f"given {', '.join(kinds)}; as a member, name it st:{path}"
        )
    root = transformer_folder(folder)
    config = _read(root / _CONFIG_FILE)
    if not isinstance(config, dict) or "model_type" not in config:
        raise ArtifactError(f"{root / _CONFIG_FILE}: must name a model_type of transformers")
    if config["model_type"] in _SKIPS_POSITIONS and config.get("pad_token_id", 1) is None:
        raise ArtifactError(
            f"{root / _CONFIG_FILE}: must name a pad_token_id, after which positions begin; given null"
        )
    parts = [_read(folder / module["path"] / _CONFIG_FILE, default={}) for module in modules[1:]]
    settings = _read(folder / "config_sentence_transformers.json", default={})
    prompts = (
        settings.get("prompts") or {}
    )  # sentence-transformers reads empty ones for those that are absent
    of_text = _read(root / "sentence_bert_config.json", default={})
    tokenizer = {
        **_read(root / "special_tokens_map.json", default={}),
        **_read(root / _TOKENIZER_FILE, default={}),
    }
    return Backbone(
        path=files.name if commit else str(folder),
        revision=commit,
        license=_license(folder),
        config=config,
        tokenizer={
            name: value for name, value in tokenizer.items() if name not in _UNUSED_OF_TOKENIZER
        },
        pooling=_modes(parts[0], path) if parts else ["mean"],
        heads=[{"type": kind, **part} for kind, part in zip(kinds[2:], parts[1:], strict=True)],
        prompts={"query": "", "document": "", **prompts} if prompts else {},
        default_prompt=settings.get("default_prompt_name"),
        max_tokens=_limit(config, tokenizer, of_text),
        lowercase=bool(of_text.get("do_lower_case")),
    )


def transformer_folder(folder: Path) -> Path:
    """Return where the files of the transformer are, as `modules.json` says; the folder itself without one."""
    modules = _read(folder / "modules.json", default=[])
    name = str(modules[0].get("path") or "") if modules else ""
    for part in PurePosixPath(name).parts:
        check_name(part, where=f"{folder}/modules.json", error=ArtifactError)
    return folder / name


def _read(path: Path, *, default: Any = None) -> Any:
    return default if default is not None and not path.is_file() else read_json(path)


def _modes(settings: Mapping[str, Any], path: str) -> list[PoolingMode]:
    if not settings.get("include_prompt", True):
        raise ForeignModelError(
            f"{path}: must pool over prompts to be trained; as a member, name it st:{path}"
        )
    given = (
        settings.get("pooling_mode")
        or [own for name, own in _OLDER_MODES.items() if settings.get(name)]
        or "mean"
    )
    return [given] if isinstance(given, str) else list(given)  # type: ignore[list-item]


def _limit(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any], of_text: Mapping[str, Any]
) -> int | None:
    """Return the tokens that are read of a longer text, special ones included; None for no limit."""
    positions = max((config.get("max_position_embeddings") or 0) - _first_position(config), 0)
    limits = (of_text.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min((int(limit) for limit in limits if limit and 0 < limit < NO_LIMIT), default=None)


def _first_position(config: Mapping[str, Any]) -> int:
    return int(config.get("pad_token_id", 1)) + 1 if config["model_type"] in _SKIPS_POSITIONS else 0


def _license(folder: Path) -> str | None:
    card = folder / "README.md"
    head = card.read_text(errors="replace")[:4096] if card.is_file() else ""
    found = re.match(r"---\n.*?^license: *([^\n]+)\n.*?^---", head, re.DOTALL | re.MULTILINE)
    return found[1].strip().strip("'\"") if found else None


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
            torch.manual_seed(
                int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
            )
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
    name, given = backbone.path or "encoder", _transformers(backbone)
    values = dict(backbone.config)
    if dropout is not None:
        own = [
            name
            for name, value in values.items()
            if "drop" in name and isinstance(value, int | float)
        ]
        values |= dict.fromkeys((*_DROPOUTS, *own), dropout)
    config = given.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    config.use_cache = False
    if backbone.first_position is not None:
        given.AttentionInterface.register(_ATTENTION, _attention_of_groups)
        given.AttentionMaskInterface.register(_ATTENTION, given.masking_utils.sdpa_mask)
        config._attn_implementation = _ATTENTION
    is_mapped = (
        type(config) in given.MODEL_FOR_TEXT_ENCODING_MAPPING
    )  # the encoder alone of an encoder-decoder
    auto = given.AutoModelForTextEncoding if is_mapped else given.AutoModel
    if not has_weights:
        return auto.from_config(config, dtype=torch.float32)
    folder = backbone.folder(has_weights=True)
    root = transformer_folder(folder)
    with reading(name, folder, library="transformers"):
        model, report = auto.from_pretrained(
            str(root), config=config, dtype=torch.float32, output_loading_info=True, **_ITS_FILES
        )
    first_missing(name, report["missing_keys"])
    check_weights(name, model)
    return model


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
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        scale = settings.get("scaling")
        found = attend_in_row(
            query[0], key[0], value[0], row, scale=scale, is_causal=bool(is_causal)
        )
        return found[None], None
    attend = library(
        "transformers.integrations.sdpa_attention", where="encoder"
    ).sdpa_attention_forward
    if groups is None:
        return attend(module, query, key, value, mask, **settings)  # type: ignore[no-any-return]
    groups_found = []
    parts = (
        torch.split(one[0], [texts * time for texts, time in groups], dim=1)
        for one in (query, key, value)
    )
    for shape, *own in zip(groups, *parts, strict=True):
        inputs = (
            one.unflatten(1, shape).transpose(0, 1) for one in own
        )  # [texts, heads, time, size]
        groups_found.append(attend(module, *inputs, None, **settings)[0].flatten(0, 1))
    return torch.cat(groups_found)[None], None


def _transformers(backbone: Backbone) -> Any:
    """Return the library; an architecture that only code of the folder knows is refused before any of it is read."""
    name, kind = backbone.path or "encoder", backbone.config["model_type"]
    given = library("transformers", where=name)
    if kind not in given.CONFIG_MAPPING:
        raise ForeignModelError(
            f"{name}: must be an architecture of transformers; given {kind}; as a member, name it st:{name}"
        )
    return given


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
    made: list[Any] = [modules.Pooling(backbone.hidden_size, tuple(backbone.pooling))]
    for settings in backbone.heads:
        values = {key: value for key, value in settings.items() if key != "type"}
        if settings["type"] == "Normalize":
            made.append(modules.Normalize())
            continue
        activation = _activation(str(values.pop("activation_function", _TANH)), where=name)
        kept = {
            key: values[key]
            for key in ("in_features", "out_features", "bias", "use_residual")
            if key in values
        }
        made.append(modules.Dense(**kept, activation_function=activation))
    if has_weights and any(isinstance(own, modules.Dense) for own in made):
        folder = backbone.folder(has_weights=True)
        paths = [folder / module["path"] for module in read_json(folder / "modules.json")[1:]]
        with reading(name, folder, library="sentence-transformers"):
            for own, path in zip(made, paths, strict=False):
                if isinstance(own, modules.Dense):
                    modules.Dense.load_torch_weights(str(path), model=own)
    return made


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
    name, folder = str(backbone.path), backbone.folder()
    root = transformer_folder(folder)
    given = _transformers(backbone)
    with reading(name, folder, library="transformers"):
        tokenizer = given.AutoTokenizer.from_pretrained(str(root), **_ITS_FILES)
        check_tokenizer(name, root, tokenizer)
        if not tokenizer.is_fast:
            raise ForeignModelError(
                f"{name}: its tokenizer must have a fast form, tokenizer.json; as a member, name it st:"
            )
        values = parse_json(tokenizer.backend_tokenizer.to_str())
    if backbone.lowercase:
        steps = [
            {"type": "Lowercase"},
            *([values["normalizer"]] if values.get("normalizer") else []),
        ]
        values["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return json.dumps(values, ensure_ascii=False)
