"""The kernels of `cell_kernels` in Triton; see `gru_loop` for the formulas and names.

Each tensor is a pointer with its strides of direction and row. A program has a block of one row's columns.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, import-not-found, import-untyped"
# ruff: noqa: D103

import triton
import triton.language as tl


@triton.jit
def read(pointer, is_inside):
    return tl.load(pointer, mask=is_inside, other=0).to(tl.float32)


@triton.jit
def write(pointer, values, is_inside):
    tl.store(pointer, values.to(pointer.dtype.element_ty), mask=is_inside)


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def start(pointer, stride_direction, stride_row, rows, BLOCK: tl.constexpr):
    direction = tl.program_id(0) // rows
    row = tl.program_id(0) % rows
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return pointer + direction * stride_direction + row * stride_row + column


@triton.jit
def inside(hidden, BLOCK: tl.constexpr):
    return tl.program_id(1) * BLOCK + tl.arange(0, BLOCK) < hidden


@triton.jit
def after_forward(
    gates, gd, gr, products, pd, pr, before, bd, br, after, ad, ar, low, ld, lr,
    bias, biasd, rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    p = start(products, pd, pr, rows, BLOCK)
    reset = tl.sigmoid(read(g, ok) + read(p, ok))
    update = tl.sigmoid(read(g + hidden, ok) + read(p + hidden, ok))
    recurrent = read(p + 2 * hidden, ok) + read(start(bias, biasd, 0, rows, BLOCK), ok)
    candidate = tanh(read(g + 2 * hidden, ok) + reset * recurrent)
    state = read(start(before, bd, br, rows, BLOCK), ok)
    state = candidate + update * (state - candidate)
    write(g, reset, ok)
    write(g + hidden, update, ok)
    write(g + 2 * hidden, candidate, ok)
    write(start(after, ad, ar, rows, BLOCK), state, ok)
    write(start(low, ld, lr, rows, BLOCK), state, ok)


@triton.jit
def after_backward(
    gates, gd, gr, products, pd, pr, before, bd, br, d_states, sd, sr, carried, cd, cr, carry, ad, ar,
    bias, biasd, rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    p = start(products, pd, pr, rows, BLOCK)
    c = start(carry, ad, ar, rows, BLOCK)
    reset = read(g, ok)
    update = read(g + hidden, ok)
    candidate = read(g + 2 * hidden, ok)
    state = read(start(before, bd, br, rows, BLOCK), ok)
    total = read(c, ok) + read(start(carried, cd, cr, rows, BLOCK), ok)
    total += read(start(d_states, sd, sr, rows, BLOCK), ok)
    d_candidate = total * (1 - update) * (1 - candidate * candidate)
    d_update = total * (state - candidate) * update * (1 - update)
    recurrent = read(p + 2 * hidden, ok) + read(start(bias, biasd, 0, rows, BLOCK), ok)
    d_reset = d_candidate * recurrent * reset * (1 - reset)
    write(c, total * update, ok)
    write(g, d_reset, ok)
    write(g + hidden, d_update, ok)
    write(g + 2 * hidden, d_candidate, ok)
    write(p, d_reset, ok)
    write(p + hidden, d_update, ok)
    write(p + 2 * hidden, d_candidate * reset, ok)


@triton.jit
def gates_forward(
    gates, gd, gr, products, pd, pr, before, bd, br, reset_states, sd, sr,
    rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    p = start(products, pd, pr, rows, BLOCK)
    reset = tl.sigmoid(read(g, ok) + read(p, ok))
    update = tl.sigmoid(read(g + hidden, ok) + read(p + hidden, ok))
    state = read(start(before, bd, br, rows, BLOCK), ok)
    write(g, reset, ok)
    write(g + hidden, update, ok)
    write(start(reset_states, sd, sr, rows, BLOCK), reset * state, ok)


@triton.jit
def state_forward(
    gates, gd, gr, product, pd, pr, before, bd, br, after, ad, ar, low, ld, lr,
    bias, biasd, rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    recurrent = read(start(product, pd, pr, rows, BLOCK), ok)
    recurrent += read(start(bias, biasd, 0, rows, BLOCK), ok)
    candidate = tanh(read(g + 2 * hidden, ok) + recurrent)
    update = read(g + hidden, ok)
    state = read(start(before, bd, br, rows, BLOCK), ok)
    state = candidate + update * (state - candidate)
    write(g + 2 * hidden, candidate, ok)
    write(start(after, ad, ar, rows, BLOCK), state, ok)
    write(start(low, ld, lr, rows, BLOCK), state, ok)


@triton.jit
def state_backward(
    gates, gd, gr, before, bd, br, d_states, sd, sr, carried, cd, cr, carry, ad, ar,
    rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    c = start(carry, ad, ar, rows, BLOCK)
    update = read(g + hidden, ok)
    candidate = read(g + 2 * hidden, ok)
    state = read(start(before, bd, br, rows, BLOCK), ok)
    total = read(c, ok) + read(start(carried, cd, cr, rows, BLOCK), ok)
    total += read(start(d_states, sd, sr, rows, BLOCK), ok)
    write(c, total * update, ok)
    write(g + hidden, total * (state - candidate) * update * (1 - update), ok)
    write(g + 2 * hidden, total * (1 - update) * (1 - candidate * candidate), ok)


@triton.jit
def gates_backward(
    gates, gd, gr, d_reset_states, pd, pr, before, bd, br, carry, ad, ar,
    rows, hidden, BLOCK: tl.constexpr,
):  # fmt: skip
    ok = inside(hidden, BLOCK)
    g = start(gates, gd, gr, rows, BLOCK)
    c = start(carry, ad, ar, rows, BLOCK)
    reset = read(g, ok)
    d_product = read(start(d_reset_states, pd, pr, rows, BLOCK), ok)
    state = read(start(before, bd, br, rows, BLOCK), ok)
    write(c, read(c, ok) + d_product * reset, ok)
    write(g, d_product * state * reset * (1 - reset), ok)
