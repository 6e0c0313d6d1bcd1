"""Baselines as models: TF-IDF on every kind of task, words of a model, and a model at its start."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tiny_run import tiny_run

from raysent.cli.evaluate import _warn_below_start
from raysent.data.languages import unspaced_language
from raysent.data.unicode_form import in_form
from raysent.ensembles import combine, load_ensemble
from raysent.errors import ConfigError
from raysent.evaluation.baselines import baselines_of
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes import lexical
from raysent.evaluation.probes.features import COSINE_SCALE
from raysent.evaluation.probes.lexical import fit_classifier, fit_lexical, lexical_similarities
from raysent.evaluation.probes.lexical_features import lexical_features, predict_lexical
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.protocols.fast import STRENGTHS
from raysent.evaluation.records import Score
from raysent.evaluation.targets import MIN_SCORED_ROWS, Targets, best_of
from raysent.evaluation.task_files import OwnTask
from raysent.models import load
from raysent.models.schemes.tfidf import LexicalModel, SavedVectorizer
from raysent.progress import VERBOSE_VARIABLE
from raysent.training.loop import fit as fit_model


def frame(number: int = 90, num_classes: int = 2) -> pd.DataFrame:
    """Return labelled texts whose class one word shows, most of the time."""
    generator = np.random.default_rng(0)
    labels = np.arange(number) % num_classes
    words = [["red", "tall"], ["blue", "short"], ["green", "wide"]]
    shown = np.where(
        generator.uniform(size=number) < 0.9, labels, generator.integers(num_classes, size=number)
    )
    texts = [
        f"{row:03d} a {generator.choice(words[one])} thing number {row:03d}"
        for row, one in enumerate(shown)
    ]
    return pd.DataFrame({"text": texts, "label": [f"c{label}" for label in labels]})


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize(
    "split", [None, {"validation": 0.0, "test": 0.3}, {"validation": 0.2, "test": 0.3}]
)
def test_tfidf_keeps_the_folds_of_fast(num_classes, split):
    """Its predictions stand on the same rows as those of an encoder, so that both can be members of an ensemble."""
    task = OwnTask(
        frame(num_classes=num_classes), name="own", split=split, folds=None if split else 4
    )
    data = task.load()
    result, _ = fit_lexical(LexicalModel("words"), data)
    assert result.test > 60
    other = fit_probe(np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32), data)
    for mine, its in zip(result.folds, other.folds, strict=True):
        assert np.array_equal(mine.validation_rows, its.validation_rows)
        assert np.array_equal(mine.test_rows, its.test_rows)
        assert mine.test_log_probabilities.shape == its.test_log_probabilities.shape
        assert np.allclose(np.exp(mine.validation_log_probabilities).sum(axis=1), 1, atol=1e-5)


def test_tfidf_scores_pairs_and_compares_them():
    """Equal texts have cosine 1, texts without a common word 0; a probe predicts the scores of pairs."""
    assert lexical_similarities(LexicalModel("words"), ["a b", "a b"], ["a b", "c d"]).round(
        6
    ).tolist() == [1.0, 0.0]
    generator = np.random.default_rng(0)
    same = generator.integers(0, 6, size=80)
    pairs = pd.DataFrame(
        {
            "sentence1": [" ".join(f"w{row}{place}" for place in range(5)) for row in range(80)],
            "sentence2": [
                " ".join(f"w{row}{place + 5 - one}" for place in range(5))
                for row, one in enumerate(same)
            ],
            "score": same.astype(float),
        }
    )
    result, _ = fit_lexical(LexicalModel("chars"), OwnTask(pairs, name="own").load())
    assert -100 <= result.test <= 100
    assert result.measures["pearson"] == result.test


def test_tfidf_is_a_member_that_predicts_and_cannot_encode(tmp_path):
    """The saved ensemble predicts new rows with its words; its vectors are refused in one line."""
    path = tmp_path / "own.csv"
    frame().to_csv(path, index=False)
    combine(["tfidf", "hash:10"], output=tmp_path / "both", tasks=[str(path) + ":folds=4"])
    both = load_ensemble(tmp_path / "both")
    assert both.predict("own", ["a red tall thing", "a blue short thing"]) == ["c0", "c1"]
    with pytest.raises(
        ConfigError, match=r"cannot encode, as its member tfidf has no vectors of a fixed size"
    ):
        both.encode(["a red thing"])
    with pytest.raises(ConfigError, match=r"^protocol senteval: must be fast for tfidf"):
        Evaluator(tmp_path / "out", protocol="senteval").evaluate(["tfidf"], [str(path)])
    with pytest.raises(
        ConfigError, match=r"^tfidf:word: unknown form of tfidf; did you mean 'words'\?$"
    ):
        load("tfidf:word")


def test_combine_scores_baselines_beside_the_members(tmp_path):
    """Two random numbers a word are worse than the words themselves, and the file keeps the scores of both."""
    task = OwnTask(frame(300), name="own", split={"validation": 0.2, "test": 0.4})
    result = combine(["hash:1", "hash:2"], output=tmp_path, tasks=[task], baselines=True)
    assert result.baselines == ("tfidf", "tfidf:chars")
    scores = result.tasks["own"].scores
    assert scores["ensemble"].test < max(scores[name].test for name in result.baselines)
    assert load_ensemble(tmp_path).result == result


def test_costs_of_tfidf_are_measured(tmp_path):
    """Its words, their weights and its probe have a size, and weighing words takes time: it is not free."""
    task = OwnTask(frame(300), name="own", split={"validation": 0.2, "test": 0.4})
    cost = combine(["tfidf", "hash:2"], output=tmp_path, tasks=[task]).costs["tfidf"]
    assert cost.encode_ms > 0
    assert cost.training_s is not None
    assert cost.training_s > 0
    with np.load(tmp_path / "evaluation" / "tfidf" / "own.npz") as arrays:
        kept = [arrays[name].nbytes for name in arrays if name.startswith(("model_", "probe_"))]
    assert cost.num_bytes == sum(kept)


def test_tfidf_has_the_grid_of_encoders(monkeypatch):
    """C is chosen among the same values, and of equally accurate ones has the lowest log loss, not the smallest value."""
    data, tried = OwnTask(frame(60), name="own", split={"validation": 0.3, "test": 0.3}).load(), []
    real = lexical.fit_classifier

    def record(*arguments, strength: float, **options):
        tried.append(strength)
        return real(*arguments, strength=strength, **options)

    monkeypatch.setattr(lexical, "fit_classifier", record)
    fit_lexical(LexicalModel("words"), data)
    assert tuple(tried) == STRENGTHS


def test_of_equal_scores_the_lowest_log_loss_is_chosen():
    """Neither the first nor the last; a higher score comes before any loss."""
    labels = np.array([0, 0, 1, 1])
    right = np.log([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6], [0.4, 0.6]])
    surer = np.log([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    wrong = np.log([[0.01, 0.99], [0.99, 0.01], [0.01, 0.99], [0.01, 0.99]])
    targets = Targets(labels)
    assert best_of(targets.measure([right, surer, right])) == 1
    assert best_of(targets.measure([wrong, right])) == 1
    assert best_of(targets.measure([wrong, wrong])) == 0


def test_result_names_members_below_their_start(tmp_path):
    """A model that scores less than itself before training is named with the points that it lost."""
    task = OwnTask(frame(300), name="own", split={"validation": 0.2, "test": 0.4})
    result = combine(["hash:2"], output=tmp_path, tasks=[task], baselines=True)
    assert result.below_start() == {}
    scores = dict(result.mean.scores)
    scores["start:hash:2"] = dataclasses.replace(scores["hash:2"], test=scores["hash:2"].test + 3)
    lowered = result.model_copy(update={"mean": dataclasses.replace(result.mean, scores=scores)})
    assert lowered.below_start() == {"hash:2": pytest.approx(3)}


def test_baselines_are_named_as_their_model_is(tmp_path, monkeypatch):
    """Also where that has the name of its sweep; a warning of a model below its start finds the start by the name."""
    monkeypatch.chdir(tmp_path)
    for sweep in ("a", "b"):
        fit_model(tiny_run(tmp_path, training__max_steps=1), tmp_path / sweep / "trials/0000")
    members = expand(["a", "b"])
    others = baselines_of(members)
    starts = ["start:a-0000", "words:start:a-0000"]
    assert [one.name for one in others if "start:" in one.name] == starts
    assert [
        one.name
        for one in expand(["a", "b", *(one.path for one in others)])
        if "start:" in one.name
    ] == starts


def test_a_start_whose_run_is_damaged_is_left_out_with_a_line(tmp_path, monkeypatch, capsys):
    """A model without a record of its run has no start, and nothing is said."""
    monkeypatch.chdir(tmp_path)
    fit_model(tiny_run(tmp_path, training__max_steps=1), tmp_path / "a")
    record = tmp_path / "a" / "run.json"
    text = record.read_text()
    record.write_text(text.replace('"seed": 0', '"seed": 1', 1))
    names = [one.name for one in baselines_of(expand(["a"]))]
    assert not any("start:" in name for name in names)
    said = capsys.readouterr().err
    assert "start:a is left out: a/run.json: changed since it was written" in said
    record.unlink()
    assert [one.name for one in baselines_of(expand(["a"]))] == names
    assert "left out" not in capsys.readouterr().err


def test_evaluate_warns_about_a_model_below_its_start(capsys):
    """By the mean over tasks; one that gained, or has no start among the rows, is left out."""
    scores = [
        Score(model=model, task=task, protocol="fast", validation=0.0, test=test)
        for model, tests in {
            "a": (60, 70),
            "start:a": (66, 68),
            "b": (70, 70),
            "start:b": (60, 60),
            "c": (1, 1),
        }.items()
        for task, test in zip(("MR", "CR"), tests, strict=True)
    ]
    _warn_below_start(scores, "the mean over tasks")
    assert (
        capsys.readouterr().err
        == "warning: a is 2.00 points below its start in the mean over tasks\n"
    )


def test_baselines_alone_have_no_further_baselines():
    """Both lexical models are given: nothing is added."""
    assert baselines_of(expand(["tfidf", "tfidf:chars"])) == []
    assert [one.name for one in baselines_of(expand(["hash:8"]))] == ["tfidf", "tfidf:chars"]


def test_tfidf_converges():
    """The loss of its logistic regression is that of a solver that runs ten times as long."""
    data = OwnTask(frame(num_classes=3), name="own").load()
    vectorizer, is_new = (
        LexicalModel("chars").vectorizer().fit(data.sentences[0]),
        np.zeros(len(data), dtype=bool),
    )
    features = lexical_features(vectorizer, data.sentences, kind=data.kind, is_new=is_new)

    def loss(classifier: LogisticRegression) -> float:
        logs = classifier.predict_log_proba(features)[np.arange(len(data)), data.labels]
        return float(-32 * logs.sum() + 0.5 * np.square(classifier.coef_).sum())

    best = LogisticRegression(C=32, tol=1e-8, max_iter=5000).fit(features, data.labels)
    assert loss(fit_classifier(features, data.labels, strength=32)) < 1.001 * loss(best)


def test_pairs_converge_without_a_word() -> None:
    """The cosine is a larger feature than the others; where no step helps any more, nothing is printed."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=60)
    words = generator.integers(30, size=(60, 8))
    first = [" ".join(f"w{word}" for word in of_row) for of_row in words]
    second = [
        " ".join(f"w{word}" for word in of_row[: 7 if label else 2])
        for of_row, label in zip(words, labels, strict=True)
    ]
    vectorizer = LexicalModel("words").vectorizer().fit([*first, *second])
    is_new = np.zeros(len(labels), dtype=bool)
    features = lexical_features(vectorizer, [first, second], kind="likeness", is_new=is_new)

    def loss(classifier: LogisticRegression, strength: float) -> float:
        logs = classifier.predict_log_proba(features)[np.arange(len(labels)), labels]
        return float(-strength * logs.sum() + 0.5 * np.square(classifier.coef_).sum())

    for strength in STRENGTHS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fitted = fit_classifier(features, labels, strength=strength)
        best = LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(features, labels)
        assert loss(fitted, strength) < 1.05 * loss(best, strength)


