"""What a sweep does before Ray starts: prepare the text that trials share, and check the whole space against it."""

from __future__ import annotations

from typing import Any

from raysent.errors import RaysentError
from raysent.evaluation.task import PROBED
from raysent.evaluation.tasks import find_task
from raysent.parallel import Progress
from raysent.sweeps.space import Params, SearchSpace
from raysent.training.data import TrainingData, open_training_data, source_key
from raysent.training.memory import PROCESS_BYTES, check_memory, estimate_bytes, machine_bytes
from raysent.training.plan import check_run
from raysent.training.run import RunConfig
from raysent.training.validation import BASELINES, Validator, baseline_scores

# More than any machine has; where trials run on machines that are not known yet.
_LARGEST_BYTES = 64 << 40
# Sentences of the training text from which a baseline learns how rare a word is.
_NUM_SAMPLED = 100_000


def prepare_space(space: SearchSpace, *, progress: Progress | None = None, is_local: bool = False) -> dict[str, Any]:
    """Build or open the corpus, and check the run at every edge of the space against it.

    Args:
        space: The space.
        progress: Called with the progress of the corpus's preparation.
        is_local: Whether trials run on this machine, whose memory then is their limit.

    Returns:
        What is known of `corpus` and `pool`, and the memory of the largest trial in bytes, as plain values.

    Raises:
        RaysentError: With the place in the search space of the value at fault, where there is one.
    """
    opened: dict[str, TrainingData] = {}
    facts: dict[str, Any] = {}
    first, memory_bytes = "", 0
    # Without constraints that leave an edge, the base is what there is.
    for params in space.edges() if space.domains else [{}]:
        config = space.config(params)
        _check_metric(space, config)
        try:
            _check_memory(space, config, is_local=is_local)
            memory_bytes = max(memory_bytes, PROCESS_BYTES + estimate_bytes(config))
            key = source_key(config)
            if key not in opened:
                opened[key] = open_training_data(config, progress=progress)
            training_data = opened[key]
            validator = check_run(config, training_data, num_workers=space.limits.workers_per_trial)
        except RaysentError as error:
            raise space.located(error, params) from None
        facts = facts or _facts(space, config, training_data, validator)
        found = validator.hash_of(space.metric)
        first = first or found
        _check_comparable(space, params, first, found)
    return {**facts, "memory_bytes": memory_bytes}


def _facts(space: SearchSpace, config: RunConfig, data: TrainingData, validator: Validator) -> dict[str, Any]:
    pool = validator.as_json()
    if space.metric in BASELINES:
        sample = data.sample(_NUM_SAMPLED)
        pool["baselines"] = baseline_scores(space.metric, validator, sample, num_words=len(data.vocabulary))
    return {"corpus": {"path": config.source.path, **data.facts()}, "pool": pool}


def _check_memory(space: SearchSpace, config: RunConfig, *, is_local: bool) -> None:
    if space.limits.memory_bytes is not None:
        check_memory(config, space.limits.memory_bytes, source="limits.memory")
    check_memory(config, machine_bytes() if is_local else _LARGEST_BYTES, source="memory of the machine")


def _check_metric(space: SearchSpace, config: RunConfig) -> None:
    if space.metric in config.metrics:
        return
    known = ", ".join(config.metrics) or "none; set validation.sts or validation.similarity"
    raise space.document.error(
        ("metric",), f"objective {config.objective.type} does not report '{space.metric}' here; it reports {known}"
    )


def _check_comparable(space: SearchSpace, params: Params, first: str, found: str) -> None:
    """Refuse a search over what trials are examined with."""
    if found == first:
        return
    names = [name for name in params if name.split(".")[0] in ("corpus", "pairs", "validation")]
    raise space.document.error(
        ("search", *(names[:1] or list(params)[:1])),
        "gives trials different validation pools, so that none could be compared; set it in base",
    )


def check_task_names(space: SearchSpace) -> None:
    """Check that the tasks that a space names are known; their files may be missing.

    Raises:
        ConfigError: With the line of the name that is not.
    """
    for name in space.evaluation.tasks or []:
        try:
            find_task(name, scorings=PROBED, option="")
        except RaysentError as error:
            raise space.document.error(("evaluation", "tasks"), str(error)) from None
