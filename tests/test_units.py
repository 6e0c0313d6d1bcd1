"""Rows that belong together stay together in every division: by groups, copies and near-copies."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raysent
from raysent.ensembles.calibration import Answered, Calibration, calibrate
from raysent.ensembles.cross_fitting import cross_fit, folds_of
from raysent.ensembles.label_curves import _folds
from raysent.ensembles.methods import fit
from raysent.ensembles.predictions import as_predictions
from raysent.errors import ConfigError, DataError
from raysent.evaluation.divided import (
    _joined,
    divide_tasks,
    divided_tasks,
    kept_divisions,
    read_rows,
    save_rows,
)
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.fusion import Ranking
from raysent.evaluation.members import expand
from raysent.evaluation.protocols.fast import fold_numbers
from raysent.evaluation.records import Record, read_record
from raysent.evaluation.retrieval import fit_weight
from raysent.evaluation.targets import Targets
from raysent.evaluation.task import RetrievalData, Task, TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.units import EACH_ROW, folds_of_units, units_of
from raysent.storage import read_json, write_json
from raysent.training.validation.metrics import Downstream, DownstreamConfig, sample_rows

WORDS = [
    "kettle",
    "lamp",
    "chair",
    "train",
    "hotel",
    "phone",
    "garden",
    "bridge",
    "museum",
    "bakery",
    "river",
    "window",
    "blanket",
]
SPEAKING = {
    "pos": ["lovely", "bright", "quick", "kind", "sturdy", "warm", "clear", "smooth"],
    "neg": ["dull", "slow", "rude", "broken", "cold", "noisy", "rough", "vague"],
}


def sentences(number: int, *, seed: int = 0) -> list[str]:
    """Different sentences of nine words that say nothing."""
    generator = np.random.default_rng(seed)
    return [f"{' '.join(generator.choice(WORDS, 9))} {row:04}." for row in range(number)]


def twice(number: int, *, wrong: float = 0.3, seed: int = 0) -> pd.DataFrame:
    """Return sentences, each a second time with `!` for `.`; the labels of some pairs are wrong in both rows."""
    generator = np.random.default_rng(seed)
    rows = []
    for pair, text in enumerate(sentences(number, seed=seed)):
        label, other = generator.permutation(["pos", "neg"]).tolist()
        said = f"{generator.choice(SPEAKING[label])} and {generator.choice(SPEAKING[label])} {text}"
        written = other if generator.random() < wrong else label
        rows += [(said, written, pair), (f"{said[:-1]} !", written, pair)]
    return pd.DataFrame(rows, columns=["text", "label", "pair"])


def load(frame: pd.DataFrame, **columns: object) -> TaskData:
    """Return the rows of a table as a task."""
    data = OwnTask(frame.drop(columns="pair", errors="ignore"), name="own", **columns).load()
    assert isinstance(data, TaskData)
    return data


def parted(units: np.ndarray, folds: np.ndarray) -> int:
    """Return how many units are in several folds."""
    return sum(len(set(folds[units == unit].tolist())) > 1 for unit in np.unique(units))


@dataclass(frozen=True)
class Fixed(Task):
    """A task of rows in memory."""

    data: TaskData = field(kw_only=True)
    scoring = "accuracy"

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows."""
        del data_dir
        return self.data


# --- which rows belong together ----------------------------------------------------------------------------------------


def test_units_are_numbered_by_their_first_rows_and_join_groups_and_copies():
    """A copy joins two groups; a pair in the other order is the same, unless the order counts."""
    texts = ["one two three four", "five six seven", "One two three four!", "eight nine"]
    assert units_of([texts]).tolist() == [0, 1, 0, 2]
    assert units_of([texts], np.array([7, 7, 3, 3])).tolist() == [0, 0, 0, 0]
    assert units_of([texts], np.array([7, 8, 8, 9])).tolist() == [0, 0, 0, 1]
    first, second = ["a b c d e", "f g h i j"], ["f g h i j", "a b c d e"]
    assert units_of([first, second], is_ordered=True).tolist() == [0, 1]
    assert units_of([first, second], is_ordered=False).tolist() == [0, 0]


