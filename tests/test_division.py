"""Which rows of a task train and which test: by their content alone, groups and near-copies together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raysent
from raysent.data.tables import Table
from raysent.errors import ConfigError, DataError, RaysentError
from raysent.evaluation.divided import divide_tasks
from raysent.evaluation.division import divided, draw_rows
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.records import Record
from raysent.evaluation.task import Task, TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.units import near_copies

WORDS = [
    "red",
    "blue",
    "green",
    "tall",
    "short",
    "wide",
    "good",
    "bad",
    "ugly",
    "fine",
    "over",
    "under",
    "near",
    "far",
]


def texts(number: int, *, seed: int = 0) -> list[str]:
    """Different texts of twelve words."""
    generator = np.random.default_rng(seed)
    return [f"{' '.join(generator.choice(WORDS, 12))} {row}" for row in range(number)]


def own(frame: dict[str, list], **columns: object) -> TaskData:
    """Return the rows of a table as a task."""
    data = OwnTask(pd.DataFrame(frame), name="own", **columns).load()
    assert isinstance(data, TaskData)
    return data


def labelled(number: int) -> dict[str, list]:
    """Return texts of two classes, one row in four of the first."""
    return {"text": texts(number), "label": ["ab"[row % 4 > 0] for row in range(number)]}


# --- the draw ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "tested"), [(1000, 200), (500, 100), (499, 166), (120, 40)])
def test_a_table_without_splits_tests_on_a_fixed_part_of_each_class(number, tested):
    """A fifth of the rows; a third of fewer than 500."""
    data = own(labelled(number))
    assert data.split == "train-test"
    assert len(data.test) == pytest.approx(tested, abs=1)
    assert sorted([*data.train, *data.test]) == list(range(number))
    share = len(data.test) / number
    assert np.abs(np.bincount(data.labels[data.test]) - share * np.bincount(data.labels)).max() <= 1


def test_the_test_rows_follow_from_the_content_in_any_order():
    """The order of rows and the name of the task do not count; another seed of folds neither."""
    frame = labelled(300)
    order = np.random.default_rng(1).permutation(300)
    first = own(frame)
    second = own({name: [values[row] for row in order] for name, values in frame.items()}, seed=3)
    tested = [{one.sentences[0][row] for row in one.test} for one in (first, second)]
    assert tested[0] == tested[1]


def test_appended_rows_move_few_of_the_others():
    """Rows keep their order, so that a grown table tests on nearly the same of its old rows."""
    before, after = own(labelled(1000)), own(labelled(1050))
    tested = [{one.sentences[0][row] for row in one.test} for one in (before, after)]
    assert len(tested[0] - tested[1]) <= 20


def test_near_copies_are_drawn_together():
    """Case, punctuation and a changed word of a long text make no new text; other words do."""
    long = texts(80)
    changed = [f"{one.title().replace(' ', '  ')}!" for one in long[:40]] + [
        f"{one} x" for one in long[40:]
    ]
    copies = near_copies([*long, *changed])
    assert np.array_equal(copies[:80], copies[80:])
    assert len(set(copies.tolist())) == 80
    data = own({"text": [*long, *changed], "label": ["ab"[row % 2] for row in range(80)] * 2})
    assert len(data.test) > 40
    assert set(data.test % 80).isdisjoint(data.train % 80)


def test_near_copies_share_a_part_of_their_shingles():
    """Against the definition: every pair joined by comparison of all pairs, where none is on the edge."""
    found = (
        texts(60) + [one.replace("red", "crimson", 1) for one in texts(60)] + ["", "!", "?", " "]
    )
    plain = [" ".join(one.replace("!", "").replace("?", "").split()) for one in found]
    shingles = [{one[place : place + 4] for place in range(max(1, len(one) - 3))} for one in plain]
    copies = near_copies(found)
    for one in range(120):
        for other in range(one):
            similarity = len(shingles[one] & shingles[other]) / len(shingles[one] | shingles[other])
            if similarity < 0.8:
                assert copies[one] != copies[other]
            if similarity > 0.95:
                assert copies[one] == copies[other]


def test_whole_groups_are_drawn_and_every_stratum_keeps_rows():
    """By groups of very different sizes; a stratum of one group is never drawn."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), generator.integers(1, 40, 30))
    strata = (groups % 3).astype(np.int64)
    strata[groups == 7] = 3
    found = draw_rows([texts(len(groups))], strata, groups, share=0.2)
    assert set(groups[found]).isdisjoint(np.delete(groups, found))
    assert 0.1 < len(found) / len(groups) < 0.3
    assert 3 not in strata[found]
    assert set(np.delete(strata, found)) == {0, 1, 2, 3}


