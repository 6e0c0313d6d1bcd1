"""Scores against the number of labels: shared nested draws, baselines, ensembles, and the files that keep them."""

from __future__ import annotations

import dataclasses
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import raysent
from raysent.cli.evaluate import _print_curve
from raysent.ensembles import MemberPredictions, label_curve, parse_sizes, read_curves, write_curves
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.label_curves import (
    CurveJob,
    LabelScores,
    _draws,
    _leaders,
    _pool_and_test,
    _resamples,
)
from raysent.errors import ConfigError
from raysent.evaluation.baselines import baselines_of
from raysent.evaluation.members import Member, expand
from raysent.evaluation.protocols.fast import STRENGTHS
from raysent.evaluation.targets import Targets
from raysent.evaluation.task import TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.models.schemes.hash import HashEncoder


def rows(number: int = 240) -> TaskData:
    """Return a task whose class one word shows."""
    generator = np.random.default_rng(0)
    labels = np.arange(number) % 3
    words = [["red", "tall"], ["blue", "short"], ["green", "wide"]]
    texts = [f"a {generator.choice(words[one])} thing {row}" for row, one in enumerate(labels)]
    data = OwnTask(
        pd.DataFrame({"text": texts, "label": [f"c{one}" for one in labels]}), name="own"
    ).load()
    assert isinstance(data, TaskData)
    return data


def test_draws_are_stratified_and_nested():
    """The smaller draw is the beginning of the larger one, and every class is in it."""
    data = rows()
    pool = np.arange(200)
    for small, large in zip(
        _draws(data.labels, pool, 16), _draws(data.labels, pool, 64), strict=True
    ):
        assert np.array_equal(small, large[:16])
        assert np.bincount(data.labels[small]).min() >= 5
        assert len(set(large.tolist())) == 64


def test_test_rows_are_predicted_by_a_probe_of_the_whole_draw():
    """Of each draw its own: none is nearer to it among plain probes of all draws and strengths."""
    data, encoder = rows(), HashEncoder(12)
    job = CurveJob(Member("hash", "hash:12", "key", encoder=encoder), data, (48,))
    _, fits = job.run()
    pool, test = _pool_and_test(data)
    vectors = np.asarray(encoder.encode(data.sentences[0]))
    draws = _draws(data.labels, pool, 48)
    assert len(fits[48]) == len(draws) > 1
    differences = np.zeros((len(draws), len(draws)))
    for row, fit in enumerate(fits[48]):
        for column, draw in enumerate(draws):
            oracles = (
                LogisticRegression(C=strength, tol=1e-8, max_iter=20_000)
                .fit(vectors[draw], data.labels[draw])
                .predict_proba(vectors[test])
                for strength in STRENGTHS
            )
            differences[row, column] = min(
                np.abs(np.exp(fit.test) - oracle).max() for oracle in oracles
            )
    assert differences.argmin(axis=1).tolist() == list(range(len(draws)))


def test_label_curve_scores_members_baselines_and_their_ensembles(tmp_path):
    """Scores rise with labels, the words that decide are found, and the file is read back as it was."""
    members = expand(["hash:40", "hash:60"])
    others = baselines_of(members)
    assert [one.name for one in others] == ["tfidf", "tfidf:chars"]
    curve = label_curve(rows(), members, others, sizes=[16, 64, "all"])
    assert curve.sizes == (16, 64, 159)
    assert curve.num_draws == (5, 5, 1)
    names = [
        "hash:40",
        "hash:60",
        "tfidf",
        "tfidf:chars",
        "ensemble",
        "answer",
        "chance",
    ]
    assert list(curve.curves) == names
    assert curve.curves["tfidf"].points[-1].value == 100.0
    assert curve.curves["answer"].points[-1].value == 100.0
    assert curve.chance == pytest.approx(100 / 3)
    assert curve.curves["chance"].points[0].value == pytest.approx(100 / 3)
    for one in curve.curves.values():
        for point in one.points:
            assert point.interval[0] <= point.value <= point.interval[1]
    write_curves(tmp_path, [curve])
    assert read_curves(tmp_path) == [curve]


def noise(number: int = 400) -> TaskData:
    """Return a task whose classes, 64 and 36 % of the rows, no word shows."""
    generator = np.random.default_rng(0)
    texts = [
        " ".join(f"w{word}" for word in generator.integers(200, size=8)) for _ in range(number)
    ]
    labels = np.where(generator.uniform(size=number) < 0.64, "a", "b")
    data = OwnTask(pd.DataFrame({"text": texts, "label": labels}), name="own").load()
    assert isinstance(data, TaskData)
    return data


