"""Encoders and words that rank the passages of a task together: chosen by queries of dev, and saved as a model.

Candidates are each encoder alone, all encoders joined (the sum of their cosines), words alone, and the best of these
encoders with words, by reciprocal ranks and by a fitted weight, whose score on dev is cross-fitted. The best on dev is
taken; queries of test judge it, and by how much it is above the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
        self.folder, self.result, self.word_weight = folder, result, result.word_weight


def load_fusion(folder: Path) -> FusedModel:
    """Load a saved fusion.

    Raises:
        ArtifactError: If a file is missing or of another kind, or a member changed since.
    """
    result = _read(folder)
    encoders = []
    for name, path in zip(result.members, ensemble_members(folder), strict=True):
        encoder = load_saved(path, result.keys[name])
        if encoder is None:
            raise ArtifactError(
                f"{address_of(folder / FUSION_FILE)}: member '{name}' changed since; make it again"
            )
        encoders.append(encoder)
    return FusedModel(encoders, folder=folder, result=result)


def read_answers(run: Path) -> list[tuple[Path, Answer]]:
    """Return the folder of each answer of a run, and the answer, by task; none where nothing was chosen.

    Raises:
        ArtifactError: If a file is of another kind or version.
    """
    places = [run / BEST_FOLDER, *sorted((run / BEST_FOLDER).glob("*/"))]
    found = [
        (place, read_result(place).answer) for place in places if (place / ENSEMBLE_FILE).is_file()
    ]
    found += [(place, _read(place).answer) for place in places if (place / FUSION_FILE).is_file()]
    return [(place, answer) for place, answer in found if answer is not None]


def _read(folder: Path) -> FusionResult:
    values = read_json(folder / FUSION_FILE)
    try:
        if values.pop("kind") != _KIND:
            raise KeyError("kind")
        return FusionResult.model_validate(values, strict=False)
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
    encoders = [one for one in expand(models) if one.path != WORDS]
    if not encoders:
        raise ConfigError(
            "models: must be at least one encoder to rank passages with words; given none"
        )
    given = task.load(evaluator.data_dir)
    assert isinstance(given, RetrievalData)
    data = with_dev(given)
    members = [*encoders, *expand([WORDS])]
    made = {member: record for member, (record,) in evaluator.results(members, [task]).items()}
    found = {
        member: record for member, record in made.items() if isinstance(record, RetrievalRecord)
    }
    encoders = [member for member in encoders if member in found]
    words = found[members[-1]].ranking
    scored: list[tuple[tuple[Member, ...], float | None, RetrievalRecord]] = []

    def add(
        some: tuple[Member, ...],
        weight: float | None,
        ranking: Ranking,
        held_out: float | None = None,
    ) -> None:
        scored.append(
            (some, weight, record_of(ranking, data, model=some[0].name, validation=held_out))
        )

    for member in encoders:
        add((member,), 0.0, found[member].ranking)
    if len(encoders) > 1:
        loaded = [
            evaluator.load(one.path) if one.encoder is None else one.encoder for one in encoders
        ]
        add(tuple(encoders), 0.0, rank(JoinedEncoders(loaded), data, words.queries))
    best = max(scored, key=lambda one: _on_dev(one[2]))
    is_dev = np.arange(len(words.queries)) < len(data.dev)
    vectors = best[2].ranking
    weight, held_out = fit_weight(_part(vectors, is_dev), _part(words, is_dev), data)
    add(best[0], 1.0, words)
    add(best[0], None, fuse(vectors, words))
    if 0 < weight < 1:
        add(best[0], weight, fuse(vectors, words, weight=weight), 100 * held_out)
    keep = partial(kept, members_folder=folder / MEMBERS_FOLDER, copies_hub=copies_hub)
    result = _result(scored, found, data, folder, keep=keep if copies else None)
    if copies:
        write_text(folder / CARD_FILE, answer_card(folder, result.answer))
    write_json(folder / FUSION_FILE, {"kind": _KIND, **result.model_dump(mode="json")})
    return result


def _on_dev(record: RetrievalRecord) -> float:
    """Return the score by which something is chosen, of a task with queries of dev."""
    assert record.score.validation is not None
    return record.score.validation


def _part(ranking: Ranking, is_kept: np.ndarray) -> Ranking:
    return Ranking(ranking.queries[is_kept], ranking.rows[is_kept], ranking.scores[is_kept])


def _result(
    scored: Sequence[tuple[tuple[Member, ...], float | None, RetrievalRecord]],
    found: Mapping[Member, RetrievalRecord],
    data: RetrievalData,
    folder: Path,
    *,
    keep: Callable[[Member], Member] | None,
) -> FusionResult:
    ordered = sorted(scored, key=lambda one: -_on_dev(one[2]))
    members, weight, _ = ordered[0]
    means = [mean_over_queries(record.score.by_query, task=data.task) for *_, record in ordered]
    candidates = []
    for (some, share, record), mean in zip(ordered, means, strict=True):
        needed = () if share == 1 else some
        candidates.append(
            Candidate(
                members=(*(one.name for one in needed), *([] if share == 0 else [WORDS])),
                method=_METHODS.get(share, f"words weigh {share}"),
                validation=_on_dev(record),
                test=mean.value,
                interval=mean.interval,
                behind=means[0].minus(mean),
                encode_ms=sum(found[one].score.encode_ms or 0.0 for one in needed),
                num_bytes=sum(found[one].score.costs.num_bytes or 0 for one in needed),
                titles=(
                    *(model_title(member.path, member.name) for member in needed),
                    *([] if share == 0 else [shown_name(WORDS)]),
                ),
            )
        )
    answer = Answer(
        task=data.task,
        metric="ndcg_at_10",
        num_test=len(data.test),
        num_dev=len(data.dev),
        prefer=None,
        taken=0,
        simplest=next(place for place, (_, share, _) in enumerate(ordered) if share == 1),
        majority=None,
        over_majority=None,
        candidates=tuple(candidates),
    )
    kept_members = [one if keep is None else keep(one) for one in members]
    if keep is not None:
        answer = answer.model_copy(update={"kept": kept_lines(kept_members, folder)})
    return FusionResult(
        members=tuple(one.name for one in kept_members),
        paths={one.name: saved_path(one.path, folder) for one in kept_members},
        keys={one.name: one.key for one in kept_members},
        word_weight=weight,
        answer=answer,
    )
