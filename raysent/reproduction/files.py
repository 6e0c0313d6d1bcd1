"""A paper's file -> its models, tables and claims.

A file names datasets and bases of runs for each scale: `small` fits a laptop, `paper` holds the published settings. The
models, tables and claims are the same graph at both. A model is trained, or made of others; its entry has exactly one
of the keys `train`, `expand`, `bag`, `average`, `compose`, `blocks`, `mean`, `represent` and `ensemble`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import pydantic

from raysent.config import StrictModel, leaves, map_leaves, read_yaml, shipped_path, validate
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.tasks import find_task
from raysent.storage import content_key

FOLDER = "papers"
Scale: TypeAlias = Literal["small", "paper"]
# In a run's values: the folder of files that are derived from datasets.
DERIVED = "{derived}"
KINDS = (
    "train",
    "expand",
    "bag",
    "average",
    "compose",
    "blocks",
    "mean",
    "represent",
    "ensemble",
)


class Dataset(StrictModel):
    """Files that models read.

    Attributes:
        path: Below the folder of the data.
        derive: What is made of the file before models read it: `caption_pairs`, two pairs of captions of each image,
            `complete_pairs`, its lines of two columns, where others are known to be broken, or `lines`, all of them.
        without: Tasks of similarity; lines that hold one of their sentences are left out of the derived file. Case,
            punctuation and spaces do not count.
        about: What it is, for the message where it is missing.
        sentences: How many it has, for the estimate of steps.
        words: Words of a sentence, on average.
    """

    path: str
    derive: Literal["caption_pairs", "complete_pairs", "lines"] | None = None
    without: list[str] = pydantic.Field(default_factory=list)
    about: str = ""
    sentences: int | None = None
    words: float = 12.0

    @pydantic.model_validator(mode="after")
    def _is_derived(self) -> Self:
        if self.without and self.derive is None:
            raise ValueError(
                "without: needs derive, such as lines, as the file itself is not changed"
            )
        return self

    def derived(self, name: str, data: Path) -> str:
        """Return the name of the derived file: another one of another file, or where what is left out differs."""
        present = []
        for task in self.without:
            if find_task(task, scorings={"similarity"}, option="without ").is_present(
                data / "senteval"
            ):
                present.append(task)
        return f"{name}-{content_key(self.derive, present, str(data / self.path))[:8]}.tsv"


class Machine(StrictModel):
    """What an estimate assumes of the machine.

    Attributes:
        flops: Floating-point operations a second that training reaches.
        bandwidth: Bytes a second that updates of weights read and write.
        launch_s: Seconds that the start of one operation of torch takes, whatever its size.
        usd_per_hour: Price of the machine.
    """

    flops: float = pydantic.Field(gt=0)
    bandwidth: float = pydantic.Field(default=8e9, gt=0)
    launch_s: float = pydantic.Field(default=1e-5, ge=0)
    usd_per_hour: float = pydantic.Field(ge=0)


class Setting(StrictModel):
    """One scale.

    Attributes:
        data: Datasets by name; `{name}` in a base stands for the path.
        bases: Values of a run by name.
        machine: What estimates assume.
        protocol: The protocol of all tables; None for each table's own.
        about: What differs from the paper.
    """

    data: dict[str, Dataset]
    bases: dict[str, dict[str, Any]]
    machine: Machine
    protocol: str | None = None
    about: str = ""


class ModelEntry(StrictModel):
    """A model of the graph.

    Attributes:
        train: Base of a run.
        run: Changes of the base, at both scales.
        small: Further changes at this scale.
        paper: The same.
        initial: A model that the run starts with.
        expand: A model whose vocabulary `vectors` expands.
        bag: A model whose word vectors are averaged.
        average: A dataset of word vectors that are averaged.
        weighting: Weights of that average.
        counts: A dataset of words and their counts, for the weighting `sif`.
        sample: A dataset of sentences whose first singular vector the average loses (WR).
        vectors: A dataset of word vectors.
        compose: Models side by side.
        blocks: Blocks of the vectors of `of`, such as a single view.
        of: A model.
        mean: Models of one size whose vectors, each of unit length, are averaged.
        represent: A model whose test representation `run` changes: `encode_pooling` of its encoders, or
            `postprocessing`. Nothing is trained.
        ensemble: Models whose log-probabilities are pooled.
        method: The ensemble's rule.
        parameters: Parameters of the model as the paper counts them, in millions.
    """

    train: str | None = None
    run: dict[str, Any] = pydantic.Field(default_factory=dict)
    small: dict[str, Any] = pydantic.Field(default_factory=dict)
    paper: dict[str, Any] = pydantic.Field(default_factory=dict)
    initial: str | None = None
    expand: str | None = None
    bag: str | None = None
    average: str | None = None
    weighting: Literal["uniform", "sif"] = "uniform"
    counts: str | None = None
    sample: str | None = None
    vectors: str | None = None
    compose: list[str] | None = None
    blocks: list[int] | None = None
    of: str | None = None
    mean: list[str] | None = None
    represent: str | None = None
    ensemble: list[str] | None = None
    method: str = "validation"
    parameters: float | None = None

    @pydantic.model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"must have exactly one of {', '.join(KINDS)}; given {', '.join(kinds) or 'none'}"
            )
        if self.expand is not None and self.vectors is None:
            raise ValueError("vectors must name a dataset of word vectors")
        if self.blocks is not None and self.of is None:
            raise ValueError("of must name the model whose blocks these are")
        return self

    @property
    def kind(self) -> str:
        """How the model is made."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def parts(self) -> tuple[str, ...]:
        """The models that it is made of."""
        single = (self.initial, self.expand, self.bag, self.of, self.represent)
        return (
            *(name for name in single if name is not None),
            *(self.compose or ()),
            *(self.mean or ()),
            *(self.ensemble or ()),
        )

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets that it names."""
        return tuple(
            name
            for name in (self.vectors, self.average, self.counts, self.sample)
            if name is not None
        )


class Row(StrictModel):
    """A row of a table.

    Attributes:
        model: The model.
        reported: Name of the row in the paper's table, where it differs from the row's own.
        is_ours: Whether the paper's table has no such row.
    """

    model: str
    reported: str | None = None
    is_ours: bool = False


class TableEntry(StrictModel):
    """A table of the paper.

    Attributes:
        title: What it shows.
        tasks: Tasks of raysent that are its columns; after a blank a measure of the task, as `MRPC f1`, or a set of it.
        means: Further columns: name -> the columns whose mean it is.
        protocol: How the paper evaluates.
        rows: Name -> model, or a row.
        component: Which top component models lose that lose one: that of their own sample of text, which is `stored`
            with them, or, on tasks of similarity, that of each set's sentences, which are `tested`.
        about: What is left out, and why.
    """

    title: str
    tasks: list[str]
    means: dict[str, list[str]] = pydantic.Field(default_factory=dict)
    protocol: str = "fast"
    rows: dict[str, str | Row]
    component: Literal["stored", "tested"] = "stored"
    about: str = ""

    @property
    def columns(self) -> list[str]:
        """The tasks, or measures of tasks, and the means."""
        return [*self.tasks, *self.means]

    def models(self) -> dict[str, Row]:
        """Return the rows by name."""
        rows = {}
        for name, row in self.rows.items():
            if isinstance(row, Row):
                rows[name] = row
            else:
                rows[name] = Row(model=row)
        return rows


class ClaimEntry(StrictModel):
    """A qualitative claim: the first arm is better than the second.

    Attributes:
        claim: What the paper says.
        better: The model that it says is better.
        worse: The other one.
        tasks: Tasks whose mean score decides.
        metric: A metric of the runs themselves, at their last report, that decides in place of tasks.
        searched: Rows that are searched exactly, in which case the queries answered in a millisecond decide.
        images: Folder below the data with `images.npy` and `captions.tsv` of papers/image_ranking.py, in which case the
            mean of the recalls among 1, 5 and 10 of both searches decides.
        protocols: Protocols of both arms, where the evaluation is what differs.
        is_in_time: Whether `better` must not have trained longer than `worse`, by the clock.
        margin: Points by which the claim says `better` is ahead, or may be behind where negative.
        reported: Rows of the paper's own tables that are its arms, where the tables here have no rows of these models.
        needs: What must exist for it, where it cannot run yet; then it is not run.
        why: Why the verdict is what it is, once it has been studied.
        place: Where the paper says it: a table, a section, or a figure; `ours` where no paper does.
        before: Earlier verdicts, of seeds that also chose the arms, or of other arms: each with what has changed since.
    """

    claim: str
    better: str | None = None
    worse: str | None = None
    tasks: list[str] = pydantic.Field(default_factory=list)
    metric: str = ""
    searched: int | None = pydantic.Field(default=None, ge=1)
    images: str = ""
    protocols: list[str] | None = pydantic.Field(default=None, min_length=2, max_length=2)
    is_in_time: bool = False
    margin: float = 0.0
    reported: list[str] = pydantic.Field(default_factory=list, max_length=2)
    needs: str = ""
    why: str = ""
    place: str = pydantic.Field(
        "ours", pattern=r"^(ours|(appendix|figures?|sections?|tables?) .+)$"
    )
    before: list[str] = pydantic.Field(default_factory=list)

    @property
    def measured(self) -> str:
        """What decides: the names of tasks, a metric, or the speed of a search."""
        if self.searched is not None:
            return f"queries in a millisecond, of {self.searched:,} rows"
        if self.images:
            return "recalls of images and captions"
        return self.metric or ", ".join(self.tasks)


class PaperFile(StrictModel):
    """A paper.

    Attributes:
        paper: Authors and year, as in `raysent.reproduction.reported`.
        title: Short title.
        scales: The two scales.
        models: The graph.
        tables: The paper's tables by number.
        claims: Its claims by name.
    """

    paper: str
    title: str
    scales: dict[Scale, Setting]
    models: dict[str, ModelEntry]
    tables: dict[str, TableEntry]
    claims: dict[str, ClaimEntry] = pydantic.Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _names_exist(self) -> Self:
        for where, name in self._references():
            if name not in self.models:
                raise ValueError(
                    f"{where}: no model '{name}'{did_you_mean(name, list(self.models))}"
                )
        for scale, setting in self.scales.items():
            for name, entry in self.models.items():
                if entry.train is not None and entry.train not in setting.bases:
                    raise ValueError(
                        f"models.{name}.train: scale {scale} has no base '{entry.train}'"
                    )
                for dataset in entry.datasets:
                    if dataset not in setting.data:
                        raise ValueError(f"models.{name}: scale {scale} has no dataset '{dataset}'")
        protocols = [setting.protocol for setting in self.scales.values()]
        protocols += [table.protocol for table in self.tables.values()]
        for claim in self.claims.values():
            protocols += claim.protocols or []
        for protocol in protocols:
            if protocol is not None and protocol not in PROTOCOLS:
                raise ValueError(
                    f"protocol '{protocol}' is unknown{did_you_mean(protocol, PROTOCOLS)}"
                )
        self.order(list(self.models))
        return self

    def _references(self) -> Iterator[tuple[str, str]]:
        for name, entry in self.models.items():
            yield from ((f"models.{name}", part) for part in entry.parts)
        for number, table in self.tables.items():
            yield from ((f"tables.{number}", row.model) for row in table.models().values())
        for name, claim in self.claims.items():
            yield from (
                (f"claims.{name}", arm) for arm in (claim.better, claim.worse) if arm is not None
            )

    def order(self, wanted: list[str]) -> list[str]:
        """Return models and all that they are made of, each after its parts.

        Raises:
            ValueError: If a model is made of itself.
        """
        graph: dict[str, tuple[str, ...]] = {}
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name not in graph:
                graph[name] = self.models[name].parts
                todo.extend(graph[name])
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            raise ValueError(f"models: {' -> '.join(error.args[1])} is made of itself") from None

    def values(self, name: str, *, scale: Scale, data: Path) -> dict[str, Any]:
        """Return the values of a model's run at a scale, with the paths of its datasets; without `initial`.

        `DERIVED` stands for the folder of derived files.
        """
        paths = {}
        for key, dataset in self.scales[scale].data.items():
            if dataset.derive is None:
                paths[f"{{{key}}}"] = str(data / dataset.path)
            else:
                paths[f"{{{key}}}"] = f"{DERIVED}/{dataset.derived(key, data)}"
        return dict(filled(self._unfilled(name, scale), paths))

    def _unfilled(self, name: str, scale: Scale) -> Any:
        """Return the values of a model's run at a scale, in which `{name}` stands for the path of a dataset."""
        model = self.models[name]
        base: dict[str, Any] = {}
        if model.train is not None:
            base = self.scales[scale].bases[model.train]
        return merged(merged(base, model.run), getattr(model, scale))

    def datasets_of(self, name: str, *, scale: Scale) -> list[str]:
        """Return the names of the datasets whose paths are among the values of a model's run."""
        texts = {text for text in leaves(self._unfilled(name, scale)) if isinstance(text, str)}
        return [
            key for key in self.scales[scale].data if any(f"{{{key}}}" in text for text in texts)
        ]

    def missing(self, name: str, *, scale: Scale, data: Path) -> list[str]:
        """Return what a model and its parts need and the folder does not have, as text."""
        absent = {}
        for part in self.order([name]):
            needed = {*self.models[part].datasets, *self.datasets_of(part, scale=scale)}
            for key, dataset in self.scales[scale].data.items():
                if key in needed and not (data / dataset.path).exists():
                    absent[key] = f"{dataset.about or key} ({data / dataset.path})"
        return list(absent.values())


