"""Ensembles: properties of the pool, refusals, intervals, the saved file, predictions after loading."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent import ensembles as ensemble
from raysent import models as model
from raysent.ensembles import fit, pool
from raysent.ensembles.outcomes import fitted_folds, task_outcome
from raysent.ensembles.representations import Average, Concatenation
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.results import mean_interval
from raysent.evaluation.tasks import senteval
from raysent.models.sentence_encoder import HashEncoder

MEMBERS = ["hash:4", "hash:8", "hash:16"]


@st.composite
def answers(draw, *, ruled_out: bool = False):
    """Draw log-probabilities [members, rows, classes], normalised; some -inf where asked for, never a whole row."""
    members, rows, classes = draw(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 4)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = 5 * generator.standard_normal((members, rows, classes))
    if ruled_out:
        scores[..., 1:][generator.random((members, rows, classes - 1)) < 0.4] = -np.inf
    return scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)


@given(answers(ruled_out=True))
def test_pool_is_a_distribution(given_answers):
    """Exponentials sum to one, and nothing is NaN, whatever is ruled out."""
    pooled = pool(given_answers, np.ones(len(given_answers)))
    np.testing.assert_allclose(np.exp(pooled).sum(axis=1), 1)


@given(answers(ruled_out=True), st.floats(0.1, 1))
def test_pool_of_equal_members_is_the_member(given_answers, share):
    """Members that agree change nothing, whatever their shares; one alone is itself."""
    alone = given_answers[:1]
    np.testing.assert_allclose(pool(alone, [1.0]), alone[0], atol=1e-9)
    twice = np.concatenate([alone, alone])
    np.testing.assert_allclose(pool(twice, [share, 1 - share]), alone[0], atol=1e-9)


@given(answers(ruled_out=True), st.randoms(use_true_random=False))
def test_pool_follows_permutations(given_answers, random):
    """Rows permuted give permuted rows; members permuted with their shares give the same."""
    shares = np.arange(1.0, len(given_answers) + 1)
    rows, members = (random.sample(range(size), size) for size in (given_answers.shape[1], len(given_answers)))
    pooled = pool(given_answers, shares)
    np.testing.assert_array_equal(pool(given_answers[:, rows], shares), pooled[rows])
    np.testing.assert_allclose(pool(given_answers[members], shares[members]), pooled)


@given(answers())
def test_pool_is_the_weighted_geometric_mean(given_answers):
    """The slow and plain formula gives the same."""
    shares = np.full(len(given_answers), 1 / len(given_answers))
    product = np.prod([np.exp(member) ** share for member, share in zip(given_answers, shares, strict=True)], axis=0)
    np.testing.assert_allclose(np.exp(pool(given_answers, shares)), product / product.sum(axis=1, keepdims=True))


def test_pool_keeps_what_is_ruled_out():
    """A class that one member rules out stays out, unless that member has no weight."""
    answers_of_two = np.log([[[0.5, 0.5]], [[1.0, 1e-300]]])
    answers_of_two[1, 0, 1] = -np.inf
    assert pool(answers_of_two, [0.5, 0.5])[0].tolist() == [0.0, -np.inf]
    np.testing.assert_allclose(pool(answers_of_two, [1.0, 0.0]), answers_of_two[0])


def test_pool_settles_members_that_rule_out_everything():
    """Where each class is ruled out by someone, the one ruled out with the least weight wins."""
    certain = np.array([[[0.0, -np.inf]], [[-np.inf, 0.0]]])
    assert pool(certain, [0.6, 0.4]).argmax() == 0
    assert pool(certain, [0.4, 0.6]).argmax() == 1
    np.testing.assert_allclose(pool(certain, [0.5, 0.5]), np.log([[0.5, 0.5]]))


def test_fit_shares_by_validation_accuracy():
    """The base rule: w_m = s_m / sum of s."""
    right, wrong = np.log([0.9, 0.1]), np.log([0.1, 0.9])
    given_answers = np.array([[right, right, right, right], [right, right, wrong, wrong]])
    weights = fit(given_answers, np.zeros(4, dtype=int))
    np.testing.assert_allclose(weights.scores, [1, 0.5])
    np.testing.assert_allclose(weights.shares, [2 / 3, 1 / 3])
    assert fit(given_answers, np.zeros(4, dtype=int), method="best").shares.tolist() == [1, 0]


def test_fit_shares_equally_where_nobody_is_right():
    """Scores of nought leave nothing to share by."""
    assert fit(np.log([[[0.9, 0.1]], [[0.8, 0.2]]]), np.array([1])).shares.tolist() == [0.5, 0.5]


@settings(max_examples=20)
@given(st.integers(20, 400), st.floats(0.1, 0.9))
def test_interval_holds_the_score(rows, share):
    """The score lies inside, and the width is that of the binomial."""
    right = np.arange(rows) < share * rows
    low, high = mean_interval([right])
    score = right.mean()
    assert low <= 100 * score <= high
    width = 100 * 2 * 1.96 * np.sqrt(score * (1 - score) / rows)
    assert high - low == pytest.approx(width, rel=0.25, abs=150 / rows)


def test_interval_of_a_difference_is_paired():
    """Classifiers that are right on the same rows differ surely by nothing; a mean over tasks is narrower."""
    assert mean_interval([np.zeros(50)]) == (0.0, 0.0)
    gap = np.repeat([1, 0, -1], [10, 85, 5])
    low, high = mean_interval([gap])
    assert low < 5 < high
    narrow = mean_interval([gap] * 4)
    assert narrow[1] - narrow[0] < high - low


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder with data of a small CR and TREC, and the ensemble of three references on them."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        counts = dict.fromkeys(senteval.NUM_ROWS, 60)
        patch.setattr(senteval, "NUM_ROWS", counts)
        write_tasks(folder / "data")
        combined = ensemble.combine(MEMBERS, output=folder, tasks=["CR", "TREC"], data_dir=folder / "data", top=2)
        found = Evaluator(folder / "evaluation", folder / "data").records(expand(MEMBERS), ["CR", "TREC"])
    return folder, combined, found


def write_tasks(data) -> None:
    """Write CR and TREC of sixty lines a file; a third of the words tell the class."""
    generator = np.random.default_rng(0)
    for folder in ("CR", "TREC"):
        (data / folder).mkdir(parents=True)
    for name, word in (("pos", "good"), ("neg", "bad")):
        lines = [f"{word if generator.random() < 0.7 else 'thing'} {generator.integers(9)}" for _ in range(60)]
        (data / f"CR/custrev.{name}").write_text("\n".join(lines) + "\n")
    for name in ("train_5500", "TREC_10"):
        words = [("NUM", "many"), ("LOC", "where"), ("HUM", "who")]
        lines = [f"{label}:x {word} {generator.integers(9)}" for label, word in words for _ in range(20)]
        (data / f"TREC/{name}.label").write_text("\n".join(lines) + "\n")


def test_combine_keeps_the_best_by_validation(run):
    """`top` keeps members by their mean validation score, best first."""
    _, combined, found = run
    means = {member.name: np.mean([record.validation for record in kept]) for member, kept in found.items()}
    ranked = sorted(means, key=means.get, reverse=True)
    assert [member.name for member in combined.members] == ranked[:2]


def test_combine_writes_what_the_report_reads(run):
    """Scores with intervals of ensemble, rivals and members on every task and on the mean; weights by name."""
    folder, combined, _ = run
    about = json.loads((folder / "ensemble.json").read_text())
    names = [member.name for member in combined.members]
    assert about["members"] == names
    for task in ("CR", "TREC"):
        scores = about["tasks"][task]["scores"]
        assert list(scores) == ["ensemble", "uniform", "best", *names]
        assert all(score["interval"][0] <= score["test"] <= score["interval"][1] for score in scores.values())
        assert sum(about["tasks"][task]["weights"].values()) == pytest.approx(1)
    means = about["mean"]["scores"]
    difference = about["mean"]["difference"]
    assert difference["value"] == pytest.approx(means["ensemble"]["test"] - means[about["best_member"]]["test"])
    assert difference["interval"][0] <= difference["value"] <= difference["interval"][1]


def test_weights_come_from_each_fold_s_own_validation(run):
    """In every outer fold w_m = s_m / sum of s of that fold's validation rows, or all is the best member's."""
    _, combined, found = run
    kept = [found[member][0] for member in combined.members]
    outcome = combined.tasks[0]
    assert outcome.fold_weights.shape == (10, 2)
    for fold in range(10):
        accuracies = [
            (r.folds[fold].validation_log_probabilities.argmax(1) == r.labels[r.folds[fold].validation_rows]).mean()
            for r in kept
        ]
        shares = np.array(accuracies) / sum(accuracies)
        best = np.eye(2)[np.argmax(accuracies)]
        replaced = fitted_folds(kept, method="validation")[fold].is_replaced
        np.testing.assert_allclose(outcome.fold_weights[fold], best if replaced else shares)
    assert 0 < outcome.ensemble.num_replaced < 10


def test_one_member_is_that_member(run):
    """An ensemble of one scores as its member."""
    _, _, found = run
    record = next(iter(found.values()))[0]
    outcome = task_outcome([record], method="validation")
    assert outcome.ensemble.test.value == pytest.approx(record.test)
    assert outcome.ensemble.validation == pytest.approx(record.validation)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"row_hash": "other"}, "rows"),
        ({"label_names": ("a", "b")}, "classes"),
        ({"protocol": "senteval"}, "protocol"),
        ({"task": "MR"}, "task"),
    ],
)
def test_what_cannot_be_mixed_is_refused(run, change, word):
    """Other rows, classes, protocols or tasks: one line that names both members."""
    _, _, found = run
    first, second = (kept[0] for kept in list(found.values())[:2])
    message = (
        rf"^CR: members must be judged on the same {word}; 'hash:4' has .*, 'hash:8' has .*; evaluate them together$"
    )
    with pytest.raises(ArtifactError, match=message):
        task_outcome([first, dataclasses.replace(second, **change)], method="validation")


def test_saved_ensemble_loads_and_encodes(run):
    """`load` gives the members' vectors one after another, wherever the folder was moved to."""
    folder, combined, _ = run
    moved = folder.parent / "moved"
    shutil.copytree(folder, moved, dirs_exist_ok=True)
    loaded = model.load(moved)
    sizes = [int(member.name.removeprefix("hash:")) for member in combined.members]
    vectors = loaded.encode(["who is it", ""])
    assert vectors.shape == (2, loaded.get_sentence_embedding_dimension()) == (2, sum(sizes))
    alone = HashEncoder(sizes[0]).encode(["who is it", ""], normalize_embeddings=True)
    np.testing.assert_array_equal(vectors[:, : sizes[0]], alone)
    unit = loaded.encode(["who is it"], normalize_embeddings=True)
    assert np.linalg.norm(unit) == pytest.approx(1)