def test_a_group_larger_than_the_part_is_drawn():
    """Three equal groups: a fifth of the rows is nearest to one of them."""
    frame = {**labelled(120), "group": [str(row // 40) for row in range(120)]}
    data = own(frame, split={"test": 0.2, "validation": 0.1})
    assert tuple(map(len, (data.train, data.validation, data.test))) == (40, 40, 40)


def test_folds_that_a_column_names_are_tested_whole():
    """Two of ten folds test, and the others keep their rows."""
    frame = {**labelled(500), "fold": [str(row % 10) for row in range(500)]}
    data = own(frame, folds="fold")
    assert set(data.test % 10).isdisjoint(data.train % 10)
    assert len(set(data.test % 10)) == 2
    assert len(set(zip(data.train % 10, data.folds[data.train], strict=True))) == 8


def test_several_labels_of_a_table_have_the_same_test_rows():
    """So no label's ranking reads the test rows of another; rare labels are in train too."""
    generator = np.random.default_rng(0)
    labels = [
        [name for name, part in (("x", 0.5), ("y", 0.2), ("z", 0.03)) if generator.random() < part]
        for _ in range(200)
    ]
    task = OwnTask(pd.DataFrame({"text": texts(200), "label": labels}), name="own")
    found = [one.load() for one in task.variants({"accuracy"})]
    assert [one.task for one in found] == ["own.x", "own.y", "own.z"]
    assert all(np.array_equal(one.test, found[0].test) for one in found)
    assert all(len(set(one.labels[one.train])) == 2 for one in found)


# --- few rows and large groups -----------------------------------------------------------------------------------------


def table(tmp_path: Path, frame: dict[str, list]) -> str:
    """Write a table."""
    path = tmp_path / "own.csv"
    pd.DataFrame(frame).to_csv(path, index=False)
    return str(path)


ODD: dict[str, dict[str, list]] = {
    **{
        f"{number} rows": {"text": texts(number), "label": ["ab"[row % 2] for row in range(number)]}
        for number in (5, 6, 8)
    },
    "a class of one author": {
        "text": texts(150),
        "label": ["spam" if row < 25 else "ham" for row in range(150)],
        "group": ["a" if row < 25 else "bcdef"[row % 5] for row in range(150)],
    },
    "10 classes of 8 rows": {
        "text": texts(80),
        "label": [f"c{row // 8}" for row in range(80)],
        "group": [str(row) for row in range(80)],
    },
}


@pytest.mark.parametrize("case", ODD)
def test_few_rows_are_evaluated_with_their_baselines(tmp_path, case):
    """With fewer folds, and folds of one class."""
    scores = raysent.evaluate(
        "hash:20", tasks=[table(tmp_path, ODD[case])], output=tmp_path / "out", progress=False
    )
    assert scores.model.tolist() == ["hash:20", "tfidf", "tfidf:chars"]
    assert np.isfinite(scores.test).all()


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            {"text": ["one", "two"], "label": ["a", "b"]},
            {},
            "must have rows that can be divided into train and test",
        ),
        (
            {**labelled(40), "group": ["g"] * 40},
            {},
            "must have groups that can be divided into train and test",
        ),
        (
            {**labelled(40), "group": ["g", "h"] * 20},
            {},
            "must have at least 2 groups of training rows",
        ),
        (ODD["8 rows"], {"protocol": "senteval"}, "has fewer than 10 training rows of every class"),
        (ODD["8 rows"], {"protocol": "kiros"}, "has fewer than 10 training rows of every class"),
    ],
)
def test_too_few_rows_are_one_line(tmp_path, frame, options, message):
    """Where, and what must hold."""
    with pytest.raises(RaysentError, match=message) as found:
        raysent.evaluate(
            "hash:20",
            tasks=[table(tmp_path, frame)],
            output=tmp_path / "out",
            progress=False,
            **options,
        )
    assert "\n" not in str(found.value)


def test_rows_of_an_unknown_split_are_left_out():
    """A folder of `datasets` with train rows and others without labels: no class of theirs, and a line."""
    columns = {"text": texts(60), "label": [row % 2 if row < 40 else -1 for row in range(60)]}
    parts = {"train": np.arange(40), "unsupervised": np.arange(40, 60)}
    task = OwnTask("own", table=Table("own", columns, parts, {}))
    data = task.load()
    assert (len(data), data.label_names, len(data.test)) == (40, ("0", "1"), 14)
    assert (
        "20 rows of unsupervised left out; splits are train, validation and test"
        in task.remarks.notes[0]
    )
    with pytest.raises(
        DataError, match=r"^own: splits must be train, validation or test; given unsupervised$"
    ):
        OwnTask("own", table=Table("own", columns, {"unsupervised": np.arange(60)}, {})).load()


# --- tasks that published protocols cross-validate ---------------------------------------------------------------------


