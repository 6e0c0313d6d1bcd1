"""Objectives: contracts over all that the registry finds, and context prediction against its restatement."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from reference import context_alternatives
from reference import context_prediction as reference_loss
from toy_batches import NoRowsByIndex, ToyRead, build_context, toy_batch

from raysent.config import Document, validate
from raysent.errors import ConfigError
from raysent.models.objectives import (
    CONTEXT_METRICS,
    OBJECTIVES,
    PREDICTION_METRICS,
    AnyObjective,
    StepShape,
    TripletBatches,
    build_objective,
    places_of,
)
from raysent.models.objectives.context_prediction import Config
from raysent.training.validation import METRICS

N = 400


def loss_of(f, g, documents=None, **settings):
    """The loss of contiguous sentences."""
    places = contiguous(len(f), documents)
    return build_objective(Config(**settings)).compare((f, g), places, slice(None))


def contiguous(count, documents=None):
    """Places of sentences that follow one another, in one document or in those given."""
    documents = np.zeros(count, dtype=np.int64) if documents is None else np.asarray(documents)
    return places_of(np.arange(count), documents, torch.device("cpu"))


def random_vectors(count, dim=8, seed=0):
    """Two towers' vectors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator), torch.randn(
        count, dim, generator=generator
    )


def perfect_vectors(count, context_size):
    """Vectors whose scores are large and equal for the neighbours alone."""
    distance = (torch.arange(count)[:, None] - torch.arange(count)[None, :]).abs()
    return 60.0 * ((distance >= 1) & (distance <= context_size)).float(), torch.eye(count)


@pytest.fixture(params=OBJECTIVES)
def config(request):
    """Every objective that the registry finds, with its defaults."""
    return OBJECTIVES[request.param].Config()


def test_objective_loss_is_a_scalar_with_a_gradient(config):
    """The loss and the gradients of the first tower and of the objective's parameters are finite."""
    context = build_context()
    objective, read = build_objective(config, context), ToyRead(config.num_towers)
    with NoRowsByIndex():
        loss = objective(
            read, toy_batch(type(config.batches)), generator=torch.Generator().manual_seed(0)
        )
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    first, *second = read.parameters()
    trained = [
        first,
        *(parameter for parameter in objective.parameters() if parameter.requires_grad),
    ]
    gradients = [parameter.grad for parameter in trained]
    assert all(
        gradient is not None and torch.isfinite(gradient.to_dense()).all() for gradient in gradients
    )
    # The second tower is trained through its vectors, or through its map.
    assert not second or any(
        parameter.grad is not None for parameter in [*second, *context.second_parameters]
    )


def test_objective_has_state_only_where_a_saved_model_drops_or_keeps_it(config):
    """An objective that is rebuilt with a loaded model has no values of its own."""
    objective = build_objective(config, build_context())
    arrays = [value for value in vars(objective).values() if isinstance(value, np.ndarray)]
    has_state = bool([*objective.parameters(), *objective.buffers(), *arrays])
    assert has_state == (config.in_saved_model != "rebuilt")


def test_objective_computes_the_metrics_that_it_declares(config):
    """Its own by `scores`, those of predictions by `predict`; validation computes the metrics of contexts."""
    objective, read = build_objective(config, build_context()), ToyRead(config.num_towers)
    batch = toy_batch(type(config.batches))
    scores = objective.held_out_totals(read, batch)
    assert set(scores) == set(config.metrics) - {*CONTEXT_METRICS, *PREDICTION_METRICS}
    assert set(config.metrics) <= set(METRICS)
    assert all(count > 0 for _, count in scores.values())
    if set(PREDICTION_METRICS) & set(config.metrics):
        assert objective.predict(read, batch).shape == (len(batch),)


def test_objective_gathers_no_triplets(config):
    """Workers gather contexts and pairs only."""
    assert config.across_workers != "rows" or not isinstance(config.batches, TripletBatches)


