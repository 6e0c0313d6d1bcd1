"""What an evaluation finds, and the files that keep it.

`Record` is everything about one model on one task with a probe: scores, labels, log-probabilities per fold, the probe.
`Score` is its scores alone; `SimilarityScore` is the scores of a model's own similarity, for which nothing is trained.

In an `evaluation/` folder a record is `<model>/<task>.json` (protocol, settings, versions, hashes, scores, seconds) and
`<task>.npz` (labels, rows and log-probabilities per fold, the probe); a similarity score is `<model>/<task>.json`.
Records of protocols other than `fast` have a folder below the model's, as `<model>/senteval-prototyping/<task>.json`;
`MtebScore` is the score of a task of the `mteb` package, `<model>/mteb/<task>.json`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from raysent import __version__
from raysent.data.labels import LabelKind
from raysent.errors import ArtifactError
from raysent.evaluation.bootstrap import Interval
from raysent.evaluation.members import model_folder, part_paths
from raysent.evaluation.probes.results import FoldResult, Probe
from raysent.evaluation.targets import Targets
from raysent.evaluation.task import Metric, TaskData
from raysent.evaluation.units import EACH_ROW
from raysent.progress import SECONDS_PER_HOUR
from raysent.storage import (
    address_of,
    file_sha256,
    load_arrays,
    path_below,
    read_json,
    remove,
    save_arrays,
    tensor_types,
    write_json,
)
from raysent.storage.layout import (
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    FUSION_FILE,
    OUTCOME_FILE,
    TENSORS_FILE,
)

KIND = "raysent evaluation"
# The protocol of scores for which nothing is trained.
SIMILARITY = "similarity"
# The protocol of scores that the mteb package computes.
MTEB = "mteb"
# Libraries whose versions scores may depend on.
LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch")
_PLAIN = (
    "model",
    "model_key",
    "task",
    "kind",
    "protocol",
    "row_hash",
    "key",
    "validation",
    "test",
    "measures",
)
# The other arrays of a record, as a file calls them; and the key of the hash of their file.
_ARRAYS = ("labels", "scores", "units", "probe_weights", "probe_intercepts")
ARRAYS_KEY = "arrays"
# Begins the names of what `Record.arrays` holds.
_MODEL_ARRAYS = "model_"
_ABOUT = ("settings", "interval", "num_unfinished_fits", "versions", "seconds")
# The arrays of a fold, as `FoldResult` and, after its number, a file call them.
_OF_FOLD = (
    "validation_rows",
    "validation_log_probabilities",
    "test_rows",
    "test_log_probabilities",
)


@dataclass(frozen=True)
class Costs:
    """A model's costs; None where they are unknown.

    Attributes:
        num_parameters: Numbers in the model's file: of all towers, including word vectors.
        num_bytes: Size of the files that the model is loaded from.
        training_hours: Wall-clock time of training and validation.
    """

    num_parameters: int | None = None
    num_bytes: int | None = None
    training_hours: float | None = None

    def __add__(self, other: Costs) -> Costs:
        """Return the costs of both together; unknown if one of them is."""
        sums = []
        for pair in zip(astuple(self), astuple(other), strict=True):
            sums.append(None if None in pair else sum(pair))
        return Costs(*sums)


@dataclass(frozen=True)
class Record:
    """Everything about a model on a task with a probe.

    Attributes:
        model: The member's name.
        model_key: A hash of the model's content.
        task: The task's name.
        kind: What a row is, see `TaskData`.
        protocol: A name in `PROTOCOLS`.
        label_names: The names of the classes [classes].
        row_hash: A hash of the rows' content.
        key: A hash of model, rows, protocol and settings.
        labels: The classes of the rows, int64 [rows].
        scores: For scored pairs, the scores of the rows, float64 [rows]; else empty.
        validation: On rows that chose the probe, the score in percent; see `targets`.
        test: The same on rows that chose nothing.
        measures: Other measures of the test rows by name.
        folds: Log-probabilities per outer fold.
        probe: The probe, fitted on all rows that may train.
        about: Settings, 95 % interval of `test`, versions, seconds, the model's costs, and `TaskData.scale`.
        arrays: What a model without vectors of a fixed size needs to predict, such as its vocabulary.
        metric: What counts, for tasks with classes.
        units: Which rows belong together, int64 [rows], as of `TaskData`; empty in records of earlier versions.
        label_kind: The type of the labels, which answers have; text in records of earlier versions.
    """

    model: str
    model_key: str
    task: str
    kind: str
    protocol: str
    label_names: tuple[str, ...]
    row_hash: str
    key: str
    labels: np.ndarray
    scores: np.ndarray
    validation: float
    test: float
    measures: Mapping[str, float]
    folds: tuple[FoldResult, ...]
    probe: Probe
    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    metric: Metric = "accuracy"
    units: np.ndarray = field(default_factory=lambda: EACH_ROW)
    label_kind: LabelKind = "text"

    @property
    def targets(self) -> Targets:
        """What predictions of the rows are scored against."""
        return Targets(self.labels, self.scores, self.metric, self.units)

    @property
    def score(self) -> Score:
        """The scores alone."""
        return score_of({name: getattr(self, name) for name in _PLAIN} | dict(self.about))


@dataclass(frozen=True)
class Score:
    """A model's scores on a task with a probe.

    Attributes:
        model: The member's name.
        task: The task's name.
        protocol: A name in `PROTOCOLS`.
        validation: On rows that chose the probe, the score in the task's metric, in percent; None where nothing was
            chosen, as on a task that has test queries alone.
        test: The same on rows that chose nothing.
        interval: 95 % bootstrap interval of `test`; None if a file lacks it.
        measures: Other measures of the test rows by name: `f1` in percent; `pearson` and `spearman` times 100; `mse`.
        row_hash: A hash of the rows' content; empty if a file lacks it.
        costs: The model's costs.
        learned: Whether the model was trained on labels of the task's training rows.
        encode_ms: Milliseconds to encode 1,000 sentences, warm; of TF-IDF, to weigh the words; None if a file lacks it.
        by_query: The nDCG@10 of each test query, from 0 to 1, for tasks with queries; else empty.
        num_queries: How many queries of dev chose and how many of test were tested, for tasks with queries; else empty.
    """

    model: str
    task: str
    protocol: str
    validation: float | None
    test: float
    interval: Interval | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    row_hash: str = ""
    costs: Costs = field(default_factory=Costs)
    learned: bool = False
    encode_ms: float | None = field(default=None, compare=False)  # two measurements differ
    by_query: tuple[float, ...] = ()
    num_queries: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_correlation(self) -> bool:
        """Whether the score is a correlation, which has no place in a mean of accuracies."""
        return "pearson" in self.measures

    @property
    def f1(self) -> float | None:
        """The F1 in percent, for tasks that have one."""
        return self.measures.get("f1")


LEARNED = "*"
LEARNED_NOTE = (
    "* the model was trained on labels of the task's training rows; "
    "its test rows are read by the score alone"
)
"""Marks a score of a model that learned from the task's labels, and says so below a table."""


