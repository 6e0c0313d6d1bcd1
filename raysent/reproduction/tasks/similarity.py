r"""Sets of scored pairs: the similarity of two sentences' vectors is compared with human ratings; nothing is trained.

In: `data_dir/STS/STS14-en-test/STS.input.headlines.txt`, … Out: sets of pairs with scores. Lines end at "\n" only.
Pairs without a score are left out, as in SentEval. The number of pairs is compared with the published one.

Source: Agirre et al., 2012 to 2016; Cer et al., 2017; Marelli et al., 2014; the layout is SentEval's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from raysent.errors import DataError
from raysent.evaluation.task import ScoredSet, SimilarityTask
from raysent.reproduction.tasks.senteval import MRPC, SENTEVAL, read_lines

# Published numbers of scored pairs of every set.
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
    "STS15": {
        "answers-forums": 375,
        "answers-students": 750,
        "belief": 375,
        "headlines": 750,
        "images": 750,
    },
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


def read_sts(task: SimilarityTask, data_dir: Path) -> Iterator[ScoredSet]:
    """Read sets of `first<TAB>second`, with the score on the same line of another file."""
    for name, pairs_file, scores_file in zip(
        SET_SIZES[task.name], task.files[::2], task.files[1::2], strict=True
    ):
        pairs, scores = (
            read_lines(task, data_dir / file, encoding="utf-8")
            for file in (pairs_file, scores_file)
        )
        if len(pairs) != len(scores):
            raise DataError(
                f"{data_dir / scores_file}: must hold a line for each of the {len(pairs)} pairs; given {len(scores)}"
            )
        lines = [
            f"{score}\t{pair}" for pair, score in zip(pairs, scores, strict=True) if score.strip()
        ]
        yield _scored_set(task, data_dir / pairs_file, name, lines, columns=(0, 1, 2))


def read_columns(
    task: SimilarityTask,
    data_dir: Path,
    *,
    columns: tuple[int, int, int],
    num_headers: int = 1,
    strips: bool = False,
) -> Iterator[ScoredSet]:
    """Read tab-separated lines below a header; `columns` are those of the score and the two sentences."""
    for name, file in zip(SET_SIZES[task.name], task.files, strict=True):
        lines = read_lines(task, data_dir / file, encoding="utf-8")[num_headers:]
        found = [line.strip() for line in lines] if strips else lines
        yield _scored_set(task, data_dir / file, name, found, columns=columns)


def _scored_set(
    task: SimilarityTask, path: Path, name: str, lines: list[str], *, columns: tuple[int, int, int]
) -> ScoredSet:
    """Return tab-separated lines as a set; `columns` are those of the score and the two sentences."""
    rows = [line.split("\t") for line in lines]
    shortest = min(map(len, rows), default=0)
    if rows and shortest <= max(columns):
        raise DataError(
            f"{path}: {task.name} needs a score and two sentences on every line; fetch it again"
        )
    score, first, second = ([row[column] for row in rows] for column in columns)
    try:
        scores = np.array([float(value) for value in score])
    except ValueError as error:
        raise DataError(
            f"{path}: scores must be numbers ({error}); fetch it again from {task.source}"
        ) from None
    if len(rows) != SET_SIZES[task.name][name]:
        raise DataError(
            f"{path}: {task.name} {name} must have {SET_SIZES[task.name][name]} scored pairs as published; "
            f"given {len(rows)}; fetch it again from {task.source}"
        )
    return ScoredSet(name, first, second, scores)


def _sts_task(year: str) -> SimilarityTask:
    """Return the task of a year, such as ``STS12``."""
    files = [
        f"STS/{year}-en-test/STS.{part}.{name}.txt"
        for name in SET_SIZES[year]
        for part in ("input", "gs")
    ]
    return _task(year, reader=read_sts, files=tuple(files))


_task = partial(SimilarityTask, source=SENTEVAL)
_STS_B = partial(read_columns, columns=(4, 5, 6), num_headers=0)
_SICK = partial(read_columns, columns=(3, 1, 2))
_MRPC = partial(read_columns, columns=(0, 3, 4), strips=True)  # 1 for a paraphrase

TASKS = {
    task.name: task
    for task in (
        *(_sts_task(f"STS{year}") for year in range(12, 17)),
        _task("STS-B-similarity", reader=_STS_B, files=("STS/STSBenchmark/sts-test.csv",)),
        _task("SICK-R-similarity", reader=_SICK, files=("SICK/SICK_test_annotated.txt",)),
        _task("MRPC-similarity", reader=_MRPC, files=MRPC),
    )
}
