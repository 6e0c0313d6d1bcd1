"""Records of an evaluation that are damaged or a stranger's: made again by who writes them, refused by who reads them."""

from __future__ import annotations

import io
import resource
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raysent import load
from raysent.data.vocabulary import WordVectors
from raysent.ensembles import combine, load_ensemble
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.records import read_record
from raysent.evaluation.task_files import OwnTask
from raysent.models import average_of_words
from raysent.storage import load_arrays, read_json, save_arrays, write_json

WORDS = ("red", "blue", "tall", "short")


def _task(name: str, word: str) -> OwnTask:
    rows = [
        f"a {WORDS[row % 4]} {WORDS[row // 4 % 4]} thing {'abcdefgh'[row % 8] * 4}{row}"
        for row in range(64)
    ]
    labels = ["yes" if word in text else "no" for text in rows]
    return OwnTask(pd.DataFrame({"text": rows, "label": labels}), name=name, folds=3)


TASKS = [_task("reviews", "red"), _task("topics", "tall")]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with records of two tasks beside it, and an ensemble."""
    folder = tmp_path_factory.mktemp("evaluated")
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
    average_of_words(WordVectors(list(WORDS), vectors)).save(folder / "model")
    Evaluator(folder / "model" / "evaluation").evaluate([folder / "model"], TASKS)
    combine([folder / "model", "hash:10"], output=folder / "both", tasks=TASKS)
    return folder


@pytest.fixture
def copied(evaluated: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(evaluated, tmp_path / "copy")
    return tmp_path / "copy"


def _file(folder: Path, name: str) -> Path:
    (path,) = folder.rglob(name)
    return path


def _flip(path: Path, place: float) -> None:
    whole = path.read_bytes()
    at = int(place * (len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])


@pytest.mark.parametrize("name", ["topics.npz", "topics.json"])
@pytest.mark.parametrize("place", [0.0, 0.1, 0.35, 0.5, 0.7, 0.9, 0.99])
def test_a_flipped_bit_of_a_record_is_refused_by_a_reader(copied, name, place) -> None:
    """The task stays among those that are predicted, so no other one takes its place; the others are predicted."""
    expected = load(copied / "model").predict("reviews", ["a red thing"])
    record = _file(copied / "model", name)
    _flip(record, place)
    model = load(copied / "model")
    assert set(model.predictors) == {"reviews", "topics"}
    with pytest.raises(ConfigError, match="task: must be the name of a task, .*: reviews, topics;"):
        model.predict(["a red thing"])
    with pytest.raises(ArtifactError, match=r"topics\.(npz|json): [^\n]+$"):
        model.predict("topics", ["a red thing"])
    with pytest.raises(ArtifactError, match=r"topics\.(npz|json): [^\n]+$"):
        read_record(record.parent, "topics")
    assert model.predict("reviews", ["a red thing"]) == expected


def test_a_record_that_is_missing_is_no_task_of_a_model(copied) -> None:
    """Nothing says that there was one; arrays without their JSON are those of an evaluation that was killed."""
    record = _file(copied / "model", "topics.json")
    record.unlink()
    assert read_record(record.parent, "topics") is None
    assert set(load(copied / "model").predictors) == {"reviews"}


@pytest.mark.parametrize("name", ["topics.npz", "topics.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_the_evaluation_makes_a_damaged_record_again(copied, name, damage) -> None:
    """The scores are those of before, and the record is whole."""
    folder = copied / "model" / "evaluation"
    record = _file(folder, name)
    whole = record.read_bytes()
    if damage == "flip":
        _flip(record, 0.5)
    elif damage == "remove":
        record.unlink()
    else:
        record.write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])
    before = read_record(record.parent, "reviews")
    scores = Evaluator(folder).evaluate([copied / "model"], TASKS)
    assert [score.task for score in scores] == ["reviews", "topics"]
    assert scores[0].test == before.test
    again = read_record(record.parent, "topics")
    assert again.test == scores[1].test
    assert set(load(copied / "model").predictors) == {"reviews", "topics"}


def test_a_member_of_an_ensemble_with_a_damaged_record_is_refused(copied) -> None:
    """In the line of its file; a missing one is said as before."""
    (record,) = (copied / "both").rglob("hash*/topics.npz")
    _flip(record, 0.5)
    ensemble = load_ensemble(copied / "both")
    with pytest.raises(ArtifactError, match=r"topics\.npz: [^\n]+$"):
        ensemble.predict("topics", ["a red thing"])
    assert ensemble.predict("reviews", ["a red thing"])
    record.with_suffix(".json").unlink()
    with pytest.raises(ArtifactError, match=r"topics\.json: missing or changed since the ensemble"):
        load_ensemble(copied / "both").predict("topics", ["a red thing"])


def test_arrays_of_another_record_are_refused(copied) -> None:
    """Whole, of the same shapes, and of another task."""
    record = _file(copied / "model", "topics.npz")
    shutil.copy(record.with_name("reviews.npz"), record)
    with pytest.raises(ArtifactError, match=r"topics\.npz: changed since it was written; evaluate"):
        read_record(record.parent, "topics")


def test_a_record_of_an_earlier_version_is_read(copied) -> None:
    """It has no hash of its arrays."""
    record = _file(copied / "model", "topics.json")
    about = read_json(record)
    about.pop("arrays", None)
    write_json(record, about)
    assert read_record(record.parent, "topics").task == "topics"


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        ("fold0_test_log_probabilities", (3, 2)),
        ("fold0_validation_rows", (3,)),
        ("probe_intercepts", (7,)),
        ("labels", (2,)),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(copied, array, shape) -> None:
    """A stranger's record, with the right hashes."""
    record = _file(copied / "model", "topics.npz")
    arrays = load_arrays(record)
    save_arrays(record, {**arrays, array: np.ones(shape, dtype=arrays[array].dtype)})
    about = read_json(record.with_suffix(".json"))
    about.pop("arrays", None)
    write_json(record.with_suffix(".json"), about)
    with pytest.raises(
        ArtifactError, match=r"topics\.json: not a record of an evaluation \(ValueE"
    ):
        read_record(record.parent, "topics")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of memory")
