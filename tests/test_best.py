"""The model to take: the choice against a slow restatement, what is saved, and what the sentences say."""

import csv
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_run import tiny_run

import raysent as api
from raysent.ensembles import (
    Answer,
    answer_lines,
    choose,
    read_answers,
    read_result,
    save_best,
    save_encoder,
)
from raysent.ensembles.best import (
    MIN_CHOOSING_ROWS,
    MIN_MAJORITY_ROWS,
    Fitted,
    answer_of,
    fit_candidates,
    groups_of,
    to_take,
)
from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.methods import ANSWER
from raysent.ensembles.result import MemberCost
from raysent.ensembles.task_ensemble import (
    compatible,
    fitted_folds,
    fold_predictions,
    score_folds,
)
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.bootstrap import _counts
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.results import FoldResult
from raysent.evaluation.targets import Targets
from raysent.models.schemes import encoder_name
from raysent.storage.layout import SWEEP_FILE
from raysent.training.loop import fit as fit_model


def made_up(seed, *, rows, candidates, signal):
    """Return candidates of random out-of-fold predictions and cost, and the targets; the last one is the majority."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    found = []
    for place in range(candidates):
        scores = generator.standard_normal((rows, 2))
        scores[np.arange(rows), labels] += signal * generator.uniform(0, 1)
        scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
        cost = MemberCost(
            encode_ms=float(generator.integers(1, 50)), num_bytes=int(place), training_s=None
        )
        fold = FoldResult(np.arange(rows), scores, np.arange(rows), scores, None)
        # The second and the third are those that are good elsewhere.
        step = {1: 0, 2: 1}.get(place)
        found.append(Fitted((place,), "uniform", fold, cost, scores, step=step))
    constant = np.tile(np.log([0.4, 0.6] if labels.mean() > 0.5 else [0.6, 0.4]), (rows, 1))
    fold = replace(
        found[0].fold, validation_log_probabilities=constant, test_log_probabilities=constant
    )
    return [*found, Fitted((0,), "majority", fold, found[0].cost, constant)], Targets(labels)


def restated(candidates, labels, *, prefer):
    """Return the place to take, row by row and resample by resample."""
    right = [[int(row[label] > row[1 - label]) for row, label in zip(one.held_out, labels, strict=True)]
             for one in candidates]  # fmt: skip
    loss = [
        -np.mean([row[label] for row, label in zip(one.held_out, labels, strict=True)])
        for one in candidates
    ]
    counts = _counts(zlib.crc32(b"made"), len(labels)).astype(float)

    def difference(one, other):
        drawn = [np.dot(row, np.subtract(right[one], right[other])) / len(labels) for row in counts]
        return np.mean(right[one]) - np.mean(right[other]), np.percentile(drawn, 2.5), np.std(drawn)

    def is_likelier(one, other):
        gains = [candidates[one].held_out[row, label] - candidates[other].held_out[row, label]
                 for row, label in enumerate(labels)]  # fmt: skip
        return np.percentile([np.dot(row, gains) / len(labels) for row in counts], 2.5) > 0

    majority, models = len(candidates) - 1, range(len(candidates) - 1)
    if len(labels) >= MIN_MAJORITY_ROWS and all(
        difference(place, majority)[1] <= 0 and not is_likelier(place, majority) for place in models
    ):
        return majority
    taken = 2 if loss[2] < loss[1] else 1
    best = min(models, key=lambda place: loss[place])
    gains = [
        candidates[best].held_out[row, label] - candidates[taken].held_out[row, label]
        for row, label in enumerate(labels)
    ]
    if len(labels) >= 50 and np.mean(gains) > np.std(gains) / len(labels) ** 0.5:
        taken = best
    if prefer is None:
        return taken
    near = [place for place in models if difference(taken, place)[0] <= difference(taken, place)[2]]
    return sorted(
        near, key=lambda one: (candidates[one].cost.encode_ms, difference(taken, one)[0])
    )[0]


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**31), st.sampled_from([24, MIN_CHOOSING_ROWS, MIN_MAJORITY_ROWS]), st.sampled_from([0.0, 0.4, 2.0]),
    st.sampled_from([None, "speed"]),
)  # fmt: skip
def test_choice_is_that_of_the_restatement(seed, rows, signal, prefer):
    """What is good elsewhere unless rows show another one; the majority where nothing is above it; or the cheapest."""
    candidates, targets = made_up(seed, rows=rows, candidates=4, signal=signal)
    taken, _ = choose(candidates, targets, task="made", prefer=prefer)
    assert taken == restated(candidates, targets.labels, prefer=prefer)


def test_few_rows_do_not_displace_what_is_good_elsewhere():
    """A lucky candidate is taken by many rows, by a clear difference, and not by a few rows."""
    generator = np.random.default_rng(2)
    for rows, expected in ((MIN_CHOOSING_ROWS - 1, 0), (1000, 1)):
        good = generator.normal(-1.0, 0.1, rows)
        assert to_take([good, good + 0.1], [0, None]) == expected
        assert to_take([good, good + generator.normal(0.0, 5.0, rows)], [0, None]) == 0
        # A combination that leans to the first takes its place as soon as it is better.
        assert to_take([good, good + 0.001], [0, 1]) == 1
        assert to_take([good, good], [0, 1]) == 0


@pytest.mark.parametrize(("rows", "noise"), [(40, 0.5), (900, 3.0)])
def test_combination_with_what_learned_labels_stands_first(tmp_path, rows, noise):
    """Few rows that speak for the encoder alone do not displace it; with hundreds, noise costs it nothing."""
    task = api.Task(write_reviews(tmp_path / "reviews.csv", rows=rows, signal=0.9))
    ((encoder,),) = (
        Evaluator(tmp_path / "evaluation").records(expand(["hash:300"]), [task]).values()
    )
    (fold,) = encoder.folds
    generator = np.random.default_rng(0)
    guesses = noise * generator.normal(size=fold.validation_log_probabilities.shape)
    guesses -= np.logaddexp.reduce(guesses, axis=1, keepdims=True)
    tuned = replace(
        encoder,
        folds=(replace(fold, validation_log_probabilities=guesses),),
        about={**encoder.about, "learned": True},
    )
    cost = MemberCost(encode_ms=1.0, num_bytes=1, training_s=None)
    candidates = fit_candidates([tuned, encoder], [cost, cost], groups=[(0, 1)], worth=[0.5, 0.5])
    steps = {frozenset(one.members): one.step for one in candidates if one.method != "majority"}
    assert steps[frozenset({0})] is None
    assert 1 in steps.values()
    targets = encoder.targets.take(fold.validation_rows)
    taken, _ = choose(candidates, targets, task=encoder.task)
    if rows < MIN_CHOOSING_ROWS:
        assert set(candidates[taken].members) == {0, 1}
    without = targets.score(fold.validation_log_probabilities)
    assert targets.score(candidates[taken].held_out) >= without - 0.05


@pytest.mark.parametrize("rows", [200, 1000])
def test_members_that_are_right_but_unsure_count_with_hundreds_of_rows(rows):
    """As a strongly regularised TF-IDF, which a choice by the log loss of means leaves out."""
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 2 * rows)

    def member(right, confidence):
        guesses = np.where(generator.random(2 * rows) < right, labels, 1 - labels)
        return np.log(np.where(np.eye(2)[guesses] > 0, confidence, 1 - confidence))

    found = np.stack([member(0.9, 0.6), *(member(0.8, 0.8) for _ in range(2))])
    fitted = cross_fit(found[:, :rows], labels[:rows], method=ANSWER)
    assert (fitted.predict(found[:, rows:]).argmax(axis=1) == labels[rows:]).mean() > 0.88


@pytest.mark.parametrize(("right", "is_taken"), [(0.99, True), (0.6, False)])
def test_what_learned_labels_is_taken_where_it_is_shown_to_be_better(tmp_path, right, is_taken):
    """The others are fitted as if it were not there, on rows that it learned from too; they are taken first."""
    table = write_reviews(tmp_path / "reviews.csv", rows=400, signal=0.5)
    task = api.Task(table, split={"validation": 0.2, "test": 0.3})
    members = expand(["hash:8", "hash:16", "tfidf"])
    others = [
        one for (one,) in Evaluator(tmp_path / "evaluation").records(members, [task]).values()
    ]
    generator, data = np.random.default_rng(1), task.load()

    def guessed(rows):
        is_right = generator.random(len(rows)) < right
        sure = np.eye(2)[np.where(is_right, data.labels[rows], 1 - data.labels[rows])]
        return np.log(np.clip(sure, 0.1, 0.9)).astype(np.float32)

    fold = FoldResult(
        data.validation, guessed(data.validation), data.test, guessed(data.test), None
    )
    learned = replace(
        others[0], model="learned", folds=(fold,), about={**others[0].about, "learned": True}
    )
    costs = [MemberCost(encode_ms=1.0, num_bytes=1, training_s=None)] * 4
    records, names = [*others, learned], [*members, replace(members[0], name="learned")]
    trials = [names[3], names[1]]
    groups = groups_of(names, trials, learned=[names[3]])
    worth = [0.0, 0.0, 1.0, 0.0]
    found = fit_candidates(records, costs, groups=groups, worth=worth)
    without = fit_candidates(
        others, costs[:3], groups=[one for one in groups if 3 not in one], worth=worth[:3]
    )
    kept = [one for one in found if 3 not in one.members and one.method != "majority"]
    expected = [one for one in without if one.method != "majority"]
    for one, other in zip(kept, expected, strict=True):
        assert (one.members, one.method, one.step) == (other.members, other.method, other.step)
        assert len(one.held_out) == len(data.train) + len(data.validation)
        np.testing.assert_array_equal(one.held_out, other.held_out)
        np.testing.assert_array_equal(
            one.fold.test_log_probabilities, other.fold.test_log_probabilities
        )
    with pytest.raises(ArtifactError, match="must be evaluated on the same folds"):
        compatible(
            [*others, replace(learned, about=others[0].about)]
        )  # fewer rows without a reason
    answer = answer_of(found, records, names, worth=worth, trials=trials)
    assert answer.answer.learned == is_taken
    alone = answer_of(without, others, members, worth=worth[:3], trials=trials)
    plain = [one for one in answer.candidates if not one.learned]
    others_of_table = [one for one in answer.candidates if one is not answer.answer]
    is_learned = [one.learned for one in others_of_table]
    assert is_learned == sorted(is_learned), "what has fewer rows stands last"
    assert [(one.title, one.validation) for one in plain] == [
        (one.title, one.validation) for one in alone.candidates
    ]
    assert answer.over_majority == alone.over_majority
    assert ("fine-tuned on labels by validation rows" in answer.basis, "tuned" in alone.basis) == (
        True,
        False,
    )
    if not is_taken:  # what few rows choose would be another
        assert answer.answer.title == alone.answer.title


def write_reviews(path, *, rows, signal):
    """Write a table whose label a word determines in a part of the rows."""
    generator = np.random.default_rng(5)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for row in range(rows):
            label = int(generator.integers(0, 2))
            word = ("bad", "good")[label] if generator.random() < signal else "plain"
            topic = generator.integers(0, 40, 4)
            table.writerow(
                [f"{word} {' '.join(f'w{number}' for number in topic)} {row}", ("no", "yes")[label]]
            )
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a training of a few steps."""
    folder = tmp_path_factory.mktemp("trained")
    fit_model(tiny_run(folder, encoder={"type": "bag", "embedding": {"dim": 6}}), folder / "0000")
    return folder / "0000"


