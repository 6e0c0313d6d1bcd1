"""The recurrence of a GRU over packed sentences, forward and backward, at a fraction of the price of torch's.

In: the input projection of each distinct word. Out: each sentence's last state; or, for one that writes, in: an input
of each token, out: all states. The sums are those of torch's GRU in another order:

- time t multiplies the rows of the sentences that reach it, and no padding;
- the input is projected once per distinct word, and its gradient added up per word before the products;
- the state before the first word is zero, so the first word needs no product;
- the gradient of the recurrent weight is one product over all tokens;
- row counts are rounded up, so that the matrix library meets few shapes (it compiles a kernel for each);
- workspaces are kept between steps;
- what stands between two products is one pass of a compiled kernel, where there is a compiler.

Under autocast the products are in its type, everything else in float32.

- `recurrence`: the products, and the order of all
- `last_state`: from words to last states; `all_states`: from an input of each token to the state after it
- `cells`: what stands between them, in torch's operations or compiled
- `workspace`: buffers of one direction of one tower
- `reset_before`: TensorFlow's cell, by autograd
"""

from raysent.kernels.packed_gru.cells import Cell, CompiledCell, TorchCell, choose_cell
from raysent.kernels.packed_gru.recurrence import reset_before_gru
from raysent.kernels.packed_gru.states import WORD_MULTIPLE, packed_gru, packed_gru_all_states, packed_gru_over_inputs
from raysent.kernels.packed_gru.workspace import Workspaces

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
