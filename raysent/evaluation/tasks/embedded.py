"""Tasks drawn from the documentation that is on any machine with raysent. In: nothing. Out: `TaskData`.

`docs-library` asks which library a sentence documents; `docs-order` whether two neighbouring sentences stand in
their order or were swapped. Both are divided by module, so no module is in two splits, and are the same every
time on one machine; another machine's library versions may give other rows, which the row hash then shows.

An encoder trained on the corpus `docs` has seen these sentences, though never their labels: the figures compare
such encoders with one another, and are not to be set beside an encoder trained on other text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from raysent.data.corpus import DocsDocument, docs_documents
from raysent.errors import DataError
from raysent.evaluation.tasks import Task, TaskData

Item = TypeVar("Item")

NUM_LIBRARIES = 8
MIN_WORDS = 5
SEED = 20180303
# Rows of train, validation and test; a machine with less documentation gets fewer, in the same shares.
SPLIT_SIZES = (6000, 1500, 1500)


def read_library(task: Task, data_dir: Path | None) -> TaskData:
    """Read `docs-library` from the documentation on this machine."""
    del data_dir  # embedded
    return library_rows(task, docs_documents())


def read_order(task: Task, data_dir: Path | None) -> TaskData:
    """Read `docs-order` from the documentation on this machine."""
    del data_dir  # embedded
    return order_rows(task, docs_documents())


def library_rows(
    task: Task, documents: Iterable[DocsDocument], *, split_sizes: Sequence[int] = SPLIT_SIZES, seed: int = SEED
) -> TaskData:
    """Return balanced sentences of the largest libraries, divided by module.

    Args:
        task: The task.
        documents: The documentation.
        split_sizes: Rows of train, validation and test at most.
        seed: Chooses modules and sentences.

    Raises:
        DataError: If fewer than two libraries are documented well enough.
    """
    generator = np.random.default_rng(seed)
    modules = _distinct_sentences(documents)
    sizes = Counter({library: sum(map(len, found.values())) for library, found in modules.items() if len(found) >= 3})
    # Ties by name, so that the choice does not depend on the order of reading.
    libraries = sorted(name for name, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:NUM_LIBRARIES])
    if len(libraries) < 2:
        raise DataError(f"{task.name}: needs the documentation of two libraries; found {len(libraries)}; install numpy")
    wanted = [size // len(libraries) for size in split_sizes]
    drawn = [_divide_sentences(modules[library], wanted, generator) for library in libraries]
    # Balanced: every library gives as many rows to a split as the poorest does.
    counts = [min(len(splits[index]) for splits in drawn) for index in range(3)]
    parts = [
        [(sentence, label) for label, splits in enumerate(drawn) for sentence in splits[index][: counts[index]]]
        for index in range(3)
    ]
    return _task_data(task, [[((text,), label) for text, label in part] for part in parts], tuple(libraries))


def order_rows(
    task: Task, documents: Iterable[DocsDocument], *, split_sizes: Sequence[int] = SPLIT_SIZES, seed: int = SEED
) -> TaskData:
    """Return neighbouring sentences, half of them swapped, divided by module; no sentence is in two pairs.

    Args:
        task: The task.
        documents: The documentation.
        split_sizes: Rows of train, validation and test at most.
        seed: Chooses modules, pairs and which are swapped.

    Raises:
        DataError: If there are too few pairs for three splits.
    """
    generator = np.random.default_rng(seed)
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    seen: set[str] = set()
    for document in documents:
        for first, second in zip(document.sentences[::2], document.sentences[1::2], strict=False):
            if first == second or first in seen or second in seen or min(_words(first), _words(second)) < MIN_WORDS:
                continue
            seen.update((first, second))
            pairs[f"{document.library} {document.module}"].append((first, second))
    splits = _divide_sentences(dict(pairs), split_sizes, generator)
    if min(map(len, splits)) < 2:
        raise DataError(f"{task.name}: needs neighbouring sentences of several modules; found {len(seen) // 2} pairs")
    parts: list[list[tuple[tuple[str, ...], int]]] = []
    for split in splits:
        swapped = generator.permutation(np.arange(len(split)) % 2)
        dealt = zip(split, swapped.tolist(), strict=True)
        parts.append([((pair[1], pair[0]) if swap else pair, 1 - swap) for pair, swap in dealt])
    return _task_data(task, parts, ("swapped", "in order"))


def _distinct_sentences(documents: Iterable[DocsDocument]) -> dict[str, dict[str, list[str]]]:
    """Return library -> module -> sentences, without short ones and those that stand in more than one place."""
    documents = list(documents)
    counts = Counter(sentence for document in documents for sentence in document.sentences)
    modules: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        kept = [text for text in document.sentences if counts[text] == 1 and _words(text) >= MIN_WORDS]
        if kept:
            modules[document.library][document.module].extend(kept)
    return modules


def _divide_sentences(
    modules: dict[str, list[Item]], sizes: Sequence[int], generator: np.random.Generator
) -> list[list[Item]]:
    """Deal whole modules to train, validation and test, then draw from each split at most its size."""
    names = sorted(modules)
    order = generator.permutation(len(names))
    shares = np.array(sizes) / sum(sizes)
    dealt: list[list[list[Item]]] = [[] for _ in sizes]
    filled = np.zeros(len(sizes))
    # Large modules first, each to the split that lacks most of its share: every split gets some, none gets all.
    for index in sorted(order.tolist(), key=lambda index: -len(modules[names[index]])):
        target = int(np.argmin(filled / shares))
        dealt[target].append(modules[names[index]])
        filled[target] += len(modules[names[index]])
    splits = []
    for parts, size in zip(dealt, sizes, strict=True):
        items = [item for part in parts for item in part]
        splits.append([items[row] for row in generator.permutation(len(items))[:size]])
    return splits


def _task_data(task: Task, parts: list[list[tuple[tuple[str, ...], int]]], label_names: tuple[str, ...]) -> TaskData:
    rows = [row for part in parts for row in part]
    ends = np.cumsum([len(part) for part in parts])
    train, validation, test = np.split(np.arange(len(rows), dtype=np.int64), ends[:-1])
    columns = tuple(list(column) for column in zip(*(sentences for sentences, _ in rows), strict=True))
    return TaskData(
        task=task.name,
        kind=task.kind,
        split=task.split,
        label_names=label_names,
        sentences=columns,
        labels=np.array([label for _, label in rows], dtype=np.int64),
        train=train,
        validation=validation,
        test=test,
    )


def _words(sentence: str) -> int:
    return len(sentence.split())


TASKS = (
    Task(name="docs-library", kind="sentence", split="train-validation-test", reader=read_library),
    Task(name="docs-order", kind="order", split="train-validation-test", reader=read_order),
)
