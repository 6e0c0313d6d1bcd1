"""`label`: the rows of a table that a person should look at first, to label them or because a label may be wrong.

The next rows are of the highest indecision x density, and unlike each other. Indecision is one minus the margin between
the two most probable classes by the mean of the members' probabilities: members that disagree have a small margin, and
so have members that are unsure alike. The density of a text is its mean cosine with all texts, by TF-IDF of words: a
text that is like no other teaches little about them. The candidates of the highest products, ten for each row that is
wanted, are divided into clusters by k-means, weighted by their products; of each cluster the best one is asked for.

A label is suspected by the probability that it gets from models that were fitted without its row, against the mean
probability that rows of the same label get. So a class that the models know badly is not suspected as a whole.

Sources: Seung et al., 1992 (query by committee); Scheffer et al., 2001 (margins); McCallum and Nigam, 1998, and Settles
and Craven, 2008 (density); Zhdanov, 2019 (clusters); Northcutt et al., 2021 (confident learning).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.ensemble import load_predicting
from raysent.ensembles.methods import lexical_method
from raysent.ensembles.predictions import PredictionsLike, as_predictions
from raysent.ensembles.predictor import Predictor, find_predictor
from raysent.ensembles.task_ensemble import check_compatible, fold_predictions, num_fitted
from raysent.errors import ConfigError, DataError
from raysent.evaluation.baselines import lexical_names
from raysent.evaluation.division import near_copies
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Float64, Int64
from raysent.evaluation.task import NO_ROWS, ProbeTask, TaskData
from raysent.evaluation.task_files import LabelTable, read_label_table
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline.evaluation import map_jobs
from raysent.pipeline.predictions import PREDICTED, writing
from raysent.progress import ProgressLines
from raysent.storage.layout import EVALUATION_FOLDER

PROBABILITY = "probability"
# Candidates for each row that is wanted, and dimensions in which they are clustered.
_NUM_CANDIDATES, _NUM_DIMENSIONS = 10, 100


@dataclass(frozen=True)
class Labelling:
    """A table in the order in which a person should look at its rows.

    Attributes:
        rows: The table; the column of the label is empty where a row has none.
        text: The columns of the text.
        label: The column of the label.
        num_first: Rows at the beginning that are to be labelled, or whose label is suspected.
    """

    rows: pd.DataFrame
    text: tuple[str, ...]
    label: str
    num_first: int


def label(
    model: str | Path | SentenceEncoder,
    table: str | Path,
    *,
    num_rows: int = 50,
    suspect: bool = False,
    task: str | None = None,
    output: str | Path | None = None,
    progress: bool = True,
) -> Labelling:
    """Return a table with the rows first that a person should label next, or whose label may be wrong.

    Rows to label are those without a label, or all of a table without a column of it; see `ensembles.labelling`. The
    table that is written is a task of its labelled rows: edit its first rows, and give it to `sweep` again.

    Args:
        model: A sweep, whose best model's members disagree; an ensemble; or a trial that was evaluated on the task.
        table: The table, as a task is named: ``reviews.csv``, or ``reviews.csv:text=body,label=stars``.
        num_rows: Rows to label next, or labels that are suspected.
        suspect: Whether to look for wrong labels. The probes of the model's members, and TF-IDF, are fitted on the
            table by cross-validation; columns ``predicted`` and ``probability``, that of the row's label, are added.
        task: The model's task whose labels are wanted; None where it has one.
        output: The file to write, which must not exist: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; None for none.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If the model predicts no such task, or one of scores; if the table has several labels a row, or the
            output exists.
        DataError: If the table cannot be read, or has no row to label or to suspect.
    """
    if num_rows < 1:
        raise ConfigError(f"num_rows={num_rows}: must be at least 1")
    if output is not None and Path(output).exists():
        raise ConfigError(f"output {output}: must not exist, as someone may have edited it; name another file")
    encoder = model if isinstance(model, SentenceEncoder) else load_predicting(model)
    predictor = find_predictor(encoder, task)
    if predictor.is_scored:
        raise ConfigError(f"{predictor.task}: must have classes to label; it has scores of pairs")
    given = read_label_table(str(table), predictor.num_columns)
    names = list(dict.fromkeys([*given.table.columns, given.label, *([PREDICTED, PROBABILITY] if suspect else [])]))
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressLines(is_quiet=not progress))
        write = None if output is None else stack.enter_context(writing(output, names))
        frame, num_first = _suspects(predictor, given, num_rows, bar) if suspect else _next(predictor, given, num_rows)
        if write is not None:
            write([frame[name].tolist() for name in names])
    return Labelling(frame, given.texts, given.label, num_first)


def _next(predictor: Predictor, given: LabelTable, num_rows: int) -> tuple[pd.DataFrame, int]:
    """Return the table with the rows to label next first, and their number."""
    columns = [given.table.texts(name, key="text") for name in given.texts]
    joined = ["\n".join(row) for row in zip(*columns, strict=True)]
    unlabelled = [row for row, name in enumerate(given.labels) if name is None and joined[row].strip()]
    if not unlabelled:
        raise DataError(f"{given.table.source}: must have rows without a label; all {len(joined)} have one")
    predictions = predictor.of_members([[column[row] for row in unlabelled] for column in columns])
    known = [text for text, name in zip(joined, given.labels, strict=True) if name is not None]
    places = next_rows(predictions, [joined[row] for row in unlabelled], num_rows, known=known)
    chosen = np.array(unlabelled)[places]
    return _ordered(_frame(given), chosen), len(chosen)


def _suspects(
    predictor: Predictor, given: LabelTable, num_rows: int, progress: ProgressLines
) -> tuple[pd.DataFrame, int]:
    """Return the table with the most suspected labels first, and how many of the first have another label predicted."""
    if given.label not in given.table.columns:
        raise DataError(f"{given.table.source}: must have labels to suspect; it has no column '{given.label}'")
    (task,) = resolve_tasks([given.name], scorings={"accuracy"})
    data = task.load()
    assert isinstance(data, TaskData)
    train = np.setdiff1d(np.arange(len(data)), data.test)
    whole = replace(data, split="train-test", train=train, validation=NO_ROWS)
    with TemporaryDirectory() as folder:
        evaluator = Evaluator(
            Path(folder),
            progress=progress,
            map_jobs=map_jobs(),
            other_outputs=tuple(Path(one.source) / EVALUATION_FOLDER for one in predictor.members if one.source),
        )
        members = expand([*predictor.members, *lexical_names([task])])
        records = evaluator.records(members, [ProbeTask(data.task, reader=lambda *_: whole)])
    rows, predictions = out_of_fold([record for (record,) in records.values()])
    labels, best = data.labels[rows], predictions.argmax(axis=1)
    order = np.argsort(-suspicion(predictions, labels), kind="stable")
    places = np.array([row for row, name in enumerate(given.labels) if name is not None])[rows]
    predicted, probability = (np.full(len(given.table), "", dtype=object) for _ in range(2))
    predicted[places] = np.array(data.label_names, dtype=object)[best]
    probability[places] = np.exp(predictions[np.arange(len(rows)), labels]).round(4)
    frame = _frame(given).assign(**{PREDICTED: predicted, PROBABILITY: probability})
    return _ordered(frame, places[order]), int((best != labels)[order[:num_rows]].sum())


def _frame(given: LabelTable) -> pd.DataFrame:
    """Return the table with the column of the label, whose names stand for numbers of classes."""
    labels = ["" if name is None else name for name in given.labels]
    return pd.DataFrame({**given.table.columns, given.label: labels}, dtype=object)


def _ordered(frame: pd.DataFrame, first: np.ndarray) -> pd.DataFrame:
    """Return some rows, then the others in their order."""
    others = np.setdiff1d(np.arange(len(frame)), first)
    return frame.iloc[np.concatenate([first, others])].reset_index(drop=True)


def next_rows(
    log_probabilities: PredictionsLike, texts: Sequence[str], num_rows: int, *, known: Sequence[str] = ()
) -> Int64:
    """Return the rows to label next, int64 [at most num_rows], the most useful first.

    Of near-copies one is returned, and none of a text that is known.

    Args:
        log_probabilities: Of the members for rows without a label, [members, rows, classes].
        texts: The rows' texts [rows].
        num_rows: The number of rows that are wanted.
        known: Texts that have a label.
    """
    scores = indecision(log_probabilities) * density(texts)
    order, num_compared = np.argsort(-scores, kind="stable"), 0
    while True:
        num_compared = max(_NUM_CANDIDATES * num_rows, 2 * num_compared)
        compared = order[:num_compared]
        copies = near_copies([*known, *(texts[row] for row in compared)])
        is_new = ~np.isin(copies[len(known) :], copies[: len(known)])
        candidates = compared[is_new][np.sort(np.unique(copies[len(known) :][is_new], return_index=True)[1])]
        if len(candidates) >= num_rows or num_compared >= len(order):
            break
    if len(candidates) <= num_rows:
        return candidates
    clusters = _clusters(
        [texts[row] for row in candidates], num_rows, weights=scores[candidates] + np.finfo(np.float64).tiny
    )
    is_best = np.zeros(len(candidates), dtype=bool)
    is_best[np.unique(clusters, return_index=True)[1]] = True  # candidates are in the order of their scores
    best_first = np.argsort(~is_best, kind="stable")[:num_rows]
    chosen: Int64 = candidates[np.sort(best_first)]
    return chosen


def _clusters(texts: Sequence[str], num_clusters: int, *, weights: Float64) -> Int64:
    """Return the cluster of each text, int64 [texts], by its parts of words."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415 - as above
    from sklearn.preprocessing import normalize  # noqa: PLC0415 - as above

    vectors = LexicalModel("chars").vectorizer().fit_transform(texts)
    num_dimensions = min(_NUM_DIMENSIONS, *(size - 1 for size in vectors.shape))
    reduced = normalize(TruncatedSVD(max(1, num_dimensions), random_state=0).fit_transform(vectors))
    found = KMeans(num_clusters, n_init=1, random_state=0).fit_predict(reduced, sample_weight=weights)
    return np.asarray(found, dtype=np.int64)


