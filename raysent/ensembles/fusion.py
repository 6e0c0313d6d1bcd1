"""Encoders and words that rank the passages of a task together: chosen by queries of dev, and saved as a model.

Candidates are each encoder alone, all encoders joined (the sum of their cosines), words alone, and the best of these
encoders with words, by reciprocal ranks and by a fitted weight, whose score on dev is cross-fitted. The best on dev is
taken; queries of test judge it, and by how much it is above the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from raysent.config import StrictModel
from raysent.ensembles.answer import Answer, Candidate, answer_card
from raysent.ensembles.best import ALONE
from raysent.ensembles.kept import kept, kept_lines
from raysent.ensembles.result import read_result
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.fusion import Ranking, fuse
from raysent.evaluation.members import (
    Member,
    Model,
    ensemble_members,
    expand,
    load_saved,
    saved_path,
)
from raysent.evaluation.retrieval import (
    RetrievalRecord,
    fit_weight,
    mean_over_queries,
    rank,
    record_of,
)
from raysent.evaluation.task import RetrievalData, Task
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.titles import model_title, shown_name
from raysent.models.sentence_encoder import JoinedEncoders, SentenceEncoder
from raysent.storage import address_of, read_json, write_json, write_text
from raysent.storage.layout import (
    BEST_FOLDER,
    CARD_FILE,
    ENSEMBLE_FILE,
    FUSION_FILE,
    MEMBERS_FOLDER,
)

_KIND = "raysent fusion"
WORDS = "bm25"
# The weight of words -> how it is said beside the names; others are said as they are.
_METHODS = {0.0: "sum of cosines", 1.0: ALONE, None: "reciprocal ranks"}


class FusionResult(StrictModel):
    """A fusion, and what it was chosen among.

    Attributes:
        members: Its encoders by name.
        paths: Where they are, as the folder stores it.
        keys: Hashes of their content.
        word_weight: The weight of words; None for reciprocal ranks.
        answer: How it was chosen, and what it scores.
    """

    members: tuple[str, ...]
    paths: dict[str, str]
    keys: dict[str, str]
    word_weight: float | None
    answer: Answer


class FusedModel(JoinedEncoders):
    """Encoders whose unit vectors stand one after another, and words, by which passages are ranked together.

    Attributes:
        folder: Its folder.
        result: What it is and what it scores.
        word_weight: The weight of words; None for reciprocal ranks.
    """

    fuses_words = True

    def __init__(
        self, encoders: Iterable[SentenceEncoder], *, folder: Path, result: FusionResult
    ) -> None:
        """Join loaded encoders; `load_fusion` does so from a folder."""
        super().__init__(encoders)
        self.folder = folder
        self.result = result
        self.word_weight = result.word_weight


def load_fusion(folder: Path) -> FusedModel:
    """Load a saved fusion.

    Raises:
        ArtifactError: If a file is missing or of another kind, or a member changed since.
    """
    fusion = _read(folder)
    encoders = []
    for name, path in zip(fusion.members, ensemble_members(folder), strict=True):
        encoder = load_saved(path, fusion.keys[name])
        if encoder is None:
            raise ArtifactError(
                f"{address_of(folder / FUSION_FILE)}: member '{name}' changed since; make it again"
            )
        encoders.append(encoder)
    return FusedModel(encoders, folder=folder, result=fusion)


def read_answers(run: Path) -> list[tuple[Path, Answer]]:
    """Return the folder of each answer of a run, and the answer, by task; none where nothing was chosen.

    Raises:
        ArtifactError: If a file is of another kind or version.
    """
    folders = [run / BEST_FOLDER, *sorted((run / BEST_FOLDER).glob("*/"))]
    answers = []
    for folder in folders:
        if (folder / ENSEMBLE_FILE).is_file():
            answer = read_result(folder).answer
            if answer is not None:
                answers.append((folder, answer))
    for folder in folders:
        if (folder / FUSION_FILE).is_file():
            answers.append((folder, _read(folder).answer))
    return answers


def _read(folder: Path) -> FusionResult:
    about = read_json(folder / FUSION_FILE)
    try:
        if about.pop("kind") != _KIND:
            raise KeyError("kind")
        return FusionResult.model_validate(about, strict=False)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ArtifactError(
            f"{address_of(folder)}: no {FUSION_FILE} of this version; make it again"
        ) from None


def save_fusion(
    models: Sequence[Model],
    task: Task,
    evaluator: Evaluator,
    *,
    folder: Path,
    copies: bool = False,
    copies_hub: bool = False,
) -> FusionResult:
    """Choose how encoders and words rank the passages of a task, and save it into a folder.

    Args:
        models: The encoders; words take part always.
        task: A task with queries.
        evaluator: Makes their rankings, or reads them; one that divides.
        folder: The folder to write.
        copies: Whether models are copied into the folder, so that it can be moved alone; see `kept`.
        copies_hub: Whether pretrained encoders of the hub are copied too.

    Raises:
        ConfigError: If no encoder is named, or bm25s is not installed.
        RaysentError: If a model or the task cannot be read, or the folder cannot be written.
    """
    encoders = [member for member in expand(models) if member.path != WORDS]
    if not encoders:
        raise ConfigError(
            "models: must be at least one encoder to rank passages with words; given none"
        )
    rows = task.load(evaluator.data_dir)
    assert isinstance(rows, RetrievalData)
    data = with_dev(rows)
    members = [*encoders, *expand([WORDS])]
    records: dict[Member, RetrievalRecord] = {}
    for member, (record,) in evaluator.results(members, [task]).items():
        if isinstance(record, RetrievalRecord):
            records[member] = record
    encoders = [member for member in encoders if member in records]
    words = records[members[-1]].ranking
    candidates = [_scored((member,), 0.0, records[member].ranking, data) for member in encoders]
    if len(encoders) > 1:
        joined = JoinedEncoders([_loaded(member, evaluator) for member in encoders])
        ranking = rank(joined, data, words.queries)
        candidates.append(_scored(tuple(encoders), 0.0, ranking, data))
    best = max(candidates, key=lambda candidate: candidate.dev_score)
    vectors = best.record.ranking
    # The records rank the queries of dev first.
    is_dev = np.arange(len(words.queries)) < len(data.dev)
    weight, held_out = fit_weight(_part(vectors, is_dev), _part(words, is_dev), data)
    candidates.append(_scored(best.encoders, 1.0, words, data))
    candidates.append(_scored(best.encoders, None, fuse(vectors, words), data))
    if 0 < weight < 1:
        ranking = fuse(vectors, words, weight=weight)
        candidates.append(_scored(best.encoders, weight, ranking, data, validation=100 * held_out))
    keep: Callable[[Member], Member] | None = None
    if copies:
        keep = partial(kept, members_folder=folder / MEMBERS_FOLDER, copies_hub=copies_hub)
    fusion = _result(candidates, records, data, folder, keep=keep)
    if copies:
        write_text(folder / CARD_FILE, answer_card(folder, fusion.answer))
    write_json(folder / FUSION_FILE, {"kind": _KIND, **fusion.model_dump(mode="json")})
    return fusion


@dataclass(frozen=True)
class _Scored:
    """A candidate.

    Attributes:
        encoders: The encoders whose vectors rank.
        word_weight: The weight of words; None for reciprocal ranks.
        record: What it finds, and its scores.
    """

    encoders: tuple[Member, ...]
    word_weight: float | None
    record: RetrievalRecord

    @property
    def dev_score(self) -> float:
        """The score by which something is chosen, of a task with queries of dev."""
        assert self.record.score.validation is not None
        return self.record.score.validation


def _scored(
    encoders: tuple[Member, ...],
    word_weight: float | None,
    ranking: Ranking,
    data: RetrievalData,
    *,
    validation: float | None = None,
) -> _Scored:
    record = record_of(ranking, data, model=encoders[0].name, validation=validation)
    return _Scored(encoders, word_weight, record)


def _loaded(member: Member, evaluator: Evaluator) -> SentenceEncoder:
    if member.encoder is None:
        return evaluator.load(member.path)
    return member.encoder


def _part(ranking: Ranking, is_dev: np.ndarray) -> Ranking:
    return Ranking(ranking.queries[is_dev], ranking.rows[is_dev], ranking.scores[is_dev])


def _result(
    candidates: Sequence[_Scored],
    records: Mapping[Member, RetrievalRecord],
    data: RetrievalData,
    folder: Path,
    *,
    keep: Callable[[Member], Member] | None,
) -> FusionResult:
    """Return the best candidate on dev as a fusion; its answer shows all of them, the best first."""
    ordered = sorted(candidates, key=lambda candidate: -candidate.dev_score)
    means = [
        mean_over_queries(candidate.record.score.by_query, task=data.task) for candidate in ordered
    ]
    shown = []
    simplest = None
    for index, (candidate, mean) in enumerate(zip(ordered, means, strict=True)):
        encoders = candidate.encoders
        if candidate.word_weight == 1:
            # Words alone need no encoder.
            encoders = ()
            simplest = index
        names = [member.name for member in encoders]
        titles = [model_title(member.path, member.name) for member in encoders]
        if candidate.word_weight != 0:
            names.append(WORDS)
            titles.append(shown_name(WORDS))
        scores = [records[member].score for member in encoders]
        shown.append(
            Candidate(
                members=tuple(names),
                method=_METHODS.get(candidate.word_weight, f"words weigh {candidate.word_weight}"),
                validation=candidate.dev_score,
                test=mean.value,
                interval=mean.interval,
                behind=means[0].minus(mean),
                encode_ms=sum(score.encode_ms or 0.0 for score in scores),
                num_bytes=sum(score.costs.num_bytes or 0 for score in scores),
                titles=tuple(titles),
            )
        )
    answer = Answer(
        task=data.task,
        metric="ndcg_at_10",
        num_test=len(data.test),
        num_dev=len(data.dev),
        prefer=None,
        taken=0,
        simplest=simplest,
        majority=None,
        over_majority=None,
        candidates=tuple(shown),
    )
    members = list(ordered[0].encoders)
    if keep is not None:
        members = [keep(member) for member in members]
        answer = answer.model_copy(update={"kept": kept_lines(members, folder)})
    return FusionResult(
        members=tuple(member.name for member in members),
        paths={member.name: saved_path(member.path, folder) for member in members},
        keys={member.name: member.key for member in members},
        word_weight=ordered[0].word_weight,
        answer=answer,
    )
