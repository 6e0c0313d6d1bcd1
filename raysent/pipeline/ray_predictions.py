"""Blocks of rows that are predicted on a Ray cluster, for `predict`; one that is lost is predicted again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeVar

import torch

from raysent.evaluation.targets import Float64
from raysent.sweeps.machines import gpu_share
from raysent.training.ray_session import map_on_ray, num_jobs_at_once, ray_session


class _HasTexts(Protocol):
    """What is predicted: its texts are the columns of some rows."""

    @property
    def texts(self) -> list[list[str]]: ...


Block = TypeVar("Block", bound=_HasTexts)
Answers = Callable[[list[list[str]]], list[Float64]]
# Blocks that a cluster gets for each of its cores, so that none waits for this process.
_AHEAD = 2


def predicted_on_ray(
    answers: Answers, blocks: Iterator[Block], address: str
) -> Iterator[tuple[Block, list[Float64]]]:
    """Yield blocks in their order with their log-probabilities [rows, classes] by each predictor.

    Args:
        answers: Returns what each predictor says of rows; every core gets a copy.
        blocks: The blocks, of which a few are read ahead.
        address: The cluster.
    """
    waiting: dict[int, Block] = {}
    done: dict[int, list[Float64]] = {}

    def sent() -> Iterator[Block]:
        for index, block in enumerate(blocks):
            waiting[index] = block
            yield block

    with ray_session(address):
        share = gpu_share()
        options: dict[str, Any] = {
            "gpus_each": share,
            "max_running": _AHEAD * num_jobs_at_once(share),
        }
        results = map_on_ray(_predict_block, sent(), common=answers, address=address, **options)
        with closing(results):
            for index, logs in results:
                done[index] = logs
                while waiting and (following := min(waiting)) in done:
                    yield waiting.pop(following), done.pop(following)


def _predict_block(block: _HasTexts, answers: Answers) -> list[Float64]:
    torch.set_num_threads(1)
    return answers(block.texts)
