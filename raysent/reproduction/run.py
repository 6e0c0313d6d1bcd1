"""`reproduce`: a paper's models are made, evaluated, and printed beside the reported figures; resumable.

Models, records and scores are kept in the output folder. The same call continues after an interruption.

`plan_reproduction` says what the graph costs before it runs: parameters, steps, hours and dollars of every training. A
step takes the time of its operations, six for each parameter that is no word vector and each token read (two forward,
four backward; two in all of a fixed encoder, which reads each sentence once), of the bytes that Adam and penalties read
and write, for all weights but the word vectors that no token reads, and of the launches of torch's operations. The
scale's file says what its machine reaches and what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from raysent.config import Document, validate
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary
from raysent.errors import ConfigError, RaysentError, did_you_mean
from raysent.evaluation.tasks import find_task
from raysent.models import SentenceModel
from raysent.models.embeddings import EmptyTables
from raysent.models.layers import L2Penalty
from raysent.models.objectives import OBJECTIVES, PairBatches
from raysent.progress import messages
from raysent.reproduction.files import (
    ClaimEntry,
    Dataset,
    Machine,
    PaperFile,
    Scale,
    read_paper,
)
from raysent.reproduction.making import Graph
from raysent.reproduction.scores import (
    ClaimResult,
    Column,
    Scores,
    TableResult,
    claim_result,
    reported_rows,
)
from raysent.storage import read_json, safe_name, write_json
from raysent.training.plan import count_steps
from raysent.training.run import RunConfig

RESULTS_FILE = "results.json"
# Arms were chosen on seeds 0 to 4, and on 10 to 14 of some.
_VERDICT_SEEDS = tuple(range(20, 25))
_FLOPS_PER_PARAMETER = 6
_FLOPS_PER_FIXED = 2
# Bytes a number: Adam reads a weight, its gradient and two moments and writes all of them; a penalty also reads the
# initial value, and writes and reads the distance, its square and its gradient.
_ADAM_BYTES = 32
_PENALTY_BYTES = 32
# Operations of torch in a step, forward and backward, and further ones for each word of a recurrent tower.
_LAUNCHES = 300
_LAUNCHES_PER_WORD = 12
# The settings of averaged word vectors, for a run that starts with them; the size of the vectors is that of most files.
_AVERAGE = RunConfig.model_validate(
    {
        "pairs": {"path": ""},
        "encoder": {"type": "bag", "pooling": "mean", "embedding": {"dim": 300}},
        "objective": {"type": "paraphrase_margin"},
    }
)


@dataclass(frozen=True)
class Reproduction:
    """What was reproduced of a paper.

    Attributes:
        paper: Its title.
        scale: The scale.
        tables: The tables.
        claims: The claims.
        hours: Wall-clock time of this call.
    """

    paper: str
    scale: Scale
    tables: tuple[TableResult, ...]
    claims: tuple[ClaimResult, ...]
    hours: float


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


def reproduce(  # noqa: PLR0913 - the options of the command
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    seeds: Sequence[int] = _VERDICT_SEEDS,
    scale: Scale = "small",
    data: str | Path = "data",
    output: str | Path | None = None,
    max_hours: float | None = None,
    progress: bool = True,
) -> Reproduction:
    """Train a paper's models and evaluate them beside the reported figures; continues after an interruption.

    Args:
        paper: Name of a shipped paper, such as ``quick_thoughts``, or a file.
        tables: Numbers of the tables; all by default.
        claims: Claims to run on several seeds; ``all`` for every one.
        seeds: Seeds of each arm of a claim, at least two; the default ones have chosen no arm.
        scale: ``small``, or ``paper`` for the published settings.
        data: Folder of corpora, pairs, vectors and tasks.
        output: Folder of models, records and results; ``runs/PAPER-SCALE`` by default.
        max_hours: No model is begun after this time.
        progress: Whether to show progress on standard error.

    Returns:
        Tables and claims; what could not run has a reason.

    Raises:
        ConfigError: If the paper, a table or a claim is unknown, or seeds are fewer than two.
    """
    if len(set(seeds)) < 2:
        raise ConfigError(
            f"seeds: must be at least two different ones; given {', '.join(map(str, seeds)) or 'none'}"
        )
    paper_file = read_paper(paper)
    numbers, names = _numbers_and_names(paper_file, tables, claims)
    if output is None:
        output = Path("runs") / safe_name(f"{Path(paper).stem}-{scale}")
    folder = Path(output)
    graph = Graph(paper_file, scale, Path(data), folder)
    runner = _Runner(graph, max_hours=max_hours, shows_progress=progress)
    runner.graph.derive()
    of_tables: list[TableResult] = []
    of_claims: list[ClaimResult] = []

    def result() -> Reproduction:
        return Reproduction(
            paper_file.title, scale, tuple(of_tables), tuple(of_claims), runner.hours
        )

    for number in numbers:
        of_tables.append(runner.table(number))
        _save(result(), folder)
    for claim in names:
        of_claims.append(runner.claim(claim, seeds))
        _save(result(), folder)
    return result()


def plan_reproduction(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    scale: Scale = "small",
    data: str | Path = "data",
) -> list[ModelEstimate]:
    """Return the models of a paper's tables and claims, with parameters, hours and dollars; nothing is trained.

    Arguments are those of `reproduce`.
    """
    paper_file = read_paper(paper)
    numbers, names = _numbers_and_names(paper_file, tables, claims)
    wanted: dict[str, None] = {}
    for number in numbers:
        for row in paper_file.tables[number].models().values():
            wanted[row.model] = None
    for name in names:
        for arm in (paper_file.claims[name].better, paper_file.claims[name].worse):
            if arm is not None:
                wanted[arm] = None
    return estimate(paper_file, list(wanted), scale=scale, data=Path(data))


def absent_tasks(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    data: str | Path = "data",
) -> list[str]:
    """Return the tasks of a paper's tables and claims whose files a folder has not.

    Arguments are those of `reproduce`.
    """
    paper_file = read_paper(paper)
    numbers, names = _numbers_and_names(paper_file, tables, claims)
    columns = [column for number in numbers for column in paper_file.tables[number].tasks]
    columns += [task for name in names for task in paper_file.claims[name].tasks]
    wanted = dict.fromkeys(Column.of(column).task for column in columns)
    return [name for name in wanted if not find_task(name).is_present(Path(data) / "senteval")]


def protocol_of_claim(paper: PaperFile, claim: ClaimEntry, *, scale: Scale) -> str:
    """Return the protocol of a claim: the scale's, else that of a table with one of its arms, else of the first."""
    of_scale = paper.scales[scale].protocol
    if of_scale is not None:
        return of_scale
    arms = {claim.better, claim.worse}
    tables = list(paper.tables.values())
    beside = [
        table.protocol for table in tables if arms & {row.model for row in table.models().values()}
    ]
    return next(iter([*beside, *(table.protocol for table in tables)]), "fast")


