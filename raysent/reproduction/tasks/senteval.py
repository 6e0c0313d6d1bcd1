r"""The transfer tasks of SentEval's folder layout. In: `data_dir/MR/rt-polarity.pos`, … Out: `TaskData`.

Lines end at "\n" only: `str.splitlines` also breaks at U+0085 and similar characters, which adds rows to MR and SUBJ.
The number of lines is compared with the published one. Empty lines are rows too: MPQA has three, and its published
number includes them.

Source: Conneau and Kiela, 2018, SentEval, https://github.com/facebookresearch/SentEval.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raysent.errors import DataError
from raysent.evaluation.task import ProbeTask, Task, TaskData

SENTEVAL = "https://github.com/facebookresearch/SentEval, data/downstream"
NUM_LEVELS = 5

# Published numbers of lines; the files of MRPC and SICK begin with a header.
NUM_ROWS = {
    "MR/rt-polarity.pos": 5331,
    "MR/rt-polarity.neg": 5331,
    "CR/custrev.pos": 2407,
    "CR/custrev.neg": 1368,
    "SUBJ/subj.subjective": 5000,
    "SUBJ/subj.objective": 5000,
    "MPQA/mpqa.pos": 3312,
    "MPQA/mpqa.neg": 7294,
    "SST/binary/sentiment-train": 67349,
    "SST/binary/sentiment-dev": 872,
    "SST/binary/sentiment-test": 1821,
    "SST/fine/sentiment-train": 8544,
    "SST/fine/sentiment-dev": 1101,
    "SST/fine/sentiment-test": 2210,
    "MRPC/msr_paraphrase_train.txt": 4077,
    "MRPC/msr_paraphrase_test.txt": 1726,
    "SICK/SICK_train.txt": 4501,
    "SICK/SICK_trial.txt": 501,
    "SICK/SICK_test_annotated.txt": 4928,
    "STS/STSBenchmark/sts-train.csv": 5749,
    "STS/STSBenchmark/sts-dev.csv": 1500,
    "STS/STSBenchmark/sts-test.csv": 1379,
    "TREC/train_5500.label": 5452,
    "TREC/TREC_10.label": 500,
}


def read_lines(task: Task, path: Path, *, encoding: str) -> list[str]:
    """Return a file's lines.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        lines = path.read_bytes().decode(encoding).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read as {encoding} text ({error}); fetch it again for {task.name}"
        ) from None
    return lines[:-1] if lines[-1] == "" else lines


def _read_two_files(task: Task, data_dir: Path) -> TaskData:
    """Read a binary task of one sentence per line and one file per class, the positive class first."""
    positive, negative = (
        _published_lines(task, data_dir, name, encoding="latin-1") for name in task.files
    )
    names = tuple(Path(name).name.rpartition(".")[2] for name in task.files)
    return TaskData(
        task=task.name,
        kind="sentence",
        split="nested",
        label_names=(names[1], names[0]),
        sentences=(positive + negative,),
        labels=np.repeat(np.array([1, 0], dtype=np.int64), [len(positive), len(negative)]),
    )


def _read_labelled(
    task: Task, data_dir: Path, *, names: dict[str, str] | None = None, **how: Any
) -> TaskData:
    """Read train, validation if there is any, and test: lines of a sentence and a label, whose class `names` has."""
    parts = [_labelled(task, data_dir, name, **how) for name in task.files]
    return _joined(
        task, parts, names or {label: label for label in sorted({label for label, _ in parts[0]})}
    )


def read_pairs(
    task: Task, data_dir: Path, *, names: dict[str, str] | None = None, **columns: Any
) -> TaskData:
    """Read such files of columns, with two sentences on each line and a label, or without `names` a score."""
    parts = [_columns(task, data_dir, name, **columns) for name in task.files]
    return _scored_pairs(task, parts) if names is None else _joined_pairs(task, parts, names)


def _published_lines(task: Task, data_dir: Path, name: str, *, encoding: str) -> list[str]:
    if not name:
        return []
    lines = read_lines(task, data_dir / name, encoding=encoding)
    if len(lines) != NUM_ROWS[name]:
        raise DataError(
            f"{data_dir / name}: {task.name} must have {NUM_ROWS[name]} lines as published; given {len(lines)}; "
            f"fetch it again from {task.source}"
        )
    return [line.strip(" \t\r") for line in lines]


def _labelled(
    task: Task,
    data_dir: Path,
    name: str,
    separator: str = " ",
    *,
    encoding: str = "utf-8",
    last: bool = False,
) -> list[tuple[str, str]]:
    """Return a file's (label, sentence) rows; the label is the first field of a line, up to a colon, or the last."""
    rows = []
    for number, line in enumerate(
        _published_lines(task, data_dir, name, encoding=encoding), start=1
    ):
        before, found, after = line.rpartition(separator) if last else line.partition(separator)
        if not found:
            raise DataError(
                f"{data_dir / name}:{number}: {task.name} needs a label and a sentence; given {line[:40]!r}"
            )
        rows.append((after, before) if last else (before, after))
    return [(label.partition(":")[0], text.strip(" \t")) for label, text in rows]


