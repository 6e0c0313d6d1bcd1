"""Scores against the number of pairs of a query and a passage: models that are trained further on so many, and words.

A draw is some queries of the train part with their relevant passages; smaller draws are the beginning of larger ones,
and all models share them. A fifth of a draw chooses, ranked among all passages: the model as it is, or trained further
on the rest by `contrast` at one of two learning rates; and the weight of words. Queries of dev are not read, and those
of test judge.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from raysent import config as configuration
from raysent.config import Document
from raysent.ensembles.label_curves import (
    ALL,
    SEED,
    Curve,
    LabelCurve,
    estimate_of,
    leaders,
    mean_over_draws,
)
from raysent.errors import ConfigError
from raysent.evaluation.fusion import Ranking, fuse
from raysent.evaluation.members import Member, model_folder
from raysent.evaluation.retrieval import fit_weight, measure, rank
from raysent.evaluation.task import RetrievalData
from raysent.models import load
from raysent.models.schemes.bm25 import Bm25Model
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.parallel import Progress
from raysent.pipeline.arguments import TRANSFORMERS, is_transformer, print_warning, start_of
from raysent.training.loop import fit
from raysent.training.run import RunConfig

# Chosen on queries of dev of Quora's questions, with a bag of words and a small transformer of novels.
_RATES, _RATES_OF_TRANSFORMERS = (1e-3, 1e-2), (3e-5, 3e-4)
_WORDS, _NUM_DRAWS, _CHOOSING = "bm25", 3, 5
_MOST_PAIRS_A_STEP, _FEWEST_STEPS, _FEWEST_EPOCHS = 64, 300, 10


def pair_curve(
    data: RetrievalData,
    members: Sequence[Member],
    *,
    sizes: Sequence[int | str],
    progress: Progress | None = None,
) -> LabelCurve:
    """Return the nDCG@10 of models on a task with queries against the number of pairs, with intervals.

    Args:
        data: The task, with a train part.
        members: The models; one that is no training and no transformer, or cannot learn pairs, is scored as it is.
        sizes: Numbers of pairs, or ``all``.
        progress: Called with the progress.

    Raises:
        ConfigError: If the task has fewer pairs to train on than the smallest size.
        RaysentError: If a model cannot rank.
    """
    draws, asked = _draws(data, sizes), np.concatenate([data.train, data.test])
    loaded = {
        one: load(one.path) if one.encoder is None else one.encoder
        for one in members
        if one.name != _WORDS
    }
    known = {_WORDS: rank(Bm25Model(), data, asked)}
    known |= {
        f"{one.name}, as it is": rank(encoder, data, asked) for one, encoder in loaded.items()
    }
    runs = {one: _runs(one) for one in loaded}
    values: dict[tuple[str, int], list[list[np.ndarray]]] = defaultdict(list)
    total = _NUM_DRAWS * len(draws)
    for number, (count, queries) in enumerate(
        (count, one) for count, of_size in draws.items() for one in of_size
    ):
        if progress is not None:
            progress(f"{data.task}: trained on {count:,} pairs", number, total)
        train, chosen = np.split(queries, [len(queries) - max(1, len(queries) // _CHOOSING)])
        found = {name: [_of(one, chosen), _of(one, data.test)] for name, one in known.items()}
        for member in loaded:
            candidates = [found[f"{member.name}, as it is"]]
            for encoder in _trained(runs[member], data, train):
                candidates.append([rank(encoder, data, part) for part in (chosen, data.test)])
            best = max(
                candidates, key=lambda rankings: float(measure(rankings[0], data)[:, 0].mean())
            )
            weight, _ = fit_weight(best[0], found[_WORDS][0], data)
            both = zip(best, found[_WORDS], strict=True)
            fused = [fuse(vectors, words, weight=weight) for vectors, words in both]
            found |= {member.name: best, f"{member.name} + {_WORDS}": fused}
        for name, rankings in found.items():
            values[name, count].append([100 * measure(one, data)[:, 0] for one in rankings])
    means = {
        key: mean_over_draws([test for _, test in of_draws]) for key, of_draws in values.items()
    }
    names = list(dict.fromkeys(name for name, _ in values))
    curves = {
        name: Curve(
            kind="baseline"
            if name in known
            else "ensemble"
            if name.endswith(f" + {_WORDS}")
            else "member",
            points=tuple(estimate_of(means[name, count]) for count in draws),
            validation=tuple(
                float(np.mean([chosen.mean() for chosen, _ in values[name, count]]))
                for count in draws
            ),
        )
        for name in names
    }
    return LabelCurve(
        task=data.task,
        metric="ndcg_at_10",
        sizes=tuple(draws),
        num_draws=(_NUM_DRAWS,) * len(draws),
        num_test=len(data.test),
        chance=0.0,
        curves=curves,
        sentence=f"{data.task}: {leaders(names, list(draws), lambda *key: means[key], what='pairs')}",
    )


def _draws(data: RetrievalData, sizes: Sequence[int | str]) -> dict[int, list[np.ndarray]]:
    pairs = {place: len(_relevant(data, place)) for place in data.train.tolist()}
    total = sum(pairs.values())
    counts = sorted({total if size == ALL else int(size) for size in sizes})
    if not any(0 < count <= total for count in counts):
        raise ConfigError(
            f"labels: {data.task} has {total} pairs to train on; name fewer, or a train part"
        )
    orders = [
        np.random.default_rng((SEED, number)).permutation(data.train)
        for number in range(_NUM_DRAWS)
    ]
    ends = [np.cumsum([pairs[place] for place in order.tolist()]) for order in orders]
    draws = {
        count: [
            order[: np.searchsorted(end, count, "right")]
            for order, end in zip(orders, ends, strict=True)
        ]
        for count in counts
        if count <= total
    }
    for count, of_size in draws.items():
        if min(map(len, of_size)) < 2:  # one trains, one chooses
            raise ConfigError(
                f"labels {count}: {data.task} must have two queries in so many pairs; name more pairs"
            )
    return draws


def _relevant(data: RetrievalData, query: int) -> list[int]:
    return [row for row, grade in data.relevant[query].items() if grade > 0]


def _of(ranking: Ranking, queries: np.ndarray) -> Ranking:
    places = {query: place for place, query in enumerate(ranking.queries.tolist())}
    rows = [places[query] for query in queries.tolist()]
    return Ranking(queries, ranking.rows[rows], ranking.scores[rows])


def _runs(member: Member) -> list[RunConfig]:
    """Return runs that train a model on pairs, at each learning rate; none, and a line why, where it cannot."""
    place = Path(member.path)
    if model_folder(place) is None and not is_transformer(place):
        return []
    start, kind, _ = start_of(place)
    settings: dict[str, Any] = {
        **start,
        "pairs": {"path": "", "first": "first", "second": "second", "validation_path": ""},
        "objective": {"type": "contrast", "positives": "pairs"},
        "seed": SEED,
    }
    runs = []
    for rate in _RATES_OF_TRANSFORMERS if kind in TRANSFORMERS else _RATES:
        training = {"learning_rate": rate, "schedule": "linear", "num_reports": 1}
        document = Document({**settings, "training": training}, source=member.name)
        try:
            runs.append(configuration.validate(RunConfig, document))
        except ConfigError as error:
            print_warning(f"not trained on pairs: {error}")
            return []
    return runs


def _trained(
    runs: Sequence[RunConfig], data: RetrievalData, queries: np.ndarray
) -> list[SentenceEncoder]:
    pairs = [
        (data.queries[query], data.passages[row])
        for query in queries.tolist()
        for row in _relevant(data, query)
    ]
    size, found = min(_MOST_PAIRS_A_STEP, len(pairs)), list[SentenceEncoder]()
    steps = {"batch_size": size, "epochs": max(_FEWEST_EPOCHS, _FEWEST_STEPS * size / len(pairs))}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.jsonl"
        path.write_text(
            "".join(json.dumps({"first": one, "second": other}) + "\n" for one, other in pairs),
            "utf-8",
        )
        for number, run in enumerate(runs):
            assert run.pairs is not None
            own = run.pairs.model_copy(update={"path": str(path), "validation_path": str(path)})
            changed = {"pairs": own, "training": run.training.model_copy(update=steps)}
            fit(run.model_copy(update=changed), place := Path(folder) / str(number))
            found.append(load(place))
    return found
