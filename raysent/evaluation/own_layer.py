"""The layer over a task's classes that a model was trained with, end to end: its own log-probabilities of the task.

It takes the place of a probe on the model's vectors where validation rows, of which neither trained, prefer it. Of
several blocks with a layer each the probabilities are averaged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from raysent.evaluation.probes.results import FoldResult, ProbeResult, balance_measures
from raysent.evaluation.protocols.fast import result_of_folds
from raysent.evaluation.targets import Targets
from raysent.evaluation.task import TaskData
from raysent.models import SentenceModel

# Texts that are read at once.
_BATCH_SIZE = 512


def learns_layer(encoder: Any) -> bool:
    """Return whether a model has a layer over the classes of the first task that it learned."""
    return (
        isinstance(encoder, SentenceModel)
        and encoder.config.objective is not None
        and encoder.config.objective.type == "task"
        and len(encoder.objectives) > 0
    )


def has_own_layer(encoder: Any, data: TaskData) -> bool:
    """Return whether a model has a layer over the classes of just these rows, rather than of its start's."""
    return learns_layer(encoder) and data.is_any_of([*encoder.learned_tasks.values()][:1])


def own_result(encoder: Any, data: TaskData, probed: ProbeResult) -> ProbeResult | None:
    """Return the result of a model's own layer; None where it has none of just these rows, or the probe is better."""
    if not has_own_layer(encoder, data):
        return None
    return layer_result(encoder, data, probed)


def layer_result(encoder: Any, data: TaskData, probed: ProbeResult) -> ProbeResult | None:
    """Return the result of a model's own layer over a task's classes; None where the probe is better.

    Args:
        encoder: A model with a layer that learned the train rows alone.
        data: The task's rows, with validation rows.
        probed: The result of a probe.
    """
    fold = FoldResult(
        data.validation,
        _predicted(encoder, data, data.validation),
        data.test,
        _predicted(encoder, data, data.test),
        None,
    )
    layered = result_of_folds([fold], data, probed.probe, probed.num_unfinished)
    if layered.validation >= probed.validation:
        return replace(layered, measures={**balance_measures(data, layered), **layered.measures})
    return None


def own_validation(model: SentenceModel, data: TaskData) -> float:
    """Return the validation score of the layer of a model that is being trained on a task's other rows, in percent."""
    targets = Targets.of(data).take(data.validation)
    return 100 * targets.score(_predicted(model, data, data.validation))


def _predicted(encoder: Any, data: TaskData, rows: np.ndarray) -> np.ndarray:
    """Return the layer's log-probabilities of some rows of a task, float32 [rows, classes]."""
    return own_log_probabilities(encoder, [data.sentences[0][row] for row in rows])


@torch.no_grad()
def own_log_probabilities(encoder: Any, texts: list[str]) -> np.ndarray:
    """Return log-probabilities of one text or more, float32 [texts, classes]."""
    model = getattr(encoder, "wrapped", encoder)
    batches = []
    for ids in model.vocabulary.ids(texts, max_length=model.max_length).split(_BATCH_SIZE):
        # A reader keeps what it has read of one batch, which several blocks may share.
        reader = model.step_reader()
        logits = []
        for block_index, objective in enumerate(model.objectives):
            vectors = reader.block(block_index)(ids)[0]
            logits.append(objective.layer(vectors))
        # The mean of probabilities, in logarithms.
        of_blocks = torch.stack(logits).log_softmax(dim=2)
        batches.append(of_blocks.logsumexp(dim=0) - np.log(len(logits)))
    return torch.cat(batches).float().cpu().numpy()