def nested(number: int = 120) -> TaskData:
    """Return a task whose published protocol is nested cross-validation."""
    labels = np.arange(number) % 2
    return TaskData("MADE", "sentence", "nested", ("a", "b"), (texts(number),), labels)


class Made(OwnTask):
    """That task."""

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows."""
        del data_dir
        return nested()


def test_evaluator_divides_a_nested_task_for_callers_that_choose(tmp_path):
    """Under another name of the protocol, in a folder of its own; published folds are the default."""
    task = Made(pd.DataFrame(labelled(120)), name="MADE")
    members = expand(["hash:8", "tfidf"])
    whole = Evaluator(tmp_path).records(members, [task])
    parted = Evaluator(tmp_path, divides=True).records(members, [task])
    again = Evaluator(tmp_path, protocol="fast/divided").records(members, [task])
    for member in members:
        [one], [other], [third] = whole[member], parted[member], again[member]
        assert (one.protocol, len(one.folds)) == ("fast", 10)
        assert (other.protocol, len(other.folds), third.key) == ("fast/divided", 1, other.key)
        assert np.array_equal(other.folds[0].test_rows, divided(nested()).test)
        assert (tmp_path / member.folder / "fast-divided" / "MADE.json").is_file()
        assert (tmp_path / member.folder / "MADE.json").is_file()


def test_choosing_under_a_published_protocol_without_test_rows_is_refused(tmp_path):
    """Every row of nested cross-validation tests and chooses; the members as given can be combined."""
    task = Made(pd.DataFrame(labelled(120)), name="MADE")
    options = {
        "tasks": [task],
        "protocol": "senteval",
        "config": "prototyping",
        "progress": False,
        "baselines": False,
    }
    with pytest.raises(
        ConfigError, match=r"^protocol senteval/prototyping: MADE has no test rows under it"
    ):
        raysent.ensemble(["hash:8", "hash:9"], output=tmp_path / "a", top=1, **options)
    made = raysent.ensemble(["hash:8", "hash:9"], output=tmp_path / "b", **options)
    assert made.result.protocol == "senteval/prototyping"


# --- validation rows that were drawn -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "columns", "drawn"),
    [
        (labelled(90), {"split": {"validation": 0.2, "test": 0.3}}, True),
        (labelled(90), {"split": {"validation": 0.0, "test": 0.3}}, False),
        (
            {**labelled(90), "group": [str(row // 3) for row in range(90)]},
            {"split": {"validation": 0.2}},
            False,
        ),
        (
            {"text": texts(30) * 3, "label": ["a", "b", "b"] * 30},
            {"split": {"validation": 0.2}},
            False,
        ),
        (
            {**labelled(90), "part": ["train", "train", "validation", "test", "train"] * 18},
            {"split": "part"},
            False,
        ),
    ],
    ids=["rows", "none", "groups", "copies", "given"],
)
def test_validation_rows_are_as_train_rows_where_each_was_drawn_alone(frame, columns, drawn):
    """Not where groups or copies lie between them, nor where a user says which they are."""
    assert own(frame, **columns).has_drawn_validation == drawn


@pytest.mark.parametrize("model", ["hash:64", "tfidf"])
def test_what_learned_no_labels_is_fitted_to_train_and_validation_rows(tmp_path, model):
    """As by cross-validation on both, in a run's own rows too; the score before the test is of validation rows."""
    task = OwnTask(pd.DataFrame(labelled(200)), name="own", split={"validation": 0.2, "test": 0.3})
    data = task.load()
    joined = replace(
        data,
        split="train-test",
        train=np.sort([*data.train, *data.validation]),
        validation=data.test[:0],
    )
    joined = replace(joined, has_drawn_validation=False)
    expected = records_of(tmp_path / "joined", model, Fixed(joined.task, data=joined))
    (divided_task,) = divide_tasks(tmp_path / "run", [(task, None)])
    for place, one in ((tmp_path / "own", task), (tmp_path / "divided", divided_task)):
        found = records_of(place, model, one)
        (fold,), (whole,) = found.folds, expected.folds
        for name in ("validation_rows", "validation_log_probabilities", "test_log_probabilities"):
            np.testing.assert_array_equal(getattr(fold, name), getattr(whole, name))
        fold = fold.at(data.validation)
        right = fold.validation_log_probabilities.argmax(axis=1) == data.labels[data.validation]
        assert found.validation == pytest.approx(100 * right.mean())


@dataclass(frozen=True)
class Fixed(Task):
    """A task of rows in memory."""

    data: TaskData = field(kw_only=True)
    scoring = "accuracy"

    def load(self, data_dir: Path | None = None) -> TaskData:
        """Return the rows."""
        return self.data


def records_of(folder: Path, model: str, task: Task) -> Record:
    """Return the record of a model on a task, made in a folder."""
    ((found,),) = Evaluator(folder).records(expand([model]), [task]).values()
    return found
