"""Probes: the batched solver against scikit-learn, classifiers stopped early against torch, features and targets."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from raysent.errors import ConfigError, DataError
from raysent.evaluation.probes import features, logistic
from raysent.evaluation.probes.features import features_of
from raysent.evaluation.probes.lexical_features import join_columns
from raysent.evaluation.probes.logistic import (
    Point,
    Problems,
    ScaledFeatures,
    Spectrum,
    Start,
    log_probabilities,
    solve,
)
from raysent.evaluation.probes.relatedness import level_targets
from raysent.evaluation.probes.results import predicted_scores
from raysent.evaluation.protocols import fast, fit_probe
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.evaluation.units import folds_of_units
from raysent.models.schemes.hash import HashEncoder
from raysent.models.schemes.tfidf import LexicalModel
from raysent.reproduction.protocols import early_stopping
from raysent.reproduction.protocols.early_stopping import Recipe, Rows, train_together


def random_task(
    num_rows: int, dim: int, num_classes: int, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return unit-length features with a common mean and a decaying spectrum, and noisy labels."""
    generator = np.random.default_rng(seed)
    decay = np.arange(1, dim + 1) ** -0.5
    features = (
        generator.standard_normal((num_rows, dim)) * decay + generator.standard_normal(dim) / 4
    )
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    margins = (
        12 * (features - features.mean(axis=0)) @ generator.standard_normal((dim, num_classes))
    )
    labels = (margins + generator.gumbel(size=margins.shape)).argmax(axis=1)
    return features.astype(np.float32), labels.astype(np.int64)


def task_data(
    labels: np.ndarray, split: str = "nested", *, train=NO_ROWS, validation=NO_ROWS, test=NO_ROWS
) -> TaskData:
    """Return a task whose sentences are numbers."""
    names = tuple(f"class{label}" for label in range(int(labels.max()) + 1))
    sentences = ([str(row) for row in range(len(labels))],)
    return TaskData("toy", "sentence", split, names, sentences, labels, train, validation, test)


def objective(features, labels, weights, intercepts, strength) -> float:
    """Return scikit-learn's objective in float64, the reference."""
    margins = features @ weights + intercepts
    if margins.shape[1] == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = logsumexp(margins, axis=1) - margins[np.arange(len(labels)), labels]
    return 0.5 * float((weights**2).sum()) + strength * float(losses.sum())


@pytest.mark.parametrize(("dim", "num_classes"), [(40, 2), (700, 2), (300, 5)])
def test_solve_equals_sklearn(dim, num_classes):
    """With masked rows, the objective is within 1e-6 and 99.5 % of predictions are equal, at every C."""
    features, labels = random_task(900, dim, num_classes)
    rows = torch.arange(900)
    scaled = ScaledFeatures(torch.from_numpy(features), rows)
    classes = torch.arange(1, 2) if num_classes == 2 else torch.arange(num_classes)
    targets = (torch.from_numpy(labels)[:, None] == classes).float()[:, :, None]
    strengths = (0.25, 4.0, 64.0, 256.0)
    train = np.arange(900) % 5 > 0
    costs = torch.from_numpy(train)[:, None] * torch.tensor(strengths)
    solution = solve(Problems(scaled, Spectrum(scaled, rows), targets, costs))
    seen = ((features - scaled.mean.numpy()) / scaled.scale).astype(np.float64)
    for problem, strength in enumerate(strengths):
        oracle = LogisticRegression(C=strength, tol=1e-8, max_iter=20_000).fit(
            seen[train], labels[train]
        )
        best = objective(seen[train], labels[train], oracle.coef_.T, oracle.intercept_, strength)
        point = solution.point.select(torch.tensor([problem]))
        weights, intercepts = (
            point.weights[..., 0].double().numpy(),
            point.intercepts[..., 0].double().numpy(),
        )
        assert objective(seen[train], labels[train], weights, intercepts, strength) <= best * (
            1 + 1e-6
        )
        predicted = log_probabilities(solution.margins[..., problem]).argmax(1).numpy()
        assert (predicted == oracle.predict(seen)).mean() >= 0.995


