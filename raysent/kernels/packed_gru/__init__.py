"""GRU over packed sentences, forward and backward, at a fraction of the cost of torch's.

`packed_gru` reads the input projection of each distinct word and returns last states; `packed_gru_over_inputs` reads
one input per token and returns all states, as a decoder needs. The sums are those of torch's GRU in another order:

- time step t multiplies the rows of the sentences that reach it, without padding;
- the input is projected once per distinct word, and its gradient is summed per word before the products;
- the state before the first word is zero, so the first word needs no product;
- the gradient of the recurrent weight is one product over all tokens;
- row counts are rounded up, so that the matrix library sees few shapes (it compiles a kernel for each);
- buffers are kept between training steps;
- all operations between two products are one pass of a compiled kernel, if there is a compiler.

Under autocast the products use its type; everything else is float32.

NaN and infinity: in float32 they stay in their own sentence. In bfloat16 on a CPU with AMX they can reach other
sentences of the batch unless the inner sizes of the products (word dimension, `hidden`, ``3 * hidden``) are multiples
of 32: oneDNN (3.12, in torch 2.13) reads the end of a row together with the start of the next row, and multiplies the
latter by zero. Finite values are not affected.

- `cells`: the operations between two products, in torch's operations or compiled; buffers of one direction
- `recurrence`: the products and the order of all operations; also TensorFlow's cell, by autograd
"""

from raysent.kernels.packed_gru.cells import Cell, CompiledCell, TorchCell, Workspaces, choose_cell
from raysent.kernels.packed_gru.recurrence import (
    WORD_MULTIPLE,
    packed_gru,
    packed_gru_all_states,
    packed_gru_over_inputs,
    reset_before_gru,
)

__all__ = [
    "WORD_MULTIPLE",
    "Cell",
    "CompiledCell",
    "TorchCell",
    "Workspaces",
    "choose_cell",
    "packed_gru",
    "packed_gru_all_states",
    "packed_gru_over_inputs",
    "reset_before_gru",
]
