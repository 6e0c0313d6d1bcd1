r"""Scored pairs that no probe is trained on: how alike two sentences are, against how alike people found them.

In: `data_dir/STS/STS14-en-test/STS.input.headlines.txt`, ... Out: sets of pairs with scores. Lines end at "\n" only; a
pair without a score is left out, as SentEval does. The number of pairs is checked against the published one.

Source: Agirre et al., 2012 to 2016; Cer et al., 2017; Marelli et al., 2014; the layout is SentEval's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysent.errors import DataError
from raysent.storage import content_key

# No probe's tasks here.
TASKS = ()

SENTEVAL = "https://github.com/facebookresearch/SentEval, data/downstream"

# Scored pairs of every set as published.
SET_SIZES: dict[str, dict[str, int]] = {
    "STS12": {
        "MSRpar": 750,
        "MSRvid": 750,
        "SMTeuroparl": 459,
        "surprise.OnWN": 750,
        "surprise.SMTnews": 399,
    },
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {
        "deft-forum": 450,
        "deft-news": 300,
        "headlines": 750,
        "images": 750,
        "OnWN": 750,
        "tweet-news": 750,
    },
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
    "STS-B-similarity": {"test": 1379},
    "SICK-R-similarity": {"test": 4927},
    "MRPC-similarity": {"train": 4076, "test": 1725},
}


@dataclass(frozen=True)
class ScoredSet:
    """Pairs with scores.

    Attributes:
        name: The set's name.
        first: The first sentences [rows].
        second: The second ones [rows].
        scores: How alike people found them, float64 [rows].
    """

    name: str
    first: list[str]
    second: list[str]
    scores: np.ndarray


@dataclass(frozen=True)
class SimilarityTask:
    """Sets that are reported together.

    Attributes:
        name: The name that users write.
        files: Files read, relative to the data folder.
        reader: Reads the sets; takes the task and the data folder.
    """

    name: str
    files: tuple[str, ...]
    reader: Callable[[SimilarityTask, Path], list[ScoredSet]]

    def is_present(self, data_dir: Path) -> bool:
        """Return whether every file lies in the data folder."""
        return all((data_dir / name).is_file() for name in self.files)

    def load(self, data_dir: Path | None) -> list[ScoredSet]:
        """Return the sets.

        Raises:
            DataError: If a file is missing, or does not hold the published number of scored pairs.
        """
        if data_dir is None:
            raise DataError(
                f"{self.name}: needs a folder in SentEval's layout; given none; name it with --data, "
                f"it must hold {self.files[0]} ({SENTEVAL})"
            )
        sets = self.reader(self, data_dir)
        for one in sets:
            published = SET_SIZES[self.name][one.name]
            if len(one.scores) != published:
                raise DataError(
                    f"{data_dir}: {self.name} {one.name} must have {published} scored pairs as published; "
                    f"given {len(one.scores)}; fetch it again from {SENTEVAL}"
                )
        return sets


def set_hash(sets: list[ScoredSet]) -> str:
    """Return what names the content of sets."""
    return content_key([(one.name, one.first, one.second, one.scores.tolist()) for one in sets])


def _read_sts(task: SimilarityTask, data_dir: Path) -> list[ScoredSet]:
    """Read `sent1<TAB>sent2` beside a score on the same line of another file."""
    sets = []
    for name in SET_SIZES[task.name]:
        path = data_dir / f"STS/{task.name}-en-test/STS.input.{name}.txt"
        gold = path.with_name(f"STS.gs.{name}.txt")
        pairs, scores = _lines(task, path), _lines(task, gold)
        if len(pairs) != len(scores):
            raise DataError(f"{gold}: must hold a line for each of the {len(pairs)} pairs; given {len(scores)}")
        fields = [pair.split("\t") for pair in pairs]
        kept = [(one, score) for one, score in zip(fields, scores, strict=True) if score.strip()]
        rows = [(one[0], one[1], score) for one, score in kept]
        sets.append(_scored(path, name, rows))
    return sets


def _read_sts_benchmark(task: SimilarityTask, data_dir: Path) -> list[ScoredSet]:
    """Read tab-separated lines: the score is the fifth column, the sentences are the sixth and seventh."""
    path = data_dir / task.files[0]
    rows = [(one[5], one[6], one[4]) for one in (line.split("\t") for line in _lines(task, path))]
    return [_scored(path, "test", rows)]


def _read_sick(task: SimilarityTask, data_dir: Path) -> list[ScoredSet]:
    """Read tab-separated lines below a header: sentences in the second and third column, the score in the fourth."""
    path = data_dir / task.files[0]
    rows = [(one[1], one[2], one[3]) for one in (line.split("\t") for line in _lines(task, path)[1:])]
    return [_scored(path, "test", rows)]


def _read_mrpc(task: SimilarityTask, data_dir: Path) -> list[ScoredSet]:
    """Read tab-separated lines below a header: 1 for a paraphrase in the first column, sentences in the last two."""
    sets = []
    for name, file in zip(SET_SIZES[task.name], task.files, strict=True):
        path = data_dir / file
        rows = [(one[3], one[4], one[0]) for one in (line.strip().split("\t") for line in _lines(task, path)[1:])]
        sets.append(_scored(path, name, rows))
    return sets


def _scored(path: Path, name: str, rows: list[tuple[str, str, str]]) -> ScoredSet:
    try:
        scores = np.array([float(score) for _, _, score in rows])
    except ValueError as error:
        raise DataError(f"{path}: scores must be numbers ({error}); fetch it again from {SENTEVAL}") from None
    return ScoredSet(name, [row[0] for row in rows], [row[1] for row in rows], scores)


def _lines(task: SimilarityTask, path: Path) -> list[str]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {task.name} needs it, published at {SENTEVAL}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}); fetch it again for {task.name}") from None
    return lines[:-1] if lines[-1] == "" else lines


def _sts(year: str) -> SimilarityTask:
    folder = f"STS/{year}-en-test"
    files = [f"{folder}/STS.{part}.{name}.txt" for name in SET_SIZES[year] for part in ("input", "gs")]
    return SimilarityTask(year, tuple(files), _read_sts)


SIMILARITY_TASKS: dict[str, SimilarityTask] = {
    task.name: task
    for task in (
        *(_sts(f"STS{year}") for year in range(12, 17)),
        SimilarityTask("STS-B-similarity", ("STS/STSBenchmark/sts-test.csv",), _read_sts_benchmark),
        SimilarityTask("SICK-R-similarity", ("SICK/SICK_test_annotated.txt",), _read_sick),
        SimilarityTask(
            "MRPC-similarity", ("MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt"), _read_mrpc
        ),
    )
}