_OPTIONS = {
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"\S+"},
    "chars": {"analyzer": "char_wb", "ngram_range": (1, 4)},
    "unspaced chars": {"analyzer": "char_wb", "ngram_range": (1, 3), "min_df": 2},
}


@pytest.mark.parametrize("name", _OPTIONS)
def test_words_and_their_weights_are_those_of_scikit_learn(name: str) -> None:
    """By its own ways of reading a text; and what a record keeps of it weighs as it does, without it."""
    generator = np.random.default_rng(0)
    signs = [*"abc dé\u00a0\u2003\t\n今日x1!\x1c\x85 "]
    texts = ["".join(generator.choice(signs, length)) for length in generator.integers(0, 40, 200)]
    model = LexicalModel(name.rpartition(" ")[2], is_unspaced=name.startswith("unspaced"))
    library = TfidfVectorizer(
        preprocessor=lambda text: in_form(text, model.unicode_form).lower(),
        sublinear_tf=True,
        **_OPTIONS[name],
    ).fit(texts[:150])
    ours = model.vectorizer().fit(texts[:150])
    assert ours.vocabulary_ == library.vocabulary_
    np.testing.assert_array_equal(ours.idf_, library.idf_)
    words = sorted(library.vocabulary_, key=library.vocabulary_.get)
    saved = SavedVectorizer(model, words, library.idf_)
    expected, found = library.transform(texts), saved.transform(texts)
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.data, expected.data, rtol=1e-14)
    assert saved.transform([]).shape == (0, len(words))