def test_solve_does_not_depend_on_other_problems():
    """A problem has the same optimum alone and in a batch."""
    features, labels = random_task(300, 20, 2)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(300))
    spectrum = Spectrum(scaled, torch.arange(300))
    targets = torch.from_numpy(labels).float()[:, None, None]
    costs = torch.tensor([0.1, 1.0, 10.0]).expand(300, 3)
    together = solve(Problems(scaled, spectrum, targets, costs))
    alone = solve(Problems(scaled, spectrum, targets, costs[:, 1:2]))
    torch.testing.assert_close(together.objective[1:2], alone.objective, rtol=1e-5, atol=0)
    torch.testing.assert_close(together.margins[..., 1:2], alone.margins, rtol=0, atol=0.01)


def test_a_solved_problem_stays_solved_while_harder_ones_go_on():
    """One problem of a small C among seven of a large one, which take ten times as many steps."""
    generator = np.random.default_rng(0)
    scales = np.geomspace(1, 0.01, 100).astype(np.float32)
    rows = generator.normal(size=(300, 100)).astype(np.float32) * scales
    is_second = rows @ generator.normal(size=100) + 0.3 * generator.normal(size=300) > 0
    targets = torch.from_numpy(is_second.astype(np.float32))[:, None]
    fits = logistic.Fits(rows, targets, trainable=np.arange(300), strengths=[0.1, 1e5])
    masks = torch.stack([torch.arange(300) % 8 != fold for fold in range(8)], dim=1)
    together = fits.solve(masks, torch.tensor([0.1] + 7 * [1e5]))
    alone = fits.solve(masks[:, :1], torch.tensor([0.1]))
    assert alone.num_steps[0] < together.num_steps[1:].min() / 3
    assert torch.allclose(together.margins[..., :1], alone.margins, atol=1e-3)
    assert torch.isfinite(together.margins).all()


def test_a_fit_that_is_not_finite_is_an_error(monkeypatch):
    """Not a score: NaN would count as the first class."""
    monkeypatch.setattr(
        logistic, "_inverse", lambda moved, turned: 1 / moved.dot(turned).clamp(min=1e-30) * np.inf
    )
    features, labels = random_task(400, 60, 2)
    targets = torch.from_numpy(labels).float()[:, None]
    fits = logistic.Fits(features, targets, trainable=np.arange(400), strengths=[1.0])
    with pytest.raises(DataError, match="features: must allow finite fits"):
        fits.solve(torch.ones(400, 1, dtype=torch.bool), torch.tensor([1.0]))


@pytest.mark.parametrize("num_masks", [2, 9])
def test_path_ends_near_the_optimum_at_every_c(num_masks):
    """Fits that choose C are within their tolerance, whether values of C are solved side by side or in sequence."""
    features, labels = random_task(400, 60, 2)
    targets, strengths = torch.from_numpy(labels).float()[:, None], (0.25, 1.0, 16.0, 256.0)
    fits = logistic.Fits(features, targets, trainable=np.arange(400), strengths=strengths)
    masks = torch.arange(400)[:, None] % (num_masks + 1) != torch.arange(num_masks)
    path = fits.path(masks)
    every = torch.tensor(strengths).repeat_interleave(num_masks)
    best = fits.solve(masks.repeat(1, len(strengths)), every).objective
    # A fit stops by an estimate of its distance, which has been seen three times too small.
    assert bool((path.objective / best - 1 <= 4 * logistic.path_tolerance(every)).all())


