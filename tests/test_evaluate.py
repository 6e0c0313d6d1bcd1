"""Evaluation: a small task from files to scores, the cache of records, names of models, broken models."""

import json
import pickle
import shutil

import numpy as np
import pytest
from model_folders import write_model
from safetensors.numpy import save

from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, BudgetError, ConfigError, DataError, WorkerError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import UnreadableModelError, expand, load_shared, shared_name
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.records import Costs, Score, SimilarityScore, read_record, read_scores
from raysent.evaluation.task import ProbeTask, ScoredSet, SimilarityTask, TaskData
from raysent.models import ModelConfig, SentenceModel
from raysent.models.schemes.hash import HashEncoder
from raysent.pipeline import evaluation as pipeline
from raysent.reproduction.tasks import senteval


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Scores that other tests left in the cache are not found."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Return a folder with a CR of 60 rows whose classes differ in one word; some rows occur twice."""
    counts = senteval.NUM_ROWS | {"CR/custrev.pos": 30, "CR/custrev.neg": 30}
    monkeypatch.setattr(senteval, "NUM_ROWS", counts)
    folder = tmp_path / "data"
    (folder / "CR").mkdir(parents=True)
    for name, word in (("pos", "good"), ("neg", "bad")):
        lines = [f"{word} thing {number % 20}" for number in range(30)]
        (folder / f"CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    return folder


class Counting:
    """Loads `hash:8` for any path, counts loads and the sentences of each call, and can return NaN."""

    vectors_of = None

    def __init__(self, *, broken: bool = False) -> None:
        self.loads = 0
        self.calls = []
        self.broken = broken

    def __call__(self, path):
        """Return this encoder for any path."""
        del path
        self.loads += 1
        return self

    def encode(self, sentences, *, batch_size=512):
        """Encode as `hash:8`."""
        del batch_size
        self.calls.append(len(sentences))
        vectors = HashEncoder(8).encode(sentences)
        vectors[0, 0] = np.nan if self.broken else vectors[0, 0]
        return vectors


def test_evaluate_returns_scores_and_writes_records(data_dir, tmp_path):
    """One score per model and task, and a record with settings and versions."""
    scores = Evaluator(tmp_path / "out", data_dir).evaluate(["hash:8", "hash:16"], ["cr"])
    assert [(score.model, score.task, score.protocol) for score in scores] == [
        ("hash:8", "CR", "fast"),
        ("hash:16", "CR", "fast"),
    ]
    assert all(score.test > 90 for score in scores)
    about = json.loads((tmp_path / "out/hash%3A8/CR.json").read_text())
    assert about["settings"] == PROTOCOLS["fast"].settings()
    assert set(about["versions"]) == {"raysent", "numpy", "scipy", "scikit-learn", "torch"}
    assert about["interval"][0] <= about["test"] <= about["interval"][1]


def test_evaluate_reads_existing_records(data_dir, tmp_path):
    """The second evaluation loads no model and returns the same scores."""
    load = Counting()
    evaluator = Evaluator(tmp_path / "out", data_dir, load=load)
    first = evaluator.evaluate(["hash:8"], ["CR"])
    assert evaluator.evaluate(["hash:8"], ["CR"]) == first
    assert load.loads == 1


def test_evaluate_encodes_a_distinct_sentence_once(data_dir, tmp_path):
    """Sixty rows hold forty distinct sentences, which are encoded before the cost is measured; a task named twice is evaluated once."""
    load = Counting()
    Evaluator(tmp_path / "out", data_dir, load=load).evaluate(["hash:8"], ["CR", "cr"])
    assert load.calls[0] == 40


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign", "another score", "another name"])
def test_evaluate_replaces_a_damaged_record(data_dir, tmp_path, damage):
    """An incomplete or changed record is not used."""
    evaluator = Evaluator(tmp_path / "out", data_dir)
    first = evaluator.evaluate(["hash:8"], ["CR"])
    arrays = tmp_path / "out/hash%3A8/CR.npz"
    match damage:
        case "missing":
            arrays.unlink()
        case "torn":
            arrays.write_bytes(arrays.read_bytes()[:100])
        case "foreign":
            arrays.with_suffix(".json").write_text("[1]")
        case "another score":
            changed = arrays.with_suffix(".json").read_text().replace('"test": ', '"test": 1')
            arrays.with_suffix(".json").write_text(changed)
            with pytest.raises(
                ArtifactError,
                match=r"/CR.json: changed since it was written; restore it or run again$",
            ):
                read_scores(tmp_path / "out")
        case "another name":
            changed = (
                arrays.with_suffix(".json").read_text().replace("training_hours", "training_hotrs")
            )
            arrays.with_suffix(".json").write_text(changed)
    assert evaluator.evaluate(["hash:8"], ["CR"]) == first
    assert read_record(tmp_path / "out/hash%3A8", "CR") is not None


def test_evaluate_notices_other_rows_and_other_values(data_dir, tmp_path):
    """Changed labels, or another model in the same folder, are evaluated again."""
    model = write_model(tmp_path / "model")
    load = Counting()
    evaluator = Evaluator(tmp_path / "out", data_dir, load=load)
    evaluator.evaluate([model], ["CR"])
    (model / "model.safetensors").write_bytes(save({"a": np.zeros(3, dtype=np.float32)}))
    evaluator.evaluate([model], ["CR"])
    (data_dir / "CR/custrev.neg").write_text("bad other\n" * 30)
    evaluator.evaluate([model], ["CR"])
    evaluator.evaluate([model], ["CR"])
    assert load.loads == 3


def test_read_record_returns_what_was_written(data_dir, tmp_path):
    """Labels, folds and probe are equal."""
    ((made,),) = Evaluator(tmp_path / "out", data_dir).records(expand(["hash:8"]), ["CR"]).values()
    read = read_record(tmp_path / "out/hash%3A8", "CR", key=made.key)
    assert (read.label_names, read.row_hash, read.test) == (
        made.label_names,
        made.row_hash,
        made.test,
    )
    np.testing.assert_array_equal(read.labels, made.labels)
    np.testing.assert_array_equal(read.probe.weights, made.probe.weights)
    for one, other in zip(read.folds, made.folds, strict=True):
        np.testing.assert_array_equal(one.test_log_probabilities, other.test_log_probabilities)
        np.testing.assert_array_equal(one.validation_rows, other.validation_rows)
    assert read_record(tmp_path / "out/hash%3A8", "CR", key="another") is None


class Nodes:
    """Stands for a cluster: runs each job in this process, the last one first, and may fail after the first.

    Attributes:
        error: Raised after the first job; None to run them all.
        num_sent: Objects that were sent to the nodes besides the jobs.
        num_run: Jobs that were run.
    """

    def __init__(self, error=None) -> None:
        self.error, self.num_sent, self.num_run = error, 0, 0

    def __call__(self, function, jobs, *, shared, address, on_wait, gpus_each):
        """Yield the place and the result of each job."""
        assert (address, gpus_each) == ("head:6379", pipeline.gpu_share)
        self.num_sent += len({id(value) for value in shared})
        for place in reversed(range(len(jobs))):
            if self.error is not None and self.num_run:
                raise self.error
            on_wait()
            self.num_run += 1
            job, rows = pickle.loads(pickle.dumps((jobs[place], shared[place])))
            yield place, function(job, rows)


@pytest.mark.parametrize(
    ("error", "num_released"),
    [
        (None, 0),
        (WorkerError("evaluation: no node of the cluster with cores is left"), 1),
        (UnreadableModelError("model: machine two cannot read the model"), 1),
        (BudgetError("evaluation: must stay within 1.00 usd; 1.00 are spent"), 1),
    ],
)
def test_evaluation_on_a_cluster_equals_that_of_one_process(
    data_dir, tmp_path, monkeypatch, capsys, error, num_released
):
    """Also if the cluster fails after the first job: what is left runs here. A task's rows are sent once."""
    nodes, prepared, released = Nodes(error), [], []
    monkeypatch.setattr(pipeline, "map_on_ray", nodes)
    monkeypatch.setattr(pipeline, "has_cores", lambda: True)
    models = ["hash:8", f"words:{_trained(tmp_path / 'model')}", "hash:16"]
    serial = Evaluator(tmp_path / "serial", data_dir).evaluate(models, ["CR"])
    mapped = pipeline.ClusterMap(
        "head:6379", prepare=prepared.append, release=lambda: released.append(1)
    )
    evaluator = Evaluator(tmp_path / "mapped", data_dir, map_jobs=mapped)
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "other_cache"))
    assert evaluator.evaluate(models, ["CR"]) == serial
    for name in ("hash%3A8", "words%3Amodel", "hash%3A16"):
        one, other = (
            read_record(tmp_path / folder / name, "CR") for folder in ("serial", "mapped")
        )
        np.testing.assert_array_equal(one.probe.weights, other.probe.weights)
    assert (prepared, nodes.num_sent, nodes.num_run, len(released)) == (
        [3],
        1,
        1 if error else 3,
        num_released,
    )
    line = "" if error is None else f"{error}; the evaluation continues on this machine\n"
    assert capsys.readouterr().err == line
    assert evaluator.evaluate(models, ["CR"]) == serial
    assert prepared == [3]