def test_words_that_no_row_had_count_for_the_length_of_a_new_row():
    """As if the row were one of those that counted the words, with a probe that has not seen it."""
    seen, new = ["a red thing", "a blue thing", "one red bird"], "red green green thing"
    vectorizer = LexicalModel("words").vectorizer().fit(seen)
    is_new = np.array([False, True])
    found = lexical_features(vectorizer, [[seen[0], new]], kind="sentence", is_new=is_new).toarray()
    plain = vectorizer.transform([seen[0], new]).toarray()
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-6)
    words = {"red": 1, "green": 2, "thing": 1, "red green": 1, "green green": 1, "green thing": 1}
    rarest = max(vectorizer.idf_)
    values = {
        word: (1 + np.log(count))
        * (vectorizer.idf_[vectorizer.vocabulary_[word]] if word in ("red", "thing") else rarest)
        for word, count in words.items()
    }
    length = np.sqrt(sum(value**2 for value in values.values()))
    for word in ("red", "thing"):
        assert found[1, vectorizer.vocabulary_[word]] == pytest.approx(
            values[word] / length, rel=1e-6
        )
    assert np.count_nonzero(found[1]) == 2


@pytest.mark.parametrize(
    ("analyzer", "seen", "text"),
    [
        ("words", ["a red thing", "a blue thing", "one red bird"], "two red dogs sleep"),
        ("words", ["a red thing", "a blue thing", "one red bird"], "nothing known here"),
        ("chars", ["a red thing", "a blue thing", "one red bird"], "two red dogs sleep"),
        (
            "chars",
            ["今天天气很好我们去公园", "今天我们不去学校了", "明天天气很好"],
            "小猫在花园里睡觉",
        ),
    ],
)
def test_cosine_of_a_new_pair_counts_words_that_no_row_had(
    analyzer: str, seen: list[str], text: str
) -> None:
    """A text is as like itself in a new row as in one that trains; a probe would take new pairs for unlike ones."""
    model = LexicalModel(analyzer).of(seen)
    vectorizer = model.vectorizer().fit([*seen, *seen])
    texts = [*seen, text]
    is_new = np.array([False] * len(seen) + [True])
    features = lexical_features(vectorizer, [texts, texts], kind="likeness", is_new=is_new)
    cosines = features.toarray()[:, 0] / COSINE_SCALE
    np.testing.assert_allclose(cosines, np.ones(len(texts)), rtol=1e-5)