def saved(run, models, tasks, **options):
    """Choose and save into a folder that is a sweep's; return the results."""
    (run / SWEEP_FILE).parent.mkdir(parents=True, exist_ok=True)
    (run / SWEEP_FILE).touch()
    return save_best(
        models, Evaluator(run / "evaluation", divides=True), run=run, tasks=tasks, **options
    )


def test_random_labels_are_answered_by_the_most_frequent_class(tmp_path):
    """With enough rows to say so; the saved model predicts it for any text, and the sentence says why."""
    task = write_reviews(tmp_path / "noise.csv", rows=460, signal=0.0)
    (result,) = saved(tmp_path / "run", ["hash:4", "hash:8"], [task])
    assert result.method == "majority"
    ((folder, answer),) = read_answers(tmp_path / "run")
    assert "no model is better beyond chance by cross-validation" in answer.sentence
    model = api.load(folder)
    assert len(set(model.predict("noise", ["good", "bad w1", "w2 w3"]))) == 1
    assert model.predict_proba("noise", ["good"])[0].max() == pytest.approx(0.5, abs=0.1)


def test_saved_model_is_that_which_was_scored(tmp_path, trained):
    """Its predictions of the test rows have the score that the answer names, after the folder was moved alone."""
    task = write_reviews(tmp_path / "reviews.csv", rows=300, signal=0.8)
    saved(tmp_path / "run", [trained], [task])
    ((folder, answer),) = read_answers(tmp_path / "run")
    found = answer.answer
    assert {"tfidf", "tfidf:chars"} & set(found.members)
    assert found.validation >= 80
    folder.rename(tmp_path / "moved")
    model = api.load(tmp_path / "moved")
    record = model.predictors["reviews"].records[0]
    rows = record.folds[0].test_rows
    texts = [
        row["text"] for row in csv.DictReader(Path(task).read_text(encoding="utf-8").splitlines())
    ]
    predicted = model.predict("reviews", [texts[row] for row in rows])
    right = [
        record.label_names[record.labels[row]] == one
        for row, one in zip(rows, predicted, strict=True)
    ]
    # A probe that is fitted on all rows that train predicts; it is the one that was scored.
    assert 100 * np.mean(right) == pytest.approx(found.test)


