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
    return layer_result(encoder, data, probed) if has_own_layer(encoder, data) else None


def layer_result(encoder: Any, data: TaskData, probed: ProbeResult) -> ProbeResult | None:
    """Return the result of a model's own layer over a task's classes; None where the probe is better.

    Args:
        encoder: A model with a layer that learned the train rows alone.
        data: The task's rows, with validation rows.
        probed: The result of a probe.
    """
    texts = ([data.sentences[0][row] for row in rows] for rows in (data.validation, data.test))
    validated, tested = (own_log_probabilities(encoder, some) for some in texts)
    folds = [FoldResult(data.validation, validated, data.test, tested, None)]
    own = result_of_folds(folds, data, probed.probe, probed.num_unfinished)
    own = replace(own, measures={**balance_measures(data, own), **own.measures})
    return own if own.validation >= probed.validation else None


def own_validation(model: SentenceModel, data: TaskData) -> float:
    """Return the validation score of the layer of a model that is being trained on a task's other rows, in percent."""
    texts = [data.sentences[0][row] for row in data.validation]
    targets = Targets.of(data).take(data.validation)
    return 100 * targets.score(own_log_probabilities(model, texts))


@torch.no_grad()
def own_log_probabilities(encoder: Any, texts: list[str]) -> np.ndarray:
    """Return log-probabilities of one text or more, float32 [texts, classes]."""
    model, found = getattr(encoder, "wrapped", encoder), []
    for some in model.vocabulary.ids(texts, max_length=model.max_length).split(512):
        reader = model.step_reader()
        logits = [
            one.layer(reader.block(place)(some)[0]) for place, one in enumerate(model.objectives)
        ]
        found.append(torch.stack(logits).log_softmax(dim=2).logsumexp(dim=0) - np.log(len(logits)))
    return torch.cat(found).float().cpu().numpy()
