"""Few labels on real text: members trained on novels, and their ensemble, beside lexical and untrained baselines.

Everything is trained on the novels alone, on one thread, for about an hour of a core:

- members: Quick-Thoughts as bag of words, bi- and unidirectional GRU, and multichannel;
- beside them: TF-IDF of words and of characters, the mean of the word vectors that the members start from, and all of
  these with the members.

Each step continues from what the output folder has. Each seed has an output folder of its own; the step `few-labels`
takes several, and prints the means over them.

    OMP_NUM_THREADS=1 python -m benchmarks.novels members|untrained|labels|few-labels
        --books FOLDER --data DIR --output FOLDER… [--seed N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.data.corpus import corpus_word_vectors, prepare
from raysent.data.vocabulary import UNK_ID, WordVectors
from raysent.ensembles.label_curves import ENSEMBLE, LabelScores, read_curves, write_curves
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.bootstrap import PERCENTILES
from raysent.evaluation.members import Member, expand
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import resolve_tasks
from raysent.models import average_of_words
from raysent.storage import read_json, write_json
from raysent.storage.layout import OUTCOME_FILE
from raysent.training.loop import fit
from raysent.training.run import RunConfig

LABEL_TASKS = ("MR", "SUBJ", "MPQA", "SST-2", "TREC")
SIZES = (32, 100, 300, 1000)
MEAN, WITH_TFIDF = "mean", f"{ENSEMBLE} + tfidf"
WITH_BOTH, MEAN_WITH_BOTH, BOTH = (
    " + ".join([*first, *LEXICAL]) for first in ([ENSEMBLE], [MEAN], [])
)
DRAWS_FOLDER = "label_draws"

WORDS: dict[str, Any] = {"dim": 300, "vectors": "ppmi"}
GRU: dict[str, Any] = {"type": "gru", "hidden_size": 300, "embedding": WORDS}
# Encoder, and passes over the text.
MEMBERS: dict[str, tuple[dict[str, Any], float]] = {
    "bag": ({"type": "bag", "embedding": {"dim": 600, "vectors": "ppmi"}}, 1.5),
    "bi": ({**GRU, "bidirectional": True}, 0.7),
    "uni": (GRU, 0.6),
    "multichannel": (
        {
            "type": "concat",
            "members": {
                "fixed": {**GRU, "bidirectional": True, "embedding": {**WORDS, "trained": False}},
                "trained": {**GRU, "bidirectional": True},
            },
        },
        0.4,
    ),
}


def run_config(encoder: dict[str, Any], books: str, *, epochs: float, seed: int) -> RunConfig:
    """Return a run on the novels."""
    values: dict[str, Any] = {
        "corpus": {"path": books, "max_length": 30},
        "vocabulary": {"size": 50_000, "lowercase": True},
        "encoder": encoder,
        "objective": {"type": "context_prediction"},
        "training": {
            "batch_size": 400, "learning_rate": 2.5e-3, "schedule": "linear", "precision": "bfloat16",
            "epochs": epochs, "num_reports": 4,
        },
        "validation": {"num_candidates": 1000, "num_sentences": 5000},
        "seed": seed,
    }  # fmt: skip
    return RunConfig.model_validate(values)


def train_members(books: str, output: Path, *, seed: int) -> None:
    """Train the members one after another."""
    for name, (encoder, epochs) in MEMBERS.items():
        started = time.process_time()
        fit(run_config(encoder, books, epochs=epochs, seed=seed), output / "members" / name)
        print(
            f"{name}: {time.process_time() - started:.0f} s of processor time, {epochs:g} passes",
            flush=True,
        )


def make_untrained(books: str, output: Path, *, seed: int) -> None:
    """Save the mean of the members' initial word vectors."""
    config = run_config(GRU, books, epochs=1.0, seed=seed)
    corpus = prepare(config.corpus, config.vocabulary)
    vectors = corpus_word_vectors(corpus, dim=WORDS["dim"], seed=seed)[UNK_ID + 1 :]
    average_of_words(
        WordVectors(corpus.vocabulary.words[UNK_ID + 1 :], vectors), lowercase=True
    ).save(output / "untrained" / MEAN)


