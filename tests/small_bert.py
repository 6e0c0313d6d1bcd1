"""Folders of small transformers with random weights, as Hugging Face's transformers writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

WORDS = [
    *[
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
    ],
    *(f"##{digit}" for digit in range(10)),
]


def _write_word_pieces(folder: Path, words: Sequence[str], special: tuple[str, str, str]) -> None:
    """Write a tokenizer of parts of words; `special` begins, pads and ends."""
    import transformers as library
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(words)}
    start, pad, end = special
    parts = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    parts.normalizer, parts.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    parts.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
    library.PreTrainedTokenizerFast(
        tokenizer_object=parts, unk_token="[UNK]", pad_token=pad, cls_token=start, sep_token=end
    ).save_pretrained(folder)


def write_bert(folder: Path, *, seed: int = 0, **changes: int) -> Path:
    """Write a BERT of two small layers with random weights, and a tokenizer of a few parts of words."""
    library = pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    _write_word_pieces(folder, WORDS, ("[CLS]", "[PAD]", "[SEP]"))
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 12,
    }
    config = library.BertConfig(vocab_size=len(WORDS), **{**sizes, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library.BertModel(config).save_pretrained(folder)
    return folder
