"""Probes: the batched solver against scikit-learn, and the protocol's divisions."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from raysent.errors import ConfigError, DataError
from raysent.evaluation import probes
from raysent.evaluation.probes import fast
from raysent.evaluation.probes import fast as paths
from raysent.evaluation.probes.logistic import (
    Point,
    Problems,
    ScaledFeatures,
    Spectrum,
    Start,
    log_probabilities,
    solve,
)
from raysent.evaluation.tasks import NO_ROWS, TaskData


def made_up(num_rows: int, dim: int, num_classes: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return unit-length features around a common mean, of decaying spectrum, and noisy labels."""
    generator = np.random.default_rng(seed)
    decay = np.arange(1, dim + 1) ** -0.5
    features = generator.standard_normal((num_rows, dim)) * decay + generator.standard_normal(dim) / 4
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    margins = 12 * (features - features.mean(axis=0)) @ generator.standard_normal((dim, num_classes))
    labels = (margins + generator.gumbel(size=margins.shape)).argmax(axis=1)
    return features.astype(np.float32), labels.astype(np.int64)


def task_data(
    labels: np.ndarray, split: str = "nested", *, train=NO_ROWS, validation=NO_ROWS, test=NO_ROWS
) -> TaskData:
    """Return a task of sentences that are only numbers."""
    names = tuple(f"class{label}" for label in range(int(labels.max()) + 1))
    sentences = ([str(row) for row in range(len(labels))],)
    return TaskData("toy", "sentence", split, names, sentences, labels, train, validation, test)


def objective(features, labels, weights, intercepts, strength) -> float:
    """Return scikit-learn's objective in float64: slow, plain, the oracle."""
    margins = features @ weights + intercepts
    if margins.shape[1] == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = logsumexp(margins, axis=1) - margins[np.arange(len(labels)), labels]
    return 0.5 * float((weights**2).sum()) + strength * float(losses.sum())


@pytest.mark.parametrize(("dim", "num_classes"), [(40, 2), (700, 2), (300, 5)])
def test_solve_equals_sklearn(dim, num_classes):
    """On shared features with masked rows, objective within 1e-6 and predictions on 99.5 % of rows, at every C."""
    features, labels = made_up(900, dim, num_classes)
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
        oracle = LogisticRegression(C=strength, tol=1e-8, max_iter=20_000).fit(seen[train], labels[train])
        best = objective(seen[train], labels[train], oracle.coef_.T, oracle.intercept_, strength)
        point = solution.point.select(torch.tensor([problem]))
        weights, intercepts = point.weights[..., 0].double().numpy(), point.intercepts[..., 0].double().numpy()
        assert objective(seen[train], labels[train], weights, intercepts, strength) <= best * (1 + 1e-6)
        answers = log_probabilities(solution.margins[..., problem]).argmax(1).numpy()
        assert (answers == oracle.predict(seen)).mean() >= 0.995


def test_solve_does_not_depend_on_its_company():
    """A problem has the same optimum alone and among others."""
    features, labels = made_up(300, 20, 2)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(300))
    spectrum = Spectrum(scaled, torch.arange(300))
    targets = torch.from_numpy(labels).float()[:, None, None]
    costs = torch.tensor([0.1, 1.0, 10.0]).expand(300, 3)
    together = solve(Problems(scaled, spectrum, targets, costs))
    alone = solve(Problems(scaled, spectrum, targets, costs[:, 1:2]))
    torch.testing.assert_close(together.objective[1:2], alone.objective, rtol=1e-5, atol=0)
    torch.testing.assert_close(together.margins[..., 1:2], alone.margins, rtol=0, atol=0.01)


@pytest.mark.parametrize("num_masks", [2, 9])
def test_path_ends_near_the_optimum_at_every_c(num_masks):
    """Whether values of C are solved side by side or one after another, what chooses C is as near as it says."""
    features, labels = made_up(400, 60, 2)
    targets, strengths = torch.from_numpy(labels).float()[:, None], (0.25, 1.0, 16.0, 256.0)
    fits = paths.Fits(features, targets, trainable=np.arange(400), strengths=strengths)
    masks = torch.arange(400)[:, None] % (num_masks + 1) != torch.arange(num_masks)
    path = fits.path(masks)
    every = torch.tensor(strengths).repeat_interleave(num_masks)
    best = fits.solve(masks.repeat(1, len(strengths)), every).objective
    # The distance that ends a fit is an estimate: it has been seen three times too small.
    assert bool((path.objective / best - 1 <= 4 * paths.path_tolerance(every)).all())


