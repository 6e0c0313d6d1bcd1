"""Hard negatives: passages that a model ranks high for a query although they are not relevant to it.

    queries of the train part of a task -> the best passages by exact search, without the relevant ones, near-copies of
    them and of each other, and those that are as similar to the query as a relevant one -> a file of pairs

The file is what `objective: {type: contrast, positives: pairs}` reads, with `pairs: {path: FILE, first: query, second:
passage, negatives: [negative_1]}`.

Source: Xiong et al., 2021 (ANCE: negatives of the model itself); Moreira et al., 2024 (bounds by the positive's score).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from raysent.errors import ConfigError, DataError
from raysent.evaluation.division import near_copies
from raysent.evaluation.members import Model
from raysent.evaluation.retrieval import rank
from raysent.evaluation.task import RetrievalData, Task
from raysent.evaluation.tasks import find_task
from raysent.models import load
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import SentenceEncoder, check_size, normalize_rows
from raysent.storage import atomic_write

# Passages among which negatives are looked for.
_DEPTH = 100


def mine_negatives(
    model: Model,
    task: str | Task,
    output: str | Path,
    *,
    num_negatives: int = 1,
    margin: float | None = 0.05,
    data: str | Path | None = None,
) -> int:
    """Write the queries of a task's train part, each with a relevant passage and hard negatives, as JSON lines.

    Args:
        model: Whose ranking is searched, as for `evaluate`; also ``bm25``.
        task: A task with queries that has a train part.
        output: The file, with the keys ``query``, ``passage``, ``negative_1``, ….
        num_negatives: Negatives of each query.
        margin: By how much a negative's cosine with the query must be below the relevant passage's; None for no bound,
            as for ``bm25``.
        data: Folder of task files.

    Returns:
        The number of rows, one of each query and relevant passage; where fewer negatives are found, others are empty.

    Raises:
        ConfigError: If the task has no train part, or an argument is wrong.
        DataError: If no negative is found.
    """
    check_size("num_negatives", num_negatives)
    found = find_task(task, scorings={"retrieval"}).load(None if data is None else Path(data))
    assert isinstance(found, RetrievalData)
    if not len(found.train):
        raise ConfigError(
            f"task {found.task}: must have queries to train on; given none; name a train part"
        )
    encoder = model if isinstance(model, SentenceEncoder) else load(encoder_name(model))
    if encoder.cannot_encode and margin is not None:
        raise ConfigError(f"margin: must be None for {model}, which has no vectors; given {margin}")
    rows = _rows(encoder, found, num_negatives, margin)
    if not any(row["negative_1"] for row in rows):
        raise DataError(
            f"{found.task}: no passage is far enough from the relevant ones; lower the margin ({margin})"
        )
    with atomic_write(Path(output)) as temporary:
        temporary.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
        )
    return len(rows)


def _rows(
    encoder: SentenceEncoder, data: RetrievalData, num: int, margin: float | None
) -> list[dict[str, str]]:
    ranking = rank(encoder, data, data.train, depth=_DEPTH)
    rows = []
    for query, found, scores in zip(data.train.tolist(), ranking.rows, ranking.scores, strict=True):
        relevant = [
            row
            for row, grade in data.relevant[query].items()
            if grade > 0 and data.passages[row].strip()
        ]
        others = [
            row
            for row in found.tolist()
            if row >= 0 and row not in relevant and data.passages[row].strip()
        ]
        known = dict(zip(found.tolist(), scores.tolist(), strict=True))
        if margin is not None and getattr(
            encoder, "fuses_words", False
        ):  # its scores are no cosines
            known = dict(
                zip(others, _similarities(encoder, data, query, others).tolist(), strict=True)
            )
        copies = near_copies([data.passages[row] for row in (*relevant, *others)]).tolist()
        none = np.full(len(relevant), np.inf)
        bounds = none if margin is None else _similarities(encoder, data, query, relevant) - margin
        for row, bound in zip(relevant, bounds, strict=True):
            seen, chosen = set(copies[: len(relevant)]), list[int]()
            for other, copy in zip(others, copies[len(relevant) :], strict=True):
                if known[other] <= bound and copy not in seen and len(chosen) < num:
                    seen.add(copy)
                    chosen.append(other)
            texts = [data.passages[other] for other in chosen] + [""] * (num - len(chosen))
            negatives = {f"negative_{place}": text for place, text in enumerate(texts, start=1)}
            rows.append({"query": data.queries[query], "passage": data.passages[row], **negatives})
    return rows


def _similarities(
    encoder: SentenceEncoder, data: RetrievalData, query: int, passages: list[int]
) -> np.ndarray:
    """Return the similarity of a query with passages, float32 [passages], as `rank` scores them by vectors alone."""
    if not passages:
        return np.empty(0, np.float32)
    one = encoder.encode_query([data.queries[query]])
    others = encoder.encode_document([data.passages[row] for row in passages])
    if encoder.similarity_measure == "hamming":
        distances: np.ndarray = np.abs(one - others).sum(axis=1)
        return -distances
    found: np.ndarray = (normalize_rows(others) @ normalize_rows(one).T)[:, 0]
    return found