@pytest.mark.parametrize(
    "other",
    [
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: text.upper(),
        lambda text: text.replace("a", "a\u200b"),
        lambda text: text.replace(" ", "&nbsp;"),
        lambda text: f"<p>{text}</p>",
        lambda text: f"“{text}”",
    ],
    ids=["NFD", "capitals", "never shown", "entities", "tags", "quotes"],
)
def test_a_text_in_another_writing_is_a_copy_in_every_division(other):
    """Test rows have none of their copies in train, and folds part none; labels at random teach nothing."""
    texts = [text.replace("e", "é") for text in sentences(120)]
    frame = pd.DataFrame(
        {"text": [*texts, *map(other, texts)], "label": ["ab"[row % 2] for row in range(120)] * 2}
    )
    for columns in ({}, {"split": {"validation": 0.2, "test": 0.2}}):
        data = load(frame, **columns)
        part_of = np.empty(240)
        for number, rows in enumerate((data.train, data.validation, data.test)):
            part_of[rows] = number
        assert np.array_equal(part_of[:120], part_of[120:])
        assert np.array_equal(data.units[:120], data.units[120:])
        assert data.sentences[0] == frame.text.tolist()
        assert not data.has_drawn_validation
    assert not OwnTask(frame, name="own").remarks.warnings


def test_test_rows_are_the_same_in_either_form_of_unicode():
    """So a table that another tool writes again has the same division."""
    texts = [text.replace("e", "é") for text in sentences(150)]
    labels = ["ab"[row % 2] for row in range(150)]
    tests = [
        load(
            pd.DataFrame(
                {"text": [unicodedata.normalize(form, text) for text in texts], "label": labels}
            )
        ).test
        for form in ("NFC", "NFD")
    ]
    assert np.array_equal(*tests)


# --- folds -------------------------------------------------------------------------------------------------------------


