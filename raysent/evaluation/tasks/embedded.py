"""Tasks made of the documentation that is installed with raysent. In: nothing. Out: `TaskData`.

`docs-library`: which library does a sentence document? `docs-neighbours`: is the second sentence the one after the
first, or one of another place in the same library's documentation? Both are split by module, so that no module is in
two splits. They are the same every time on one machine; other versions of the libraries may give other rows, which the
row hash shows.

An encoder trained on the corpus `docs` has seen these sentences, though not their labels. Scores compare such encoders
with each other, not with an encoder trained on other text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from raysent.data.corpus import DocsDocument, docs_documents
from raysent.errors import DataError
from raysent.evaluation.task import Kind, ProbeTask, Task, TaskData

Item = TypeVar("Item")
# The sentences of a row, and its label.
Row = tuple[tuple[str, ...], int]

NUM_LIBRARIES = 8
MIN_WORDS = 5
SEED = 20180303
# Rows of train, validation and test; fewer, in the same proportions, on a machine with less documentation.
SPLIT_SIZES = (6000, 1500, 1500)


def library_rows(
    task: Task,
    documents: Iterable[DocsDocument],
    *,
    split_sizes: Sequence[int] = SPLIT_SIZES,
    seed: int = SEED,
) -> TaskData:
    """Return balanced sentences of the largest libraries, split by module.

    Args:
        task: The task.
        documents: The documentation.
        split_sizes: Maximum rows of train, validation and test.
        seed: Chooses modules and sentences.

    Raises:
        DataError: If fewer than two libraries have enough documentation.
    """
    generator = np.random.default_rng(seed)
    modules = _distinct_sentences(documents)
    sizes = Counter(
        {
            library: sum(map(len, found.values()))
            for library, found in modules.items()
            if len(found) >= 3
        }
    )
    # Ties are broken by name, so that the choice does not depend on the order of reading.
    libraries = sorted(
        name
        for name, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:NUM_LIBRARIES]
    )
    if len(libraries) < 2:
        raise DataError(
            f"{task.name}: needs the documentation of two libraries; found {len(libraries)}; install numpy"
        )
    per_library = [size // len(libraries) for size in split_sizes]
    drawn = [_split_by_module(modules[library], per_library, generator) for library in libraries]
    # Balanced: every library gives as many rows to a split as the smallest library does.
    counts = [min(len(splits[index]) for splits in drawn) for index in range(3)]
    parts: list[list[Row]] = [
        [
            ((sentence,), label)
            for label, splits in enumerate(drawn)
            for sentence in splits[index][: counts[index]]
        ]
        for index in range(3)
    ]
    return _task_data(task, "sentence", parts, tuple(libraries))


def neighbour_rows(
    task: Task,
    documents: Iterable[DocsDocument],
    *,
    split_sizes: Sequence[int] = SPLIT_SIZES,
    seed: int = SEED,
) -> TaskData:
    """Return pairs of sentences, half of them neighbours, split by module; no sentence is in two pairs.

    The other half pair a sentence with one that follows another sentence of the same library.

    Args:
        task: The task.
        documents: The documentation.
        split_sizes: Maximum rows of train, validation and test.
        seed: Chooses modules, pairs and which are neighbours.

    Raises:
        DataError: If there are too few pairs for three splits.
    """
    generator = np.random.default_rng(seed)
    pairs: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    seen: set[str] = set()
    for document in documents:
        for first, second in zip(document.sentences[::2], document.sentences[1::2], strict=False):
            if (
                first == second
                or first in seen
                or second in seen
                or min(_words(first), _words(second)) < MIN_WORDS
            ):
                continue
            seen.update((first, second))
            pairs[f"{document.library} {document.module}"].append((document.library, first, second))
    splits = _split_by_module(dict(pairs), split_sizes, generator)
    if min(map(len, splits)) < 2:
        raise DataError(
            f"{task.name}: needs neighboring sentences of several modules; found {len(seen) // 2} pairs"
        )
    parts = [_half_apart(split, generator) for split in splits]
    return _task_data(task, "pair", parts, ("apart", "neighbours"))


def _half_apart(pairs: list[tuple[str, str, str]], generator: np.random.Generator) -> list[Row]:
    """Return pairs as rows; in half of them the second sentences of one library change places."""
    is_kept = generator.permutation(np.arange(len(pairs)) % 2).tolist()
    rows: list[Row] = [
        ((first, second), 1)
        for (_, first, second), kept in zip(pairs, is_kept, strict=True)
        if kept
    ]
    apart: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (library, first, second), kept in zip(pairs, is_kept, strict=True):
        if not kept:
            apart[library].append((first, second))
    for found in apart.values():
        # A library's only pair would stay together.
        seconds = [second for _, second in found[1:] + found[:1]] if len(found) > 1 else []
        rows += [((first, second), 0) for (first, _), second in zip(found, seconds, strict=False)]
    return [rows[place] for place in generator.permutation(len(rows))]


def _distinct_sentences(documents: Iterable[DocsDocument]) -> dict[str, dict[str, list[str]]]:
    documents = list(documents)
    counts = Counter(sentence for document in documents for sentence in document.sentences)
    modules: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        kept = [
            text for text in document.sentences if counts[text] == 1 and _words(text) >= MIN_WORDS
        ]
        if kept:
            modules[document.library][document.module].extend(kept)
    return modules


def _split_by_module(
    modules: dict[str, list[Item]], sizes: Sequence[int], generator: np.random.Generator
) -> list[list[Item]]:
    """Assign whole modules to train, validation and test, then draw at most its size from each split."""
    names = sorted(modules)
    order = generator.permutation(len(names))
    fractions = np.array(sizes) / sum(sizes)
    assigned: list[list[list[Item]]] = [[] for _ in sizes]
    filled = np.zeros(len(sizes))
    # Large modules first, each to the split that is least filled: every split gets some, none gets all.
    for index in sorted(order.tolist(), key=lambda index: -len(modules[names[index]])):
        target = int(np.argmin(filled / fractions))
        assigned[target].append(modules[names[index]])
        filled[target] += len(modules[names[index]])
    splits = []
    for parts, size in zip(assigned, sizes, strict=True):
        items = [item for part in parts for item in part]
        splits.append([items[row] for row in generator.permutation(len(items))[:size]])
    return splits


def _task_data(
    task: Task, kind: Kind, parts: list[list[Row]], label_names: tuple[str, ...]
) -> TaskData:
    rows = [row for part in parts for row in part]
    ends = np.cumsum([len(part) for part in parts])
    train, validation, test = np.split(np.arange(len(rows), dtype=np.int64), ends[:-1])
    columns = tuple(
        list(column) for column in zip(*(sentences for sentences, _ in rows), strict=True)
    )
    return TaskData(
        task=task.name,
        kind=kind,
        split="train-validation-test",
        label_names=label_names,
        sentences=columns,
        labels=np.array([label for _, label in rows], dtype=np.int64),
        train=train,
        validation=validation,
        test=test,
    )


def _words(sentence: str) -> int:
    return len(sentence.split())


TASKS = {
    "docs-library": ProbeTask(
        "docs-library", reader=lambda task, _: library_rows(task, docs_documents())
    ),
    "docs-neighbours": ProbeTask(
        "docs-neighbours", reader=lambda task, _: neighbour_rows(task, docs_documents())
    ),
}