def models_of(output: Path) -> tuple[list[Member], list[Member]]:
    """Return the members that are trained, and what stands beside them."""
    members = [
        str(output / "members" / name)
        for name in MEMBERS
        if (output / "members" / name / OUTCOME_FILE).exists()
    ]
    return expand(members), [*expand(LEXICAL), *expand([str(output / "untrained" / MEAN)])]


def score_labels(output: Path, data: Path) -> None:
    """Score all models against the number of labels."""
    trained, others = models_of(output)
    for task in resolve_tasks(LABEL_TASKS, data):
        rows = task.load(data)
        assert isinstance(rows, TaskData)
        started = time.process_time()
        scores = LabelScores(rows, trained, others, sizes=SIZES)
        members = [one.name for one in trained]
        scores.combine(ENSEMBLE, members, method="validation")
        scores.combine(WITH_TFIDF, [*members, "tfidf"])
        scores.combine(WITH_BOTH, [*members, *LEXICAL])
        scores.combine(MEAN_WITH_BOTH, [MEAN, *LEXICAL], kind="baseline")
        scores.combine(BOTH, LEXICAL, kind="baseline")
        curve = scores.curve()
        write_curves(output, [curve])
        draws = {
            name: np.stack([scores.means(name, size) for size in SIZES]) for name in curve.curves
        }
        write_json(
            output / DRAWS_FOLDER / f"{task.name}.json",
            {name: found.tolist() for name, found in draws.items()},
        )
        print(f"{task.name}: {time.process_time() - started:.0f} s of processor time", flush=True)


def label_draws(outputs: Sequence[Path]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the tasks, and the mean over tasks and seeds of each model's scores, [sizes, resamples].

    The first resample is the original. Seeds have the same draws and test rows.
    """
    tasks = [curve.task for curve in read_curves(outputs[0])]
    found = [
        read_json(output / DRAWS_FOLDER / f"{task}.json") for output in outputs for task in tasks
    ]
    return tasks, {name: np.mean([one[name] for one in found], axis=0) for name in found[0]}


def label_table(outputs: Sequence[Path]) -> str:
    """Return mean scores against the number of labels, and paired differences with 95 % intervals."""
    tasks, draws = label_draws(outputs)
    columns, rule = " | ".join(f"{size:,} labels" for size in SIZES), "---|" * len(SIZES)
    lines = [f"Means over {', '.join(tasks)}, and over {len(outputs)} trainings.", ""]
    lines += [f"| model | {columns} |", f"|---|{rule}"]
    lines += [
        f"| {name} | {' | '.join(f'{of_size[0]:.2f}' for of_size in found)} |"
        for name, found in draws.items()
    ]
    lines += ["", f"| difference | {columns} |", f"|---|{rule}"]
    for one, other in (
        (ENSEMBLE, "tfidf"), (ENSEMBLE, "tfidf:chars"), (ENSEMBLE, MEAN), (ENSEMBLE, BOTH), (ENSEMBLE, MEAN_WITH_BOTH),
        (WITH_TFIDF, "tfidf"), (WITH_TFIDF, MEAN_WITH_BOTH), (WITH_BOTH, BOTH), (WITH_BOTH, MEAN_WITH_BOTH),
        (MEAN_WITH_BOTH, BOTH), (MEAN_WITH_BOTH, "tfidf"), (MEAN, "tfidf"),
    ):  # fmt: skip
        cells = []
        for left, right in zip(draws[one], draws[other], strict=True):
            low, high = np.percentile((left - right)[1:], PERCENTILES)
            cells.append(f"{left[0] - right[0]:+.2f} [{low:+.2f}, {high:+.2f}]")
        lines.append(f"| {one} - {other} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Do the step that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("members", "untrained", "labels", "few-labels"))
    parser.add_argument("--books", required=True, help="folder of novels")
    parser.add_argument("--data", type=Path, required=True, help="folder in SentEval's layout")
    parser.add_argument(
        "--output", type=Path, required=True, nargs="+", help="of `few-labels` one for each seed"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    output = options.output[0]
    match options.step:
        case "members":
            train_members(options.books, output, seed=options.seed)
        case "untrained":
            make_untrained(options.books, output, seed=options.seed)
        case "labels":
            score_labels(output, options.data)
        case _:
            print(label_table(options.output))


if __name__ == "__main__":
    main()
