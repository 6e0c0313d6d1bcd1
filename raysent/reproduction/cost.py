"""What a paper's graph costs before it runs: parameters, steps, hours and dollars of every training.

A step's operations are six for each parameter that is not a word vector and each token read: two forward, four
backward. The scale's file says how many operations a second its machine reaches and what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysent.config import Document, validate
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary
from raysent.models import SentenceModel
from raysent.models.embeddings import EmptyTables
from raysent.models.objectives import OBJECTIVES, PairBatches
from raysent.reproduction.files import Dataset, PaperFile, Scale
from raysent.training.plan import count_steps
from raysent.training.run import RunConfig

_FLOPS_PER_PARAMETER = 6
# The settings of averaged word vectors, for a run that starts with them; the size of the vectors is that of most files.
_AVERAGE = RunConfig.model_validate(
    {
        "pairs": {"path": ""},
        "encoder": {"type": "bag", "pooling": "mean", "embedding": {"dim": 300}},
        "objective": {"type": "paraphrase_margin"},
    }
)


@dataclass(frozen=True)
class ModelEstimate:
    """A model before it is made; numbers are 0 for one that is made of others.

    Attributes:
        name: The model.
        kind: How it is made.
        parts: What it is made of.
        parameters: Trained parameters, word vectors included.
        reported: The same as the paper counts them; None where it does not say.
        steps: Steps of its training.
        hours: Time of its training.
        usd: Price of that time.
        missing: Data that it needs and the folder does not have.
    """

    name: str
    kind: str
    parts: tuple[str, ...]
    parameters: int
    reported: float | None
    steps: int
    hours: float
    usd: float
    missing: tuple[str, ...]


def estimate(
    paper: PaperFile, wanted: Sequence[str], *, scale: Scale, data: Path, counts: Collection[str] | None = None
) -> list[ModelEstimate]:
    """Return the estimate of each model and of its parts, in the order in which they are made.

    Args:
        paper: The paper.
        wanted: Models.
        scale: The scale.
        data: Folder of the datasets.
        counts: Models whose parameters are counted and time is estimated; all by default.

    Raises:
        ConfigError: If the values of a run are wrong.
    """
    configs: dict[str, RunConfig] = {}
    found = []
    for name in paper.order(list(wanted)):
        entry = paper.models[name]
        missing = tuple(paper.missing(name, scale=scale, data=data))
        parameters, steps, hours = 0, 0, 0.0
        if entry.train is not None:
            configs[name] = planned_run(paper, name, configs, scale=scale, data=data)
            if counts is None or name in counts:
                parameters, steps, flops = training_cost(configs[name], _dataset_of(paper, name, scale=scale))
                hours = flops / paper.scales[scale].machine.flops / 3600
        elif entry.represent is not None and entry.represent in configs:
            configs[name] = configs[entry.represent]
        usd = hours * paper.scales[scale].machine.usd_per_hour
        found.append(
            ModelEstimate(name, entry.kind, entry.parts, parameters, entry.parameters, steps, hours, usd, missing)
        )
    return found


def planned_run(paper: PaperFile, name: str, configs: dict[str, RunConfig], *, scale: Scale, data: Path) -> RunConfig:
    """Return a model's run without reading files: its start's settings are those of `configs`."""
    values: dict[str, Any] = paper.values(name, scale=scale, data=data)
    initial = paper.models[name].initial
    if initial is not None:
        start = configs.get(initial, _AVERAGE)
        own = start.model_dump(mode="json")
        num_towers = len(start.model.towers)
        known = OBJECTIVES[values["objective"]["type"]].Config.values_from_initial(num_towers=num_towers)
        taken = {part: own[part] for part in ("encoder", "second_encoder", "postprocessing", "vocabulary")}
        given = {part: value for part, value in values.items() if value is not None}
        values = {**taken, **given, "objective": {**known, **values["objective"]}}
    return validate(RunConfig, Document(values, source=f"models.{name}"))


def training_cost(config: RunConfig, dataset: Dataset | None) -> tuple[int, int, float]:
    """Return a run's trained parameters, its steps, and the operations of its training.

    Args:
        config: The run.
        dataset: What it reads; None or one without a size leaves only `max_steps` to say how many steps there are.
    """
    words = config.vocabulary.size
    (few, few_in_tables), (more, more_in_tables) = (_count(config, rows) for rows in (2, 3))
    parameters = few + (more - few) * (words - 2)
    computed = parameters - few_in_tables - (more_in_tables - few_in_tables) * (words - 2)
    batch = config.training.batch_size
    sentences = dataset.sentences if dataset is not None else None
    if sentences is not None:
        steps = count_steps(config.training, steps_per_epoch=max(1, sentences // batch))
    else:
        steps = config.training.max_steps or 0
    columns = 2 if isinstance(config.objective.batches, PairBatches) else 1
    tokens = steps * batch * columns * (dataset.words if dataset is not None else 12.0)
    return parameters, steps, _FLOPS_PER_PARAMETER * computed * tokens


def _count(config: RunConfig, words: int) -> tuple[int, int]:
    """Return the trained parameters of a run with a vocabulary of that many words, and those of its word tables."""
    vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *(f"w{number}" for number in range(words - 2))])
    tables = EmptyTables(vocabulary, generator=torch.Generator(device="cpu"))
    model = SentenceModel(config.model, vocabulary, tables=tables, num_classes=3)
    model._add_objectives(tables.generator, lambda: torch.ones(words))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return trained, sum(table.weight.numel() for table in model.tables)


def _dataset_of(paper: PaperFile, name: str, *, scale: Scale) -> Dataset | None:
    """Return the dataset with a known size that a model's run reads."""
    datasets = [paper.scales[scale].data[key] for key in paper.datasets_of(name, scale=scale)]
    return next((dataset for dataset in datasets if dataset.sentences), None)