def test_test_score_of_the_answer_is_that_of_what_is_saved(tmp_path):
    """Others are weighed without the models that have no weight; rows that choose have not chosen these models."""
    task = api.Task(write_reviews(tmp_path / "reviews.csv", rows=150, signal=0.6))
    names = expand(["hash:2", "hash:3", "hash:5", "hash:8", "tfidf", "tfidf:chars"])
    records = [one for (one,) in Evaluator(tmp_path, divides=True).records(names, [task]).values()]
    costs = [MemberCost(encode_ms=1.0, num_bytes=1, training_s=None)] * len(records)
    worth = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    candidates = fit_candidates(records, costs, groups=[range(len(records))], worth=worth)
    assert any(1 < len(one.members) < len(records) for one in candidates)
    for one in candidates:
        kept = sorted(one.members)
        folds = fitted_folds(
            [records[place] for place in kept],
            method=one.method,
            worth=[worth[place] for place in kept],
        )
        scores = score_folds([records[place] for place in kept], folds)
        of_test = records[0].targets.take(one.fold.test_rows).score(one.fold.test_log_probabilities)
        assert 100 * of_test == pytest.approx(scores.test)
        if len(one.members) > 1:
            whole = cross_fit(*fold_predictions(records, 0, worth=worth), method=one.method)
            np.testing.assert_array_equal(one.held_out, whole.held_out)


