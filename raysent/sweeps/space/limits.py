"""The sections of a search-space file: how much a sweep may use, how it searches, and what is evaluated in the end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict

import pydantic

from raysent.config import StrictModel
from raysent.cost import CostConfig, PositiveDuration, parse_duration
from raysent.training.validation import Metric

_MAX_TRIALS = 1_000_000
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(MB|GB|TB|MiB|GiB|TiB)")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `4GiB`.

    Raises:
        ValueError: If it is no number of at least one unit, followed by the unit.
    """
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size < _UNITS["MB"]:
        raise ValueError(
            f"must be a number and one of {', '.join(_UNITS)}, such as 4GiB; given '{text}'"
        )
    return size


def _split(value: Any) -> Any:
    return (
        [one.strip() for one in value.split(",") if one.strip()]
        if isinstance(value, str)
        else value
    )


Size = Annotated[str, pydantic.AfterValidator(lambda text: parse_size(text) and text)]


class ComponentChoice(pydantic.BaseModel):
    """A sampler, scheduler or tracker: its name, or a mapping of `type` and its settings.

    Attributes:
        type: The name of the component.
    """

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, strict=True)

    type: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @property
    def settings(self) -> dict[str, Any]:
        """What was given beside `type`."""
        return dict(self.model_extra or {})


class SamplerChoice(ComponentChoice):
    """What proposes parameters.

    Attributes:
        type: `tpe`, `random`, `qmc`, `gp`, or a sampler of another package.
    """

    type: str = "tpe"


class SchedulerChoice(ComponentChoice):
    """What stops trials early.

    Attributes:
        type: `asha` (asynchronous successive halving), `none`, or a scheduler of another package.
    """

    type: str = "asha"


class Limits(StrictModel):
    """How much a sweep may use, and how it searches.

    Attributes:
        trials: Trials in all.
        seeds: Trials with the same parameters, each with a seed of its own; a configuration is worth their median.
        concurrent: Trials at once; None for as many as fit.
        workers_per_trial: Ray Train workers of each trial.
        gpus_per_worker: GPUs of each worker, may be a fraction; None for one where there are GPUs, less for trials of
            one worker that leave room for others on it, none without GPUs.
        time: Wall-clock time after which no trial starts and each running one stops at its next report. The fits of
            TF-IDF that follow plan to end in half of it.
        backend: `actor` trains inside reused Tune actors, `train` on Ray Train workers; `auto` chooses the actors for
            one worker without a GPU.
        sampler: What proposes parameters: a name, or a mapping of `type` and its settings.
        scheduler: What stops trials early: a name, or a mapping of `type` and its settings.
        learn_from: Sweeps on other texts whose better settings are tried first, the cheapest before, in half of the
            trials at most: run folders or `lessons.json` files, with commas between them; `cache` names all that this
            user's sweeps left.
        memory: Memory that the process of a trial may hold, such as `4GiB`: a space with a trial that needs more is
            refused before it starts, and a process that holds more after a trial is replaced before the next one. None
            for the memory of the machine, and no replacement.
    """

    trials: int = pydantic.Field(default=12, ge=0, le=_MAX_TRIALS)
    seeds: int = pydantic.Field(default=1, ge=1, le=_MAX_TRIALS)
    concurrent: int | None = pydantic.Field(default=None, ge=1, le=_MAX_TRIALS)
    workers_per_trial: int = pydantic.Field(default=1, ge=1, le=_MAX_TRIALS)
    gpus_per_worker: float | None = pydantic.Field(default=None, ge=0)
    time: PositiveDuration | None = None
    backend: Literal["auto", "actor", "train"] = "auto"
    sampler: SamplerChoice = SamplerChoice()
    scheduler: SchedulerChoice = SchedulerChoice()
    learn_from: Annotated[list[str], pydantic.BeforeValidator(_split)] = pydantic.Field(
        default_factory=list
    )
    memory: Size | None = None

    @pydantic.model_validator(mode="after")
    def _workers_have_whole_gpus(self) -> Self:
        if self.workers_per_trial > 1 and 0 < (self.gpus_per_worker or 0) < 1:
            raise ValueError(
                f"gpus_per_worker must be 0, or at least 1, with several workers_per_trial, since workers of one trial "
                f"share no GPU; given {self.gpus_per_worker:g}"
            )
        return self

    @property
    def time_s(self) -> float | None:
        """The wall-clock limit in seconds."""
        return None if self.time is None else parse_duration(self.time)

    @property
    def lexical_s(self) -> float | None:
        """The processor time of all fits of TF-IDF after the search, in seconds; None without a limit on time."""
        return None if self.time_s is None else self.time_s / 2

    @property
    def memory_bytes(self) -> int | None:
        """The memory of a trial's process in bytes."""
        return None if self.memory is None else parse_size(self.memory)