def plain_folds(labels: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return what folds of single rows are: classes in turn, each row into the fold after the last one's."""
    generator, folds, turn = np.random.default_rng(seed), np.empty(len(labels), np.int64), 0
    for label in np.unique(labels):
        for row in generator.permutation(np.flatnonzero(labels == label)):
            folds[row] = turn % num_folds
            turn += 1
    return folds


def test_folds_of_single_rows_are_as_ever():
    """With and without a number for each row."""
    generator = np.random.default_rng(0)
    for seed in range(20):
        labels = generator.integers(0, 4, int(generator.integers(3, 200)))
        num_folds = min(10, len(labels))
        expected = plain_folds(labels, num_folds, seed)
        for units in (EACH_ROW, np.arange(len(labels))):
            found = folds_of_units(labels, 10, seed=seed, units=units)
            assert np.array_equal(found, expected)


def test_folds_keep_units_whole_and_spread_classes():
    """Of units of one to twelve rows, each fold has a part of each class; fewer units make fewer folds."""
    generator = np.random.default_rng(1)
    units = np.repeat(np.arange(160), generator.integers(1, 13, 160))
    labels = (units % 3).astype(np.int64)
    order = generator.permutation(len(units))
    units, labels = units[order], labels[order]
    folds = folds_of_units(labels, 10, seed=0, units=units)
    assert parted(units, folds) == 0
    assert set(folds) == set(range(10))
    for label in range(3):
        counts = np.bincount(folds[labels == label], minlength=10)
        assert np.ptp(counts) <= 12
    assert np.ptp(np.bincount(folds)) <= 12
    few = folds_of_units(np.array([0, 0, 1, 1, 0]), 10, seed=0, units=np.array([5, 5, 2, 2, 2]))
    assert sorted(set(few.tolist())) == [0, 1]
    assert (
        folds_of_units(np.zeros(3, np.int64), 10, seed=0, units=np.zeros(3, np.int64)).tolist()
        == [0] * 3
    )


def test_every_division_of_a_task_keeps_copies_together(tmp_path):
    """Folds that choose C, cross-fitting, the pool's own folds, draws of label curves, and the rows of a sweep's metric."""
    frame = twice(150)
    data = load(frame)
    pairs = frame.pair.to_numpy()
    assert np.array_equal(data.units, pairs)
    train = data.train
    assert parted(data.units[train], fold_numbers(data, train)[0]) == 0
    targets = Targets.of(data).take(train)
    for seed in (2222, 3333):
        for fitted, unseen in folds_of(targets, seed=seed):
            assert not set(targets.units[fitted]) & set(targets.units[unseen])
    few = np.random.default_rng(0).permutation(train)[:60]
    assert parted(data.units[few], _folds(data, few)) == 0
    sampled = sample_rows(data, max_rows=80)
    assert parted(sampled.units[sampled.train], fold_numbers(sampled, sampled.train)[0]) == 0
    nested = replace(data, split="nested", train=data.train[:0], test=data.test[:0], units=EACH_ROW)
    other = divided(nested)
    assert np.array_equal(other.test, data.test)
    assert parted(pairs[other.train], fold_numbers(other, other.train)[0]) == 0
    (record,) = Evaluator(tmp_path).records(expand(["hash:8"]), [OwnTask(frame, name="own")])[
        expand(["hash:8"])[0]
    ]
    assert np.array_equal(record.targets.units, data.units)


def test_groups_stay_together_where_combinations_are_fitted():
    """A column of groups, too, is kept by the folds that fit weights, temperatures and thresholds."""
    frame = twice(150).assign(text=sentences(300, seed=5))
    data = load(frame.assign(group=frame.pair.astype(str)))
    assert np.array_equal(data.units, frame.pair)
    for fitted, unseen in folds_of(Targets.of(data).take(data.train)):
        assert not set(data.units[data.train][fitted]) & set(data.units[data.train][unseen])


def test_validation_is_as_right_as_the_test_where_rows_are_there_twice(tmp_path):
    """Near-copies with wrong labels neither raise validation nor promise a precision that new rows do not have.

    Folds that part copies, as those of a record of an earlier version, know the wrong labels of four rows in five.
    """
    task = OwnTask(twice(300, seed=1).drop(columns="pair"), name="own")
    parting = Fixed("own", data=replace(task.load(), units=EACH_ROW))
    scores = {
        name: raysent.evaluate(
            "tfidf", tasks=[one], output=tmp_path / name, baselines=False, progress=False
        ).validation[0]
        for name, one in {"together": task, "parted": parting}.items()
    }
    assert scores["parted"] > 80
    assert scores["together"] < 71  # what can be known
    made = raysent.ensemble(
        ["hash:100", "tfidf"],
        tasks=[task],
        method="pool",
        output=tmp_path / "made",
        baselines=False,
        progress=False,
    )
    predictor = made.predictors["own"]
    with pytest.raises(ConfigError, match=r"^precision 0\.8: no threshold promises it"):
        predictor.promise(precision=0.8)
    assert predictor.promise(coverage=1.0).precision < 0.71


def test_suspects_are_found_beside_their_copies(tmp_path):
    """A wrong label is suspected although a copy of its row has the same one."""
    pure = twice(200, wrong=0)
    wrong = np.random.default_rng(3).permutation(200)[:10]
    is_wrong = np.isin(pure.pair, wrong)
    flipped = np.where(pure.label == "pos", "neg", "pos")
    frame = pure.assign(label=np.where(is_wrong, flipped, pure.label), planted=is_wrong)
    path = tmp_path / "copies.csv"
    frame.drop(columns="pair").to_csv(path, index=False)
    name = f"{path}:text=text,label=label"
    raysent.ensemble(
        ["hash:50", "tfidf"],
        tasks=[name],
        output=tmp_path / "made",
        baselines=False,
        progress=False,
    )
    checked = raysent.label(tmp_path / "made", name, suspect=True, progress=False)
    first = checked.rows.planted[:20].astype(str) == "True"
    assert first.sum() >= 16


def test_a_bound_on_precision_counts_copies_once():
    """Each row twice: the bound is that of half as many rows; single rows count as they are."""
    generator = np.random.default_rng(0)
    logs = np.log(generator.dirichlet([2, 2], 300))
    labels = np.where(generator.random(300) < 0.8, logs.argmax(axis=1), 1 - logs.argmax(axis=1))
    single = calibrate(logs, Targets(labels))
    both = calibrate(
        np.repeat(logs, 2, axis=0),
        Targets(np.repeat(labels, 2), units=np.repeat(np.arange(300), 2)),
    )
    assert {level.design_effect for level in single.levels} == {1.0}
    assert both.levels[-1].design_effect == pytest.approx(2 * 300 / 299, rel=1e-3)
    assert both.levels[0].design_effect == pytest.approx(2)
    known = Calibration(1.0, 600, (Answered(0.5, 600, 480, 2.0),))
    halved = Calibration(1.0, 300, (Answered(0.5, 300, 240),))
    for calibration in (known, halved):
        assert calibration.for_precision(0.757).num_rows == calibration.num_rows
        with pytest.raises(ConfigError):
            calibration.for_precision(0.760)


def test_pool_and_cross_fitting_of_copies_are_those_of_single_rows():
    """A member that knows the labels of rows whose copies it has seen gains nothing where copies are held out too."""
    generator = np.random.default_rng(0)
    labels = np.repeat(generator.integers(0, 2, 60), 2)
    units = np.repeat(np.arange(60), 2)
    logs = np.log(generator.dirichlet([1, 1], (3, 120)))
    targets = Targets(labels, units=units)
    found = cross_fit(logs, targets, method="pool")
    for fitted, unseen in folds_of(targets):
        expected = fit(logs[:, fitted], targets.take(fitted), method="pool").combination
        np.testing.assert_allclose(
            found.held_out[unseen], expected(as_predictions(logs[:, unseen]))
        )


def test_weight_of_words_is_fitted_on_other_queries_than_their_copies():
    """Each query twice: the score of weights that are fitted on other queries is that of each query once."""
    texts = sentences(6)
    once = queries_of(texts)
    both = queries_of([f"{text} {end}" for text in texts for end in ("", "!")])
    generator = np.random.default_rng(0)
    rows = np.stack([generator.permutation(8) for _ in range(12)]).reshape(2, 6, 8)
    scores = np.sort(generator.random((2, 6, 8)), axis=2)[:, :, ::-1]
    of_once, of_both = (
        [
            Ranking(np.arange(6 * times), found.repeat(times, axis=0), points.repeat(times, axis=0))
            for found, points in zip(rows, scores, strict=True)
        ]
        for times in (1, 2)
    )
    assert fit_weight(*of_both, both) == pytest.approx(fit_weight(*of_once, once))


def queries_of(texts: list[str]) -> RetrievalData:
    """Return a task of queries of dev, of which each two texts in turn have one relevant passage."""
    places = range(len(texts))
    return RetrievalData(
        "own",
        [f"passage {row}" for row in range(8)],
        tuple(map(str, range(8))),
        texts,
        tuple(map(str, places)),
        tuple({(place * 6 // len(texts)): 1.0} for place in places),
        train=np.empty(0, np.int64),
        dev=np.arange(len(texts)),
        test=np.empty(0, np.int64),
    )


# --- templates, and what is asked for ----------------------------------------------------------------------------------

RESET = [f"Please reset the password of user number {row} as soon as you can" for row in range(60)]
BILL = [f"Where is the invoice of customer number {row} that you promised me" for row in range(60)]


def test_rows_of_a_template_are_named_and_can_be_divided():
    """One class of near-copies has no test row, and two cannot be divided; the line says why and what does."""
    frame = pd.DataFrame(
        {"text": [*RESET, *sentences(60)], "label": ["reset"] * 60 + ["other"] * 60}
    )
    warning = OwnTask(frame, name="own").remarks.warnings[0]
    assert warning == (
        "own: no test row of reset: scores say nothing of it, as its rows are near-copies of each other and stay "
        "together; copies=no divides them"
    )
    data = load(frame, copies=False)
    assert (data.labels[data.test] == 1).sum() == 20
    assert not len(data.units)
    both = pd.DataFrame({"text": [*RESET, *BILL], "label": ["reset"] * 60 + ["bill"] * 60})
    with pytest.raises(
        DataError,
        match=r"given 120 rows, of which 2 are no .*near-copies.*; copies=no lets near-copies",
    ):
        load(both)
    assert len(load(both, copies=False).test) == 40
    one = pd.DataFrame(
        {
            "text": [*RESET, "another"],
            "label": ["a", "b"] * 30 + ["a"],
            "split": ["train"] * 60 + ["test"],
        }
    )
    with pytest.raises(DataError, match=r"must have training rows that are no near-copies"):
        load(one)


def test_equal_rows_stay_together_without_near_copies():
    """`copies=no` divides what is nearly the same, and nothing that is the same."""
    frame = pd.DataFrame(
        {"text": sentences(60) * 2, "label": ["ab"[row % 2] for row in range(60)] * 2}
    )
    data = load(frame, copies=False)
    assert np.array_equal(data.units, np.tile(np.arange(60), 2))


def test_options_are_read_from_a_task_s_name(tmp_path):
    """As the messages write them."""
    path = tmp_path / "own.csv"
    pd.DataFrame({"text": [*RESET, *BILL], "label": ["1", "1.0"] * 30 + ["0", "0.0"] * 30}).to_csv(
        path, index=False
    )
    (task,) = raysent.evaluation.task_files.open_tasks(f"{path}:copies=no,join_labels=yes")
    assert task.load().label_names == ("0", "1")


# --- runs of an earlier version ----------------------------------------------------------------------------------------


def test_a_run_that_an_earlier_version_divided_keeps_its_folds_and_says_so(tmp_path):
    """Its files have no units: folds, records and the metric of its trials are as they were."""
    frame = twice(150).drop(columns="pair")
    (task,) = divide_tasks(tmp_path / "run", [(OwnTask(frame, name="own"), None)])
    new = task.load()
    assert len(new.units)
    assert kept_divisions(tmp_path / "run") == []
    place = tmp_path / "run" / "divisions" / "own"
    old = replace(new, units=EACH_ROW)
    as_earlier(tmp_path / "run", old)
    (kept,) = divided_tasks(tmp_path / "run").values()
    data = kept.load()
    assert not len(data.units)
    assert data.row_hash == new.row_hash
    (line,) = kept_divisions(tmp_path / "run")
    assert line.startswith("own: an earlier version divided its rows, and the run keeps its folds")
    assert "near-copies" in line
    (again,) = divide_tasks(tmp_path / "run", [(OwnTask(frame, name="own"), None)])
    assert not len(again.load().units)
    (rows,) = read_rows(f"{place}.rows")
    assert not len(rows.units)
    config = DownstreamConfig(tasks=["own"], rows=f"{place}.rows")
    kept_hash = Downstream(config).hash
    save_rows(Path(f"{place}.rows"), [new.without_test()])
    assert (
        Downstream(config).hash != kept_hash
    )  # its values cannot be compared with those of other folds


def as_earlier(run: Path, data: TaskData) -> None:
    """Write a run's division as the version before units did."""
    place = run / "divisions" / data.task
    save_rows(Path(f"{place}.rows"), [replace(data.without_test(), part_of=data.row_hash)])
    save_rows(
        Path(f"{place}.test"),
        [replace(data.select(data.test), test=data.test, part_of=data.row_hash)],
    )
    values = {
        name: value for name, value in read_json(Path(f"{place}.json")).items() if name != "version"
    }
    write_json(Path(f"{place}.json"), values, sealed=True)
    _joined.cache_clear()


def test_a_folder_that_an_earlier_version_scored_keeps_its_folds_and_says_so(tmp_path, capsys):
    """A record of before decides for all models of its task, as they are combined by the same folds."""
    frame = twice(150).drop(columns="pair")
    task = OwnTask(frame, name="own")
    data = task.load()
    members = expand(["hash:8", "hash:16"])
    (old,) = Evaluator(tmp_path / "old").records(
        members[:1], [Fixed("own", data=replace(data, units=EACH_ROW))]
    )[members[0]]
    assert not len(old.units)
    capsys.readouterr()
    found = Evaluator(tmp_path / "old").records(members, [task])
    assert "an earlier version scored it" in capsys.readouterr().err
    assert found[members[0]][0].key == old.key
    assert not len(found[members[1]][0].units)
    fresh = Evaluator(tmp_path / "new").records(members, [task])
    assert all(len(records[0].units) for records in fresh.values())
    assert capsys.readouterr().err == ""
    record = read_record(tmp_path / "new" / members[0].folder, "own")
    assert isinstance(record, Record)
    assert np.array_equal(record.units, data.units)


def test_a_damaged_file_of_units_is_refused(tmp_path):
    """Which rows belong together is sealed as the rows are."""
    frame = twice(60).drop(columns="pair")
    divide_tasks(tmp_path / "run", [(OwnTask(frame, name="own"), None)])
    path = tmp_path / "run" / "divisions" / "own.rows"
    first, second, *rest = path.read_text(encoding="ascii").split("\n")
    changed = second.rsplit(",", 1)[0] + ", 7777]"
    path.write_text("\n".join([first, changed, *rest]), encoding="ascii")
    with pytest.raises(raysent.errors.ArtifactError, match="not the rows that were divided"):
        read_rows(path)