def mean_heading(tasks: Collection[str]) -> str:
    """Return the heading of the mean over tasks, which must not be that of a task: a table may be called mean.csv."""
    if "mean" in tasks:
        return "mean of all tasks"
    return "mean"


@dataclass(frozen=True)
class SimilarityScore:
    """The scores of a model's own similarity on a task: correlations with human ratings, times 100.

    It has the attributes of a `Score` that a table needs: `protocol`, `validation`, `test`, `interval`, `f1`, `costs`.

    Attributes:
        model: The member's name.
        task: The task's name.
        measure: How two vectors are compared, `cosine` or `hamming`.
        pearson: Pearson's correlation, the plain mean over sets.
        pearson_weighted: The mean weighted by the sets' numbers of pairs.
        pearson_all: One correlation over all pairs.
        spearman: Spearman's correlation, the plain mean over sets.
        spearman_weighted: The mean weighted by the sets' numbers of pairs.
        spearman_all: One correlation over all pairs.
        by_set: Pearson's correlation of each set.
        spearman_by_set: Spearman's correlation of each set.
        num_pairs: The number of pairs of all sets.
        measures: For scores of 0 and 1, as of paraphrases: `accuracy` and `f1` in percent on the last set, whose pairs
            are predicted as 1 above the `threshold`, the first set's mean similarity.
    """

    model: str
    task: str
    measure: str
    pearson: float
    pearson_weighted: float
    pearson_all: float
    spearman: float
    spearman_weighted: float
    spearman_all: float
    by_set: dict[str, float]
    spearman_by_set: dict[str, float]
    num_pairs: int
    measures: dict[str, float]

    protocol: ClassVar[str] = SIMILARITY
    validation: ClassVar[float | None] = None
    interval: ClassVar[Interval | None] = None
    costs: ClassVar[Costs] = Costs()
    is_correlation: ClassVar[bool] = True

    @property
    def score(self) -> SimilarityScore:
        """The scores alone, as of a record."""
        return self

    @property
    def test(self) -> float:
        """The score that tables show."""
        return self.pearson

    @property
    def f1(self) -> float | None:
        """The F1 in percent, for tasks that have one."""
        return self.measures.get("f1")