def test_start_along_a_line_is_its_best_point():
    """The point that a fit starts from has no better neighbour on the line, and margins of its own."""
    features, labels = made_up(200, 12, 2)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(200))
    targets = torch.from_numpy(labels).float()[:, None, None]
    problems = Problems(scaled, Spectrum(scaled, torch.arange(200)), targets, torch.full((200, 2), 4.0))
    generator = torch.Generator().manual_seed(0)
    ends = [Point(torch.randn(12, 1, 2, generator=generator), torch.randn(1, 2, generator=generator)) for _ in "ab"]
    start, way = (Start(end, scaled.times(end.weights) + end.intercepts) for end in ends)
    found = problems.along(start, way)
    torch.testing.assert_close(found.margins, scaled.times(found.point.weights) + found.point.intercepts)
    for share in (-0.1, 0.1):
        near = found.plus(way, torch.tensor(share))
        assert bool((problems.objective(*found) < problems.objective(*near)).all())


def test_scaled_features_have_unit_spread_wherever_they_lie():
    """Moving and stretching all features changes neither the spread seen nor the products."""
    features, _ = made_up(200, 10, 2)
    plain = ScaledFeatures(torch.from_numpy(features), torch.arange(200))
    moved = ScaledFeatures(torch.from_numpy(features * 7 + 3), torch.arange(200))
    weights = torch.randn(10, 1, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain.times(weights), moved.times(weights), rtol=1e-4, atol=1e-4)
    dense = (features - features.mean(0)) / plain.scale
    assert (dense**2).sum(1).mean() == pytest.approx(1, abs=1e-5)


def test_folds_are_stratified_and_repeatable():
    """Folds differ by a row at most, in size and in every class."""
    labels = np.repeat([0, 1, 2], [57, 31, 15])
    folds = fast.stratified_folds(labels, 10, seed=0)
    assert np.ptp(np.bincount(folds)) <= 1
    assert all(np.ptp(np.bincount(folds[labels == label], minlength=10)) <= 1 for label in range(3))
    assert np.array_equal(folds, fast.stratified_folds(labels, 10, seed=0))


def test_nested_folds_cover_every_row_once_and_never_train_on_it():
    """Each row is tested in one fold, and validates the nine others."""
    features, labels = made_up(200, 12, 2)
    result = probes.fit_probe(features, task_data(labels))
    tested = np.concatenate([fold.test_rows for fold in result.folds])
    assert sorted(tested.tolist()) == list(range(200))
    for fold in result.folds:
        assert not set(fold.test_rows) & set(fold.validation_rows)
        assert len(fold.test_rows) + len(fold.validation_rows) == 200
    assert result.test > 60


def test_nested_equals_fits_made_one_by_one(monkeypatch):
    """An outer fold's validation and test log-probabilities are those of plain fits on the same rows."""
    monkeypatch.setattr(fast, "STRENGTHS", (4.0,))
    features, labels = made_up(150, 8, 3)
    result = probes.fit_probe(features, task_data(labels))
    folds = fast.stratified_folds(labels, 10, seed=fast.FOLD_SEED)
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(150))
    seen = ((features - scaled.mean.numpy()) / scaled.scale).astype(np.float64)
    fold = result.folds[3]
    tester = LogisticRegression(C=4.0, tol=1e-8, max_iter=9999).fit(seen[folds != 3], labels[folds != 3])
    expected = tester.predict_log_proba(seen[fold.test_rows])
    np.testing.assert_allclose(fold.test_log_probabilities, expected, atol=0.02)
    rows = np.flatnonzero(folds == 7)
    kept = (folds != 3) & (folds != 7)
    validator = LogisticRegression(C=4.0, tol=1e-8, max_iter=9999).fit(seen[kept], labels[kept])
    here = np.isin(fold.validation_rows, rows)
    expected = validator.predict_log_proba(seen[fold.validation_rows[here]])
    # What chooses C ends earlier than what is tested.
    np.testing.assert_allclose(np.exp(fold.validation_log_probabilities[here]), np.exp(expected), atol=0.01)


def test_nested_scores_pure_noise_at_chance():
    """No label leaks from test or validation rows into a fit."""
    generator = np.random.default_rng(5)
    features = generator.standard_normal((1000, 50)).astype(np.float32)
    result = probes.fit_probe(features, task_data(generator.integers(0, 2, 1000)))
    assert 44 < result.test < 56