def test_saved_predictions_equal_those_in_memory(run):
    """On the test rows the loaded ensemble answers as the records' pool does."""
    folder, combined, found = run
    kept = [found[member][1] for member in combined.members]
    lines = (folder / "data/TREC/TREC_10.label").read_text().splitlines()
    sentences = [line.partition(" ")[2] for line in lines]
    answers_of_members = np.stack([record.folds[0].test_log_probabilities for record in kept])
    expected = combined.tasks[1].final.combination(answers_of_members)
    loaded = model.load(folder)
    np.testing.assert_allclose(loaded.predict_log_probabilities("TREC", sentences), expected, atol=1e-4)
    names = [kept[0].label_names[best] for best in expected.argmax(axis=1)]
    assert loaded.predict("TREC", sentences) == names
    assert loaded.tasks == ["CR", "TREC"]


def test_saved_ensemble_refuses_unknown_tasks_and_columns(run):
    """Only its own tasks, and as many columns as they have."""
    loaded = model.load(run[0])
    with pytest.raises(ConfigError, match=r"^TRECC: the ensemble was not made on this task; did you mean 'TREC'\?$"):
        loaded.predict("TRECC", ["a"])
    with pytest.raises(ConfigError, match=r"^TREC: needs 1 list\(s\) of equally many sentences; given 2$"):
        loaded.predict("TREC", ["a"], ["b"])