def test_best_along_a_line_is_its_best_point():
    """No neighbor on the line is better, and the margins are those of the point."""
    features, labels = random_task(200, 12, 2)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(200))
    targets = torch.from_numpy(labels).float()[:, None, None]
    problems = Problems(
        scaled, Spectrum(scaled, torch.arange(200)), targets, torch.full((200, 2), 4.0)
    )
    generator = torch.Generator().manual_seed(0)
    ends = [
        Point(torch.randn(12, 1, 2, generator=generator), torch.randn(1, 2, generator=generator))
        for _ in "ab"
    ]
    start, direction = (Start(end, scaled.times(end.weights) + end.intercepts) for end in ends)
    found = problems.best_along(start, direction)
    torch.testing.assert_close(
        found.margins, scaled.times(found.point.weights) + found.point.intercepts
    )
    for factor in (-0.1, 0.1):
        near = found.plus(direction, torch.tensor(factor))
        assert bool((problems.objective(*found) < problems.objective(*near)).all())


def test_scaled_features_do_not_depend_on_offset_and_scale():
    """Shifting and stretching all features changes neither their spread nor the products."""
    features, _ = random_task(200, 10, 2)
    plain = ScaledFeatures(torch.from_numpy(features), torch.arange(200))
    moved = ScaledFeatures(torch.from_numpy(features * 7 + 3), torch.arange(200))
    weights = torch.randn(10, 1, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain.times(weights), moved.times(weights), rtol=1e-4, atol=1e-4)
    dense = (features - features.mean(0)) / plain.scale
    assert (dense**2).sum(1).mean() == pytest.approx(1, abs=1e-5)


def test_folds_are_stratified_and_repeatable():
    """Sizes of folds differ by one row at most, in total and per class."""
    labels = np.repeat([0, 1, 2], [57, 31, 15])
    folds = folds_of_units(labels, 10, seed=0)
    assert np.ptp(np.bincount(folds)) <= 1
    assert all(np.ptp(np.bincount(folds[labels == label], minlength=10)) <= 1 for label in range(3))
    assert np.array_equal(folds, folds_of_units(labels, 10, seed=0))


def test_nested_folds_cover_every_row_once_and_never_train_on_it():
    """Each row is a test row of one fold, and a validation row of the nine others."""
    features, labels = random_task(200, 12, 2)
    result = fit_probe(features, task_data(labels))
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested.tolist()) == list(range(200))
    for fold in result.folds:
        assert not set(fold.test_rows) & set(fold.validation_rows)
        assert len(fold.test_rows) + len(fold.validation_rows) == 200
    assert result.test > 60


def test_nested_equals_single_fits(monkeypatch):
    """An outer fold's validation and test log-probabilities are those of scikit-learn's fits on the same rows."""
    monkeypatch.setattr(fast, "STRENGTHS", (4.0,))
    features, labels = random_task(150, 8, 3)
    result = fit_probe(features, task_data(labels))
    folds = folds_of_units(labels, 10, seed=fast.FOLD_SEED)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(150))
    seen = ((features - scaled.mean.numpy()) / scaled.scale).astype(np.float64)
    fold = result.folds[3]
    tester = LogisticRegression(C=4.0, tol=1e-8, max_iter=9999).fit(
        seen[folds != 3], labels[folds != 3]
    )
    expected = tester.predict_log_proba(seen[fold.test_rows])
    np.testing.assert_allclose(fold.test_log_probabilities, expected, atol=0.02)
    rows = np.flatnonzero(folds == 7)
    kept = (folds != 3) & (folds != 7)
    validator = LogisticRegression(C=4.0, tol=1e-8, max_iter=9999).fit(seen[kept], labels[kept])
    here = np.isin(fold.validation_rows, rows)
    expected = validator.predict_log_proba(seen[fold.validation_rows[here]])
    # Fits that choose C stop earlier than those that are tested.
    np.testing.assert_allclose(
        np.exp(fold.validation_log_probabilities[here]), np.exp(expected), atol=0.01
    )


def test_nested_scores_noise_at_chance():
    """No label leaks from test or validation rows into a fit."""
    generator = np.random.default_rng(5)
    features = generator.standard_normal((1000, 50)).astype(np.float32)
    result = fit_probe(features, task_data(generator.integers(0, 2, 1000)))
    assert 44 < result.test < 56