@dataclass(frozen=True)
class MtebScore:
    """The main score of a task of the mteb package, times 100; its own file of results has the others.

    It has the attributes of a `Score` that a table needs.

    Attributes:
        model: The member's name.
        task: The task's name.
        measure: The name of the task's main score, such as ``ndcg_at_10``.
        test: Its mean over splits and subsets.
        by_split: Split -> subset -> main score.
        dataset_revision: Of the task's data.
        mteb_version: The version of mteb that computed it.
        costs: The model's costs.
    """

    model: str
    task: str
    measure: str
    test: float
    by_split: Mapping[str, Mapping[str, float]]
    dataset_revision: str
    mteb_version: str
    costs: Costs = field(default_factory=Costs)

    protocol: ClassVar[str] = MTEB
    validation: ClassVar[float | None] = None
    interval: ClassVar[Interval | None] = None
    f1: ClassVar[float | None] = None
    is_correlation: ClassVar[bool] = False


AnyScore = Score | SimilarityScore | MtebScore
_WithoutProbe = TypeVar("_WithoutProbe", SimilarityScore, MtebScore)


def read_scores(folder: Path) -> list[AnyScore]:
    """Return the scores of every model, task and protocol in an `evaluation/` folder, sorted by path.

    Raises:
        ArtifactError: If a file is truncated or not a record.
    """
    scores = []
    for path in sorted([*folder.glob("*/*.json"), *folder.glob("*/*/*.json")]):
        about = read_json(path)
        try:
            scores.append(_any_score(about))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{path}: not a record of an evaluation; remove it, or evaluate again"
            ) from None
    return scores


def score_of(about: Mapping[str, Any]) -> Score:
    """Return the scores of a record's plain values; files of earlier versions lack some."""
    interval = about.get("interval")
    if interval is not None:
        interval = (float(interval[0]), float(interval[1]))
    return Score(
        model=about["model"],
        task=about["task"],
        protocol=about["protocol"],
        validation=about["validation"],
        test=about["test"],
        interval=interval,
        measures=about.get("measures", {}),
        row_hash=about.get("row_hash", ""),
        costs=Costs(**about.get("costs", {})),
        learned=bool(about.get("learned")),
        encode_ms=about.get("seconds", {}).get("encode_ms_per_1000"),
        by_query=tuple(about.get("by_query", ())),
        num_queries=about.get("num_queries", {}),
    )


def _any_score(about: Mapping[str, Any]) -> AnyScore:
    """Return the score of a file's plain values, which say by their protocol and names of which kind it is."""
    attributes = dict(about)
    attributes.pop("key", None)
    if attributes.get("protocol") == MTEB:
        del attributes["protocol"]
        attributes["costs"] = Costs(**attributes["costs"])
        return MtebScore(**attributes)
    if "pearson" in attributes:
        return SimilarityScore(**attributes)
    return score_of(about)


def record_folder(folder: Path, protocol: str) -> Path:
    """Return the folder of a protocol's records, in a model's folder."""
    if protocol in ("fast", SIMILARITY):
        return folder
    return path_below(folder, protocol.replace("/", "-"))