def known_papers() -> list[str]:
    """Return the names of the shipped papers."""
    return sorted(path.stem for path in shipped_path(FOLDER).glob("*.yaml"))


def read_paper(name: str) -> PaperFile:
    """Return a shipped paper by name, or one's file.

    Raises:
        ConfigError: If it is unknown, or the file is wrong, with the line.
    """
    path = shipped_path(FOLDER) / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    if not path.is_file():
        papers = known_papers()
        hint = did_you_mean(name, papers) or f"; known: {', '.join(papers)}"
        raise ConfigError(f"PAPER: no paper '{name}'{hint}")
    return validate(PaperFile, read_yaml(path))


def merged(base: Any, changes: Any) -> Any:
    """Return the base updated with the changes; a value of another `type` is replaced as a whole."""
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    if "type" in changes and changes["type"] != base.get("type"):
        return dict(changes)
    nested = {key: merged(base[key], changes[key]) for key in base.keys() & changes.keys()}
    return {**base, **changes, **nested}


def filled(value: Any, paths: Mapping[str, str]) -> Any:
    """Return the value with paths in place of the names of datasets."""

    def fill(text: Any) -> Any:
        if isinstance(text, str):
            for name, path in paths.items():
                text = text.replace(name, path)
        return text

    return map_leaves(value, fill)