def test_train_test_chooses_within_train():
    """Validation rows are the train rows, and test rows are never trained on."""
    features, labels = random_task(300, 10, 3)
    data = task_data(labels, "train-test", train=np.arange(220), test=np.arange(220, 300))
    (fold,) = fit_probe(features, data).folds
    assert fold.validation_rows.tolist() == list(range(220))
    assert fold.test_log_probabilities.shape == (80, 3)
    noisy = data.labels.copy()
    noisy[220:] = 0
    changed = fit_probe(features, task_data(noisy, "train-test", train=data.train, test=data.test))
    np.testing.assert_array_equal(
        changed.folds[0].test_log_probabilities, fold.test_log_probabilities
    )


@pytest.mark.parametrize("dim", [30, 400])
def test_a_class_of_one_row_leaves_the_fit_of_all_rows_at_its_optimum(dim):
    """The fit without that row has driven the class far away, and is where the fit of all rows begins."""
    features, labels = random_task(200, dim, 3)
    kept = np.flatnonzero(labels > 0)
    kept = np.concatenate([np.flatnonzero(labels == 0)[:1], kept])
    features, labels = np.ascontiguousarray(features[kept]), labels[kept]
    train = np.arange(70)
    result = fit_probe(
        features, task_data(labels, "train-test", train=train, test=np.arange(70, len(labels)))
    )
    (fold,) = result.folds
    scaled = ScaledFeatures(torch.from_numpy(features), torch.from_numpy(train))
    seen = ((features - scaled.mean.numpy()) / scaled.scale).astype(np.float64)
    oracle = LogisticRegression(C=fold.strength, tol=1e-8, max_iter=20_000).fit(
        seen[:70], labels[:70]
    )
    expected = oracle.predict_log_proba(seen[70:])
    np.testing.assert_allclose(fold.test_log_probabilities, expected, atol=0.02)
    assert result.num_unfinished == 0