def write_record(folder: Path, record: Record) -> None:
    """Write `<task>.npz`, then `<task>.json`, which marks the record as complete.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    # If this is interrupted between the two files, an older JSON must not go with newer arrays.
    remove(path_below(folder, f"{record.task}.json"))
    arrays = {
        "labels": record.labels,
        "scores": record.scores,
        "probe_weights": record.probe.weights,
        "probe_intercepts": record.probe.intercepts,
    }
    if len(record.units):
        arrays["units"] = record.units
    arrays |= {f"{_MODEL_ARRAYS}{name}": array for name, array in record.arrays.items()}
    for number, fold in enumerate(record.folds):
        arrays |= {f"fold{number}_{name}": getattr(fold, name) for name in _OF_FOLD}
    arrays_path = path_below(folder, f"{record.task}.npz")
    save_arrays(arrays_path, arrays)
    plain = {name: getattr(record, name) for name in _PLAIN}
    strengths = {
        "fold_strengths": [fold.strength for fold in record.folds],
        "probe_strength": record.probe.strength,
    }
    about = {
        "kind_of_file": KIND,
        **plain,
        "metric": record.metric,
        "label_names": list(record.label_names),
        "label_kind": record.label_kind,
        "num_units": len(np.unique(record.units)) or None,
    }
    about |= {**strengths, **record.about, ARRAYS_KEY: file_sha256(arrays_path)}
    write_json(path_below(folder, f"{record.task}.json"), about)


def read_record(folder: Path, task: str, *, key: str | None = None) -> Record | None:
    """Return a record, or None if it is missing, incomplete, or has another key.

    Args:
        folder: The folder of the model's records under a protocol.
        task: The task's name.
        key: If given, the key that the record must have.

    Raises:
        ArtifactError: If it is damaged.
    """
    about = read_about(folder, task)
    if about.get("kind_of_file") != KIND or key not in (None, about.get("key")):
        return None
    with record_errors(folder, task):
        folds = {f"fold{number}_" for number, _ in enumerate(about["fold_strengths"])}
        names = {*_ARRAYS, *(f"{fold}{name}" for fold in folds for name in _OF_FOLD)}
        arrays = read_arrays(
            folder,
            task,
            about,
            is_wanted=lambda name: name in names or name.startswith(_MODEL_ARRAYS),
        )
        record = _record(about, arrays)
        _check_shapes(record)
        return record


def is_record_of(folder: Path, task: str, model_key: str) -> bool:
    """Return whether there is a record of this model, or one that is too damaged to say of which."""
    try:
        about = read_about(folder, task)
    except ArtifactError:
        return True
    return about.get("kind_of_file") == KIND and about.get("model_key") == model_key


def read_arrays(
    folder: Path, task: str, about: Mapping[str, Any], *, is_wanted: Callable[[str], bool]
) -> dict[str, np.ndarray]:
    """Return the arrays that go with the plain values of a record.

    Raises:
        ArtifactError: If their file is missing, damaged, or another one than was written with these values.
    """
    path = path_below(folder, f"{task}.npz")
    arrays = load_arrays(path, is_wanted=is_wanted)
    # Records of earlier versions do not have the key.
    if about.get(ARRAYS_KEY) not in (None, file_sha256(path)):
        raise ArtifactError(f"{address_of(path)}: changed since it was written; evaluate again")
    return arrays


def read_about(folder: Path, task: str) -> dict[str, Any]:
    """Return the plain values of a record; empty if there are none, which is so until the record is complete."""
    path = path_below(folder, f"{task}.json")
    if not path.exists():
        return {}
    about = read_json(path)
    if not isinstance(about, dict):
        raise ArtifactError(f"{address_of(path)}: not a record of an evaluation; evaluate again")
    return about


@contextlib.contextmanager
def record_errors(folder: Path, task: str) -> Iterator[None]:
    """Turn errors about what a record lacks, or has of another kind, into one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{address_of(folder / task)}.json: not a record of an evaluation "
            f"({type(error).__name__}: {error}); remove it, or evaluate again"
        ) from None


def _check_shapes(record: Record) -> None:
    """Raise a ValueError if arrays of a record do not fit each other."""
    num_rows = len(record.labels)
    if len(record.units) not in (0, num_rows):
        raise ValueError("units must have a number for each row")
    for fold in record.folds:
        for rows, predicted in (
            (fold.validation_rows, fold.validation_log_probabilities),
            (fold.test_rows, fold.test_log_probabilities),
        ):
            if predicted.shape != (len(rows), len(record.label_names)):
                raise ValueError("predictions must have a row for each row, and a column a class")
            if len(rows) and not 0 <= rows.min() <= rows.max() < num_rows:
                raise ValueError("rows of a fold must be among those of the task")
    if record.probe.weights.shape[1:] != record.probe.intercepts.shape:
        raise ValueError("a probe must have an intercept for each output")