def _trained(folder, seed=1):
    """Write the model of a small GRU, and return its folder."""
    values = {"encoder": {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}}}
    config = ModelConfig.model_validate({**values, "objective": {"type": "context_prediction"}})
    words = Vocabulary(["<pad>", "<unk>", "good", "bad", "thing"])
    SentenceModel.build(config, words, seed=seed, max_length=20).eval().save(folder)
    return folder


def test_evaluation_on_a_cluster_of_ones_own_ends_with_the_budget(data_dir, tmp_path, monkeypatch):
    """Nothing is gained by releasing its nodes."""
    monkeypatch.setattr(pipeline, "map_on_ray", Nodes(BudgetError("spent")))
    monkeypatch.setattr(pipeline, "has_cores", lambda: True)
    evaluator = Evaluator(tmp_path / "out", data_dir, map_jobs=pipeline.ClusterMap("head:6379"))
    with pytest.raises(BudgetError, match="spent"):
        evaluator.evaluate(["hash:8", "hash:16"], ["CR"])
    assert len(read_scores(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("damage", "reason"), [("missing", "cannot read the model"), ("other", "has another model")]
)
def test_a_machine_that_cannot_read_a_model_names_it(tmp_path, damage, reason):
    """With the machine, the reason and what to do, in one line."""
    folder = _trained(tmp_path / "model")
    (member,) = expand([folder])
    shutil.rmtree(folder)
    if damage == "other":
        _trained(folder, seed=2)
    load_shared.cache_clear()
    with pytest.raises(
        UnreadableModelError,
        match=rf"^{folder}: machine \S+ {reason}.*; put it on storage that all",
    ):
        load_shared(shared_name(member.path), member.key)


def test_evaluate_reports_progress(data_dir, tmp_path):
    """The first job before it starts, every job when it is done, and the end."""
    seen = []
    Evaluator(tmp_path, data_dir, progress=lambda *event: seen.append(event)).evaluate(
        ["hash:8"], ["CR"]
    )
    job = "mean of random vectors of words (8 numbers) on CR"
    assert seen == [(job, 0, 1), (job, 1, 1), ("done", 1, 1)]


def test_evaluate_names_a_model_that_returns_nan(data_dir, tmp_path):
    """The error names the model; no record is written."""
    model = write_model(tmp_path / "model")
    with pytest.raises(
        DataError,
        match=r"model: vectors must be finite; given NaN or infinity in 2 of 60 rows of CR",
    ):
        Evaluator(tmp_path / "out", data_dir, load=Counting(broken=True)).evaluate([model], ["CR"])
    assert not (tmp_path / "out").exists()


def test_evaluate_rejects_unknown_tasks_before_loading(data_dir, tmp_path):
    """No model is loaded."""
    load = Counting()
    with pytest.raises(ConfigError, match=r"^tasks CRR: unknown task; did you mean 'CR'\?$"):
        Evaluator(tmp_path, data_dir, load=load).evaluate(["hash:8"], ["CRR"])
    assert load.loads == 0


def pairs_task(name: str = "pairs") -> SimilarityTask:
    """Return a task without files, on which a model's own similarity is compared with scores."""
    one = ScoredSet("a", ["x y", "x", "p q"], ["x y", "x z", "r s"], np.array([5.0, 3.0, 1.0]))
    return SimilarityTask(name, reader=lambda task, data_dir: [one])


def test_evaluate_mixes_tasks_with_and_without_a_probe(data_dir, tmp_path):
    """Each is scored in its way, in the order given; a model is loaded once; records are read again."""
    load = Counting()
    load.similarity_measure = "cosine"
    evaluator = Evaluator(tmp_path / "out", data_dir, protocol="kiros", load=load)
    first = evaluator.evaluate(["hash:8"], [pairs_task(), "CR"])
    assert [(type(score), score.task, score.protocol) for score in first] == [
        (SimilarityScore, "pairs", "similarity"),
        (Score, "CR", "kiros"),
    ]
    assert evaluator.evaluate(["hash:8"], [pairs_task(), "CR"]) == first
    assert load.loads == 1


def test_evaluate_hands_all_jobs_to_map_jobs(data_dir, tmp_path):
    """Their results may come in any order; scores keep the order of tasks."""

    def backwards(jobs):
        return [(place, jobs[place].run()) for place in reversed(range(len(jobs)))]

    evaluator = Evaluator(tmp_path / "out", data_dir, map_jobs=backwards)
    scores = evaluator.evaluate(["hash:8", "hash:9"], [pairs_task(), "CR"])
    assert [(score.model, score.task) for score in scores] == [
        ("hash:8", "pairs"),
        ("hash:8", "CR"),
        ("hash:9", "pairs"),
        ("hash:9", "CR"),
    ]


class Scaled(HashEncoder):
    """`hash:8` times a factor; with 0 all sentences are equal."""

    def __init__(self, factor: float) -> None:
        super().__init__(8)
        self.factor = factor

    def encode_texts(self, sentences, *, batch_size=512):
        """Encode as `hash:8`, times the factor."""
        return super().encode_texts(sentences, batch_size=batch_size) * np.float32(self.factor)


def test_evaluate_takes_encoders_in_memory(data_dir, tmp_path):
    """They are scored like models that are loaded, and a record of another encoder is never read for them."""
    evaluator = Evaluator(tmp_path, data_dir)
    scores = evaluator.evaluate([Scaled(1), "hash:8", Scaled(0)], ["CR"])
    assert [score.model for score in scores] == ["Scaled", "hash:8", "Scaled-2"]
    assert scores[0].test == scores[1].test > scores[2].test
    assert evaluator.evaluate([Scaled(0)], ["CR"])[0].test == scores[2].test


def test_records_rejects_a_task_without_a_probe(data_dir, tmp_path):
    """There are no log-probabilities to combine."""
    with pytest.raises(
        ConfigError, match=r"^tasks pairs: must be scored by accuracy or correlation"
    ):
        Evaluator(tmp_path, data_dir).records(expand(["hash:8"]), [pairs_task()])


def test_read_scores_returns_what_was_evaluated(data_dir, tmp_path):
    """Of all models, tasks and protocols, with and without a probe."""
    written = []
    for protocol in ("fast", "senteval/prototyping"):
        evaluator = Evaluator(tmp_path / "out", data_dir, protocol=protocol)
        written += [*evaluator.evaluate(["hash:8", "hash:9"], ["CR", pairs_task()])]
    read = read_scores(tmp_path / "out")
    assert len(read) == 6
    assert all(score in read for score in written)
    assert all(score in written for score in read)
    without_probe = [score for score in read if isinstance(score, SimilarityScore)]
    assert [(score.model, score.test) for score in without_probe] == [
        (score.model, score.pearson) for score in without_probe
    ]
    assert {
        (score.validation, score.interval, score.costs, score.f1) for score in without_probe
    } == {(None, None, Costs(), None)}


def test_read_scores_of_a_file_without_optional_values(tmp_path):
    """Files of earlier versions lack intervals, measures and costs."""
    path = tmp_path / "model/MR.json"
    path.parent.mkdir()
    plain = {"model": "m", "task": "MR", "protocol": "fast", "validation": 80.0, "test": 79.0}
    path.write_text(json.dumps(plain))
    assert read_scores(tmp_path) == [Score(**plain)]


def test_score_knows_whether_it_is_a_correlation(data_dir, tmp_path):
    """A correlation has no place in a mean of accuracies."""
    rows = np.split(np.arange(40), [20, 30])
    scores = np.tile([1.0, 5.0], 20)
    pairs = (["a b"] * 40, ["a b" if score > 3 else "x" for score in scores])
    data = TaskData(
        "own",
        "pair",
        "train-validation-test",
        tuple("12345"),
        pairs,
        scores.astype(int) - 1,
        *rows,
        scores,
    )
    own = ProbeTask("own", reader=lambda task, data_dir: data, is_scored=True)
    evaluated = Evaluator(tmp_path, data_dir).evaluate(["hash:8"], ["CR", own, pairs_task()])
    assert [score.is_correlation for score in evaluated] == [False, True, True]
