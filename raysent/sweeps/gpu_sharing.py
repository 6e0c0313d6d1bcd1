"""How many trials share one GPU: as many as its memory holds of the largest, four at most.

One small trial cannot fill a large GPU, whose time goes into waiting for one time step of a recurrence after another;
several side by side do. In: a space and the cluster's resources, as plain values. Nothing here asks a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from raysent.kernels.fused_softmax import BLOCK_BYTES
from raysent.models.embeddings import EmbeddingConfig
from raysent.sweeps.space import SearchSpace
from raysent.training.run import RunConfig

GIB = 2**30
# What Ray calls a GPU -> its memory; of several models of one name, the smallest.
GPU_BYTES = {
    "T4": 15 * GIB,
    "P100": 16 * GIB,
    "V100": 16 * GIB,
    "A10G": 22 * GIB,
    "L4": 22 * GIB,
    "A100": 39 * GIB,
    "L40S": 44 * GIB,
    "A100-40G": 39 * GIB,
    "A100-80G": 79 * GIB,
    "H100": 79 * GIB,
    "H200": 140 * GIB,
    "B200": 178 * GIB,
}
_ACCELERATOR = "accelerator_type:"

# More gain little: two to four recurrences fill the gaps that one leaves.
MAX_TRIALS = 4
# Of a GPU's memory, what may be planned with; a trial's share of that is its need with as much again for fragments.
_USABLE, _MARGIN = 0.9, 2.0
# The context of a process, with its libraries and their workspaces.
_CONTEXT_BYTES = GIB
# Tensors of a word table's size: itself, two moments, one being saved; and of a token's states: gates, products,
# states, gradients.
_COPIES, _STATES = 4, 12
# Of a layer over all words, also the gradient, as it is found and as it is handed on, and the weight laid out anew.
_LAYER_COPIES = 7
_FLOAT_BYTES = 4


def trials_per_gpu(space: SearchSpace, resources: Mapping[str, float]) -> int:
    """Return how many trials of a space share each GPU of a cluster.

    Args:
        space: What is searched.
        resources: Ray's, by name; they name the kinds of GPU that there are.

    Returns:
        1 where the memory of a GPU is not known.
    """
    kinds = [name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)]
    if not kinds or any(kind not in GPU_BYTES for kind in kinds):
        return 1
    need = max(trial_bytes(space.config(params)) for params in _edges(space))
    return share_gpu(min(GPU_BYTES[kind] for kind in kinds), need)


def share_gpu(gpu_bytes: int, need_bytes: int) -> int:
    """Return how many trials that need so much at the most fit on one GPU: 1 to 4."""
    return max(1, min(MAX_TRIALS, int(_USABLE * gpu_bytes / (_MARGIN * need_bytes))))


def trial_bytes(config: RunConfig) -> int:
    """Return about how much memory of a GPU the training of a run takes."""
    towers = [config.encoder, config.second_encoder or config.encoder][: config.objective.num_towers]
    num_words = config.vocabulary.size
    max_length = min(_max_length(config), getattr(config.objective, "max_length", _max_length(config)))
    num_tokens = config.training.batch_size * max_length * (3 if config.objective.reads == "triplets" else 1)
    numbers = sum(table.dim for tower in towers for table in _tables(tower)) * num_words
    states = sum(_states(tower) for tower in towers) * num_tokens
    own = _decoder_numbers(config, num_tokens) if config.objective.reads == "triplets" else _scores(config)
    return _CONTEXT_BYTES + _FLOAT_BYTES * (_COPIES * numbers + _STATES * states + own)


def _scores(config: RunConfig) -> int:
    """Return the numbers of the scores of all pairs of a batch."""
    return 3 * config.training.batch_size**2


def _decoder_numbers(config: RunConfig, num_tokens: int) -> int:
    """Return the numbers of a decoder's layer over all words, and of its scores: of a block, or of all tokens."""
    objective, num_words = config.objective, config.vocabulary.size
    hidden = getattr(objective, "hidden_size", None) or config.encoder.dim
    is_whole = getattr(objective, "implementation", "auto") == "torch"
    scores = num_tokens * num_words if is_whole else max(BLOCK_BYTES // _FLOAT_BYTES, num_words)
    return _LAYER_COPIES * num_words * hidden + 3 * scores


def _edges(space: SearchSpace) -> list[dict[str, Any]]:
    """Return parameters that show every edge of every domain; the base alone where nothing is searched."""
    return (list(space.edges()) if space.domains else []) or [{}]


def _max_length(config: RunConfig) -> int:
    """Return the words of a sentence at most."""
    return config.pairs.max_length if config.pairs is not None else config.corpus.max_length


def _states(encoder: pydantic.BaseModel) -> int:
    """Return the numbers of one token's states and inputs, over all parts of an encoder."""
    directions = 2 if getattr(encoder, "bidirectional", False) else 1
    own = sum(getattr(encoder, name, 0) for name in ("hidden_size", "num_filters")) * directions
    layers = getattr(encoder, "num_layers", 1) * len(getattr(encoder, "windows", [1]))
    inputs = sum(table.dim for table in _tables(encoder))
    members = getattr(encoder, "members", {})
    return own * layers + inputs + sum(_states(member) for member in members.values())


def _tables(part: Any) -> Iterator[EmbeddingConfig]:
    """Yield every word table inside an encoder's configuration."""
    if isinstance(part, EmbeddingConfig):
        yield part
    elif isinstance(part, pydantic.BaseModel):
        for name in type(part).model_fields:
            yield from _tables(getattr(part, name))
    elif isinstance(part, Mapping):
        for inside in part.values():
            yield from _tables(inside)
