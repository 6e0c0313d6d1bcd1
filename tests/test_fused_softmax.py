"""The loss of foretold words: cross-entropy of the whole vocabulary, block by block, with all gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from raysent.errors import CompilerError
from raysent.kernels import fused_softmax as module
from raysent.kernels.compiled import load
from raysent.kernels.fused_softmax import vocabulary_cross_entropy

WORDS, HIDDEN, BLOCK = 150, 7, 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of sixteen rows."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * BLOCK * WORDS)


@pytest.fixture(params=[True, False], ids=["compiled", "torch"])
def ours(request):
    """The loss under test, in both ways; the compiled one needs what the machine may not have."""
    if request.param:
        try:
            load("cross_entropy")
        except CompilerError as error:
            pytest.skip(str(error))
    return lambda states, weight, bias, targets: vocabulary_cross_entropy(
        states, weight=weight, bias=bias, targets=targets, is_compiled=request.param
    )


def inputs(rows, *, has_bias=True, scale=1.0):
    """Random states, weight, bias and targets."""
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, HIDDEN), (WORDS, HIDDEN), (WORDS,)][: 3 if has_bias else 2]
    values = [(scale * torch.randn(shape, generator=generator)).requires_grad_() for shape in shapes]
    targets = torch.randint(WORDS, (rows,), generator=generator)
    return *values, *([] if has_bias else [None]), targets


def plain(states, weight, bias, targets):
    """The formula as torch has it."""
    return functional.cross_entropy(functional.linear(states, weight, bias).float(), targets, reduction="sum")


def gradients(loss, given, *, low=False):
    """The loss, and its gradients by all that have one."""
    trained = [value for value in given[:3] if value is not None]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        value = loss(*given)
    return value.detach(), *torch.autograd.grad(value, trained)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_loss_and_gradients_are_cross_entropys(ours, rows, has_bias):
    """Fewer rows than a block, exactly one, one more, and several."""
    given = inputs(rows, has_bias=has_bias)
    for one, other in zip(gradients(ours, given), gradients(plain, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


def test_loss_of_no_rows_is_zero(ours):
    """An empty sum."""
    value, *found = gradients(ours, inputs(0))
    assert value == 0
    assert not any(gradient.any() for gradient in found)


def test_gradient_is_scaled_by_what_follows(ours):
    """A loss that is a part of another one."""
    given = inputs(20)
    [half] = torch.autograd.grad(0.5 * ours(*given), given[:1])
    [whole] = torch.autograd.grad(ours(*given), given[:1])
    torch.testing.assert_close(half, 0.5 * whole)


def test_loss_in_bfloat16_stays_near(ours):
    """Products are rounded, scores and sums are not; gradients keep their parameters' type."""
    given = inputs(3 * BLOCK + 5)
    low, exact = gradients(ours, given, low=True), gradients(plain, given)
    assert low[0].dtype == torch.float32
    torch.testing.assert_close(low[0], exact[0], rtol=2e-3, atol=0)
    for one, other in zip(low[1:], exact[1:], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 1e-2 * other.norm()


def test_loss_without_gradient_is_the_same(ours):
    """What validation asks for."""
    given = inputs(BLOCK + 3)
    with torch.no_grad():
        found = ours(*given)
    assert not found.requires_grad
    assert torch.equal(found, ours(*given).detach())


def test_loss_of_a_word_without_probability_is_finite(ours):
    """A probability below the least of float32 has a logarithm all the same."""
    given = inputs(20, scale=30.0)
    value = ours(*given)
    assert value > 103 * 20
    torch.testing.assert_close(value, plain(*given), rtol=1e-5, atol=0)


def test_loss_of_nan_is_nan(ours):
    """One state that is no number."""
    given = inputs(20)
    with torch.no_grad():
        given[0][3, 2] = torch.nan
    assert torch.isnan(ours(*given))


def test_scores_of_all_rows_never_stand_side_by_side(ours, monkeypatch):
    """Buffers hold one block, however many rows there are."""
    made, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *of, out: made.append(out.shape) or product(*of, out=out))
    ours(*inputs(5 * BLOCK + 3))
    assert made == [(BLOCK, WORDS), (BLOCK, HIDDEN)] * 6


def test_a_target_beyond_the_vocabulary_is_refused(ours):
    """No memory is read that is not the scores'."""
    *given, targets = inputs(20)
    for word in (WORDS, -1):
        targets[3] = word
        with pytest.raises((IndexError, RuntimeError), match=r"below 150|out of bounds"):
            ours(*given, targets)
