"""A small pretrained encoder, made once: a transformer of four layers that predicts masked words of the novels.

It is "the pretrained encoder" of measurements of learning on a machine without downloads. Two standard folders are
made, which `encoder: {type: pretrained, path: FOLDER}` and sentence-transformers read: `OUTPUT/start` with random
weights, and `OUTPUT/encoder` after so many minutes of a core. What is there is kept, and a training that was stopped
goes on.

    OMP_NUM_THREADS=1 python -m benchmarks.pretrain --books FOLDER [--minutes 60] [--output runs/pretrained] [--json]
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors

from benchmarks.common import parsed, show
from raysent.data.vocabulary.subwords import train_subwords
from raysent.data.vocabulary.tokens import PAD_WORD, UNK_WORD
from raysent.data.vocabulary.words import VocabularyConfig
from raysent.exports import export
from raysent.pipeline.distillation import within_time
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.run import RunConfig

SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
NUM_WORDS, MAX_TOKENS = 16_000, 128
# One paragraph of so many chooses the sub-words; all are trained on.
_PARAGRAPHS = 16
SPECIAL = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def lines_of(books: Path) -> Iterator[str]:
    """Yield the paragraphs of all books, in the order of their names."""
    for path in sorted(books.glob("*.txt*")):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file


def write_start(books: Path, folder: Path, *, seed: int) -> None:
    """Write a BERT with random weights, and sub-words of the books, with bytes for what is rare."""
    import transformers  # noqa: PLC0415 - seconds, and an extra

    config = VocabularyConfig(type="subwords", size=NUM_WORDS, lowercase=True)
    words = train_subwords(islice(lines_of(books), 0, None, _PARAGRAPHS), config).tokenizer
    start, end, _ = SPECIAL.values()
    words.add_special_tokens([*SPECIAL.values()])
    words.post_processor = processors.BertProcessing(
        (end, words.token_to_id(end)), (start, words.token_to_id(start))
    )
    names = {"pad_token": PAD_WORD, "unk_token": UNK_WORD, **SPECIAL}
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": words.get_vocab_size(),
        "pad_token_id": words.token_to_id(PAD_WORD),
        **SIZES,
    }
    bert = transformers.BertConfig(max_position_embeddings=MAX_TOKENS, **sizes)
    transformers.BertModel(bert, add_pooling_layer=False).save_pretrained(folder)
    # Last, because a folder with a tokenizer is complete.
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=MAX_TOKENS, **names
    ).save_pretrained(folder)


def run_config(books: Path, start: Path, *, seed: int) -> RunConfig:
    """Return the run on masked words."""
    values: dict[str, Any] = {
        "corpus": {"path": str(books), "max_length": 64},
        "encoder": {"type": "pretrained", "path": str(start)},
        "objective": {"type": "masked_words"},
        "training": {
            "batch_size": 64, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "linear", "warmup_steps": 100,
            "clip": 1.0, "clip_per": "global", "num_reports": 4,
        },
        "validation": {"num_sentences": 1000},
        "seed": seed,
    }  # fmt: skip
    return RunConfig.model_validate(values)


def main() -> None:
    """Make the folders that are not there, and print the held-out loss at each report."""
    options = parsed(__doc__, books=Path, output=Path("runs/pretrained"), minutes=60.0, seed=1)
    torch.set_num_threads(1)
    output: Path = options.output
    start, run, made = output / "start", output / "run", output / "encoder"
    if not (start / "tokenizer.json").is_file():
        write_start(options.books, start, seed=options.seed)
    config = run_config(options.books, start.resolve(), seed=options.seed)
    config = within_time(config, open_training_data(config), 60 * options.minutes, folder=run)
    began = time.process_time()
    reports: list[dict[str, float]] = []

    def on_report(report: Any) -> bool:
        reports.append(
            {"step": report.step, "nll": report.metrics["nll"], "seconds": report.seconds}
        )
        return True

    outcome = fit(config, run, report=on_report)
    if not made.is_dir():
        export(run, made)
    found = {
        "folder": str(made),
        "status": outcome.status,
        "steps": outcome.num_steps,
        "nll": outcome.metrics["nll"],
    }
    show({**found, "reports": reports, "processor_s": round(time.process_time() - began)}, options)


if __name__ == "__main__":
    main()