def test_train_test_chooses_within_train():
    """Validation rows are the train rows, and test rows are never trained on."""
    features, labels = made_up(300, 10, 3)
    data = task_data(labels, "train-test", train=np.arange(220), test=np.arange(220, 300))
    (fold,) = probes.fit_probe(features, data).folds
    assert fold.validation_rows.tolist() == list(range(220))
    assert fold.test_log_probabilities.shape == (80, 3)
    noisy = data.labels.copy()
    noisy[220:] = 0
    changed = probes.fit_probe(features, task_data(noisy, "train-test", train=data.train, test=data.test))
    np.testing.assert_array_equal(changed.folds[0].test_log_probabilities, fold.test_log_probabilities)


def test_given_splits_are_kept_and_the_probe_answers_alike():
    """The saved probe gives the test rows' log-probabilities from the features as they are."""
    features, labels = made_up(300, 10, 2)
    rows = np.split(np.arange(300), [200, 250])
    data = task_data(labels, "train-validation-test", train=rows[0], validation=rows[1], test=rows[2])
    result = probes.fit_probe(features, data)
    (fold,) = result.folds
    again = result.probe.log_probabilities(features[rows[2]])
    np.testing.assert_allclose(again, fold.test_log_probabilities, atol=1e-4)
    assert result.test == pytest.approx(100 * (again.argmax(1) == labels[rows[2]]).mean())
    np.testing.assert_allclose(np.exp(fold.validation_log_probabilities).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("split", ["train-validation-test", "train-test"])
def test_where_rows_stand_does_not_matter(split):
    """Rows behind the last one that trains, which no product of the solver reads, are answered like those before."""
    features, labels = made_up(260, 9, 2)
    parts = (np.arange(200), np.arange(200, 230), np.arange(230, 260))

    def answers(order: np.ndarray) -> np.ndarray:
        train, validation, test = (np.flatnonzero(np.isin(order, part)) for part in parts)
        given = {"validation": validation} if split == "train-validation-test" else {}
        data = task_data(labels[order], split, train=train, test=test, **given)
        (fold,) = probes.fit_probe(features[order], data).folds
        return fold.test_log_probabilities[np.argsort(order[fold.test_rows])]

    last_first = np.concatenate([np.arange(200, 260), np.arange(200)])
    np.testing.assert_allclose(answers(np.arange(260)), answers(last_first), atol=0.01)


def test_memory_bound_does_not_change_results(monkeypatch):
    """Problems solved a few at a time give what they give together."""
    features, labels = made_up(200, 6, 2)
    whole = probes.fit_probe(features, task_data(labels))
    monkeypatch.setattr(paths, "ARRAY_BYTES", 4 * 200 * 7)
    parts = probes.fit_probe(features, task_data(labels))
    assert parts.test == pytest.approx(whole.test, abs=1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_features_name_their_source(value):
    """A diverged model is named, with how much of it is broken."""
    features, labels = made_up(50, 4, 2)
    features[3, 2] = value
    with pytest.raises(
        DataError, match=r"^run/7: vectors must be finite; given NaN or infinity in 1 of 50 rows of toy"
    ):
        probes.fit_probe(features, task_data(labels), source="run/7")


def test_one_class_is_refused():
    """Rows of one class teach nothing."""
    features, _ = made_up(50, 4, 2)
    data = TaskData("toy", "sentence", "nested", ("no", "yes"), ([""] * 50,), np.ones(50, dtype=np.int64))
    with pytest.raises(DataError, match=r"^toy: needs training rows of at least two classes; given yes$"):
        probes.fit_probe(features, data)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_constant_features_predict_the_larger_class(noise):
    """Features that say nothing, or nothing but their rounding, leave the intercept."""
    labels = (np.arange(100) % 10 > 2).astype(np.int64)
    generator = np.random.default_rng(0)
    features = generator.normal(size=16) * (1 + noise * generator.normal(size=(100, 16)))
    result = probes.fit_probe(features.astype(np.float32), task_data(labels))
    assert result.test == pytest.approx(70)
    assert all(np.isfinite(fold.validation_log_probabilities).all() for fold in result.folds)


def test_row_count_is_checked():
    """Features of other rows are refused."""
    features, labels = made_up(50, 4, 2)
    with pytest.raises(DataError, match=r"^features: toy has 50 rows; given features of 49$"):
        probes.fit_probe(features[1:], task_data(labels))


def test_unknown_protocol_names_the_nearest():
    """A wrong protocol is a user's mistake."""
    features, labels = made_up(50, 4, 2)
    with pytest.raises(ConfigError, match=r"^--protocol fats: unknown protocol; did you mean 'fast'\?$"):
        probes.fit_probe(features, task_data(labels), protocol="fats")