def _columns(
    task: Task,
    data_dir: Path,
    name: str,
    *,
    label: int,
    first: int,
    second: int,
    header: bool = True,
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, line in enumerate(
        _published_lines(task, data_dir, name, encoding="utf-8"), start=1
    ):
        fields = line.split("\t")
        if header and number == 1:
            continue
        if len(fields) <= max(label, first, second):
            raise DataError(
                f"{data_dir / name}:{number}: {task.name} needs {max(label, first, second) + 1} columns; "
                f"given {len(fields)}"
            )
        rows.append((fields[label], fields[first], fields[second]))
    return rows


def _joined(task: Task, parts: list[list[tuple[str, str]]], names: dict[str, str]) -> TaskData:
    rows = [row for part in parts for row in part]
    numbers = {label: number for number, label in enumerate(names)}
    unknown = next((label for label, _ in rows if label not in numbers), None)
    if unknown is not None:
        raise DataError(
            f"{task.files[0]}: the labels of {task.name} must be {', '.join(names)}; given {unknown!r}"
        )
    ends = np.cumsum([len(part) for part in parts])
    ranges = np.split(np.arange(len(rows), dtype=np.int64), ends[:-1])
    return TaskData(
        task=task.name,
        kind="sentence",
        split="train-validation-test" if len(parts) == 3 else "train-test",
        label_names=tuple(names.values()),
        sentences=([text for _, text in rows],),
        labels=np.array([numbers[label] for label, _ in rows], dtype=np.int64),
        train=ranges[0],
        validation=ranges[1] if len(parts) == 3 else np.empty(0, dtype=np.int64),
        test=ranges[-1],
    )


def _joined_pairs(
    task: Task, parts: list[list[tuple[str, ...]]], names: dict[str, str]
) -> TaskData:
    data = _joined(task, [[(row[0], row[1]) for row in part] for part in parts], names)
    seconds = [row[2] for part in parts for row in part]
    return replace(data, kind="pair", sentences=(data.sentences[0], seconds))


def _scored_pairs(task: Task, parts: list[list[tuple[str, ...]]]) -> TaskData:
    try:
        scores = np.array([float(row[0]) for part in parts for row in part])
    except ValueError as error:
        raise DataError(
            f"{task.files[0]}: scores of {task.name} must be numbers ({error})"
        ) from None
    if not np.isfinite(scores).all():
        raise DataError(
            f"{task.files[0]}: scores of {task.name} must be finite; given NaN or infinity"
        )
    levels = iter(np.clip(np.rint(scores), 1, NUM_LEVELS).astype(int).tolist())
    with_levels = [[(str(next(levels)), *row[1:]) for row in part] for part in parts]
    names = {str(level): str(level) for level in range(1, NUM_LEVELS + 1)}
    return replace(_joined_pairs(task, with_levels, names), scores=scores)


def _sst(folder: str) -> tuple[str, ...]:
    return tuple(f"SST/{folder}/sentiment-{part}" for part in _PARTS)


_task = partial(ProbeTask, source=SENTEVAL)
_with_test = partial(_task, has_test_file=True)
_PARTS = ("train", "dev", "test")
MRPC = ("MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt")
_SICK = tuple(f"SICK/SICK_{part}.txt" for part in ("train", "trial", "test_annotated"))
_STS_B = tuple(f"STS/STSBenchmark/sts-{part}.csv" for part in _PARTS)
_FINE = ("very negative", "negative", "neutral", "positive", "very positive")
# SST-2: phrases for training, and sentences. TREC: the coarse class. SICK: two sentences, relatedness, entailment.
_SST_2 = partial(
    _read_labelled, separator="\t", last=True, names={"0": "negative", "1": "positive"}
)
_SST_5 = partial(_read_labelled, names={str(label): name for label, name in enumerate(_FINE)})
_TREC = partial(_read_labelled, encoding="latin-1")
_PARAPHRASE = partial(
    read_pairs, label=0, first=3, second=4, names={"0": "other", "1": "paraphrase"}
)
_ENTAILMENT = {label.upper(): label for label in ("contradiction", "neutral", "entailment")}
_SICK_E = partial(read_pairs, label=4, first=1, second=2, names=_ENTAILMENT)
_SICK_R = partial(read_pairs, label=3, first=1, second=2)
_SCORED = partial(read_pairs, label=4, first=5, second=6, header=False)

TASKS = {
    task.name: task
    for task in (
        _task("MR", reader=_read_two_files, files=("MR/rt-polarity.pos", "MR/rt-polarity.neg")),
        _task("CR", reader=_read_two_files, files=("CR/custrev.pos", "CR/custrev.neg")),
        _task(
            "SUBJ", reader=_read_two_files, files=("SUBJ/subj.objective", "SUBJ/subj.subjective")
        ),
        _task("MPQA", reader=_read_two_files, files=("MPQA/mpqa.pos", "MPQA/mpqa.neg")),
        _with_test("SST-2", reader=_SST_2, files=_sst("binary")),
        _with_test("TREC", reader=_TREC, files=("TREC/train_5500.label", "TREC/TREC_10.label")),
        _with_test("SST-5", reader=_SST_5, files=_sst("fine")),
        _with_test("MRPC", reader=_PARAPHRASE, files=MRPC),
        _with_test("SICK-E", reader=_SICK_E, files=_SICK),
        _with_test("SICK-R", reader=_SICK_R, files=_SICK, is_scored=True),
        _with_test("STS-B", reader=_SCORED, files=_STS_B, is_scored=True),
    )
}