def test_every_task_has_its_own_and_the_run_its_encoder(tmp_path, trained):
    """With several tasks `best/TASK`; loading the run then returns the encoder, and so does what needs vectors."""
    run = tmp_path / "run"
    tasks = [
        write_reviews(tmp_path / f"{name}.csv", rows=40, signal=0.9) for name in ("one", "two")
    ]
    saved(run, [trained], tasks)
    assert [(place.name, answer.task) for place, answer in read_answers(run)] == [
        ("one", "one"),
        ("two", "two"),
    ]
    encoder = api.load(run)
    assert isinstance(encoder, api.SentenceModel)
    said: list[str] = []
    assert encoder_name(run, say=lambda line, **_: said.append(line)) == str(run / "encoder")
    assert said == [f"{run}: its best model with vectors is used, {run / 'encoder'}"]
    saved(run, [trained], tasks[:1])
    assert [place.name for place, _ in read_answers(run)] == ["best"]
    assert isinstance(api.load(run), api.Ensemble)
    assert encoder_name(run) == str(run / "encoder")
    assert encoder_name("hash:4") == "hash:4"


def test_encoder_without_tasks_is_the_first_trial(tmp_path, trained):
    """A sweep without tasks has an encoder and nothing to predict with; without either it is told to be finished."""
    run = tmp_path / "run"
    run.mkdir()
    (run / SWEEP_FILE).touch()
    with pytest.raises(
        ArtifactError, match="without a model to take; finish it with 'raysent resume"
    ):
        api.load(run)
    save_encoder(run, {member: [] for member in expand([trained])})
    np.testing.assert_array_equal(
        api.load(run).encode(["w1 w2"]), api.load(trained).encode(["w1 w2"])
    )
    assert read_answers(run) == []


