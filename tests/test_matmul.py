"""Products of float32: the same numbers, small or large, and the precision that was chosen stays chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from raysent.matmul import product


@pytest.fixture(params=["highest", "medium"])
def precision(request) -> Iterator[str]:
    """A precision that holds for one test."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("shape", [(16, 24, 72), (200, 128, 384)], ids=["small", "large"])
def test_product_is_that_of_float64(shape, precision):
    """Of either size, by either library."""
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(size, generator=generator) for size in ((rows, inner), (inner, columns)))
    out = torch.empty(rows, columns)
    product(left, right, out=out)
    torch.testing.assert_close(out.double(), left.double() @ right.double(), rtol=1e-5, atol=1e-4)
    assert torch.get_float32_matmul_precision() == precision


def test_precision_stays_after_a_product_that_fails(precision):
    """Shapes that do not fit are the caller's mistake, and nobody else's."""
    with pytest.raises(RuntimeError):
        product(torch.ones(2, 3), torch.ones(4, 5), out=torch.empty(2, 5))
    assert torch.get_float32_matmul_precision() == precision
