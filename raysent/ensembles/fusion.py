"""Encoders and words that rank the passages of a task together: chosen by queries of dev, and saved as a model.

Candidates are each encoder alone, all encoders joined (the sum of their cosines), words alone, and the best of these
encoders with words, by reciprocal ranks and by a fitted weight, whose score on dev is cross-fitted. The best on dev is
taken; queries of test judge it, and by how much it is above the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from raysent.config import StrictModel
from raysent.ensembles.best import copied
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.bootstrap import BootstrapEstimate, Interval
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.fusion import Ranking, fuse
from raysent.evaluation.members import Member, Model, ensemble_members, expand, model_key, saved_path
from raysent.evaluation.retrieval import RetrievalRecord, fit_weight, mean_over_queries, rank, record_of
from raysent.evaluation.task import RetrievalData, Task
from raysent.models import load as load_model
from raysent.models.sentence_encoder import JoinedEncoders, SentenceEncoder
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import FUSION_FILE, MEMBERS_FOLDER

_KIND = "raysent fusion"
WORDS = "bm25"


class FusionCandidate(StrictModel):
    """What could be taken.

    Attributes:
        title: What it is, in words.
        members: Its encoders by name.
        word_weight: The weight of words, 1 for words alone and 0 without; None for reciprocal ranks.
        validation: nDCG@10 of the queries of dev in percent, cross-fitted where a weight was fitted.
        test: The same of the queries of test.
        interval: Its 95 % bootstrap interval.
        behind: The nDCG@10 on test of what is taken minus its own; paired.
    """

    title: str
    members: tuple[str, ...]
    word_weight: float | None
    validation: float
    test: float
    interval: Interval
    behind: BootstrapEstimate


class FusionResult(StrictModel):
    """A fusion, and what it was chosen among.

    Attributes:
        task: The task.
        num_test: Its queries of test.
        members: Its encoders by name.
        paths: Where they are, as the folder stores it.
        keys: Hashes of their content.
        word_weight: The weight of words; None for reciprocal ranks.
        candidates: All that was scored, by falling validation score; the first was taken.
    """

    task: str
    num_test: int
    members: tuple[str, ...]
    paths: dict[str, str]
    keys: dict[str, str]
    word_weight: float | None
    candidates: tuple[FusionCandidate, ...]

    @property
    def sentence(self) -> str:
        """What it is worth, and what words alone and the best encoder alone score."""
        first, (low, high) = self.candidates[0], self.candidates[0].interval
        others = [one for one in self.candidates[1:] if one.word_weight in (0.0, 1.0)]
        shown = {one.word_weight: one for one in reversed(others)}.values()
        beside = "; ".join(
            f"{one.title} {one.test:.1f}, behind by {one.behind.value:.1f} "
            f"[{one.behind.interval[0]:.1f}, {one.behind.interval[1]:.1f}]"
            for one in shown
        )
        scored = f"{self.task}: {first.title}: nDCG@10 {first.test:.1f} [{low:.1f}, {high:.1f}]"
        scored += f" on {self.num_test:,} test queries"
        return f"{scored}; {beside}" if beside else scored


class FusedModel(JoinedEncoders):
    """Encoders whose unit vectors stand one after another, and words, by which passages are ranked together.

    Attributes:
        folder: Its folder.
        result: What it is and what it scores.
        word_weight: The weight of words; None for reciprocal ranks.
    """

    fuses_words = True

    def __init__(self, encoders: Iterable[SentenceEncoder], *, folder: Path, result: FusionResult) -> None:
        """Join loaded encoders; `load_fusion` does so from a folder."""
        super().__init__(encoders)
        self.folder, self.result, self.word_weight = folder, result, result.word_weight


def load_fusion(folder: Path) -> FusedModel:
    """Load a saved fusion.

    Raises:
        ArtifactError: If a file is missing or of another kind, or a member changed since.
    """
    result = _read(folder)
    encoders = []
    for name, path in zip(result.members, ensemble_members(folder), strict=True):
        if model_key(path) != result.keys[name]:
            raise ArtifactError(f"{address_of(folder / FUSION_FILE)}: member '{name}' changed since; make it again")
        encoders.append(load_model(path))
    return FusedModel(encoders, folder=folder, result=result)


def _read(folder: Path) -> FusionResult:
    values = read_json(folder / FUSION_FILE)
    try:
        if values.pop("kind") != _KIND:
            raise KeyError("kind")
        return FusionResult.model_validate(values, strict=False)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ArtifactError(f"{address_of(folder)}: no {FUSION_FILE} of this version; make it again") from None


def save_fusion(
    models: Sequence[Model], task: Task, evaluator: Evaluator, *, folder: Path, copies: bool = False
) -> FusionResult:
    """Choose how encoders and words rank the passages of a task, and save it into a folder.

    Args:
        models: The encoders; words take part always.
        task: A task with queries.
        evaluator: Makes their rankings, or reads them.
        folder: The folder to write.
        copies: Whether trained models are copied into the folder, so that it can be moved alone.

    Raises:
        ConfigError: If no encoder is named, or bm25s is not installed.
        RaysentError: If a model or the task cannot be read, or the folder cannot be written.
    """
    encoders = [one for one in expand(models) if one.path != WORDS]
    if not encoders:
        raise ConfigError("models: must be at least one encoder to rank passages with words; given none")
    data = task.load(evaluator.data_dir)
    assert isinstance(data, RetrievalData)
    members = [*encoders, *expand([WORDS])]
    found = evaluator.results(members, [task])
    rankings = {member: record.ranking for member, (record,) in found.items() if isinstance(record, RetrievalRecord)}
    words = rankings[members[-1]]
    scored: list[tuple[tuple[Member, ...], float | None, RetrievalRecord]] = []

    def add(some: tuple[Member, ...], weight: float | None, ranking: Ranking, held_out: float | None = None) -> None:
        title = _title(some, weight)
        scored.append((some, weight, record_of(ranking, data, model=title, validation=held_out)))

    for member in encoders:
        add((member,), 0.0, rankings[member])
    if len(encoders) > 1:
        loaded = [evaluator.load(one.path) if one.encoder is None else one.encoder for one in encoders]
        add(tuple(encoders), 0.0, rank(JoinedEncoders(loaded), data, words.queries))
    best = max(scored, key=lambda one: one[2].score.validation)
    is_dev = np.arange(len(words.queries)) < len(data.dev)
    vectors = best[2].ranking
    weight, held_out = fit_weight(_part(vectors, is_dev), _part(words, is_dev), data)
    add(best[0], 1.0, words)
    add(best[0], None, fuse(vectors, words))
    if 0 < weight < 1:
        add(best[0], weight, fuse(vectors, words, weight=weight), 100 * held_out)
    result = _result(scored, data, folder, copies=copies)
    write_json(folder / FUSION_FILE, {"kind": _KIND, **result.model_dump(mode="json")})
    return result


def _title(members: Sequence[Member], weight: float | None) -> str:
    if weight == 1:
        return WORDS
    names = " + ".join(one.name for one in members)
    how = {0.0: "", None: " (reciprocal ranks)"}.get(weight, f" (weight {weight:.2f})" if weight is not None else "")
    return f"{names}{how and f' + {WORDS}'}{how}"


def _part(ranking: Ranking, is_kept: np.ndarray) -> Ranking:
    return Ranking(ranking.queries[is_kept], ranking.rows[is_kept], ranking.scores[is_kept])


def _result(
    scored: Sequence[tuple[tuple[Member, ...], float | None, RetrievalRecord]],
    data: RetrievalData,
    folder: Path,
    *,
    copies: bool,
) -> FusionResult:
    """Return the best candidate on dev, with all others, its members as they are stored."""
    ordered = sorted(scored, key=lambda one: -one[2].score.validation)
    members, weight, _ = ordered[0]
    means = [mean_over_queries(record.score.by_query, task=data.task) for *_, record in ordered]
    candidates = tuple(
        FusionCandidate(
            title=record.score.model,
            members=tuple(one.name for one in some),
            word_weight=share,
            validation=record.score.validation,
            test=mean.value,
            interval=mean.interval,
            behind=means[0].minus(mean),
        )
        for (some, share, record), mean in zip(ordered, means, strict=True)
    )
    kept = [copied(one, folder / MEMBERS_FOLDER / one.folder) if copies else one for one in members]
    return FusionResult(
        task=data.task,
        num_test=len(data.test),
        members=tuple(one.name for one in kept),
        paths={one.name: saved_path(one.path, folder) for one in kept},
        keys={one.name: one.key for one in kept},
        word_weight=weight,
        candidates=candidates,
    )