def test_given_splits_are_kept_and_the_probe_predicts_the_same():
    """The probe gives the test rows' log-probabilities from features that are not scaled."""
    features, labels = random_task(300, 10, 2)
    rows = np.split(np.arange(300), [200, 250])
    data = task_data(
        labels, "train-validation-test", train=rows[0], validation=rows[1], test=rows[2]
    )
    result = fit_probe(features, data)
    (fold,) = result.folds
    again = result.probe.log_probabilities(features[rows[2]])
    np.testing.assert_allclose(again, fold.test_log_probabilities, atol=1e-4)
    assert result.test == pytest.approx(100 * (again.argmax(1) == labels[rows[2]]).mean())
    np.testing.assert_allclose(np.exp(fold.validation_log_probabilities).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("split", ["train-validation-test", "train-test"])
def test_order_of_rows_does_not_matter(split):
    """Rows after the last trainable one, which the solver's products leave out, are predicted like those before."""
    features, labels = random_task(260, 9, 2)
    parts = (np.arange(200), np.arange(200, 230), np.arange(230, 260))

    def predictions(order: np.ndarray) -> np.ndarray:
        train, validation, test = (np.flatnonzero(np.isin(order, part)) for part in parts)
        given = {"validation": validation} if split == "train-validation-test" else {}
        data = task_data(labels[order], split, train=train, test=test, **given)
        (fold,) = fit_probe(features[order], data).folds
        return fold.test_log_probabilities[np.argsort(order[fold.test_rows])]

    last_first = np.concatenate([np.arange(200, 260), np.arange(200)])
    np.testing.assert_allclose(predictions(np.arange(260)), predictions(last_first), atol=0.01)


def test_memory_bound_does_not_change_results(monkeypatch):
    """Problems solved a few at a time have the same results as all at once."""
    features, labels = random_task(200, 6, 2)
    whole = fit_probe(features, task_data(labels))
    monkeypatch.setattr(logistic, "ARRAY_BYTES", 4 * 200 * 7)
    parts = fit_probe(features, task_data(labels))
    assert parts.test == pytest.approx(whole.test, abs=1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_features_name_their_source(value):
    """The error names the model and the number of broken rows."""
    features, labels = random_task(50, 4, 2)
    features[3, 2] = value
    with pytest.raises(
        DataError,
        match=r"^run/7: vectors must be finite; given NaN or infinity in 1 of 50 rows of toy",
    ):
        fit_probe(features, task_data(labels), source="run/7")


def test_one_class_is_refused():
    """The error names the class."""
    features, _ = random_task(50, 4, 2)
    data = TaskData(
        "toy", "sentence", "nested", ("no", "yes"), ([""] * 50,), np.ones(50, dtype=np.int64)
    )
    with pytest.raises(
        DataError, match=r"^toy: needs training rows of at least two classes; given yes$"
    ):
        fit_probe(features, data)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_constant_features_predict_the_larger_class(noise):
    """Constant features, or those that vary only by rounding, leave only the intercept."""
    labels = (np.arange(100) % 10 > 2).astype(np.int64)
    generator = np.random.default_rng(0)
    features = generator.normal(size=16) * (1 + noise * generator.normal(size=(100, 16)))
    result = fit_probe(features.astype(np.float32), task_data(labels))
    assert result.test == pytest.approx(70)
    assert all(np.isfinite(fold.validation_log_probabilities).all() for fold in result.folds)


def test_row_count_is_checked():
    """The error gives both numbers of rows."""
    features, labels = random_task(50, 4, 2)
    with pytest.raises(DataError, match=r"^features: toy has 50 rows; given features of 49$"):
        fit_probe(features[1:], task_data(labels))


def test_fit_probe_names_the_nearest_protocol():
    """The error names the nearest protocol."""
    features, labels = random_task(50, 4, 2)
    with pytest.raises(
        ConfigError, match=r"^protocol fats: unknown protocol; did you mean 'fast'\?$"
    ):
        fit_probe(features, task_data(labels), protocol="fats")


def classifier_alone(features, labels, rows: Rows, penalty: float, recipe: Recipe):
    """Return weights, intercepts and accuracy of one fit, with a module, autograd and the optimizer's weight decay."""
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
            best, kept = (
                int(right) / len(rows.validation),
                [value.detach().clone() for value in model.parameters()],
            )
        elif failures >= recipe.tenacity:
            break
        else:
            failures += 1
    return *kept, best


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_train_together_equals_lone_fits(optimizer):
    """Every fit equals SentEval's loop, restated with modules and autograd."""
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.standard_normal((150, 7)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(3, size=150))
    recipe = Recipe(
        num_folds=5, optimizer=optimizer, batch_size=16, tenacity=1, epoch_size=2, max_epochs=20
    )
    folds = [np.split(generator.permutation(150), [size]) for size in (100, 101, 130)]
    penalties = (1e-4, 1e-1)
    groups = [Rows.given(train, held_out, seed=recipe.seed) for train, held_out in folds]
    fits = train_together(features, labels, groups, [penalties] * len(folds), recipe=recipe)
    for rows, of_fold in zip(groups, fits, strict=True):
        for penalty, fit in zip(penalties, of_fold, strict=True):
            weights, intercepts, accuracy = classifier_alone(
                features, labels, rows, penalty, recipe
            )
            torch.testing.assert_close(fit.weights, weights, rtol=0, atol=1e-6)
            torch.testing.assert_close(fit.intercepts, intercepts, rtol=0, atol=1e-6)
            assert fit.validation == accuracy


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_train_together_is_exact_with_and_without_shared_products(monkeypatch, optimizer, is_exact):
    """One product for all fits, or one per fit where the library sums in another order: both equal torch's own loop."""
    if not is_exact:
        monkeypatch.setattr(early_stopping, "is_exact_side_by_side", lambda *_: False)
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.standard_normal((160, 512)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(2, size=160))
    recipe = Recipe(
        num_folds=5, optimizer=optimizer, batch_size=32, tenacity=2, epoch_size=1, max_epochs=12
    )
    rows, penalties = (np.arange(120), np.arange(120, 160)), (1e-5, 1e-3, 1e-1)
    (fits,) = train_together(
        features, labels, [Rows.given(*rows, seed=recipe.seed)], [penalties], recipe=recipe
    )
    for penalty, fit in zip(penalties, fits, strict=True):
        lone = Rows.given(*rows, seed=recipe.seed)
        weights, intercepts, accuracy = classifier_alone(features, labels, lone, penalty, recipe)
        torch.testing.assert_close(fit.weights, weights, rtol=0, atol=1e-7)
        torch.testing.assert_close(fit.intercepts, intercepts, rtol=0, atol=1e-7)
        assert fit.validation == accuracy


def test_fit_margins_are_the_linear_map():
    """Margins of rows are X W + b for every batch size."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    recipe = Recipe(
        num_folds=2, optimizer="adam", batch_size=8, tenacity=0, epoch_size=1, max_epochs=2
    )
    ((fit,),) = train_together(
        features,
        labels,
        [Rows.given(np.arange(30), np.arange(30, 40), seed=0)],
        [[1e-5]],
        recipe=recipe,
    )
    expected = features[[3, 31, 7]] @ fit.weights.T + fit.intercepts
    torch.testing.assert_close(fit.margins(features, np.array([3, 31, 7]), batch_size=2), expected)


@pytest.mark.parametrize("chunk", [2, 100])
def test_encode_columns_encodes_a_distinct_sentence_once(monkeypatch, chunk):
    """Each row gets its own sentence's vector, across columns and chunks."""
    monkeypatch.setattr(features, "CHUNK", chunk)
    encoded: list[str] = []

    class Counting:
        def encode(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
            encoded.extend(sentences)
            return np.array(
                [[len(sentence), ord(sentence[0])] for sentence in sentences], dtype=np.float32
            )

    columns = (["a", "bb", "a", "ccc"], ["bb", "dddd", "ccc", "e"])
    found = features.encode_columns(Counting(), columns)
    assert sorted(encoded) == ["a", "bb", "ccc", "dddd", "e"]
    for column, vectors in zip(columns, found, strict=True):
        assert vectors.tolist() == [[len(sentence), ord(sentence[0])] for sentence in column]


def test_level_targets_have_the_score_as_mean():
    """A score puts weight on the two levels beside it; below 1 it loses a part, as in SentEval."""
    scores = np.array([1.0, 3.4, 5.0, 0.25])
    targets = level_targets(scores, num_levels=5)
    assert targets[:3].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert targets[1].tolist() == pytest.approx([0, 0, 0.6, 0.4, 0])
    assert (targets @ np.arange(1, 6)).tolist() == pytest.approx(scores.tolist())
    assert predicted_scores(np.log(targets[:1] + 1e-30)).tolist() == pytest.approx([1.0])


def test_features_of_pairs_depend_on_their_kind():
    """Only pairs whose order matters have u and v themselves."""
    encoder = HashEncoder(3)
    columns = (["a b", "c"], ["c", "a"])
    u, v = (encoder.encode(column) for column in columns)
    pair = features_of(encoder, columns, kind="pair")
    order = features_of(encoder, columns, kind="order")
    np.testing.assert_array_equal(pair, np.hstack([abs(u - v), u * v]))
    np.testing.assert_array_equal(order, np.hstack([u, v, abs(u - v), u * v]))
    likeness = features_of(encoder, columns, kind="likeness")
    cosines = np.sum(u * v, axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    expected = np.hstack([10 * cosines[:, None], abs(u - v), u * v])
    np.testing.assert_allclose(likeness, expected, rtol=1e-6)
    model = LexicalModel("words")
    vectors = [
        model.vectorizer().fit(["a b c d"]).transform(column) for column in (["a b"], ["b c"])
    ]
    products = (vectors[0].toarray() * vectors[1].toarray()).sum()
    first = join_columns(vectors, kind="likeness").toarray()[0, 0]
    assert first == pytest.approx(10 * products)
