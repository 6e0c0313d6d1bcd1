"""Which code computes a recurrence: decided here for every encoder and decoder, by cell, setting and device.

| kernel | what it is | where `auto` takes it |
|---|---|---|
| `compiled` | packed sentences, what is between two products compiled for this machine | a CPU with a compiler |
| `packed` | packed sentences by the plain formulas and autograd | a CPU without one; a reset before the product |
| `torch` | torch's recurrence on its packed sequences | a CPU, for several layers, or where all states are pooled |
| `cudnn` | torch's recurrence on padded groups, which cuDNN computes | a GPU |
| `graph` | raysent's loop on padded groups, its launches recorded | a GPU, for a reset before the product |

All give the same states up to rounding. `cudnn` and `graph` compute on a CPU too, with the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from raysent.kernels.devices import is_gpu, product_dtype
from raysent.kernels.gru_loop import LoopRun
from raysent.kernels.native import load, try_load
from raysent.kernels.padded_recurrence import LibraryRun, Recurrence
from raysent.kernels.padding import Cut
from raysent.kernels.recordings import Kept

Kernel = Literal["compiled", "packed", "torch", "cudnn", "graph"]
Implementation = Literal["auto", "compiled", "packed", "torch", "cudnn", "graph"]

# What a time step of a group costs beside its products, in multiplications in float32 and in bfloat16: a large GPU
# computes about so many in the time that the launches of a step take.
_STEP_PRODUCTS = 1.5e8
_STEP_LOW_PRODUCTS = 1e9


@dataclass(frozen=True)
class Cell:
    """What a recurrence computes.

    Attributes:
        kind: `gru` or `lstm`.
        resets_before: Whether the reset gate of a GRU acts before the product.
        num_layers: Recurrences on top of each other.
        pools_states: Whether training reads other states than the last one.
    """

    kind: Literal["gru", "lstm"]
    resets_before: bool = False
    num_layers: int = 1
    pools_states: bool = False


def chosen_kernel(cell: Cell, implementation: str, device: torch.device) -> Kernel:
    """Return the kernel that computes a recurrence on a device.

    Args:
        cell: What is computed.
        implementation: The setting: the name of a kernel, or `auto`.
        device: Where it is computed.

    Raises:
        CompilerError: If `compiled` is set and there is no compiler.
    """
    if cell.resets_before:
        # No other kernel has this cell.
        if implementation == "graph" or (implementation == "auto" and is_gpu(device)):
            return "graph"
        return "packed"
    if implementation == "auto" and is_gpu(device):
        return "cudnn"
    if implementation == "auto":
        return _on_cpu(cell)
    if implementation == "compiled":
        load(cell.kind)
    return implementation  # type: ignore[return-value]


def _on_cpu(cell: Cell) -> Kernel:
    is_gru = cell.kind == "gru"
    if is_gru and (cell.num_layers > 1 or cell.pools_states):
        return "torch"
    if try_load(cell.kind) is not None:
        return "compiled"
    return "packed" if is_gru else "torch"


def library_recurrence(kind: Literal["gru", "lstm"], hidden: int) -> Recurrence:
    """Return torch's recurrence on padded groups, for one layer of one encoder."""
    module = nn.LSTM if kind == "lstm" else nn.GRU
    return Recurrence(partial(LibraryRun, kind=module), Kept(), hidden)


def loop_recurrence(hidden: int, *, resets_before: bool = False) -> Recurrence:
    """Return raysent's loop over padded groups, for one layer of a GRU."""
    return Recurrence(partial(LoopRun, resets_before=resets_before), Kept(), hidden)


def cut_for(
    recurrence: Recurrence,
    device: torch.device,
    *,
    directions: int = 1,
    rows_per_word: int = 1,
    has_states: bool = False,
    has_small_groups: bool = False,
) -> Cut:
    """Return how a batch is cut into groups for a recurrence, in the current mode of gradients and autocast.

    Args:
        recurrence: What computes the groups.
        device: Where it computes.
        directions: 1 or 2.
        rows_per_word: See `Cut`.
        has_states: Whether the states of all words are read.
        has_small_groups: Whether padding counts more than time.
    """
    is_low = product_dtype(device) != torch.float32
    step_products = _STEP_LOW_PRODUCTS if is_low else _STEP_PRODUCTS
    has_gradient = torch.is_grad_enabled()
    return Cut(
        directions=directions,
        rows_per_word=rows_per_word,
        step_cost=0.0 if has_small_groups else step_products / (3 * recurrence.hidden**2),
        is_coarse=has_gradient,
        has_states=has_states,
        has_gradient=has_gradient,
    )