@pytest.mark.parametrize("array", ["probe_weights_x", "probe_weights", "model_x"])
def test_arrays_far_larger_than_their_file_are_not_unpacked(copied, array) -> None:
    """What no record has is never read; what it has is refused by its size."""
    record = _file(copied / "model", "topics.npz")
    arrays = load_arrays(record)
    whole = load(copied / "model").predict("topics", ["a red thing"])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{**arrays, array: np.zeros(1 << 28, dtype=np.int8)})
    record.write_bytes(buffer.getvalue())
    about = read_json(record.with_suffix(".json"))
    about.pop("arrays", None)
    write_json(record.with_suffix(".json"), about)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = load(copied / "model")
    if array == "probe_weights_x":
        assert model.predict("topics", ["a red thing"]) == whole
    else:
        with pytest.raises(
            ArtifactError,
            match=r"topics\.npz: must unpack to at most [\d,]+ bytes; its arrays have 268,\d+,\d+; is ",
        ):
            model.predict("topics", ["a red thing"])
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 1 << 27


def test_a_header_that_lies_about_its_shape_is_refused(copied) -> None:
    """By the size of its entry, before anything is reserved."""
    record = _file(copied / "model", "topics.npz")
    about = read_json(record.with_suffix(".json"))
    about.pop("arrays", None)
    write_json(record.with_suffix(".json"), about)
    buffer = io.BytesIO()
    with zipfile.ZipFile(record) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "probe_weights.npy":
                header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 8), }"
                content = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n"
            new.writestr(name, content)
    record.write_bytes(buffer.getvalue())
    with pytest.raises(ArtifactError, match=r"topics\.npz: truncated or not \.npz \(probe_weights"):
        read_record(record.parent, "topics")