def test_sentences_follow_the_paired_difference(tmp_path):
    """They name the score, the simplest thing and the majority, and what the interval of the difference says."""
    task = write_reviews(tmp_path / "reviews.csv", rows=120, signal=0.8)
    (result,) = saved(tmp_path / "run", ["hash:4"], [task])
    assert read_result(tmp_path / "run/best") == result
    answer = result.answer
    assert isinstance(answer, Answer)
    lines = answer_lines([(tmp_path / "run/best", answer)], "run/report.html")
    assert len(lines) == 5
    model, score, _, use, report = lines
    assert model.startswith(f"Your model: {tmp_path}/run/best (")
    assert use.startswith(f"Next: raysent predict {tmp_path}/run/best new.csv")
    assert report == "Report: run/report.html"
    assert score.startswith(
        f"Accuracy {answer.answer.test:.1f} % on {answer.num_test} hold-out rows"
    )
    majority = answer.candidates[answer.majority]
    assert score.endswith(f"; most frequent class {majority.test:.1f} %")
    if answer.taken == answer.simplest:
        answer = answer.model_copy(update={"taken": answer.taken + 1})
    simple = answer.candidates[answer.simplest]
    heading, *of_tasks, _ = answer_lines([(tmp_path / f"best/{name}", answer) for name in "ab"])
    assert heading == f"Your models: one a task, in {tmp_path}/best"
    for line in of_tasks:
        # The baseline's figure is on the line, which is cut at its end.
        assert f"; baseline {simple.title} {simple.test:.1f} %" in line
        assert len(line) <= 100
    for interval, text in (
        ((0.5, 3.0), "better by"),
        ((-3.0, -0.5), "the baseline is better"),
        ((0.0, 0.0), "as good"),
        ((-1.0, 1.0), "nearly as good"),
        ((-9.0, 9.0), "no difference shown"),
    ):
        changed = simple.model_copy(update={"behind": replace(simple.behind, interval=interval)})
        rows = tuple(changed if one is simple else one for one in answer.candidates)
        compared = f"baseline {simple.title} {simple.test:.1f} %: {text}"
        assert compared in answer.model_copy(update={"candidates": rows}).sentence


def test_answer_without_vectors_encodes_by_the_best_encoder_everywhere(tmp_path, trained, capsys):
    """`load(…).encode`, `encode` and the server, of RUN and of RUN/best, with a line; nothing is evaluated by it."""
    run = tmp_path / "run"
    task = write_reviews(tmp_path / "own.csv", rows=40, signal=0.9)
    saved(run, [trained], [task])
    shutil.rmtree(run / "best")
    api.ensemble([trained, "tfidf"], tasks=[task], output=run / "best", method="pool")
    expected = api.load(run / "encoder").encode(["a film", "w1 w2"])
    for place in (run, run / "best"):
        answer = api.load(place)
        assert answer.vectors_of == str(run / "encoder")
        assert answer.cannot_encode is None
        capsys.readouterr()
        np.testing.assert_array_equal(answer.encode(["a film", "w1 w2"]), expected)
        np.testing.assert_array_equal(answer.encode_query(["a film", "w1 w2"]), expected)
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"{run / 'best'}: has no vectors of its own; {run / 'encoder'} encodes"
        assert answer.get_sentence_embedding_dimension() == expected.shape[1]
        (tmp_path / "texts.txt").write_text("a film\nw1 w2\n")
        api.encode_file(place, tmp_path / "texts.txt", output=tmp_path / "v.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
        assert encoder_name(place) == str(run / "encoder")
    with pytest.raises(ConfigError, match="has no vectors of its own; name .*encoder"):
        api.evaluate(run / "best", tasks=[task], output=tmp_path / "scores")
    moved = tmp_path / "moved"
    shutil.copytree(run / "best", moved)
    assert "cannot encode, as its member" in api.load(moved).cannot_encode