def test_saved_ensemble_notices_changes(run, tmp_path):
    """A member or a record that changed since is not used in silence."""
    shutil.copytree(run[0], tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/evaluation/hash-16")
    with pytest.raises(ArtifactError, match=r"hash-16/TREC.json: missing or changed since the ensemble was made"):
        model.load(tmp_path / "copy").predict("TREC", ["a"])
    about = json.loads((tmp_path / "copy/ensemble.json").read_text())
    about["keys"]["hash:16"] = "other"
    (tmp_path / "copy/ensemble.json").write_text(json.dumps(about))
    with pytest.raises(ArtifactError, match=r"ensemble.json: member 'hash:16' changed since the ensemble was made"):
        model.load(tmp_path / "copy")
    (tmp_path / "copy/ensemble.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"ensemble.json: not an ensemble of this version of raysent"):
        model.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top": 0}, r"^--top 0: must be at least 1$"), ({"method": "bets"}, r"^--method bets: unknown method; did you")],
)
def test_combine_refuses_wrong_options(tmp_path, options, message):
    """Options are checked before anything is encoded."""
    with pytest.raises(ConfigError, match=message):
        ensemble.combine(["hash:4"], output=tmp_path, **options)


def test_joined_vectors_stand_beside_the_pool(tmp_path, monkeypatch):
    """One probe on members' unit blocks is judged as a model would be; the mean only where blocks are equally large."""
    monkeypatch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 60))
    data_dir = tmp_path / "data"
    write_tasks(data_dir)
    combined = ensemble.combine(MEMBERS[:2], output=tmp_path / "a", tasks=["CR"], data_dir=data_dir, joins_vectors=True)
    assert list(combined.representations) == ["concatenation"]
    blocks = [HashEncoder(size) for size in (4, 8)]
    # Members stand in the order of their validation scores.
    order = [int(name.removeprefix("hash:")) for name in combined.names]
    joined = Concatenation([next(one for one in blocks if one.encode(["x"]).shape[1] == size) for size in order])
    (by_hand,) = Evaluator(tmp_path / "b", data_dir, load=lambda _: joined).evaluate(["hash:1"], ["CR"])
    assert combined.representations["concatenation"][0].test.value == pytest.approx(by_hand.test)
    assert [Average.suits(sizes) for sizes in ([8, 8], [8, 4])] == [True, False]
