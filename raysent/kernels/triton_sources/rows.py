"""The updates of `row_adam` in Triton: a program updates one row, which no other program of the launch has.

Numbers of steps change at every launch, for which nothing is compiled again.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, import-not-found, import-untyped"
# ruff: noqa: D103

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_steps"])
def catch_up(
    rows, weight, mean, square, last, drift, capacity, num_steps,
    log_beta1, log_beta2, eps, tiny, dim, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.load(rows + tl.program_id(0))
    before = tl.load(last + row)
    if before < num_steps:
        size = tl.load(drift + before).to(tl.float32)
        size_of_eps = tl.load(drift + capacity + before).to(tl.float32)
        row_eps = tl.maximum(eps * size_of_eps / tl.maximum(size, tiny), tiny)
        lag = (num_steps - before).to(tl.float32)
        decay1 = tl.exp(lag * log_beta1)
        decay2 = tl.exp(lag * log_beta2)
        for first in range(0, dim, BLOCK):
            column = first + tl.arange(0, BLOCK)
            ok = column < dim
            place = row * dim + column
            m = tl.load(mean + place, mask=ok, other=0)
            v = tl.load(square + place, mask=ok, other=0)
            w = tl.load(weight + place, mask=ok, other=0)
            tl.store(weight + place, w - m / (tl.sqrt(v) + row_eps) * size, mask=ok)
            tl.store(mean + place, m * decay1, mask=ok)
            tl.store(square + place, v * decay2, mask=ok)
        tl.store(last + row, num_steps)


@triton.jit(do_not_specialize=["num_steps", "rate", "correction"])
def step(
    rows, gradient, weight, mean, square, last, num_steps, rate, correction,
    beta1, beta2, eps, dim, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number)
    for first in range(0, dim, BLOCK):
        column = first + tl.arange(0, BLOCK)
        ok = column < dim
        place = row * dim + column
        g = tl.load(gradient + number * dim + column, mask=ok, other=0)
        m = tl.load(mean + place, mask=ok, other=0) * beta1 + g * (1 - beta1)
        v = tl.load(square + place, mask=ok, other=0) * beta2 + g * g * (1 - beta2)
        w = tl.load(weight + place, mask=ok, other=0)
        tl.store(mean + place, m, mask=ok)
        tl.store(square + place, v, mask=ok)
        tl.store(weight + place, w - rate * m / (tl.sqrt(v) / correction + eps), mask=ok)
    tl.store(last + row, num_steps)


@triton.jit(do_not_specialize=["first", "count", "offset", "size", "size_of_eps"])
def extend_drift(
    drift, capacity, decay, window, first, count, offset, size, size_of_eps, BLOCK: tl.constexpr
):
    place = tl.arange(0, BLOCK)
    ok = place < count
    own = drift + first + place
    added = tl.load(decay + offset + place, mask=ok, other=0) * size
    tl.store(own, tl.load(own, mask=ok, other=0) + added, mask=ok)
    own += capacity
    added = tl.load(decay + window + offset + place, mask=ok, other=0) * size_of_eps
    tl.store(own, tl.load(own, mask=ok, other=0) + added, mask=ok)
