"""The fused cross-entropy over a vocabulary, block by block, with all gradients."""

from __future__ import annotations

import pytest
import torch
from compiled import need_kernel
from torch.nn import functional

from raysent.kernels import fused_softmax as module
from raysent.kernels.fused_softmax import vocabulary_cross_entropy

WORDS, HIDDEN, BLOCK = 150, 7, 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Set the block size to sixteen rows."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * BLOCK * WORDS)


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def ours(request):
    """The loss in both implementations; the compiled one is skipped if there is no compiler."""
    if request.param:
        need_kernel("cross_entropy")
    return lambda states, weight, bias, targets: vocabulary_cross_entropy(
        states, weight=weight, bias=bias, targets=targets, is_compiled=request.param
    )


def inputs(rows, *, has_bias=True, scale=1.0):
    """Return random states, weight, bias and targets."""
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, HIDDEN), (WORDS, HIDDEN), (WORDS,)][: 3 if has_bias else 2]
    values = [
        (scale * torch.randn(shape, generator=generator)).requires_grad_() for shape in shapes
    ]
    targets = torch.randint(WORDS, (rows,), generator=generator)
    return *values, *([] if has_bias else [None]), targets


def plain(states, weight, bias, targets):
    """Return the loss by torch's functions."""
    return functional.cross_entropy(
        functional.linear(states, weight, bias).float(), targets, reduction="sum"
    )


def gradients(loss, given, *, low=False):
    """Return the loss and its gradients."""
    trained = [value for value in given[:3] if value is not None]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        value = loss(*given)
    return value.detach(), *torch.autograd.grad(value, trained)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_loss_and_gradients_equal_torchs(ours, rows, has_bias):
    """Fewer rows than a block, exactly one block, one row more, and several blocks."""
    given = inputs(rows, has_bias=has_bias)
    for one, other in zip(gradients(ours, given), gradients(plain, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


def test_loss_of_no_rows_is_zero(ours):
    """The loss and the gradients of no rows are zero."""
    value, *found = gradients(ours, inputs(0))
    assert value == 0
    assert not any(gradient.any() for gradient in found)


def test_gradient_is_scaled_by_the_outer_gradient(ours):
    """The loss may be a term of another loss."""
    given = inputs(20)
    [half] = torch.autograd.grad(0.5 * ours(*given), given[:1])
    [whole] = torch.autograd.grad(ours(*given), given[:1])
    torch.testing.assert_close(half, 0.5 * whole)


def test_loss_in_bfloat16_stays_near(ours):
    """Products are rounded, softmax and sums are float32; gradients have the type of their parameters."""
    given = inputs(3 * BLOCK + 5)
    low, exact = gradients(ours, given, low=True), gradients(plain, given)
    assert low[0].dtype == torch.float32
    torch.testing.assert_close(low[0], exact[0], rtol=2e-3, atol=0)
    for one, other in zip(low[1:], exact[1:], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 1e-2 * other.norm()


def test_loss_without_gradient_is_the_same(ours):
    """Validation needs the loss only."""
    given = inputs(BLOCK + 3)
    with torch.no_grad():
        found = ours(*given)
    assert not found.requires_grad
    assert torch.equal(found, ours(*given).detach())


def test_loss_of_a_word_without_probability_is_finite(ours):
    """A probability that underflows in float32 still has a finite logarithm."""
    given = inputs(20, scale=30.0)
    value = ours(*given)
    assert value > 103 * 20
    torch.testing.assert_close(value, plain(*given), rtol=1e-5, atol=0)


def test_loss_of_nan_is_nan(ours):
    """One NaN in the states makes the loss NaN."""
    given = inputs(20)
    with torch.no_grad():
        given[0][3, 2] = torch.nan
    assert torch.isnan(ours(*given))


def test_memory_holds_the_scores_of_one_block(ours, monkeypatch):
    """Buffers have the size of one block, for any number of rows."""
    shapes, product = [], torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda *operands, out: shapes.append(out.shape) or product(*operands, out=out)
    )
    ours(*inputs(5 * BLOCK + 3))
    assert shapes == [(BLOCK, WORDS), (BLOCK, HIDDEN)] * 6


def test_target_outside_the_vocabulary_is_refused(ours):
    """The kernel never reads memory outside the scores."""
    *given, targets = inputs(20)
    for word in (WORDS, -1):
        targets[3] = word
        with pytest.raises((IndexError, RuntimeError), match=r"below 150|out of bounds"):
            ours(*given, targets)
