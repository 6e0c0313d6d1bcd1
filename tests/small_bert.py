"""Folders of small transformers with random weights, as Hugging Face's transformers writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "the",
    "cat",
    "dog",
    "man",
    "runs",
    "to",
    "and",
    "sleep",
    "##s",
    "w",
    *(f"##{digit}" for digit in range(10)),
)


# The kinds of folders that the encoder `transformer` starts from.
KINDS = ("bert", "distilbert", "mpnet", "roberta")
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_transformer(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """Write a transformer of a kind, of two small layers for 30 tokens, and a tokenizer of a few parts of words."""
    if kind == "bert":
        return write_bert(folder, seed=seed, max_position_embeddings=30)
    library = pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    if kind == "distilbert":
        config = library.DistilBertConfig(
            vocab_size=len(WORDS), dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=30
        )
        write_bert(folder, seed=seed)
        return _write_model(folder, library.DistilBertModel, config, seed=seed)
    if kind == "mpnet":
        words = ["<s>", "<pad>", "</s>", "[UNK]", *WORDS[4:], "<mask>"]
        _write_word_pieces(folder, words, ("<s>", "<pad>", "</s>"))
        config = library.MPNetConfig(vocab_size=len(words), max_position_embeddings=32, **_SIZES)
        return _write_model(folder, library.MPNetModel, config, seed=seed)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "\u0120", *letters, *"0123456789.,'", "ca", "cat", "\u0120cat"]
    _write_byte_pairs(folder, words, [("c", "a"), ("ca", "t"), ("\u0120", "cat")])
    config = library.RobertaConfig(vocab_size=len(words), max_position_embeddings=32, **_SIZES)
    return _write_model(folder, library.RobertaModel, config, seed=seed)


def _write_byte_pairs(folder: Path, words: list[str], merges: list[tuple[str, str]]) -> None:
    """Write a tokenizer of bytes, which marks what follows a space."""
    import transformers as library
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    parts = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges, unk_token="<unk>"))
    parts.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    library.PreTrainedTokenizerFast(
        tokenizer_object=parts, unk_token="<unk>", pad_token="<pad>", cls_token="<s>", sep_token="</s>"
    ).save_pretrained(folder)


def _write_word_pieces(folder: Path, words: Sequence[str], special: tuple[str, str, str]) -> None:
    """Write a tokenizer of parts of words; `special` begins, pads and ends."""
    import transformers as library
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(words)}
    start, pad, end = special
    parts = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    parts.normalizer, parts.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    parts.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
    library.PreTrainedTokenizerFast(
        tokenizer_object=parts, unk_token="[UNK]", pad_token=pad, cls_token=start, sep_token=end
    ).save_pretrained(folder)


def _write_model(folder: Path, model: Any, config: Any, *, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = model(config)
        for parameter in built.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        built.save_pretrained(folder)
    return folder


def write_bert(folder: Path, *, seed: int = 0, **changes: int) -> Path:
    """Write a BERT of two small layers with random weights, and a tokenizer of a few parts of words."""
    library = pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    _write_word_pieces(folder, WORDS, ("[CLS]", "[PAD]", "[SEP]"))
    config = library.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        **{"max_position_embeddings": 12, **changes},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library.BertModel(config).save_pretrained(folder)
    return folder