def test_label_curve_is_the_same_from_other_processes_in_any_order():
    """Jobs and results are sent, and the results come as they are ready."""

    def backwards(jobs):
        sent = [pickle.loads(pickle.dumps(job)) for job in jobs]
        return [
            (place, pickle.loads(pickle.dumps(sent[place].run())))
            for place in reversed(range(len(jobs)))
        ]

    curve = partial(label_curve, rows(60), expand(["hash:8", "hash:12"]), [], sizes=[16])
    assert curve(map_jobs=backwards) == curve()


def test_validation_of_an_ensemble_is_of_rows_that_its_weights_were_not_fitted_on():
    """As a member's: out of fold. On random labels it is not above its members, as in-sample scores would be."""
    data, names = noise(), ["hash:20", "hash:30", "hash:40", "hash:50"]
    scores = LabelScores(data, expand(names), [], sizes=[64])
    scores.combine("pooled", names, method="pool")
    fits = [scores._fitted[name][64] for name in names]
    expected = [
        (held_out(MemberPredictions([one[place].validation for one in fits]), Targets(labels), method="pool").argmax(1)
        == labels).mean()
        for place, labels in enumerate(data.labels[draw] for draw in scores.draws[64])
    ]  # fmt: skip
    assert scores.validation("pooled") == (pytest.approx(100 * np.mean(expected)),)
    assert scores.validation("pooled")[0] < max(scores.validation(name)[0] for name in names) + 3


def test_no_model_of_noise_is_the_best():
    """The most frequent class is one of the baselines."""
    curve = label_curve(noise(), expand(["hash:20", "hash:30"]), [], sizes=[16, 64])
    assert curve.curves["chance"].validation[0] == pytest.approx(100 * 11 / 16)
    assert "hash" not in curve.sentence


def test_label_curve_scores_by_the_metric_of_the_task():
    """Macro F1, restated: of chance too, which accuracy would reward for the majority; and in every resample."""
    data = dataclasses.replace(noise(), metric="macro_f1")
    scores = LabelScores(data, expand(["hash:20", "hash:30"]), [], sizes=[64])
    curve, targets = scores.curve(), data.labels[scores._test]
    assert curve.metric == "macro_f1"
    assert curve.chance == pytest.approx(
        100 * f1_score(targets, np.zeros(len(targets)), average="macro")
    )
    assert curve.curves["chance"].points[0].value == pytest.approx(curve.chance)
    predicted = [fit.test.argmax(axis=1) for fit in scores._fitted["hash:20"][64]]
    expected = [f1_score(targets, one, average="macro") for one in predicted]
    assert curve.curves["hash:20"].points[0].value == pytest.approx(100 * np.mean(expected))
    _, resamples = _resamples(len(predicted), len(targets))
    drawn = np.repeat(np.arange(len(targets)), resamples._counts[1])
    values = Targets(targets, metric="macro_f1")
    (means,) = resamples.means(
        [(np.arange(len(targets)), values.columns(predicted[0].astype(float)))]
    )
    assert values.scores_of_means(means)[1] == pytest.approx(
        f1_score(targets[drawn], predicted[0][drawn], average="macro")
    )


