"""Folders of small transformers with random weights, of transformers and of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import pytest
import torch

_LETTERS = [*ascii_lowercase, *digits]
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}

# Architecture -> the classes of configuration and model, and the configuration's values.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", {**_SIZES, "max_position_embeddings": 64}),
    "xlm-roberta": (
        "XLMRobertaConfig",
        "XLMRobertaModel",
        {**_SIZES, "max_position_embeddings": 66},
    ),
    "mpnet": ("MPNetConfig", "MPNetModel", {**_SIZES, "max_position_embeddings": 66}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        {
            **_SIZES,
            "max_position_embeddings": 64,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
        },
    ),
    "qwen3": ("Qwen3Config", "Qwen3Model", _GROUPED),
    "gemma": ("GemmaConfig", "GemmaModel", _GROUPED),
    "t5": (
        "T5Config",
        "T5EncoderModel",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    ),
}


# Further ones whose texts can stand side by side in one row.
FURTHER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert": (
        "AlbertConfig",
        "AlbertModel",
        {**_SIZES, "embedding_size": 8, "max_position_embeddings": 64},
    ),
    "camembert": ("CamembertConfig", "CamembertModel", {**_SIZES, "max_position_embeddings": 66}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64},
    ),
    "electra": (
        "ElectraConfig",
        "ElectraModel",
        {**_SIZES, "embedding_size": 8, "max_position_embeddings": 64},
    ),
    "nomic_bert": ("NomicBertConfig", "NomicBertModel", {**_SIZES, "max_position_embeddings": 64}),
    "roberta": ("RobertaConfig", "RobertaModel", {**_SIZES, "max_position_embeddings": 66}),
}


def write_backbone(
    folder: Path, kind: str, *, seed: int = 0, ends_only: bool | None = None
) -> Path:
    """Write a folder of transformers: an architecture of two small layers, and a tokenizer of parts of words.

    Decoders' tokenizers end a text with a special token; the others begin it with one too, or `ends_only` says so.
    """
    library = pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    _write_tokenizer(
        folder, ends_only=kind in ("qwen3", "gemma", "t5") if ends_only is None else ends_only
    )
    config_class, model_class, values = {**KINDS, **FURTHER}[kind]
    if not hasattr(library, config_class):
        pytest.skip(f"this version of transformers has no {kind}")
    words = {"vocab_size": len(_words()), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    words |= {"cls_token_id": 0, "sep_token_id": 2} if kind == "modernbert" else {}
    config = getattr(library, config_class)(**words, **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(library, model_class)(config)
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder)
    return folder


def _words() -> list[str]:
    return [
        *_SPECIAL,
        *_LETTERS,
        *(f"##{letter}" for letter in _LETTERS),
        "cat",
        "dog",
        "the",
        "runs",
        "##s",
        ":",
        "?",
    ]


def _write_tokenizer(folder: Path, *, ends_only: bool) -> None:
    import transformers as library
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = list(dict.fromkeys(_words()))
    parts = Tokenizer(
        models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    parts.normalizer, parts.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    template = "$A </s>" if ends_only else "<s> $A </s>"
    parts.post_processor = processors.TemplateProcessing(
        single=template,
        special_tokens=[("<s>", 0), ("</s>", 2)] if not ends_only else [("</s>", 2)],
    )
    library.PreTrainedTokenizerFast(
        tokenizer_object=parts,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=40,
        padding_side="left" if ends_only else "right",
    ).save_pretrained(folder)


def write_sentence_transformer(
    folder: Path,
    backbone: Path,
    *,
    pooling: str | Sequence[str] = "mean",
    dense: int | None = None,
    normalize: bool = False,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> Path:
    """Write a folder of sentence-transformers from one of transformers."""
    library = pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")
    from sentence_transformers.sentence_transformer import modules

    first = modules.Transformer(str(backbone))
    parts: list[Any] = [
        first,
        modules.Pooling(16, pooling if isinstance(pooling, str) else tuple(pooling)),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        width = 16 * (1 if isinstance(pooling, str) else len(pooling))
        parts += [modules.Dense(width, dense)] if dense else []
    parts += [modules.Normalize()] if normalize else []
    library.SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts or {}, default_prompt_name=default_prompt
    ).save(str(folder))
    card = folder / "README.md"
    card.write_text("---\nlicense: mit\nlibrary_name: sentence-transformers\n---\n# A model\n")
    assert json.loads((folder / "modules.json").read_text())
    return folder
