"""A transformer's training step and `encode` against sentence-transformers', on text of mixed lengths.

A BERT of six layers with random weights, mean pooling, pairs with in-batch negatives, AdamW. The peer has the work of
its trainer without the trainer's own time: its loss and pooling on padded batches, in random order (its default) and
grouped by length over all pairs (`group_by_length`). The pairs are the same and every way trains a model of its own;
the ways alternate, batch by batch, and processor time is measured on one thread, on a GPU time by the clock. Lengths
are log-normal with a median of 20 words. With `--books`, text is sentences of novels in random order, read by the model
of `--start`, a folder that `benchmarks.pretrain` writes. Then the padding of 7,000 sentences and more is counted, for
several sizes of a batch, in the groups of architectures whose texts cannot stand side by side in one row.

    python -m benchmarks.padding [--layers 6] [--hidden 256] [--batches 6] [--rounds 3] [--batch 32]
        [--device cpu|cuda] [--books FOLDER --start FOLDER] [--json]

Needs sentence-transformers: `pip install raysent[bench]`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common import parsed, seconds_of, show
from benchmarks.pretrain import lines_of
from benchmarks.training_step import step_of
from raysent.data.pairs import Pairs
from raysent.data.sentences import split_sentences
from raysent.data.vocabulary import Sentences, SubwordVocabulary
from raysent.kernels.devices import set_matmul_precision
from raysent.kernels.padding import similar_lengths
from raysent.models import ModelConfig, SentenceModel
from raysent.models.backbone import read_tokenizer
from raysent.models.encoders.pretrained import _CPU_COST
from raysent.training.run import TrainingConfig

NUM_WORDS, LONGEST, RATE = 5000, 126, 5e-5
SIZES = (16, 32, 64, 128, 256)
# One paragraph of so many is read.
_PARAGRAPHS = 150


def write_model(folder: str, given: Iterable[str], *, layers: int, hidden: int) -> None:
    """Write a BERT with random weights, and a tokenizer of the given words."""
    library, tokens = import_module("transformers"), import_module("tokenizers")
    words = {
        word: n
        for n, word in enumerate(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *given]))
    }
    own = tokens.Tokenizer(tokens.models.WordLevel(words, unk_token="[UNK]"))
    own.pre_tokenizer = tokens.pre_tokenizers.Whitespace()
    ends = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
    own.post_processor = tokens.processors.TemplateProcessing(**ends)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    made = library.PreTrainedTokenizerFast(
        tokenizer_object=own, model_max_length=LONGEST + 2, **names
    )
    made.save_pretrained(folder)
    sizes = {
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = library.BertConfig(
        vocab_size=len(words),
        num_hidden_layers=layers,
        max_position_embeddings=160,
        **sizes,
        **dropout,
    )
    library.BertModel(config).save_pretrained(folder)


def padded(sentences: Sentences, device: torch.device) -> dict[str, torch.Tensor]:
    """Return what a collator of sentence-transformers makes of ids, on a device."""
    rows = [torch.as_tensor(one.ids).long() for one in sentences.split(1)]
    mask = torch.arange(int(sentences.lengths.max())) < torch.as_tensor(sentences.lengths)[:, None]
    made = {
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "attention_mask": mask.long(),
    }
    return {name: values.to(device) for name, values in made.items()}


def peer_step(model: Any, *, bfloat16: bool) -> Any:
    """Return a function that trains sentence-transformers' model on one batch."""
    losses = import_module("sentence_transformers.sentence_transformer.losses")
    loss, adam = (
        losses.MultipleNegativesRankingLoss(model),
        torch.optim.AdamW(model.parameters(), lr=RATE, fused=True),
    )

    def step(batch: Pairs) -> None:
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            value = loss([padded(part, model.device) for part in batch.parts], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def padding(batches: Iterable[np.ndarray], *, is_grouped: bool) -> float:
    """Return the share of padding in the places that batches of some lengths take."""
    places = tokens = 0
    for lengths in batches:
        ordered = -np.sort(-lengths)
        groups = (
            similar_lengths(ordered, group_cost=_CPU_COST) if is_grouped else [(0, len(ordered))]
        )
        places += sum(int(ordered[first]) * (end - first) for first, end in groups)
        tokens += int(lengths.sum())
    return round(1 - tokens / places, 3)


def padding_of_steps(
    model: SentenceModel, step: Callable[[Pairs], object], batches: Iterable[Pairs]
) -> float:
    """Return the share of padding in the places that a model's transformer computes in some steps."""
    places, num_tokens = list[int](), 0

    def count(*call: Any) -> None:
        places.append(call[-1]["inputs_embeds"][..., 0].numel())

    with model.towers[0].get_submodule("model").register_forward_pre_hook(count, with_kwargs=True):
        for batch in batches:
            step(batch)
            num_tokens += sum(int(part.lengths.sum()) for part in batch.parts)
    return round(1 - num_tokens / sum(places), 3)


def sentences_of(books: Path, random: np.random.Generator) -> list[str]:
    """Return sentences of novels in random order."""
    lines = islice(lines_of(books), 0, None, _PARAGRAPHS)
    return [
        str(one)
        for one in random.permutation([one for line in lines for one in split_sentences(line)])
    ]


def main() -> None:
    """Measure and print."""
    options = parsed(
        __doc__,
        layers=6,
        hidden=256,
        batches=6,
        rounds=3,
        batch=32,
        device="cpu",
        books=Path,
        start=Path,
    )
    library = import_module("sentence_transformers")
    torch.set_num_threads(1)
    random, found = np.random.default_rng(0), dict[str, Any]()
    count = 2 * options.batch * options.batches
    sizes = np.clip(random.lognormal(3.0, 0.8, count), 3, LONGEST).astype(int)
    text = [" ".join(f"w{word}" for word in random.integers(0, NUM_WORDS, size)) for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        if options.books:
            whole, start = sentences_of(options.books, random), str(options.start)
            text = whole[:count]
        else:
            start = folder
            write_model(
                start,
                map("w{}".format, range(NUM_WORDS)),
                layers=options.layers,
                hidden=options.hidden,
            )
        objective = {"type": "contrast", "positives": "pairs"}
        encoder = {"type": "pretrained", "path": start}
        config = ModelConfig.model_validate({"encoder": encoder, "objective": objective})
        words = SubwordVocabulary(read_tokenizer(config.encoder.tokenizer))  # type: ignore[arg-type]
        model = SentenceModel.build(config, words, seed=0, max_length=LONGEST + 2).to(
            options.device
        )
        without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        peers = [
            library.SentenceTransformer(start, device=options.device, config_kwargs=without)
            for _ in range(2)
        ]
        if options.books:
            lengths = words.ids(whole, max_length=LONGEST + 2).lengths
            batches = {
                size: np.split(lengths, range(size, len(lengths), size))[:-1] for size in SIZES
            }
            found["padding_of_novels"] = {
                size: {
                    "groups": padding(parts, is_grouped=True),
                    "default": padding(parts, is_grouped=False),
                }
                for size, parts in batches.items()
            }
        sides = [words.ids(text[side::2], max_length=LONGEST + 2) for side in (0, 1)]
        pairs, both = Pairs(*sides), np.maximum(*(side.lengths for side in sides))
        orders = {
            name: np.split(order, options.batches)
            for name, order in (("random", np.arange(len(both))), ("grouped", np.argsort(both)))
        }
        encode: dict[str, Any] = {
            "raysent": partial(model.eval().encode, device=options.device),
            "peer": peers[0].encode,
        }
        times: dict[str, list[float]] = {name: [] for name in encode}
        for _ in range(options.rounds):
            for name, function in encode.items():
                times[name].append(
                    seconds_of(lambda function=function: function(text), options.device)
                )
        found["encode_ratio"] = round(median(times["peer"]) / median(times["raysent"]), 2)
        found["largest_difference"] = float(
            np.abs(encode["raysent"](text) - peers[0].encode(text)).max()
        )
        adamw: dict[str, Any] = {
            "optimizer": "adamw",
            "learning_rate": RATE,
            "clip": 1.0,
            "clip_per": "global",
        }
        training = TrainingConfig(batch_size=options.batch, **adamw)
        for bfloat16 in (False, True):
            ways = {"raysent": (step_of(model.train(), training, bfloat16=bfloat16), "random")}
            ways |= {
                name: (peer_step(one.train(), bfloat16=bfloat16), name)
                for one, name in zip(peers, ("random", "grouped"), strict=True)
            }
            for step, order in ways.values():
                step(pairs.select(orders[order][0]))  # what later steps reuse
            rounds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(options.rounds):
                spent = dict.fromkeys(ways, 0.0)
                for number in range(options.batches):
                    for name, (step, order) in ways.items():
                        batch = pairs.select(orders[order][number])
                        spent[name] += seconds_of(partial(step, batch), options.device)
                for name, value in spent.items():
                    rounds[name].append(value)
            seconds = {name: median(values) for name, values in rounds.items()}
            found["bfloat16" if bfloat16 else "float32"] = {
                "ratio_over_default": round(seconds["random"] / seconds["raysent"], 2),
                "ratio_over_group_by_length": round(seconds["grouped"] / seconds["raysent"], 2),
                "raysent_tokens_per_s": round(
                    sum(int(side.lengths.sum()) for side in sides) / seconds["raysent"]
                ),
            }
        found["padding_raysent"] = padding_of_steps(
            model, ways["raysent"][0], map(pairs.select, orders["random"])
        )
        for name, order in (("default", "random"), ("group_by_length", "grouped")):
            lengths = (side.lengths[rows] for rows in orders[order] for side in sides)
            found[f"padding_{name}"] = padding(lengths, is_grouped=False)
    show({"matmul": set_matmul_precision(), **found}, options)


if __name__ == "__main__":
    main()
