"""A folder of a small BERT with random weights, as Hugging Face's transformers writes it."""

from __future__ import annotations

from pathlib import Path

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


def write_bert(folder: Path, *, seed: int = 0, **changes: int) -> Path:
    """Write a BERT of two small layers with random weights, and a tokenizer of a few parts of words."""
    library = pytest.importorskip("transformers", reason="pip install raysent[transformers]")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    parts = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    parts.normalizer, parts.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    parts.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.PreTrainedTokenizerFast(
        tokenizer_object=parts, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
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