@pytest.mark.parametrize(
    "name",
    [name for name, module in OBJECTIVES.items() if module.Config().across_workers == "rows"],
)
def test_losses_of_rows_add_up_to_the_whole(name):
    """The rows of three workers against the vectors of all have the loss and the gradients of one worker."""
    config = OBJECTIVES[name].Config()
    objective, read = build_objective(config, build_context()), ToyRead(config.num_towers)
    objective.before_step(0.9)
    batch, parameters = (
        toy_batch(type(config.batches), size=11),
        [*read.parameters(), *objective.parameters()],
    )
    losses, gradients = [], []
    for parts in ([None], [slice(0, 4), slice(4, 8), slice(8, 11)]):
        read.zero_grad()
        objective.zero_grad()
        of_rows = [
            objective(read, dataclasses.replace(batch, rows=rows), generator=_generator())
            for rows in parts
        ]
        losses.append(torch.stack(of_rows).sum())
        losses[-1].backward()
        gradients.append(
            [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
        )
    torch.testing.assert_close(losses[1], losses[0])
    for several, one in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(several, one, atol=1e-6, rtol=1e-4)


def _generator():
    """The generator that all workers draw from alike."""
    return torch.Generator().manual_seed(3)


def test_objective_needs_more_memory_for_a_larger_step(config):
    """The estimate depends on the sizes of the step."""
    small, large = (
        StepShape(size, max_length=20, num_words=size, dim=64, num_bits=32)
        for size in (100, 100_000)
    )
    assert 0 < config.num_step_values(small) < config.num_step_values(large)


def test_loss_constants_are_those_of_the_released_code():
    """5.98896 and 5.99146."""
    zeros = torch.zeros(N, 4)
    assert loss_of(zeros, zeros).item() == pytest.approx(5.98896, abs=1e-5)
    assert loss_of(zeros, zeros, variant="authors").item() == pytest.approx(5.99146, abs=1e-5)


@pytest.mark.parametrize(("context_size", "bound"), [(1, 0.68968), (2, 1.38139), (3, 1.78535)])
def test_loss_is_bounded_by_the_entropy_of_the_target(context_size, bound):
    """Perfect scores reach the bound."""
    f, g = perfect_vectors(N, context_size)
    assert loss_of(f, g, context_size=context_size).item() == pytest.approx(bound, abs=1e-4)


@pytest.mark.parametrize(("context_size", "supports"), [(1, [1, 2, 2, 2, 2]), (3, [3, 4, 5, 6, 6])])
def test_target_support_grows_from_the_edge(context_size, supports):
    """The gradient p - T is negative for the neighbours only, of which the first rows have fewer."""
    f = torch.zeros(N, N, requires_grad=True)
    loss_of(f, torch.eye(N), context_size=context_size).backward()
    assert (f.grad < 0).sum(dim=1)[:5].tolist() == supports


@pytest.mark.parametrize("target", ["mean", "sum"])
@pytest.mark.parametrize("diagonal", ["exclude", "zero"])
@pytest.mark.parametrize("context_size", [1, 3])
def test_loss_equals_its_restatement(context_size, diagonal, target):
    """Documents, edges and switches, against loops over sentences and candidates."""
    f, g = random_vectors(17)
    documents = np.array([0] * 6 + [1] + [2] * 8 + [3] * 2)
    settings = {"context_size": context_size, "diagonal": diagonal, "target": target}
    expected = reference_loss(
        f.double().numpy(), g.double().numpy(), np.arange(17), documents, **settings
    )
    assert loss_of(f, g, documents, **settings).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("context_size", [1, 3])
def test_alternatives_of_context_prediction_equal_their_restatements(context_size):
    """The window classifier and the margin, with edges, documents and a lone sentence."""
    f, g = random_vectors(17)
    documents = np.array([0] * 6 + [1] + [2] * 8 + [3] * 2)
    expected = context_alternatives(
        f.double().numpy(), g.double().numpy(), documents, context_size=context_size
    )
    places = contiguous(17, documents)
    for name, value in zip(("window_classifier", "context_margin"), expected, strict=True):
        objective = build_objective(OBJECTIVES[name].Config(context_size=context_size))
        loss = objective.compare((f, g), places, slice(None))
        assert loss.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("num_sentences", [1, 3])
@pytest.mark.parametrize("name", ["context_prediction", "window_classifier", "context_margin"])
def test_loss_without_any_neighbour_is_zero_with_a_zero_gradient(name, num_sentences):
    """The mean over no sentence is 0, not NaN; a batch of one sentence has no candidate either."""
    f, g = (side.requires_grad_() for side in random_vectors(num_sentences))
    places = contiguous(num_sentences, range(num_sentences))
    loss = build_objective(OBJECTIVES[name].Config()).compare((f, g), places, slice(None))
    loss.backward()
    assert loss.item() == 0
    assert not f.grad.any()


def test_sentences_without_a_neighbour_are_left_out():
    """A lone sentence changes the candidates, not the mean's count."""
    zeros = torch.zeros(5, 3)
    assert loss_of(zeros, zeros, [0, 0, 1, 2, 2]).item() == pytest.approx(math.log(4))


def test_rows_against_gathered_candidates_add_up_to_the_whole():
    """Two workers' rows against all candidates give the one worker's loss."""
    f, g = random_vectors(10)
    places, objective = contiguous(10), build_objective(Config())
    halves = [objective.compare((f, g), places, rows) for rows in (slice(0, 5), slice(5, 10))]
    assert torch.stack(halves).mean().item() == pytest.approx(loss_of(f, g).item(), rel=1e-6)


def test_explicit_key_overrides_the_variant():
    """`variant: authors` sets defaults only."""
    assert Config(variant="authors").resolved_diagonal == "zero"
    assert Config(variant="authors", diagonal="exclude").resolved_diagonal == "exclude"


def test_unknown_objective_raises_one_clear_error():
    """The error gives the nearest name."""
    from raysent.config import StrictModel

    class Holder(StrictModel):
        objective: AnyObjective

    document = Document({"objective": {"type": "context_predicton"}})
    with pytest.raises(ConfigError, match=r"^objective\.type: .*context_prediction"):
        validate(Holder, document)