def estimate(
    paper: PaperFile,
    wanted: Sequence[str],
    *,
    scale: Scale,
    data: Path,
    counts: Collection[str] | None = None,
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
    estimates = []
    setting = paper.scales[scale]
    for name in paper.order(list(wanted)):
        model = paper.models[name]
        parameters = 0
        steps = 0
        hours = 0.0
        if model.train is not None:
            configs[name] = planned_run(paper, name, configs, scale=scale, data=data)
            if counts is None or name in counts:
                datasets = [setting.data[key] for key in paper.datasets_of(name, scale=scale)]
                with_size = (dataset for dataset in datasets if dataset.sentences)
                cost = _training_cost(configs[name], next(with_size, None))
                parameters = cost.parameters
                steps = cost.steps
                hours = steps * _step_s(cost, setting.machine) / 3600
        elif model.represent is not None and model.represent in configs:
            configs[name] = configs[model.represent]
        estimates.append(
            ModelEstimate(
                name,
                model.kind,
                model.parts,
                parameters,
                model.parameters,
                steps,
                hours,
                hours * setting.machine.usd_per_hour,
                tuple(paper.missing(name, scale=scale, data=data)),
            )
        )
    return estimates


def _step_s(cost: _TrainingCost, machine: Machine) -> float:
    """Return the seconds of a step: its operations, its reads and writes, and the starts of its operations."""
    return (
        cost.flops / machine.flops
        + cost.moved / machine.bandwidth
        + cost.launches * machine.launch_s
    )


def planned_run(
    paper: PaperFile, name: str, configs: dict[str, RunConfig], *, scale: Scale, data: Path
) -> RunConfig:
    """Return a model's run without reading files: its start's settings are those of `configs`."""
    settings: dict[str, Any] = paper.values(name, scale=scale, data=data)
    initial = paper.models[name].initial
    if initial is not None:
        start = configs.get(initial, _AVERAGE)
        of_start = start.model_dump(mode="json")
        inherited = {
            part: of_start[part]
            for part in ("encoder", "second_encoder", "postprocessing", "vocabulary")
        }
        changed = {part: setting for part, setting in settings.items() if setting is not None}
        objective = OBJECTIVES[settings["objective"]["type"]].Config
        from_start = objective.values_from_initial(num_towers=len(start.model.towers))
        settings = {
            **inherited,
            **changed,
            "objective": {**from_start, **settings["objective"]},
        }
    return validate(RunConfig, Document(settings, source=f"models.{name}"))


class _TrainingCost(NamedTuple):
    """A run's trained parameters, its steps, and of one step: operations, bytes read and written, and launches."""

    parameters: int
    steps: int
    flops: float
    moved: float
    launches: float


def _training_cost(config: RunConfig, dataset: Dataset | None) -> _TrainingCost:
    """Return what a run's training takes.

    Args:
        config: The run.
        dataset: What it reads; None or one without a size leaves only `max_steps` to say how many steps there are.
    """
    num_words = config.vocabulary.size
    # Counted with one word and with two, beside padding and unknown ones; each further word adds as much.
    of_three = _count(config, 3)
    of_four = _count(config, 4)
    further_words = np.array([num_words, num_words, num_words, 0]) - 3
    counted = of_three + (of_four - of_three) * further_words
    parameters, in_tables, penalized, fixed = counted
    computed = parameters - in_tables
    batch = config.training.batch_size
    sentences = None
    length = 12.0
    if dataset is not None:
        sentences = dataset.sentences
        length = dataset.words
    steps = config.training.max_steps or 0
    if sentences is not None:
        steps = count_steps(config.training, steps_per_epoch=max(1, sentences // batch))
    num_columns = 1
    if isinstance(config.objective.batches, PairBatches):
        num_columns = 2
    tokens = batch * num_columns * length
    # A penalty has a gradient in every row; else only the rows of words that are read have one.
    read_share = 1.0
    if not penalized:
        read_share = min(1.0, tokens / num_words)
    read = read_share * in_tables
    moved = _ADAM_BYTES * (computed + read) + _PENALTY_BYTES * penalized
    recurrent = sum(tower.type in {"gru", "lstm"} for tower in config.model.towers)
    launches = _LAUNCHES + _LAUNCHES_PER_WORD * recurrent * length
    passes = max(1.0, steps * batch / (sentences or steps * batch or 1))
    flops = float(_FLOPS_PER_PARAMETER * computed + _FLOPS_PER_FIXED * fixed / passes) * tokens
    return _TrainingCost(int(parameters), steps, flops, float(moved), launches)


def _count(config: RunConfig, words: int) -> np.ndarray:
    """Return a run's trained parameters, those in word tables, those penalized, and fixed towers' ones, int64 [4]."""
    vocabulary = Vocabulary([PAD_WORD, UNK_WORD, *(f"w{number}" for number in range(words - 2))])
    tables = EmptyTables(vocabulary, generator=torch.Generator(device="cpu"))
    model = SentenceModel(config.model, vocabulary, tables=tables, num_classes=3)
    model._add_objectives(tables.generator, lambda: torch.ones(words))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    in_tables = sum(table.weight.numel() for table in model.tables if table.weight.requires_grad)
    penalties = [module for module in model.modules() if isinstance(module, L2Penalty)]
    fixed = (
        sum(part.numel() for tower in model.towers for part in tower.parameters())
        * config.objective.trains_code
    )
    return np.array([trained, in_tables, sum(penalty.num_read for penalty in penalties), fixed])


def _numbers_and_names(
    paper: PaperFile, tables: Sequence[str] | None, claims: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the numbers of the tables and the names of the claims that are meant.

    Raises:
        ConfigError: If there is no such table or claim.
    """
    if tables is None:
        tables = list(paper.tables)
    for number in tables:
        if number not in paper.tables:
            raise ConfigError(f"tables {number}: no such table{did_you_mean(number, paper.tables)}")
    for name in claims:
        if name not in paper.claims and name != "all":
            raise ConfigError(f"claims {name}: no such claim{did_you_mean(name, paper.claims)}")
    if "all" in claims:
        claims = list(paper.claims)
    return list(tables), list(claims)


class _Runner:
    """Makes and evaluates what tables and claims need, each model once."""

    def __init__(self, graph: Graph, *, max_hours: float | None, shows_progress: bool) -> None:
        self.graph = graph
        self._paper = graph.paper
        self._scores = Scores(graph)
        self._max_hours = max_hours
        self._shows_progress = shows_progress
        self._started = time.perf_counter()
        self._failed: dict[tuple[str, int], str] = {}
        self._made: set[tuple[str, int]] = set()

    @property
    def hours(self) -> float:
        """Hours since the start."""
        return (time.perf_counter() - self._started) / 3600

    def _progress(self, line: str) -> None:
        if self._shows_progress:
            messages.print(line, soft_wrap=True)

    def table(self, number: str) -> TableResult:
        """Make a table's models and evaluate them."""
        entry = self._paper.tables[number]
        protocol = self._paper.scales[self.graph.scale].protocol or entry.protocol
        columns = self._scores.present(entry.tasks)
        absent = dict.fromkeys(
            Column.of(column).task for column in entry.tasks if column not in columns
        )
        ours = {}
        skipped = {}
        for name, row in entry.models().items():
            problem = self._make(row.model, 0)
            if problem:
                skipped[name] = problem
                continue
            self._progress(f"table {number}: {name}")
            try:
                ours[name] = self._scores.of_columns(
                    row.model, 0, columns=columns, protocol=protocol, component=entry.component
                )
            except RaysentError as error:
                skipped[name] = str(error)
        for figures in ours.values():
            for mean, parts in entry.means.items():
                if all(part in figures for part in parts):
                    figures[mean] = float(np.mean([figures[part] for part in parts]))
        reported = reported_rows(self._paper, number, entry)
        about = [entry.about, self._paper.scales[self.graph.scale].about]
        if entry.component == "tested":
            about.insert(
                0, "models lose the top component of each set's sentences, as the paper's do"
            )
        return TableResult(
            number,
            entry.title,
            protocol,
            tuple(entry.columns),
            ours,
            reported,
            skipped,
            tuple(absent),
            tuple(text for text in about if text),
        )

    def claim(self, name: str, seeds: Sequence[int]) -> ClaimResult:
        """Make a claim's arms on all seeds and compare them."""
        entry = self._paper.claims[name]
        if entry.needs or entry.better is None or entry.worse is None:
            return ClaimResult(name, entry.claim, "not run", reason=entry.needs)
        missing = [task for task in entry.tasks if not self._scores.present([task])]
        images = self.graph.data / entry.images / "images.npy"
        if entry.images and not images.is_file():
            return ClaimResult(
                name, entry.claim, "not run", reason=f"needs features of images ({images})"
            )
        if (missing or not entry.tasks) and not (entry.metric or entry.searched or entry.images):
            reason = f"needs the files of {', '.join(missing) or 'a task'}"
            return ClaimResult(name, entry.claim, "not run", reason=reason)
        usual = protocol_of_claim(self._paper, entry, scale=self.graph.scale)
        sides = list(
            zip((entry.better, entry.worse), entry.protocols or (usual, usual), strict=True)
        )
        scores: list[tuple[float, float]] = []
        for seed in seeds:
            for arm, _ in sides:
                problem = self._make(arm, seed)
                if problem:
                    return ClaimResult(name, entry.claim, "not run", reason=f"{arm}: {problem}")
            if entry.is_in_time:
                ours, theirs = (self.graph.training_s(arm, seed) for arm, _ in sides)
                if ours > theirs:
                    reason = f"seed {seed}: {entry.better} trained {ours:.0f} s, {entry.worse} {theirs:.0f} s"
                    return ClaimResult(name, entry.claim, "not run", reason=reason)
            of_seed = []
            for arm, protocol in sides:
                self._progress(f"claim {name}: {arm}, seed {seed}")
                try:
                    of_seed.append(self._scores.of_arm(entry, arm, seed, protocol=protocol))
                except RaysentError as error:
                    return ClaimResult(name, entry.claim, "not run", reason=f"{arm}: {error}")
            scores.append((of_seed[0], of_seed[1]))
        better, worse = zip(*scores, strict=True)
        return claim_result(name, entry, better=better, worse=worse, seeds=seeds)

    def _make(self, name: str, seed: int) -> str:
        missing = self._paper.missing(name, scale=self.graph.scale, data=self.graph.data)
        if missing:
            return f"needs {', '.join(missing)}"
        for part in self._paper.order([name]):
            problem = self._failed.get((part, seed)) or self._make_one(part, seed)
            if problem:
                return problem
        return ""

    def _make_one(self, name: str, seed: int) -> str:
        if (name, seed) in self._made:
            return ""
        if self._max_hours is not None and self.hours > self._max_hours:
            return f"not begun: the limit of {self._max_hours:g} hours is reached"
        self._progress(f"making {name}, seed {seed}")
        try:
            self.graph.make(name, seed)
        except RaysentError as error:
            self._failed[(name, seed)] = str(error)
            return str(error)
        self._made.add((name, seed))
        return ""


def _save(reproduction: Reproduction, output: Path) -> None:
    """Write tables and claims beside those that earlier commands wrote at the same scale."""
    path = output / RESULTS_FILE
    about: dict[str, Any] = {}
    if path.is_file():
        about = read_json(path)
    tables = {}
    claims = {}
    if about.get("scale") == reproduction.scale:
        tables = about.get("tables", {})
        claims = about.get("claims", {})
    for table in reproduction.tables:
        tables[table.number] = asdict(table)
    for claim in reproduction.claims:
        claims[claim.name] = asdict(claim)
    about = {
        "paper": reproduction.paper,
        "scale": reproduction.scale,
        "tables": tables,
        "claims": claims,
    }
    write_json(path, about)
