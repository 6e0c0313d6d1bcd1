"""Row-exact Adam against dense Adam for growing vocabularies: milliseconds per step, and the exponent of the growth.

Every step updates as many rows as a batch has distinct words; they are drawn again for every step, most of them rare.
The methods alternate in one process on one thread and are measured in processor time.

    python -m benchmarks.row_adam [--rows 1700] [--dim 300] [--steps 15] [--json]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import parsed, seconds_of, show
from raysent.kernels.row_adam import RowAdam
from raysent.training.optimization import DenseAdam

_VOCABULARIES = (10_000, 50_000, 100_000)
_RATE = 5e-4
_WARM_UP = 3


def rows_of(vocabulary: int, count: int, steps: int) -> list[Tensor]:
    """Return the rows of each step, ascending; half are the most frequent words, half are drawn from all others."""
    random = np.random.default_rng(0)
    frequent = np.arange(count // 2)
    return [
        torch.from_numpy(
            np.concatenate(
                [
                    frequent,
                    count // 2
                    + np.sort(
                        random.choice(vocabulary - count // 2, count - count // 2, replace=False)
                    ),
                ]
            )
        )
        for _ in range(steps)
    ]


def by_row(
    weight: nn.Parameter, gradient: Tensor, *, is_compiled: bool
) -> Callable[[Tensor], None]:
    """Return a function that takes one row-exact step."""
    adam = RowAdam(weight, learning_rate=_RATE, is_compiled=is_compiled)

    def step(rows: Tensor) -> None:
        adam.catch_up(rows)
        weight.grad = torch.sparse_coo_tensor(
            rows[None], gradient, weight.shape, check_invariants=False
        )
        adam.step()

    return step


def dense(weight: nn.Parameter, gradient: Tensor) -> Callable[[Tensor], None]:
    """Return a function that takes one step of torch's fused Adam over the whole table."""
    adam = DenseAdam([weight], [1.0])

    def step(rows: Tensor) -> None:
        weight.grad = torch.zeros_like(weight)
        weight.grad[rows] = gradient
        adam.step(_RATE)

    return step


def compare(vocabulary: int, *, count: int, dim: int, num_steps: int) -> dict[str, float]:
    """Return the median milliseconds of each method."""
    gradient = torch.randn(count, dim) * 1e-3
    steps = {
        "row_exact_compiled_ms": by_row(
            nn.Parameter(torch.zeros(vocabulary, dim)), gradient, is_compiled=True
        ),
        "row_exact_torch_ms": by_row(
            nn.Parameter(torch.zeros(vocabulary, dim)), gradient, is_compiled=False
        ),
        "dense_fused_ms": dense(nn.Parameter(torch.zeros(vocabulary, dim)), gradient),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for rows in rows_of(vocabulary, count, num_steps + _WARM_UP):
        for name, step in steps.items():
            times[name].append(1e3 * seconds_of(partial(step, rows)))
    return {name: round(median(values[_WARM_UP:]), 2) for name, values in times.items()}


def main() -> None:
    """Measure the vocabularies and print."""
    options = parsed(__doc__, rows=1700, dim=300, steps=15)
    torch.set_num_threads(1)
    sizes = {
        words: compare(words, count=options.rows, dim=options.dim, num_steps=options.steps)
        for words in _VOCABULARIES
    }
    logarithms = np.log(list(sizes))
    exponents = {
        name.replace("_ms", "_exponent"): round(
            float(np.polyfit(logarithms, np.log([row[name] for row in sizes.values()]), 1)[0]), 2
        )
        for name in sizes[_VOCABULARIES[0]]
    }
    show({"vocabularies": sizes, **exponents}, options)


if __name__ == "__main__":
    main()
