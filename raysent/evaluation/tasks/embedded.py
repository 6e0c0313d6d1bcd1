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

_Item = TypeVar("_Item")
# The sentences of a row, and its label.
_Row = tuple[tuple[str, ...], int]

_NUM_LIBRARIES = 8
_MIN_WORDS = 5
SEED = 20180303
# Rows of train, validation and test; fewer, in the same proportions, on a machine with less documentation.
_SPLIT_SIZES = (6000, 1500, 1500)


def library_rows(
    task: Task,
    documents: Iterable[DocsDocument],
    *,
    split_sizes: Sequence[int] = _SPLIT_SIZES,
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
    # A library needs a module for each split.
    sizes = {}
    for library, of_library in modules.items():
        if len(of_library) >= 3:
            sizes[library] = sum(map(len, of_library.values()))
    # Ties are broken by name, so that the choice does not depend on the order of reading.
    by_size = sorted(sizes, key=lambda library: (-sizes[library], library))
    libraries = sorted(by_size[:_NUM_LIBRARIES])
    if len(libraries) < 2:
        raise DataError(
            f"{task.name}: needs the documentation of two libraries; found {len(libraries)}; install numpy"
        )
    per_library = [size // len(libraries) for size in split_sizes]
    drawn = [_split_by_module(modules[library], per_library, generator) for library in libraries]
    parts: list[list[_Row]] = []
    for split in range(3):
        # Balanced: every library gives as many rows to a split as the smallest library does.
        num_rows = min(len(splits[split]) for splits in drawn)
        part: list[_Row] = []
        for label, splits in enumerate(drawn):
            part += [((sentence,), label) for sentence in splits[split][:num_rows]]
        parts.append(part)
    return _task_data(task, "sentence", parts, tuple(libraries))


def neighbour_rows(
    task: Task,
    documents: Iterable[DocsDocument],
    *,
    split_sizes: Sequence[int] = _SPLIT_SIZES,
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
    used_sentences: set[str] = set()
    for document in documents:
        for first, second in zip(document.sentences[::2], document.sentences[1::2], strict=False):
            is_short = min(_num_words(first), _num_words(second)) < _MIN_WORDS
            is_used = first in used_sentences or second in used_sentences
            if first == second or is_used or is_short:
                continue
            used_sentences.update((first, second))
            pairs[f"{document.library} {document.module}"].append((document.library, first, second))
    splits = _split_by_module(dict(pairs), split_sizes, generator)
    if min(map(len, splits)) < 2:
        num_pairs = len(used_sentences) // 2
        raise DataError(
            f"{task.name}: needs neighboring sentences of several modules; found {num_pairs} pairs"
        )
    parts = [_half_apart(split, generator) for split in splits]
    return _task_data(task, "pair", parts, ("apart", "neighbours"))


def _half_apart(pairs: list[tuple[str, str, str]], generator: np.random.Generator) -> list[_Row]:
    """Return pairs as rows; in half of them the second sentences of one library are exchanged."""
    are_neighbours = generator.permutation(np.arange(len(pairs)) % 2).tolist()
    rows: list[_Row] = []
    apart: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (library, first, second), is_neighbour in zip(pairs, are_neighbours, strict=True):
        if is_neighbour:
            rows.append(((first, second), 1))
        else:
            apart[library].append((first, second))
    for of_library in apart.values():
        if len(of_library) < 2:
            # A library's only pair would stay together.
            continue
        shifted = of_library[1:] + of_library[:1]
        for (first, _), (_, second) in zip(of_library, shifted, strict=True):
            rows.append(((first, second), 0))
    return [rows[index] for index in generator.permutation(len(rows))]


def _distinct_sentences(documents: Iterable[DocsDocument]) -> dict[str, dict[str, list[str]]]:
    """Return the sentences that occur once and are long enough, by library and module."""
    documents = list(documents)
    counts = Counter(sentence for document in documents for sentence in document.sentences)
    modules: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        sentences = [
            sentence
            for sentence in document.sentences
            if counts[sentence] == 1 and _num_words(sentence) >= _MIN_WORDS
        ]
        if sentences:
            modules[document.library][document.module].extend(sentences)
    return modules


def _split_by_module(
    modules: dict[str, list[_Item]], sizes: Sequence[int], generator: np.random.Generator
) -> list[list[_Item]]:
    """Assign whole modules to train, validation and test, then draw at most its size from each split."""
    names = sorted(modules)
    order = generator.permutation(len(names))
    fractions = np.array(sizes) / sum(sizes)
    assigned: list[list[_Item]] = [[] for _ in sizes]
    filled = np.zeros(len(sizes))
    # Large modules first, each to the split that is least filled: every split gets some, none gets all.
    for index in sorted(order.tolist(), key=lambda index: -len(modules[names[index]])):
        module = modules[names[index]]
        target = int(np.argmin(filled / fractions))
        assigned[target] += module
        filled[target] += len(module)
    splits = []
    for rows, size in zip(assigned, sizes, strict=True):
        splits.append([rows[index] for index in generator.permutation(len(rows))[:size]])
    return splits


def _task_data(
    task: Task, kind: Kind, parts: list[list[_Row]], label_names: tuple[str, ...]
) -> TaskData:
    """Return the rows of train, validation and test as those of a task."""
    rows = [row for part in parts for row in part]
    ends = np.cumsum([len(part) for part in parts])
    train, validation, test = np.split(np.arange(len(rows), dtype=np.int64), ends[:-1])
    sentences_of_rows = [sentences for sentences, _ in rows]
    columns = tuple(list(column) for column in zip(*sentences_of_rows, strict=True))
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


def _num_words(sentence: str) -> int:
    return len(sentence.split())


TASKS = {
    "docs-library": ProbeTask(
        "docs-library", reader=lambda task, _: library_rows(task, docs_documents())
    ),
    "docs-neighbours": ProbeTask(
        "docs-neighbours", reader=lambda task, _: neighbour_rows(task, docs_documents())
    ),
}