FittedName = Literal[
    "metric",
    "family",
    "vocabulary.size",
    "encoder.hidden_size",
    "encoder.embedding.dim",
    "training.batch_size",
    "training.epochs",
    "training.learning_rate",
    "training.num_reports",
    "training.precision",
    "validation.num_sentences",
]


class PublishedModel(StrictModel):
    """Where the published settings of a space are, and what is searched around them; see `raysent reproduce`.

    A model is one of a paper's graph, as `uni` or `quick_thoughts/uni`; several by name are members of one encoder.

    Attributes:
        paper: The paper of models that are named without one, such as `quick_thoughts`.
        model: The model whose settings runs have; None where each value of a choice has its own.
        choices: A searched choice of the space, such as `family`, `encoder` or `code` -> label -> its model.
        paper_grid: Searched name -> the grid that the paper searched.
        our_grid: Searched name -> what is searched where the paper gives no grid, or one setting.
        when: As in the space, for names of the grids; by default the space's own.
    """

    paper: str | None = None
    model: str | dict[str, str] | None = None
    choices: dict[str, dict[str, str | dict[str, str]]] = pydantic.Field(
        default_factory=dict, max_length=1
    )
    paper_grid: dict[str, Any] = pydantic.Field(default_factory=dict)
    our_grid: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _names_models(self) -> Self:
        if (self.model is None) != bool(self.choices):
            raise ValueError("must have either model, or choices with a model for each label")
        return self

    @property
    def models(self) -> list[str]:
        """The models that are named, each once."""
        named = [] if self.model is None else [self.model]
        named += [model for labels in self.choices.values() for model in labels.values()]
        parts = [[one] if isinstance(one, str) else list(one.values()) for one in named]
        return list(dict.fromkeys(name for names in parts for name in names))


class EvaluationConfig(StrictModel):
    """What is evaluated when all trials have ended.

    Attributes:
        tasks: Names of downstream tasks; None for every task whose files are present, or the embedded ones; an empty
            list for none.
        members: How many of the best trials are evaluated and may join the ensemble.
        stratify_by: A searched name: the first trials have each of its values once, and the best trial of each value
            is a member before the next best trials are.
        kinds: Whether the values of `stratify_by` are kinds of encoders that belong together in one ensemble. Then
            configurations have each of them in turn, a trial is stopped early for others of its kind alone, and the
            best finished trial of each is combined in `RUN/kinds`, weighted by validation.
        baselines: Whether what the best trial should beat is scored too: TF-IDF, its mean word vectors, itself at its
            start, and random word vectors.
        prefer: Of what is within one standard error of the best on a task, take the fastest or the smallest; by default
            the best is taken.
        pretrained: Pretrained encoders that take part in the answer as they are: folders, or names such as
            all-MiniLM-L6-v2; an empty list for none. By default a known one that reads the language of the tasks, if it
            is on this machine or can be downloaded.
        refit: Whether the answer is fitted on every labelled row once its score is known; rows that a table names as
            its test are never fitted.
        copy_pretrained: Whether pretrained encoders of the hub are copied into the answer, which keeps them by name and
            commit else; those of folders are always copied.
    """

    tasks: list[str] | None = None
    members: int = pydantic.Field(default=6, ge=1)
    stratify_by: str | None = None
    kinds: bool = False
    baselines: bool = True
    prefer: Literal["speed", "size"] | None = None
    pretrained: Annotated[list[str] | None, pydantic.BeforeValidator(_split)] = None
    refit: bool = True
    copy_pretrained: bool = False


class PretrainedFamily(StrictModel):
    """What a space searches that starts from the pretrained encoder at hand and learns the labels of the task.

    It joins `search.family` as `pretrained` where one task with classes is given, an encoder reads its text, and the
    time is enough for a hundred steps of a trial. What the space searches without a condition is then of the others.

    Attributes:
        run: Parts of the run, beside the path of the encoder and the task.
        search: As of the space, for this family alone.
        when: As of the space, among these names.
        first: Settings of its first trials, as of the space.
        alone: Whether the space's other families, or its own run, are left out where this one takes part.
    """

    run: dict[str, Any]
    search: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
    first: list[dict[str, str | int | float | bool | None]] = pydantic.Field(default_factory=list)
    alone: bool = False


class WorkersToCome(StrictModel):
    """The workers that a cluster may grow to, by Ray's autoscaler or as a scheduler starts them.

    Attributes:
        count: Workers at once, at most.
        cpu: Cores that each has at least.
        gpu: GPUs that each has at least.
        accelerator: Ray's name of their GPUs, such as `L4`, by which several trials may share one; None if unknown.
    """

    count: int = pydantic.Field(ge=1, le=_MAX_TRIALS)
    cpu: int = pydantic.Field(ge=1)
    gpu: float = pydantic.Field(default=0.0, ge=0)
    accelerator: str | None = None


