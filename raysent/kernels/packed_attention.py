"""Attention over sentences that stand one after another in one row, by the flash attention that PyTorch has for them.

It needs a GPU from Ampere on, products in 16 bits and a head of at most 256 numbers; it has no dropout. Elsewhere a
transformer reads padded groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysent.kernels.devices import product_dtype

_MODULE = "torch.nn.attention.varlen"
_LEAST_CAPABILITY = (8, 0)
_MOST_HEAD = 256
_HEAD_MULTIPLE = 8

Attend = Callable[..., Any]


class Row(NamedTuple):
    """Sentences in one row.

    Attributes:
        starts: First token of each sentence, and the number of tokens, int32 [sentences + 1].
        longest: Tokens of the longest sentence.
    """

    starts: Tensor
    longest: int


def reads_rows(device: torch.device, *, head_size: int) -> bool:
    """Return whether sentences in one row can attend to themselves on a device, in the current mode of autocast."""
    is_low = product_dtype(device) in (torch.bfloat16, torch.float16)
    has_size = head_size <= _MOST_HEAD and head_size % _HEAD_MULTIPLE == 0
    return is_low and has_size and _library(device) is not None


def attend_in_row(
    query: Tensor, key: Tensor, value: Tensor, row: Row, *, scale: float | None, is_causal: bool
) -> Tensor:
    """Return what each token of a row reads of its own sentence.

    Args:
        query: [heads, tokens, size].
        key: [heads of keys, tokens, size].
        value: The same, in 16 bits.
        row: The sentences.
        scale: Factor of the scores; None is the root of 1 / size.
        is_causal: Whether a token reads no later ones.

    Returns:
        [tokens, heads, size].
    """
    attend = _library(value.device)
    assert attend is not None, "callers ask reads_rows first"
    query, key, value = (
        part.transpose(0, 1).to(value.dtype).contiguous() for part in (query, key, value)
    )
    outcome: Tensor = attend(
        query,
        key,
        value,
        row.starts,
        row.starts,
        row.longest,
        row.longest,
        scale=scale,
        window_size=(-1, 0 if is_causal else -1),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return outcome


@lru_cache
def _library(device: torch.device) -> Attend | None:
    """Return PyTorch's attention over rows; None where it, or the GPU, has none."""
    is_able = device.type == "cuda" and (
        torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY
    )
    if not is_able or find_spec(_MODULE) is None:
        return None
    attend: Attend = import_module(_MODULE).varlen_attn
    return attend
