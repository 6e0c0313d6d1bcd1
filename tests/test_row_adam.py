"""Row-exact Adam against dense Adam."""

import numpy as np
import pytest
import torch
from compiled import need_kernel
from torch import nn

from raysent.errors import ArtifactError
from raysent.kernels.row_adam import RowAdam, gradient_values

ROWS, DIM = 120, 6

SCHEDULES = {
    "warmup and decay": lambda step: 5e-4 * min(1.0, (step + 1) / 20) * (1 - step / 800),
    "constant": lambda step: 5e-4,
    "steps": lambda step: 1e-3 if step % 100 < 50 else 1e-5,
    "cosine with a pause": lambda step: 5e-4 * max(0.0, np.cos(step / 60)),
}


def learning_rate_at(step):
    """A schedule with warmup and decay."""
    return SCHEDULES["warmup and decay"](step)


@pytest.fixture(params=[False, True], ids=["torch", "compiled"])
def is_compiled(request):
    """Both implementations; the compiled one is skipped if there is no compiler."""
    if request.param:
        need_kernel("row_adam")
    return request.param


def gradients(scale, num_steps=400):
    """Yield rows and gradients with the distribution of words: few are frequent, most are rare."""
    random = np.random.default_rng(0)
    for _ in range(num_steps):
        rows = np.unique(np.minimum(random.zipf(1.5, size=25) - 1, ROWS - 1))
        yield (
            torch.from_numpy(rows),
            torch.from_numpy(random.normal(0.2, 1.0, (len(rows), DIM)) * scale).float(),
        )


def sparse(rows, values):
    """Return the gradient of an embedding look-up."""
    return torch.sparse_coo_tensor(rows[None], values, (ROWS, DIM), check_invariants=False)


def table():
    """Return initial values."""
    return torch.rand(ROWS, DIM, generator=torch.Generator().manual_seed(0)) * 0.2 - 0.1


def run_row_adam(steps, weight, optimizer, schedule=learning_rate_at):
    """Train a table by `RowAdam`, reading only the rows in use."""
    for step, (rows, values) in enumerate(steps, start=optimizer.num_steps):
        optimizer.learning_rate = schedule(step)
        optimizer.catch_up(rows)
        weight.grad = sparse(rows, values)
        optimizer.step()


def run_dense(steps, dtype, schedule=learning_rate_at):
    """Train a table by torch's Adam."""
    weight = nn.Parameter(table().to(dtype))
    optimizer = torch.optim.Adam([weight], lr=1.0)
    for step, (rows, values) in enumerate(steps):
        optimizer.param_groups[0]["lr"] = schedule(step)
        weight.grad = torch.zeros_like(weight)
        weight.grad[rows] = values.to(dtype)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_row_adam_equals_dense_adam(scale, schedule, is_compiled):
    """The error is a small fraction of the total update, compared with float64; a resumed run gives the same."""
    rate = SCHEDULES[schedule]
    exact = run_dense(gradients(scale), torch.float64, rate)
    steps, weight = list(gradients(scale)), nn.Parameter(table())
    first = RowAdam(weight, learning_rate=1.0, is_compiled=is_compiled)
    run_row_adam(steps[:170], weight, first, rate)
    optimizer = RowAdam(weight, learning_rate=1.0, is_compiled=is_compiled)
    optimizer.load_state_dict(first.state_dict())
    run_row_adam(steps[170:], weight, optimizer, rate)
    optimizer.flush()
    error = (weight.detach().double() - exact).norm() / (exact - table().double()).norm()
    assert error < 5e-4


def test_catch_up_gives_the_weights_dense_adam_reads(is_compiled):
    """Rows are correct when they are read, not only at the end."""
    steps = list(gradients(1e-3, 60))
    weight = nn.Parameter(table())
    optimizer = RowAdam(weight, learning_rate=1.0, is_compiled=is_compiled)
    run_row_adam(steps, weight, optimizer)
    rows = torch.tensor([0, 7, 50, 7])
    optimizer.catch_up(rows)
    exact = run_dense(steps, torch.float64)
    torch.testing.assert_close(weight.detach()[rows], exact[rows].float(), rtol=0, atol=1e-6)


def test_row_adam_resumes_bit_for_bit(is_compiled):
    """A run that is saved and resumed half-way equals an uninterrupted one."""
    steps = list(gradients(1e-2, 60))
    whole = nn.Parameter(table())
    run_row_adam(steps, whole, RowAdam(whole, learning_rate=1.0, is_compiled=is_compiled))
    weight = nn.Parameter(table())
    first = RowAdam(weight, learning_rate=1.0, is_compiled=is_compiled)
    run_row_adam(steps[:30], weight, first)
    second = RowAdam(weight, learning_rate=9.0, is_compiled=is_compiled)
    second.load_state_dict(first.state_dict())
    run_row_adam(steps[30:], weight, second)
    assert torch.equal(weight, whole)


def test_row_adam_keeps_a_nan_in_its_row(is_compiled):
    """A NaN gradient affects its own row only."""
    weight = nn.Parameter(table())
    optimizer = RowAdam(weight, learning_rate=0.1, is_compiled=is_compiled)
    run_row_adam(
        [(torch.tensor([3, 5]), torch.tensor([[torch.nan], [1.0]]).expand(2, DIM))],
        weight,
        optimizer,
    )
    run_row_adam([(torch.tensor([3, 6]), torch.ones(2, DIM))], weight, optimizer)
    optimizer.flush()
    assert weight.isnan().all(dim=1).nonzero().flatten().tolist() == [3]
    assert weight[[5, 6]].isfinite().all()


def test_row_adam_adds_up_repeated_rows(is_compiled):
    """Repeated rows of a gradient are summed."""
    weight, twin = nn.Parameter(table()), nn.Parameter(table())
    weight.grad = sparse(torch.tensor([3, 1, 3]), torch.ones(3, DIM))
    twin.grad = sparse(torch.tensor([1, 3]), torch.tensor([[1.0], [2.0]]).expand(2, DIM))
    for one in (weight, twin):
        RowAdam(one, learning_rate=0.1, is_compiled=is_compiled).step()
    assert torch.equal(weight, twin)
    assert gradient_values(weight).norm() == gradient_values(twin).norm()


def test_load_state_dict_refuses_another_table():
    """The state of a table of another shape raises one clear error."""
    state = RowAdam(nn.Parameter(torch.zeros(2, 3)), learning_rate=1.0).state_dict()
    with pytest.raises(
        ArtifactError,
        match=r"^optimizer state: must be of a table of shape \(120, 6\); given \(2, 3\)",
    ):
        RowAdam(nn.Parameter(table()), learning_rate=1.0).load_state_dict(state)