def test_likeness_of_pairs_means_the_same_in_rows_that_train_and_in_new_ones() -> None:
    """Each pair is of its own words: paraphrases share them, the others do not."""
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 2
    words = [[f"w{row}x{number}" for number in range(6)] for row in range(len(labels))]
    first = [" ".join(generator.permutation(of_row)) for of_row in words]
    second = [
        " ".join(generator.permutation(of_row))
        if label
        else " ".join(f"{word}y" for word in of_row)
        for of_row, label in zip(words, labels, strict=True)
    ]
    table = pd.DataFrame({"first": first, "second": second, "label": labels})
    data = divided(OwnTask(table, text=["first", "second"], label="label", name="pairs").load())
    for analyzer in ("words", "chars"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fitted, _ = fit_lexical(LexicalModel(analyzer), data)
        (fold,) = fitted.folds
        predicted = fold.test_log_probabilities.argmax(axis=1)
        assert np.mean(predicted == data.labels[fold.test_rows]) > 0.95


def test_scores_of_a_name_are_kept_for_all_runs(tmp_path, monkeypatch):
    """TF-IDF is fitted once for a task's rows, whichever folder asks; a cache that cannot be written is no matter."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    task = OwnTask(frame(), name="own", folds=3)
    [first] = Evaluator(tmp_path / "one").evaluate(["tfidf"], [task])
    monkeypatch.setattr("raysent.evaluation.task_kinds.fit_lexical", None)
    [second] = Evaluator(tmp_path / "two").evaluate(["tfidf"], [task])
    assert second == first
    assert (tmp_path / "two/tfidf/own.npz").is_file()
    with pytest.raises(TypeError):
        Evaluator(tmp_path / "three").evaluate(["tfidf"], [OwnTask(frame(80), name="own", folds=3)])
    monkeypatch.undo()
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "file"))
    [third] = Evaluator(tmp_path / "four").evaluate(["tfidf"], [task])
    assert third.test == first.test


def chinese(number: int = 60) -> pd.DataFrame:
    """Return labelled clauses without blanks, whose class two characters show."""
    clauses = [
        f"第{row}天我们{'很喜欢' if row % 2 else '不满意'}这家店，因为天气{row % 7}度。"
        for row in range(number)
    ]
    return pd.DataFrame(
        {"text": clauses, "label": ["good" if row % 2 else "bad" for row in range(number)]}
    )


def test_words_are_no_baseline_of_text_without_blanks(tmp_path):
    """Where no task has blanks TF-IDF of words is left out, and the task says so; English beside it brings it back."""
    own, english = OwnTask(chinese(), name="own"), OwnTask(frame(), name="english")
    left_out = "in zh, without blanks between words: the baseline is 'tfidf:chars', not 'tfidf'"
    assert [left_out in one.remarks.notes[0] for one in (own, english)] == [True, False]
    named = [
        [one.name for one in baselines_of(expand(["hash:8"]), tasks=some)]
        for some in ([own], [own, english])
    ]
    assert named == [["tfidf:chars"], ["tfidf", "tfidf:chars"]]
    result = combine(["hash:8"], output=tmp_path, tasks=[own], baselines=True)
    assert result.baselines == ("tfidf:chars",)


def test_characters_of_text_without_blanks_are_fewer_parts():
    """At most three characters that two training rows have; saved words predict as the fit does, English keeps four."""
    data = OwnTask(chinese(), name="own", split={"validation": 0.0, "test": 0.3}).load()
    model = LexicalModel("chars")
    result, arrays = fit_lexical(model, data)
    words = bytes(arrays["words"]).decode().split("\n")
    train = [data.sentences[0][row] for row in data.train]
    assert all(len(word) <= 3 and sum(word in f" {text} " for text in train) > 1 for word in words)
    assert {"很喜欢", "不满意"} <= set(words)
    tested = tuple([column[row] for row in data.test] for column in data.sentences)
    predicted = predict_lexical(model, result.probe, arrays, tested, kind="sentence")
    np.testing.assert_allclose(predicted, result.folds[0].test_log_probabilities, atol=1e-5)
    _, english = fit_lexical(
        model, OwnTask(frame(), name="english", split={"validation": 0.0, "test": 0.3}).load()
    )
    assert set(english) == {"words", "idf", "reads_nfc"}
    assert max(map(len, bytes(english["words"]).decode().split("\n"))) == 4


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["แมวนอนอยู่บนเก้าอี้ หมาอยู่ที่ไหน"], "th"),
        (["猫は椅子で寝ています。", "it", "犬はどこですか？"], "ja"),
        (["고양이가 의자에서 잔다."], None),
        (["He wrote 猫 on the wall, and then he left."], None),
        (["", "12 :-)"], None),
    ],
)
def test_unspaced_language_is_that_of_most_letters(texts, expected):
    """A few foreign letters in English say nothing, and Korean has blanks."""
    assert unspaced_language(texts) == expected


def test_fits_within_a_time_try_less_and_say_so(tmp_path, monkeypatch, capsys):
    """What fits already is the same to the bit; else the record says what was left out, and is read again."""
    monkeypatch.setattr(lexical, "LEAST_ROWS", 40)
    task = OwnTask(frame(300), name="own", split={"validation": 0.0, "test": 0.3})
    (whole,) = Evaluator(tmp_path / "whole").records(expand(["tfidf"]), [task])[
        expand(["tfidf"])[0]
    ]
    used = []
    monkeypatch.setattr(lexical.LexicalFits, "row_seconds", lambda *_: used.append(1) or 1e-3)

    def record(folder, lexical_s):
        monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache" / folder))
        found = Evaluator(tmp_path / folder, lexical_s=lexical_s).records(expand(["tfidf"]), [task])
        return next(iter(found.values()))[0]

    fits = record("fits", 1000.0)
    assert (fits.key, fits.test, "limited" in fits.about) == (whole.key, whole.test, False)
    assert np.array_equal(
        fits.folds[0].validation_log_probabilities, whole.folds[0].validation_log_probabilities
    )
    monkeypatch.setenv(VERBOSE_VARIABLE, "1")
    less = record("less", 2.5)
    line = "3 of 7 values of C, each on 52 of 210 rows, as all would take 15s of the 2s there are"
    assert less.about["limited"] == line
    assert f"tfidf on own: {line}" in " ".join(capsys.readouterr().err.split())
    assert less.key != whole.key
    assert np.array_equal(less.folds[0].validation_rows, whole.folds[0].validation_rows)
    assert abs(less.test - whole.test) < 15
    num_used = len(used)
    assert (record("less", 2.5).key, len(used)) == (less.key, num_used)
    assert record("less", None).key == whole.key  # who has the time is given all


@pytest.mark.parametrize("split", ["nested", "train-test", "train-validation-test"])
@pytest.mark.parametrize("row_s", [1e-7, 1e-5, 1e-4, 1e-2])
def test_plan_of_fits_ends_in_its_time(split, row_s):
    """By a count of all rows of all fits, unless even the least takes longer; and it leaves out no more than it must."""
    num_rows, seconds = 20_000, 60.0
    plan = lexical.plan_fits(num_rows, split=split, seconds=seconds, row_s=row_s)
    rows, last_rows = plan.rows or num_rows, plan.last_rows or num_rows
    each, last = {"nested": (45, 11), "train-test": (10, 1), "train-validation-test": (1, 0)}[split]
    cost = sum(row_s * rows for _ in plan.strengths for _ in range(each)) + sum(
        row_s * last_rows for _ in range(last)
    )
    assert cost <= seconds or rows == lexical.LEAST_ROWS
    if plan.rows is None:
        assert plan.strengths == STRENGTHS
    else:
        assert row_s * num_rows * (each * 7 + last) > seconds
        more = min(num_rows, 2 * rows)
        assert rows == num_rows or row_s * (each * 3 * more + last * last_rows) > seconds


def test_few_rows_choose_by_log_loss():
    """And where that is within chance the strength that is usually good; many rows choose by the score."""
    labels = np.array([0, 1] * 20)
    right = np.eye(2)[labels]
    unsure = np.log(0.02 * right + 0.49)
    surer = np.log(
        np.where(np.arange(40)[:, None] == 0, 0.02 * right[:, ::-1] + 0.49, 0.8 * right + 0.1)
    )
    strengths = (1.0, 4.0)
    assert Targets(labels).score(unsure) > Targets(labels).score(surer)
    assert Targets(labels).best([unsure, surer], strengths) == 1
    assert Targets(labels).best([surer, unsure], strengths) == 0
    # What chance may have done: the strength nearest to the usual one.
    generator = np.random.default_rng(0)
    noisy = [np.log(0.5 + 0.2 * generator.uniform(-1, 1, (40, 1)) * [[1, -1]]) for _ in range(4)]
    assert Targets(labels).best(noisy, (0.25, 1.0, 4.0, 16.0)) == 3
    assert Targets(labels).best(noisy, (16.0, 64.0, 256.0, 1024.0)) == 0
    times = MIN_SCORED_ROWS // len(labels) + 1
    many = [np.tile(candidate, (times, 1)) for candidate in (unsure, surer)]
    assert Targets(np.tile(labels, times)).best(many, strengths) == 0