class Counting(HashEncoder):
    """Random word vectors, and the sentences that were encoded."""

    def __init__(self) -> None:
        super().__init__(40)
        self.seen: set[str] = set()

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return the vectors of the base class."""
        self.seen.update(sentences)
        return super().encode_texts(sentences, batch_size=batch_size)


def test_a_member_that_needs_no_training_is_one_candidate_of_the_answer():
    """Beside the baselines, and alone: without members the answer is of what needs no training."""
    curve = label_curve(rows(), expand(["hash:40", "tfidf"]), expand(["tfidf:chars"]), sizes=[16])
    assert list(curve.curves) == ["hash:40", "tfidf", "tfidf:chars", "ensemble", "answer", "chance"]
    alone = label_curve(rows(), [], expand(["tfidf", "tfidf:chars"]), sizes=[16])
    assert list(alone.curves) == ["tfidf", "tfidf:chars", "answer", "chance"]


def test_what_learned_the_labels_is_marked_and_leads_no_curve(capsys):
    """Nor does an ensemble with it: its encoder had more labels than the curve counts."""
    data, encoder = rows(), HashEncoder(40)
    encoder.learned_tasks = {"before": data.row_hash}
    learned = Member("own", "own", "key", encoder)
    curve = label_curve(data, [learned, *expand(["hash:8"])], expand(["tfidf"]), sizes=[16, 32])
    assert [name for name, one in curve.curves.items() if one.learned] == [
        "own",
        "ensemble",
    ], "the answer has no part that learned the labels"
    assert not {"own", "ensemble"} & set(curve.sentence.split())
    _print_curve(curve)
    printed = capsys.readouterr()
    assert printed.out.count("*") == 2
    assert printed.err.startswith("* the model was trained on labels")
    alone = label_curve(data, [learned], [], sizes=[16])
    assert alone.sentence == "own: no model is better than all others by an interval"


def test_label_curve_encodes_only_the_rows_that_it_needs():
    """The draws and the test rows; the scores are those of an encoder that is loaded by name."""
    data, encoder = rows(600), Counting()
    curve = label_curve(data, [Member("own", "own", "key", encoder)], [], sizes=[16, 32])
    pool, test = _pool_and_test(data)
    needed = {data.sentences[0][row] for draw in _draws(data.labels, pool, 32) for row in draw}
    assert encoder.seen == needed | {data.sentences[0][row] for row in test}
    assert len(encoder.seen) < 400
    [same] = expand(["hash:40"])
    assert curve.curves["own"] == label_curve(data, [same], [], sizes=[16, 32]).curves["hash:40"]


@pytest.mark.parametrize("text", ["", "32,x", "4", "²"])
def test_parse_sizes_refuses_what_is_no_number_of_labels(text):
    """One line names the option."""
    with pytest.raises(ConfigError, match="^labels"):
        parse_sizes(text)
    assert parse_sizes("32, 100,all") == parse_sizes(["32", 100, "all"]) == [32, 100, "all"]
    assert parse_sizes(32) == [32]


@pytest.mark.parametrize("size", [1, -5, 32.0, "x"])
def test_sizes_given_as_a_list_are_checked_before_anything_is_done(size):
    """The same line from Python, for curves and for sweeps on this machine and on a cluster."""
    line = f"^labels {size}: must be a number of at least 8, or all$"
    with pytest.raises(ConfigError, match=line):
        raysent.label_curves(["tfidf"], labels=[size], progress=False)
    with pytest.raises(ConfigError, match="^processes and address: must not both be given"):
        raysent.label_curves(["tfidf"], labels=[32], processes=1, address="auto", progress=False)
    with pytest.raises(ConfigError, match=line):
        raysent.sweep("quick_thoughts_bow", corpus="docs", labels=[32, size], progress=False)
    with pytest.raises(ConfigError, match=line):
        raysent.sweep("quick_thoughts_bow", corpus="docs", labels=f"32,{size}", progress=False)


def test_a_task_without_a_curve_loses_no_other(tmp_path, capsys):
    """A line says why; where no task has one, it is the error."""
    texts = [f"w{row % 7} w{row}" for row in range(90)]
    tasks = [
        OwnTask(
            pd.DataFrame({"text": texts[:number], "label": (["a", "b"] * 45)[:number]}),
            name=f"of{number}",
        )
        for number in (20, 90)
    ]
    options = {"labels": [32], "baselines": False, "output": tmp_path, "progress": False}
    (curve,) = raysent.label_curves("hash:8", tasks=tasks, **options)
    assert curve.task == "of90"
    assert capsys.readouterr().err.startswith("warning: labels: of20 has ")
    assert read_curves(tmp_path) == [curve]
    with pytest.raises(
        ConfigError, match=r"^labels: of20 has \d+ rows to train on; name fewer labels$"
    ):
        raysent.label_curves("hash:8", tasks=tasks[:1], **options)


def test_a_task_with_queries_has_no_curve_and_loses_no_other(tmp_path, capsys):
    """A line says so; where it is the only task, it is the error."""
    texts = [f"w{row % 7} w{row}" for row in range(90)]
    (tmp_path / "asked.csv").write_text("query,passage\nwhere is it,here\nwho is it,nobody\n")
    labelled = OwnTask(pd.DataFrame({"text": texts, "label": ["a", "b"] * 45}), name="labelled")
    asked = str(tmp_path / "asked.csv")
    options = {"labels": [32], "baselines": False, "output": tmp_path, "progress": False}
    (curve,) = raysent.label_curves("hash:8", tasks=[asked, labelled], **options)
    assert curve.task == "labelled"
    line = "labels: asked has queries; it must have classes; leave it out"
    assert capsys.readouterr().err == f"warning: {line}\n"
    with pytest.raises(ConfigError, match=f"^{line}$"):
        raysent.label_curves("hash:8", tasks=asked, **options)


@pytest.mark.parametrize(
    ("leads", "text"),
    [
        ("aaaa", "best by an interval is a from 1 labels on"),
        ("abbb", "best by an interval is a at 1 labels, b from 2 labels on"),
        ("aabb", "best by an interval is a at 1 labels, a at 2 labels, b from 3 labels on"),
        ("-abb", "best by an interval is a at 2 labels, b from 3 labels on"),
        ("ab--", "best by an interval is a at 1 labels, b at 2 labels"),
        ("----", "no model is better than all others by an interval"),
    ],
)
def test_leaders_are_named_by_the_numbers_at_which_they_lead(leads, text):
    """One that leads to the end is named once, from the first number of that stretch."""

    def means(name, size):
        return np.full(100, 2.0 if leads[size - 1] == name else 1.0)

    assert _leaders(["a", "b"], [1, 2, 3, 4], means) == text