def has_parted_units(folder: Path, data: TaskData) -> bool:
    """Return whether a folder holds a record of a task's rows by folds that do not keep its units together."""
    try:
        about = read_json(path_below(folder, f"{data.task}.json"))
        is_record = about["kind_of_file"] == KIND and about["row_hash"] == data.row_hash
        return bool(is_record and about.get("num_units") is None)
    except (ArtifactError, KeyError, TypeError):
        return False


def _record(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Record:
    """Return a record of its plain values and its arrays; those of earlier versions lack some."""
    folds = []
    for number, strength in enumerate(about["fold_strengths"]):
        of_fold = {name: arrays[f"fold{number}_{name}"] for name in _OF_FOLD}
        folds.append(FoldResult(**of_fold, strength=strength))
    # Records of earlier versions measure accuracy besides only where it is not what counts.
    metric = "accuracy"
    if "accuracy" in about["measures"]:
        metric = "macro_f1"
    model_arrays = {}
    for name, array in arrays.items():
        if name.startswith(_MODEL_ARRAYS):
            model_arrays[name.removeprefix(_MODEL_ARRAYS)] = array
    return Record(
        **{name: about[name] for name in _PLAIN},
        label_names=tuple(about["label_names"]),
        label_kind=about.get("label_kind", "text"),
        metric=about.get("metric", metric),
        labels=arrays["labels"],
        scores=arrays["scores"],
        units=arrays.get("units", EACH_ROW),
        folds=tuple(folds),
        probe=Probe(arrays["probe_weights"], arrays["probe_intercepts"], about["probe_strength"]),
        about={
            **{name: about[name] for name in _ABOUT},
            "costs": about.get("costs", {}),
            "scale": about.get("scale"),
            "learned": about.get("learned", False),
            "own_layer": about.get("own_layer", False),
            "out_of_fold": about.get("out_of_fold", True),
        },
        arrays=model_arrays,
    )


def write_score(folder: Path, score: SimilarityScore | MtebScore, *, key: str) -> None:
    """Write `<task>.json` of a score without a probe.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    about: dict[str, Any] = {"key": key}
    if isinstance(score, MtebScore):
        # A score of similarities is known by its names.
        about["protocol"] = MTEB
    write_json(path_below(folder, f"{score.task}.json"), {**about, **asdict(score)})


def read_score(
    folder: Path, task: str, kind: type[_WithoutProbe], *, key: str
) -> _WithoutProbe | None:
    """Return a score without a probe, or None if it is missing, incomplete, or has another key.

    Raises:
        ArtifactError: If it is damaged.
    """
    about = read_about(folder, task)
    if about.get("key") != key:
        return None
    with record_errors(folder, task):
        score = _any_score(about)
    if isinstance(score, kind):
        return score
    return None


def library_versions() -> dict[str, str]:
    """Return the versions that scores may depend on."""
    return {"raysent": __version__, **{name: version(name) for name in LIBRARIES}}


def costs_of(path: Path) -> Costs:
    """Return the costs of a run, a trial or a model; of an ensemble, those of its members together.

    Raises:
        ArtifactError: If a file is truncated.
    """
    folder = model_folder(path)
    if folder is not None:
        # The outcome of a model in a run's folder is in that folder.
        hours = _training_hours(folder / OUTCOME_FILE)
        if hours is None:
            hours = _training_hours(folder.parent / OUTCOME_FILE)
        return Costs(_num_parameters(folder / TENSORS_FILE), _num_bytes(folder), hours)
    if any((path / file).is_file() for file in (ENSEMBLE_FILE, COMPOSITION_FILE, FUSION_FILE)):
        return sum((costs_of(Path(member)) for member in part_paths(path)), Costs(0, 0, 0.0))
    return Costs()


def _num_bytes(folder: Path) -> int:
    parts = (
        file
        for file in folder.iterdir()
        if file.name.startswith(("model.", "vocabulary.")) and file.is_file()
    )
    return sum(file.stat().st_size for file in parts)


def _num_parameters(path: Path) -> int | None:
    if not path.is_file():
        return None
    return sum(int(math.prod(about["shape"])) for about in tensor_types(path).values())


def _training_hours(path: Path) -> float | None:
    if not path.is_file():
        return None
    outcome = read_json(path)
    if not isinstance(outcome, dict):
        return None
    seconds = outcome.get("seconds")
    if not isinstance(seconds, int | float):
        return None
    return seconds / SECONDS_PER_HOUR