def indecision(log_probabilities: PredictionsLike) -> Float64:
    """Return one minus the margin of the mean of members' probabilities [members, rows, classes], float64 [rows]."""
    predictions = as_predictions(log_probabilities)
    mean = sum(np.exp(member) for member in predictions.members()) / predictions.shape[0]
    second, first = np.sort(mean, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second), dtype=np.float64)


def density(texts: Sequence[str]) -> Float64:
    """Return the mean cosine of each text with all texts, float64 [rows], by TF-IDF of words."""
    vectors = LexicalModel("words").vectorizer().fit_transform(texts)
    cosines: Float64 = vectors @ np.asarray(vectors.mean(axis=0)).ravel()
    return cosines


def out_of_fold(records: Sequence[Record]) -> tuple[Int64, Float64]:
    """Return rows that models and their combination were not fitted on, int64 [rows], and their log-probabilities.

    They are the rows of a task with given train and test rows, each of which is in one of the two.

    Args:
        records: The members' records of the task.

    Returns:
        The rows, and float64 [rows, classes].
    """
    check_compatible(records)
    predictions, targets = fold_predictions(records, 0)
    fitted = cross_fit(predictions, targets, method=lexical_method(num_fitted(records)))
    folds = [record.folds[0] for record in records]
    tested = fitted.predict([fold.test_log_probabilities for fold in folds])
    return (
        np.concatenate([folds[0].validation_rows, folds[0].test_rows]),
        np.concatenate([fitted.held_out, tested]),
    )


def suspicion(log_probabilities: Float64, labels: Int64) -> Float64:
    """Return how much each label is suspected to be wrong, float64 [rows]: above 0 where it is less likely than usual.

    Args:
        log_probabilities: By models that were fitted without the row, [rows, classes].
        labels: The labels, int64 [rows].
    """
    own = np.exp(log_probabilities[np.arange(len(labels)), labels])
    counts = np.maximum(np.bincount(labels), 1)
    usual = np.bincount(labels, weights=own) / counts
    found: Float64 = usual[labels] - own
    return found