class ClusterConfig(StrictModel):
    """The Ray cluster that a sweep runs on.

    Attributes:
        workers: The workers that it may grow to, of which none has to be there yet; None for the nodes that are there
            when the sweep starts.
    """

    workers: WorkersToCome | None = None


class SpaceFile(StrictModel):
    """The top level of a search-space file.

    Attributes:
        name: What the sweep is called; by default the name of the file.
        description: For readers of the file and of the report.
        metric: What trials are ranked by, measured on the validation set that all trials share. Where `fit` names it,
            the metric of the tasks that are named, else `document_accuracy` where the text has the documents for it.
        base: A complete run; see below.
        search: Dotted name of the run -> `choice`, `uniform`, `loguniform`, `randint` or `quniform`.
        when: Searched name -> other searched names and the values under which it is searched.
        limits: How much the sweep may use, and how it searches.
        cost: What machines cost and what the sweep may spend.
        cluster: What is known of a Ray cluster that the sweep runs on.
        evaluation: What is evaluated when all trials have ended.
        trackers: Who follows the sweep while it runs: names, or mappings of `type` and settings.
        fit: Names whose values are chosen for the text, the machine and the time before the sweep starts. A name is
            that of a setting wherever it is written, also of both encoders and their members, and in `search`. `--set`
            sets it there and takes it out of the list; `--set fit=[]` uses all values as they are written.
        fitted: Names whose values were chosen so, and why; raysent writes it into `sweep.json`.
        first: Settings of the first trials, searched name -> value; raysent writes them where `limits.learn_from` names
            sweeps. What the space does not search is left out, numbers are moved into its intervals.
        published: The paper and the model whose settings `--scale paper` uses.
        pretrained: What starts from the pretrained encoder at hand; None for nothing.
    """

    name: str | None = None
    description: str = ""
    metric: Metric = "context_accuracy"
    base: dict[str, Any] = pydantic.Field(default_factory=dict)
    search: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
    limits: Limits = Limits()
    cost: CostConfig = CostConfig()
    cluster: ClusterConfig = ClusterConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    trackers: list[ComponentChoice] = pydantic.Field(default_factory=list)
    fit: list[FittedName] = pydantic.Field(default_factory=list)
    fitted: dict[str, str] = pydantic.Field(default_factory=dict)
    first: list[dict[str, str | int | float | bool | None]] = pydantic.Field(default_factory=list)
    published: PublishedModel | None = None
    pretrained: PretrainedFamily | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and re.fullmatch(r"\w[\w .+=-]{0,99}", name) is None:
            raise ValueError(
                f"must be letters, digits, spaces and _.+=-, and not begin with a point; given {name!r}"
            )
        return name


# Each setting of these sections, by its name alone: its section, and the model that declares it. They are the further
# arguments of `raysent.sweep`, and the options of the command line are made from them.
SETTINGS: dict[str, tuple[str, type[StrictModel]]] = {
    name: (section, model)
    for section, model in (
        ("limits", Limits),
        ("cost", CostConfig),
        ("evaluation", EvaluationConfig),
    )
    for name in model.model_fields
}


class SweepSettings(TypedDict, total=False):
    """Those of `SETTINGS` as arguments of `raysent.sweep`; None sets nothing.

    Each is documented in the model that declares it: `Limits` from `trials`, `CostConfig` from `usd_per_hour`,
    `EvaluationConfig` from `members`; its `tasks` are an argument of their own.
    """

    trials: int | None
    seeds: int | None
    concurrent: int | None
    workers_per_trial: int | None
    gpus_per_worker: float | None
    time: str | None
    backend: Literal["auto", "actor", "train"] | None
    sampler: str | Mapping[str, Any] | None
    scheduler: str | Mapping[str, Any] | None
    learn_from: str | Sequence[str] | None
    memory: str | None
    usd_per_hour: float | None
    machines: Mapping[str, float] | None
    attached: float | None
    region: str | None
    market: Literal["auto", "spot", "on-demand"] | None
    budget: str | float | None
    deadline: str | None
    max_hourly: str | float | None
    on_budget: Literal["stop", "finish-rung"] | None
    reserve: float | None
    trial: str | None
    poll: str | None
    drain: str | None
    terminate: str | None
    boot: str | None
    interruptions_per_hour: float | None
    accept_bound: bool | None
    members: int | None
    stratify_by: str | None
    kinds: bool | None
    baselines: bool | None
    prefer: Literal["speed", "size"] | None
    pretrained: str | Sequence[str] | None
    refit: bool | None
    copy_pretrained: bool | None
