"""Evaluation: whole path on a small task, the cache of records, names of models, broken models."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.evaluate import evaluate, expand, read_record, records
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.tasks import senteval
from raysent.models.sentence_encoder import HashEncoder


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Return a folder with a CR of 60 rows that words tell apart, and some rows twice."""
    counts = senteval.NUM_ROWS | {"CR/custrev.pos": 30, "CR/custrev.neg": 30}
    monkeypatch.setattr(senteval, "NUM_ROWS", counts)
    folder = tmp_path / "data"
    (folder / "CR").mkdir(parents=True)
    for name, word in (("pos", "good"), ("neg", "bad")):
        lines = [f"{word} thing {number % 20}" for number in range(30)]
        (folder / f"CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    return folder


class Counting:
    """Loads `hash:8` for any path, counts loads and sentences, and can give NaN."""

    def __init__(self, *, broken: bool = False) -> None:
        self.loads = self.sentences = 0
        self.broken = broken

    def __call__(self, path):
        """Return this encoder, whatever was asked for."""
        del path
        self.loads += 1
        return self

    def encode(self, sentences, *, batch_size=512):
        """Encode with the reference."""
        del batch_size
        self.sentences += len(sentences)
        vectors = HashEncoder(8).encode(sentences)
        vectors[0, 0] = np.nan if self.broken else vectors[0, 0]
        return vectors


def write_model(folder, values: bytes | None = None):
    """Write what passes for a trained model's files."""
    folder.mkdir(parents=True)
    tensors = save({"a": np.ones(3, dtype=np.float32)}) if values is None else values
    for name, content in (("model.json", b"{}"), ("model.safetensors", tensors), ("vocabulary.txt", b"a")):
        (folder / name).write_bytes(content)
    return folder


def test_evaluate_scores_and_writes_records(data_dir, tmp_path):
    """A score per model and task, and a record that says how it came about."""
    scores = evaluate(["hash:8", "hash:16"], output=tmp_path / "out", tasks=["cr"], data_dir=data_dir)
    assert [(score.model, score.task, score.protocol) for score in scores] == [
        ("hash:8", "CR", "fast"),
        ("hash:16", "CR", "fast"),
    ]
    assert all(score.test > 90 for score in scores)
    about = json.loads((tmp_path / "out/hash-8/CR.json").read_text())
    assert about["settings"] == PROTOCOLS["fast"].settings()
    assert set(about["versions"]) == {"raysent", "numpy", "scipy", "scikit-learn", "torch"}
    assert about["interval"][0] <= about["test"] <= about["interval"][1]


def test_evaluate_reads_what_is_there(data_dir, tmp_path):
    """The second time nothing is loaded, and the scores are the same."""
    load = Counting()
    options = {"output": tmp_path / "out", "tasks": ["CR"], "data_dir": data_dir, "load": load}
    first = evaluate(["hash:8"], **options)
    assert evaluate(["hash:8"], **options) == first
    assert load.loads == 1


def test_evaluate_encodes_a_distinct_sentence_once(data_dir, tmp_path):
    """Sixty rows hold forty sentences."""
    load = Counting()
    evaluate(["hash:8"], output=tmp_path / "out", tasks=["CR", "cr"], data_dir=data_dir, load=load)
    assert load.sentences == 40


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign"])
def test_evaluate_makes_a_damaged_record_again(data_dir, tmp_path, damage):
    """A record that is not whole is never trusted."""
    options = {"output": tmp_path / "out", "tasks": ["CR"], "data_dir": data_dir}
    first = evaluate(["hash:8"], **options)
    arrays = tmp_path / "out/hash-8/CR.npz"
    match damage:
        case "missing":
            arrays.unlink()
        case "torn":
            arrays.write_bytes(arrays.read_bytes()[:100])
        case "foreign":
            (tmp_path / "out/hash-8/CR.json").write_text("[1]")
    assert evaluate(["hash:8"], **options) == first
    assert read_record(tmp_path / "out/hash-8", "CR") is not None


def test_evaluate_notices_other_rows_and_other_values(data_dir, tmp_path):
    """Another label file or another model in the same folder is judged anew."""
    model = write_model(tmp_path / "model")
    load = Counting()
    options = {"output": tmp_path / "out", "tasks": ["CR"], "data_dir": data_dir, "load": load}
    evaluate([model], **options)
    (model / "model.safetensors").write_bytes(save({"a": np.zeros(3, dtype=np.float32)}))
    evaluate([model], **options)
    (data_dir / "CR/custrev.neg").write_text("bad other\n" * 30)
    evaluate([model], **options)
    evaluate([model], **options)
    assert load.loads == 3


def test_record_comes_back_as_it_was(data_dir, tmp_path):
    """Labels, folds and probe survive the files exactly."""
    ((made,),) = records(["hash:8"], output=tmp_path / "out", tasks=["CR"], data_dir=data_dir).values()
    read = read_record(tmp_path / "out/hash-8", "CR", key=made.key)
    assert (read.label_names, read.row_hash, read.test) == (made.label_names, made.row_hash, made.test)
    np.testing.assert_array_equal(read.labels, made.labels)
    np.testing.assert_array_equal(read.probe.weights, made.probe.weights)
    for one, other in zip(read.folds, made.folds, strict=True):
        np.testing.assert_array_equal(one.test_log_probabilities, other.test_log_probabilities)
        np.testing.assert_array_equal(one.validation_rows, other.validation_rows)
    assert read_record(tmp_path / "out/hash-8", "CR", key="another") is None


def test_evaluate_reports_progress(data_dir, tmp_path):
    """The first job is announced, every job as it is done, and the end."""
    seen = []
    evaluate(["hash:8"], output=tmp_path, tasks=["CR"], data_dir=data_dir, progress=lambda *event: seen.append(event))
    assert seen == [("hash:8: CR", 0, 1), ("hash:8: CR", 1, 1), ("done", 1, 1)]


def test_evaluate_names_a_model_that_gives_nan(data_dir, tmp_path):
    """A diverged model is named in one line, and leaves no record."""
    model = write_model(tmp_path / "model")
    with pytest.raises(DataError, match=r"model: vectors must be finite; given NaN or infinity in 2 of 60 rows of CR"):
        evaluate([model], output=tmp_path / "out", tasks=["CR"], data_dir=data_dir, load=Counting(broken=True))
    assert not (tmp_path / "out").exists()


def test_evaluate_refuses_unknown_tasks_before_loading(data_dir, tmp_path):
    """A wrong name costs nothing."""
    load = Counting()
    with pytest.raises(ConfigError, match=r"^--tasks CRR: unknown task; did you mean 'CR'\?$"):
        evaluate(["hash:8"], output=tmp_path, tasks=["CRR"], data_dir=data_dir, load=load)
    assert load.loads == 0


def test_expand_takes_a_sweep_for_its_trained_trials(tmp_path):
    """Trials without a model are left out; a model below `model/` counts."""
    write_model(tmp_path / "sweep/trials/0001")
    write_model(tmp_path / "sweep/trials/0002/model", b"other")
    (tmp_path / "sweep/trials/0003").mkdir()
    members = expand([tmp_path / "sweep", "hash:8"])
    assert [member.name for member in members] == ["0001", "0002", "hash:8"]
    assert len({member.key for member in members}) == 3


def test_expand_tells_trials_of_two_sweeps_apart(tmp_path):
    """The sweep's name is put before a trial's where two are called alike; the same model twice is one."""
    for sweep in ("a", "b"):
        write_model(tmp_path / sweep / "trials/1")
    members = expand([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "trials/1"])
    assert [member.name for member in members] == ["a-1", "b-1"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], r"gone: no such run or model; name a run, a trial, a model, an ensemble or hash:DIM"),
        (["gone"], r"gone: holds no model.json, trials or ensemble.json; name a run or a model"),
        (["gone/trials/1"], r"gone/trials: must hold a trained trial; found none; finish the sweep first"),
    ],
)
def test_expand_refuses_what_is_no_model(tmp_path, make, message):
    """The message says what was looked for."""
    for folder in make:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ArtifactError, match=message):
        expand([tmp_path / "gone"])


def test_expand_refuses_a_model_that_is_not_whole(tmp_path):
    """A missing file is named."""
    (write_model(tmp_path / "model") / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"model.safetensors: no such file; the model is not whole"):
        expand([tmp_path / "model"])


def test_expand_needs_a_model():
    """Nothing to judge is a mistake."""
    with pytest.raises(ArtifactError, match=r"^MODEL: needs at least one run, model or hash:DIM; given none$"):
        expand([])
