"""The protocols `senteval` and `kiros`: against restatements fit by fit, and against SentEval's own figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from command import CommandLine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from raysent.errors import ConfigError
from raysent.evaluation import probes
from raysent.evaluation.probes import features, kiros, senteval
from raysent.evaluation.probes import senteval as early_stopping
from raysent.evaluation.probes.features import NaiveBayes, pair_features, task_features
from raysent.evaluation.probes.relatedness import mark_shares, predicted_scores
from raysent.evaluation.probes.senteval import Recipe, Rows, fit_margins, train_together
from raysent.evaluation.similarity import cosines
from raysent.evaluation.tasks import TaskData, load_task
from raysent.models.sentence_encoder import HashEncoder

# SentEval's own figures for the hash-seeded bag of words of 50 dimensions: validation, test, and F1 where it has one.
PROTOTYPING = {
    "TREC": (53.10, 55.6),
    "MRPC": (70.46, 69.86, 78.96),
    "SICK-E": (71.20, 71.61),
    "SST-5": (30.43, 28.69),
    "MPQA": (70.43, 70.11),
}
DEFAULT = {"MRPC": (70.14, 69.51, 80.50), "SICK-E": (71.60, 70.85), "SST-5": (30.25, 29.14)}
RELATED = {
    "STS-B": (0.5732790787655831, 0.497803540757621, 0.48861847016979665, 2.036389326777286),
}


def sentences_task(split: str = "nested", *, num_rows: int = 120, num_classes: int = 2, seed: int = 0) -> TaskData:
    """Return a task of made-up sentences of one to six words, whose first word goes with the class, mostly."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(num_classes, size=num_rows)
    words = [
        [f"w{(label + (generator.random() < 0.2)) % num_classes}", *(f"x{n}" for n in generator.integers(9, size=size))]
        for label, size in zip(labels, generator.integers(6, size=num_rows), strict=True)
    ]
    parts = np.split(np.arange(num_rows), [num_rows // 2, 3 * num_rows // 4])
    divided = {
        "nested": {},
        "train-test": {"train": np.concatenate(parts[:2]), "test": parts[2]},
        "train-validation-test": dict(zip(("train", "validation", "test"), parts, strict=True)),
    }
    names = tuple(f"class{label}" for label in range(num_classes))
    return TaskData("toy", "sentence", split, names, ([" ".join(row) for row in words],), labels, **divided[split])


def scored_task(num_rows: int = 90) -> TaskData:
    """Return made-up scored pairs: the more words they share, the higher the score."""
    generator = np.random.default_rng(0)
    shared = generator.integers(5, size=num_rows)
    first = [" ".join(f"a{n}" for n in generator.integers(30, size=4)) for _ in range(num_rows)]
    second = [
        " ".join([*one.split()[:n], *(f"b{k}" for k in range(4 - n))]) for one, n in zip(first, shared, strict=True)
    ]
    scores = 1 + shared.astype(np.float64)
    parts = np.split(np.arange(num_rows), [num_rows // 2, 3 * num_rows // 4])
    names = tuple("12345")
    return TaskData(
        "toy", "pair", "train-validation-test", names, (first, second), scores.astype(np.int64) - 1, *parts, scores
    )


def classifier_alone(features, labels, rows: Rows, penalty: float, recipe: Recipe):
    """Return weights, intercepts and accuracy of one fit with a module, autograd and the optimiser's weight decay."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[recipe.optimizer]
    optimizer = kind(model.parameters(), weight_decay=penalty)
    order, best, kept, failures, epochs = np.random.RandomState(recipe.seed), -1.0, None, 0, 0
    while epochs <= recipe.max_epochs:
        for _ in range(recipe.epoch_size):
            shuffled = rows.train[order.permutation(len(rows.train))]
            for start in range(0, len(shuffled), recipe.batch_size):
                batch = shuffled[start : start + recipe.batch_size]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(features[batch]), labels[batch]).backward()
                optimizer.step()
        epochs += recipe.epoch_size
        with torch.no_grad():
            right = (model(features[rows.validation]).argmax(1) == labels[rows.validation]).sum()
        if int(right) / len(rows.validation) > best:
            best, kept = int(right) / len(rows.validation), [value.detach().clone() for value in model.parameters()]
        elif failures >= recipe.tenacity:
            break
        else:
            failures += 1
    return *kept, best


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_fits_together_are_fits_alone(optimizer):
    """Every fit of a batch of fits has what SentEval's loop gives it, restated with modules and autograd."""
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.standard_normal((150, 7)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(3, size=150))
    recipe = Recipe(num_folds=5, optimizer=optimizer, batch_size=16, tenacity=1, epoch_size=2, max_epochs=20)
    folds = [np.split(generator.permutation(150), [size]) for size in (100, 101, 130)]
    penalties = (1e-4, 1e-1)
    groups = [Rows.given(train, held_out, seed=recipe.seed) for train, held_out in folds]
    fits = train_together(features, labels, groups, [penalties] * len(folds), recipe=recipe)
    for rows, of_fold in zip(groups, fits, strict=True):
        for penalty, fit in zip(penalties, of_fold, strict=True):
            weights, intercepts, accuracy = classifier_alone(features, labels, rows, penalty, recipe)
            torch.testing.assert_close(fit.weights, weights, rtol=0, atol=1e-6)
            torch.testing.assert_close(fit.intercepts, intercepts, rtol=0, atol=1e-6)
            assert fit.validation == accuracy


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("is_alike", [True, False])
def test_fits_side_by_side_are_lone_fits(monkeypatch, optimizer, is_alike):
    """With one product for all fits, where the library adds in the same order, and with one a fit: torch's own loop."""
    if not is_alike:
        monkeypatch.setattr(early_stopping, "adds_alike", lambda *_: False)
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.standard_normal((160, 512)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(2, size=160))
    recipe = Recipe(num_folds=5, optimizer=optimizer, batch_size=32, tenacity=2, epoch_size=1, max_epochs=12)
    rows, penalties = (np.arange(120), np.arange(120, 160)), (1e-5, 1e-3, 1e-1)
    (fits,) = train_together(features, labels, [Rows.given(*rows, seed=recipe.seed)], [penalties], recipe=recipe)
    for penalty, fit in zip(penalties, fits, strict=True):
        lone = Rows.given(*rows, seed=recipe.seed)
        weights, intercepts, accuracy = classifier_alone(features, labels, lone, penalty, recipe)
        torch.testing.assert_close(fit.weights, weights, rtol=0, atol=1e-7)
        torch.testing.assert_close(fit.intercepts, intercepts, rtol=0, atol=1e-7)
        assert fit.validation == accuracy


def test_margins_are_the_linear_map():
    """A fit's margins of rows are X W + b, whatever the size of the batches."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    recipe = Recipe(num_folds=2, optimizer="adam", batch_size=8, tenacity=0, epoch_size=1, max_epochs=2)
    ((fit,),) = train_together(
        features, labels, [Rows.given(np.arange(30), np.arange(30, 40), seed=0)], [[1e-5]], recipe=recipe
    )
    expected = features[[3, 31, 7]] @ fit.weights.T + fit.intercepts
    torch.testing.assert_close(fit_margins(fit, features, np.array([3, 31, 7]), batch_size=2), expected)


@pytest.mark.parametrize("chunk", [2, 100])
def test_every_distinct_sentence_is_encoded_once(monkeypatch, chunk):
    """Whatever columns and chunks it falls into, each row has its own sentence's vector."""
    monkeypatch.setattr(features, "CHUNK", chunk)
    asked: list[str] = []

    class Counting:
        def encode(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
            asked.extend(sentences)
            return np.array([[len(sentence), ord(sentence[0])] for sentence in sentences], dtype=np.float32)

    columns = (["a", "bb", "a", "ccc"], ["bb", "dddd", "ccc", "e"])
    found = features.encode_columns(Counting(), columns)
    assert sorted(asked) == ["a", "bb", "ccc", "dddd", "e"]
    for column, vectors in zip(columns, found, strict=True):
        assert vectors.tolist() == [[len(sentence), ord(sentence[0])] for sentence in column]


def test_rows_are_ordered_by_length_then_label():
    """Folds are drawn over rows in the order in which SentEval encodes them, equal rows as they came."""
    data = TaskData(
        "toy", "sentence", "nested", ("a", "b"), (["x y", "x", "z", "x y", "q"],), np.array([1, 1, 0, 0, 1])
    )
    assert senteval.by_length(data, np.arange(5), data.labels).tolist() == [2, 1, 4, 3, 0]


@pytest.mark.parametrize("split", ["nested", "train-test", "train-validation-test"])
@pytest.mark.parametrize("protocol", ["senteval/prototyping", "kiros", "kiros/features"])
def test_protocol_answers_every_row_it_should(protocol, split):
    """Each fold's test rows are answered once by a probe that did not see them, and the scores are those answers'."""
    data = sentences_task(split)
    result = probes.fit_probe(task_features(HashEncoder(12), data), data, protocol=protocol)
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested) == sorted(range(120) if split == "nested" else data.test)
    scores = [probes.accuracy(fold.test_log_probabilities, data.labels[fold.test_rows]) for fold in result.folds]
    assert result.test == pytest.approx(100 * np.mean(scores), abs=0.01)
    assert all(not np.intersect1d(fold.test_rows, fold.validation_rows).size for fold in result.folds)
    assert result.test > 60


def test_protocol_does_not_depend_on_the_threads():
    """More threads change no bit of SentEval's figures, and are given back."""
    data = sentences_task("train-test", num_classes=3)
    features = task_features(HashEncoder(12), data)
    before = torch.get_num_threads()
    answers = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        (fold,) = probes.fit_probe(features, data, protocol="senteval/prototyping").folds
        assert torch.get_num_threads() == threads
        answers.append(fold.test_log_probabilities)
    torch.set_num_threads(before)
    assert np.array_equal(*answers)


def test_kiros_chooses_as_scikit_learn_does_by_hand():
    """C is the first best by ten contiguous folds of train in the protocol's order."""
    data = sentences_task("train-test", num_rows=160)
    features = task_features(HashEncoder(12), data)
    rows = data.train.copy()
    np.random.RandomState(1234).shuffle(rows)
    means = []
    for strength in kiros.STRENGTHS:
        scores = []
        for train, out in KFold(10).split(rows):
            model = LogisticRegression(solver="liblinear", C=strength)
            model.fit(features[rows[train]].astype(np.float64), data.labels[rows[train]])
            scores.append(model.score(features[rows[out]].astype(np.float64), data.labels[rows[out]]))
        means.append(np.mean(scores))
    result = probes.fit_probe(features, data, protocol="kiros")
    assert result.folds[0].strength == kiros.STRENGTHS[int(np.argmax(means))]
    assert result.validation == pytest.approx(100 * max(means))


def test_kiros_leaves_out_empty_sentences():
    """Rows without a word are in no fold."""
    data = sentences_task()
    data.sentences[0][17] = ""
    result = probes.fit_probe(task_features(HashEncoder(12), data), data, protocol="kiros")
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested) == [row for row in range(120) if row != 17]


def test_pair_features_by_hand():
    """Numbers alike, numbers at all, numbers contained, words shared both ways, lengths."""
    (one,) = pair_features(["it cost 3 dollars"], ["it cost 3 big round dollars"])
    assert one.tolist() == pytest.approx([1, 1, 1, 1, 4 / 6, (4 / 6 + 6 / 4) / 2])
    (other,) = pair_features(["in 1999 and 5"], ["in 5 it was"])
    assert other.tolist() == pytest.approx([0, 0, 1, 2 / 4, 2 / 4, 1])
    assert pair_features([""], ["a b"]).tolist() == [[1, 0, 1, 0, 0, 0]]


def test_naive_bayes_features_by_hand():
    """Log-ratios of smoothed shares where a word or pair is present; what train does not have is not used."""
    words = NaiveBayes(["good film", "bad film", "good fun"])
    features = words.features(np.array([0, 1]), np.array([1, 0, 1])).toarray()
    # Counted in train: good 1:0, bad 0:1, film 1:1, "good film" 1:0, "bad film" 0:1; both classes sum to 3 + 5.
    assert sorted(features[0][features[0] != 0]) == pytest.approx([np.log(2)] * 2)
    assert sorted(features[1][features[1] != 0]) == pytest.approx([-np.log(2)] * 2)
    assert sorted(features[2][features[2] != 0]) == pytest.approx([np.log(2)])


def test_mark_shares_have_the_score_as_mean():
    """A score shares its probability between its neighbours; below 1 SentEval loses a part."""
    scores = np.array([1.0, 3.4, 5.0, 0.25])
    shares = mark_shares(scores, num_marks=5)
    assert shares[:3].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert shares[1].tolist() == pytest.approx([0, 0, 0.6, 0.4, 0])
    assert (shares @ np.arange(1, 6)).tolist() == pytest.approx(scores.tolist())
    assert predicted_scores(np.log(shares[:1] + 1e-30)).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("protocol", ["fast", "senteval", "kiros"])
def test_scored_pairs_are_judged_by_correlation(protocol):
    """Pearson, Spearman and the squared error of the predicted scores; related pairs are found."""
    data = scored_task()
    result = probes.fit_probe(task_features(HashEncoder(30), data), data, protocol=protocol)
    (fold,) = result.folds
    predicted, scores = predicted_scores(fold.test_log_probabilities), data.scores[fold.test_rows]
    assert result.test == pytest.approx(100 * np.corrcoef(predicted, scores)[0, 1])
    assert result.measures["mse"] == pytest.approx(np.square(predicted - scores).mean())
    assert result.test > 50


def test_cosines_of_equal_rows_round_as_one_fixed_order_rounds():
    """Sums are taken lane by lane in single precision; the restatement takes them a number at a time."""
    first, second = np.random.default_rng(0).standard_normal((2, 5, 70)).astype(np.float32)

    def dot(u, v):
        lanes = [np.float32(0)] * 32
        for place in range(64):
            lanes[place % 32] = np.float32(np.float64(lanes[place % 32]) + np.float64(u[place]) * np.float64(v[place]))
        eights = [[lanes[8 * group + n] + lanes[8 * group + 4 + n] for n in range(4)] for group in range(4)]
        fours = [(eights[0][n] + eights[1][n]) + (eights[2][n] + eights[3][n]) for n in range(4)]
        rest = sum((np.float64(u[place] * v[place]) for place in range(64, 70)), np.float64(0))
        return np.float32(rest + np.float64((fours[0] + fours[1]) + (fours[2] + fours[3])))

    expected = [dot(u, v) / (np.sqrt(dot(u, u)) * np.sqrt(dot(v, v))) for u, v in zip(first, second, strict=True)]
    assert cosines(first, second).tolist() == [float(value) for value in expected]
    assert cosines(first, np.zeros_like(first)).tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("protocol", "configuration", "message"),
    [
        ("sentevl", None, r"--protocol sentevl: unknown protocol; did you mean 'senteval'\?"),
        ("senteval", "proto", "--config proto: must be a configuration of senteval: default, prototyping"),
        ("fast", "features", "--config features: must be a configuration of fast: default"),
    ],
)
def test_unknown_protocols_are_refused(protocol, configuration, message):
    """The message names what there is."""
    with pytest.raises(ConfigError, match=f"^{message}$"):
        probes.protocol_name(protocol, configuration)


def senteval_data() -> Path:
    """Return the folder of published tasks, or skip."""
    folder = Path(os.environ.get("RAYSENT_SENTEVAL", Path(__file__).parents[2] / "shared/data/senteval"))
    if not folder.is_dir():
        pytest.skip(f"no {folder}; name SentEval's data/downstream with RAYSENT_SENTEVAL")
    return folder


def test_senteval_figures_on_published_data(tmp_path, monkeypatch, capsys):
    """The command prints SentEval's own figures to the last digit, correlations to 1e-6."""
    data, command = senteval_data(), CommandLine(monkeypatch, capsys)
    monkeypatch.chdir(tmp_path)
    for config, figures in (("prototyping", PROTOTYPING | RELATED), ("default", DEFAULT)):
        options = ["--protocol", "senteval", "--config", config, "--data", str(data), "--tasks", ",".join(figures)]
        values = json.loads(command("evaluate", "hash:50", *options, "--json").out)
        assert values["config"] == config
        for one in values["results"]:
            expected = figures[one["task"]]
            if one["task"] in RELATED:
                found = (one["validation"] / 100, one["test"] / 100, one["measures"]["spearman"] / 100)
                assert (*found, one["measures"]["mse"]) == pytest.approx(expected, abs=1e-6)
            else:
                assert (one["validation"], one["test"], *one["measures"].values()) == expected


def test_published_rows_are_read_whole():
    """SUBJ's positive class is the objective one, as SentEval has it; SST is UTF-8."""
    data = load_task("SUBJ", senteval_data())
    assert data.label_names == ("subjective", "objective")
    assert data.labels[:5000].all()
