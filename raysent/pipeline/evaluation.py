"""Models evaluated on tasks, with all labels or few, and combined into ensembles."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from raysent.ensembles import (
    DEFAULT_SIZES,
    Ensemble,
    LabelCurve,
    label_curve,
    load_ensemble,
    write_curves,
)
from raysent.ensembles import default_folder as ensemble_folder
from raysent.ensembles.combining import combine
from raysent.ensembles.fusion import FusedModel, load_fusion, save_fusion
from raysent.ensembles.label_curves import parse_sizes
from raysent.errors import BudgetError, ConfigError, WorkerError
from raysent.evaluation.baselines import LEXICAL, baselines_of, can_answer
from raysent.evaluation.divided import is_ranked_by_other_rows
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import Evaluator, MapJobs, run_in_turn
from raysent.evaluation.members import Member, Model, UnreadableModelError, load_shared, shared_name
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.protocols import DIVIDED, protocol_name
from raysent.evaluation.records import AnyScore
from raysent.evaluation.task import VALIDATED, AnyData, RetrievalData, Task, TaskData
from raysent.evaluation.task_files import SIMILARITY_SUFFIX, OwnTask
from raysent.evaluation.task_files.queries import with_dev
from raysent.evaluation.tasks import resolve_tasks
from raysent.kernels.device_choice import chosen_device, use_device
from raysent.kernels.devices import default_device, set_matmul_precision
from raysent.models import load as load_model
from raysent.models.pretrained import trust_remote_code as trusting
from raysent.models.sentence_encoder import SentenceEncoder, check_size
from raysent.parallel import map_in_processes, num_processes_for
from raysent.pipeline.arguments import print_remarks
from raysent.pipeline.choosing import names_that_chose
from raysent.pipeline.results import scores_frame
from raysent.progress import ProgressLines, messages
from raysent.registry import Registry, by_table
from raysent.screen import warn
from raysent.storage import address_of, open_folder
from raysent.storage.layout import EVALUATION_FOLDER, TRIALS_FOLDER
from raysent.sweeps.machines import MAX_TRIALS, gpu_share
from raysent.training.ray_session import has_cores, map_on_ray

# Tasks of other packages: an entry point of the group `raysent.suites` has a table `SUITES`, name -> function that
# returns scores of models on tasks; it is given the folder of their records (`output`) and `progress`.
SUITES: Registry[Callable[..., Sequence[AnyScore]]] = Registry(
    "suite of tasks", read=by_table("SUITES"), plural="suites"
)
# Where scores of models without a folder of their own are kept.
SCORES_FOLDER = Path("runs") / "evaluated"

# With fewer rows in all jobs together, other processes would be ready too late to help.
_LEAST_ROWS = 4000
# Of a process that evaluates: libraries, a small model and a task's features.
_PROCESS_BYTES = 1 << 30


@dataclass(frozen=True)
class EvaluationOptions:
    """How models are evaluated: the arguments of `evaluate`, which documents them.

    Attributes:
        tasks: Tasks; None for all whose files are there, or with `mteb` for none.
        mteb: Tasks of the mteb package.
        data: Folder of task files.
        protocol: The protocol, with or without its configuration.
        config: The configuration of the protocol.
        output: Folder of the records.
        baselines: Whether baselines are evaluated too; None for the protocol ``fast`` alone.
        processes: Models and tasks at the same time.
        address: A Ray cluster.
        trust_remote_code: Whether code in a pretrained model's folder may run.
        progress: Whether to show progress.
    """

    tasks: Sequence[str | Task] | None = None
    mteb: Sequence[str | Any] | None = None
    data: str | Path | None = None
    protocol: str = "fast"
    config: str | None = None
    output: str | Path | None = None
    baselines: bool | None = None
    processes: int | None = None
    address: str | None = None
    trust_remote_code: bool = False
    progress: bool = True

    @property
    def data_dir(self) -> Path | None:
        """The folder of task files."""
        return None if self.data is None else Path(self.data)

    @property
    def full_protocol(self) -> str:
        """The name of the protocol with its configuration."""
        return protocol_name(self.protocol, self.config)

    def folder_of(self, models: Sequence[Model]) -> Path:
        """Return the folder of the records."""
        if self.output is None:
            return scores_folder(models) / EVALUATION_FOLDER
        return open_folder(self.output)

    def resolved(self) -> list[Task]:
        """Return the tasks."""
        if self.tasks is None and self.mteb is not None:
            return []
        return resolve_tasks(self.tasks, self.data_dir)


def evaluate(  # noqa: PLR0913 - the options of the command
    models: Model | Sequence[Model],
    *,
    tasks: Sequence[str | Task] | None = None,
    mteb: Sequence[str | Any] | None = None,
    data: str | Path | None = None,
    protocol: str = "fast",
    config: str | None = None,
    output: str | Path | None = None,
    baselines: bool | None = None,
    processes: int | None = None,
    address: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Evaluate models on tasks: fit a probe on frozen vectors, or correlate similarities with human ratings.

    Args:
        models: Folders of trainings, trials, ensembles or sweeps (which stand for all their trials), names such as
            ``hash:50``, ``st:PATH`` and ``hf:PATH``, or encoders in memory.
        tasks: Names of tasks, own tables and task files, or `raysent.Task`; by default all whose files are
            in `data`, or the embedded ones; with `mteb`, none.
        mteb: Tasks of the mteb package: names, Python files that define tasks, or tasks themselves. They run in this
            process.
        data: Folder of task files in SentEval's layout.
        protocol: ``fast``, ``senteval`` or ``kiros``. Scores of different protocols are not comparable.
        config: A configuration of the protocol, such as ``prototyping``.
        output: Folder of the records, which are read instead of made again; by default ``evaluation/`` of the first
            model's folder.
        baselines: Whether to also evaluate what every model should beat: `tfidf`, the mean of the first model's word
            vectors, that model at its start, and random word vectors; by default with the protocol ``fast``, and
            not on tasks of `mteb`.
        processes: Evaluate so many models and tasks at the same time; by default one for each core where there are
            rows enough.
        address: Evaluate on a running Ray cluster.
        trust_remote_code: Whether code in a pretrained model's folder may run.
        progress: Whether to show progress on standard error.

    Returns:
        One row per model and task: ``model``, ``task``, ``protocol``, ``validation``, ``test`` (percent, or a
        correlation times 100), ``low`` and ``high`` (95 % bootstrap interval of ``test``), and further measures.

    Raises:
        RaysentError: If a model, a task or the protocol is unknown, or files are missing or wrong; if mteb is needed
            and not installed.
    """
    options = EvaluationOptions(
        tasks=tasks,
        mteb=mteb,
        data=data,
        protocol=protocol,
        config=config,
        output=output,
        baselines=baselines,
        processes=processes,
        address=address,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    named = [models] if isinstance(models, (str, Path, SentenceEncoder)) else list(models)
    return scores_frame(evaluate_models(named, options))


def evaluate_models(models: Sequence[Model], options: EvaluationOptions) -> list[AnyScore]:
    """Return the scores behind `evaluate`, in the order given."""
    folder = options.folder_of(models)
    data_dir, protocol = options.data_dir, options.full_protocol
    run = map_jobs(options.processes, options.address)
    chosen = options.resolved()
    if options.progress:
        print_remarks(chosen, with_summaries=True)
    _warn_of_ranking_rows(models, chosen, data_dir, is_divided=protocol == DIVIDED)
    has_baselines = options.baselines
    if has_baselines is None:
        has_baselines = protocol.partition("/")[0] == "fast" and bool(chosen)
    scores: list[AnyScore] = []
    with (
        trusting(options.trust_remote_code),
        ProgressLines(prefix="evaluating ", is_quiet=not options.progress) as bar,
    ):
        evaluator = Evaluator(folder, data_dir, protocol, progress=bar, map_jobs=run, goes_on=True)
        _warn_of_ranking_pairs(models, chosen)
        ranked = [task for task in chosen if task.scoring == "retrieval"]
        unranked = [task for task in chosen if task.scoring != "retrieval"]
        names = names_that_chose(models) if ranked else frozenset()
        for group in filter(None, (unranked, *([task] for task in ranked))):
            divides = group[0].scoring == "retrieval" and group[0].name in names
            if divides:
                _say_which_queries_test(group[0], data_dir)
            others = _baselines_on(models, group, protocol) if has_baselines else []
            answering = _answering([*models, *(member.path for member in others)], group[0])
            scores += replace(evaluator, divides=divides).evaluate(answering, group)
        if options.mteb is not None:
            members = _of_suite(models, protocol, has_baselines=bool(options.baselines))
            scores += SUITES.find("mteb")(members, options.mteb, output=folder, progress=bar)
    return scores


def _baselines_on(models: Sequence[Model], tasks: Sequence[Task], protocol: str) -> list[Member]:
    """Return what models are compared with on tasks that are scored alike."""
    ranks = tasks[0].scoring == "retrieval"
    return baselines_of(expand_names(models), protocol=protocol, ranks=ranks, tasks=tasks)


def _of_suite(models: Sequence[Model], protocol: str, *, has_baselines: bool) -> list[Member]:
    """Return the models for a suite of tasks, with their baselines that have vectors."""
    if not has_baselines:
        return expand_names(models)
    others = baselines_of(expand_names(models), protocol=protocol)
    members = expand_names([*models, *(other.path for other in others)])
    return [member for member in members if member.path not in LEXICAL]


def _warn_of_ranking_pairs(models: Sequence[Model], tasks: Sequence[Task]) -> None:
    """Warn where pairs whose similarity is tested may have chosen a model by their scores."""
    pairs = [task for task in tasks if isinstance(task, OwnTask) and task.is_similarity]
    names = names_that_chose(models) if pairs else frozenset()
    for task in pairs:
        if task.name.removesuffix(SIMILARITY_SUFFIX) in names:
            warn(
                f"{task.name}: all its pairs are tested, and some of them may have chosen a model that is evaluated"
            )


def _say_which_queries_test(task: Task, data_dir: Path | None) -> None:
    """Print how many queries test a model that others of the task chose, where no part is given to choose by."""
    data = task.load(data_dir)
    assert isinstance(data, RetrievalData)
    if not len(data.dev):
        parted = with_dev(data)
        messages.print(
            f"{task.name}: {len(parted.dev):,} of its {len(data.test):,} test queries may have chosen a model that is "
            f"evaluated, so the other {len(parted.test):,} are tested",
            soft_wrap=True,
        )


def _answering(models: Sequence[Model], task: Task) -> list[Model]:
    """Return the models that answer a task, at least one: those of words answer queries, or all others."""
    ranks = task.scoring == "retrieval"
    found = [
        one
        for one in models
        if isinstance(one, SentenceEncoder) or can_answer(str(one), ranks=ranks)
    ]
    if not found:
        what = (
            "ranks passages, which needs queries"
            if not ranks
            else "predicts, and ranks no passages"
        )
        raise ConfigError(
            f"tasks {task.name}: must be a task for {models[0]}, which {what}; name another model or task"
        )
    return found


def _warn_of_ranking_rows(
    models: Sequence[Model], tasks: Sequence[Task], data: Path | None, *, is_divided: bool
) -> None:
    """Warn where rows that test may have ranked the trials that are evaluated: the sweep divided the task otherwise."""
    paths = [Path(one) for one in models if isinstance(one, (str, Path))]
    folders = {one.parent.parent if one.parent.name == TRIALS_FOLDER else one for one in paths}

    def load(task: Task) -> AnyData:
        rows = task.load(data)
        return divided(rows) if is_divided and isinstance(rows, TaskData) else rows

    for folder, task in product(sorted(folders), tasks):
        if is_ranked_by_other_rows(folder, task, load):
            warn(
                f"{task.name}: {address_of(folder)} ranked its trials by other rows of it than those that train here, "
                "so rows that test may have chosen them; with the same table and protocol fast/divided, none has"
            )


def ensemble(  # noqa: PLR0913 - the options of the command
    models: Model | Sequence[Model],
    *,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    method: str = "validation",
    output: str | Path | None = None,
    top: int | None = None,
    baselines: bool | None = None,
    protocol: str = "fast",
    config: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Ensemble | FusedModel:
    """Combine models into an ensemble, score it and save it.

    On a task with queries encoders and words rank passages together: of each encoder, all of them, words, and both by
    reciprocal ranks or a fitted weight, the best on the queries of dev is saved.

    Args:
        models: As for `evaluate`.
        tasks: Names of tasks, own tables and task files, or `raysent.Task`; by default all whose files are
            in `data`, or the embedded ones.
        data: Folder of task files in SentEval's layout.
        method: ``validation`` (weights are the members' validation scores), ``uniform``, ``best``, ``pool``,
            ``greedy``; or ``all``, which keeps the method of the best cross-validated score.
        output: The ensemble's folder; ``runs/ensemble-DATE`` by default.
        top: Keep this number of members, the best on validation.
        baselines: Whether to also score what the best member should beat; by default as for `evaluate`.
        protocol: As for `evaluate`.
        config: As for `evaluate`.
        trust_remote_code: As for `evaluate`.
        progress: Whether to show progress on standard error.

    Returns:
        The ensemble, or what ranks passages; its `result` has weights and scores with intervals.

    Raises:
        RaysentError: If an argument is wrong, or members cannot be combined.
    """
    models = [models] if isinstance(models, (str, Path, SentenceEncoder)) else list(models)
    named = [model for model in models if isinstance(model, (str, Path))]
    folder = ensemble_folder(named) if output is None else open_folder(output)
    data_dir = None if data is None else Path(data)
    chosen = resolve_tasks(tasks, data_dir, scorings=VALIDATED, default={"accuracy"})
    if progress:
        print_remarks(chosen, with_summaries=True)
    ranks = [task for task in chosen if task.scoring == "retrieval"]
    if ranks:
        if len(chosen) > 1 or (method, top, baselines, protocol, config) != (
            "validation",
            None,
            None,
            "fast",
            None,
        ):
            raise ConfigError(
                f"tasks {ranks[0].name}: must be alone, without other settings, as it ranks passages"
            )
        with (
            trusting(trust_remote_code),
            ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar,
        ):
            evaluator = Evaluator(
                folder / EVALUATION_FOLDER,
                data_dir,
                progress=bar,
                map_jobs=map_jobs(),
                divides=True,
            )
            save_fusion(models, ranks[0], evaluator, folder=folder)
            return load_fusion(folder)
    _warn_of_ranking_rows(models, chosen, data_dir, is_divided=protocol.partition("/")[0] == "fast")
    with (
        trusting(trust_remote_code),
        ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar,
    ):
        combine(
            models,
            output=folder,
            tasks=chosen,
            data_dir=data_dir,
            method=method,
            top=top,
            baselines=protocol.partition("/")[0] == "fast" if baselines is None else baselines,
            protocol=protocol_name(protocol, config),
            progress=bar,
            map_jobs=map_jobs(),
        )
        return load_ensemble(folder)


def label_curves(  # noqa: PLR0913 - the options of the command
    models: Model | Sequence[Model],
    *,
    labels: str | int | Sequence[int | str] = DEFAULT_SIZES,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    method: str = "validation",
    baselines: bool = True,
    output: str | Path | None = None,
    processes: int | None = None,
    address: str | None = None,
    progress: bool = True,
) -> list[LabelCurve]:
    """Score models, baselines and their ensembles against the number of labels, and keep the scores.

    Args:
        models: As for `evaluate`; two or more are also combined.
        labels: Numbers of labels, or ``all``; also as text, ``32,100,all``.
        tasks: As for `evaluate`; tasks with classes have curves.
        data: Folder of task files in SentEval's layout.
        method: How members are combined; as for `ensemble`.
        baselines: Whether to score baselines too.
        output: Folder that gets ``label_curves/``; by default the first model's folder.
        processes: As for `evaluate`.
        address: As for `evaluate`.
        progress: Whether to show progress on standard error.

    Returns:
        One curve for each task; its `sentence` says from how many labels on which model is best.

    Raises:
        RaysentError: If an argument is wrong, or files are missing or wrong.
    """
    named = [models] if isinstance(models, (str, Path, SentenceEncoder)) else list(models)
    sizes, run = parse_sizes(labels), map_jobs(processes, address)
    data_dir = None if data is None else Path(data)
    chosen = resolve_tasks(
        tasks, data_dir, scorings={"accuracy", "retrieval"}, default={"accuracy"}
    )
    _warn_of_ranking_rows(named, chosen, data_dir, is_divided=True)
    folder = open_folder(output) if output is not None else scores_folder(named)
    members, curves, lost = expand_names(named), list[LabelCurve](), list[ConfigError]()
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        for task in chosen:
            rows, options = task.load(data_dir), dict[str, Any](sizes=sizes, progress=bar)
            try:
                if isinstance(rows, RetrievalData):
                    raise ConfigError(
                        f"labels: {task.name} has queries; it must have classes; leave it out"
                    )
                assert isinstance(rows, TaskData)
                others = baselines_of(members, tasks=[task]) if baselines else []
                curves.append(
                    label_curve(rows, members, others, method=method, map_jobs=run, **options)
                )
            except (
                ConfigError
            ) as error:  # such as fewer rows than the smallest size: nothing else is lost
                lost.append(error)
    for one in lost:
        if not curves:
            raise one
        warn(str(one))
    write_curves(folder, curves)
    return curves


def scores_folder(models: Sequence[Model]) -> Path:
    """Return the folder that keeps scores of models: that of the first model with a folder of its own."""
    names = [model.source if isinstance(model, SentenceEncoder) else model for model in models]
    folders = [Path(name) for name in names if name is not None and Path(name).is_dir()]
    return folders[0] if folders else SCORES_FOLDER


def map_jobs(processes: int | None = None, address: str | None = None) -> MapJobs:
    """Return what runs evaluations side by side: in processes of this machine, or on a cluster.

    Args:
        processes: Processes of this machine; None takes one for each core where there are rows enough.
        address: The cluster.

    Raises:
        ConfigError: If both are given, or there are no processes.
    """
    check_size("processes", 1 if processes is None else processes)
    if processes is not None and address is not None:
        raise ConfigError(
            "processes and address: must not both be given; a cluster has its own cores"
        )
    return LocalMap(processes) if address is None else partial(_map_on_ray, address=address)


@dataclass(frozen=True)
class LocalMap:
    """Runs evaluations in processes of this machine that share its cores; a few small ones in this process.

    One process whose libraries each start a thread for every core is far slower beside another program: those threads
    wait for each other at the end of every product of a fit.

    Attributes:
        processes: Processes to use; None takes one for each core where there are rows enough.
    """

    processes: int | None = None

    def __call__(self, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the place of each job and its result, in order."""
        cores = num_processes_for(bytes_each=_PROCESS_BYTES)
        is_small = sum(len(job.data) for job in jobs) < _LEAST_ROWS or any(
            job.member.encoder for job in jobs
        )
        most = min(cores, MAX_TRIALS) if default_device().type == "cuda" else cores
        wanted = self.processes or (1 if is_small else most)
        used = max(1, min(wanted, len(jobs)))
        if used == 1:
            return run_in_turn(jobs)
        run = _RunJob(num_threads=max(1, cores // used))
        return enumerate(map_in_processes(run, jobs, num_processes=used))


class _RunJob:
    """Runs jobs in a process of its own, with so many threads; a model is loaded once for consecutive jobs."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads, self._device = num_threads, chosen_device()
        self._load = lru_cache(maxsize=1)(load_model)

    def __call__(self, job: Any) -> Any:
        return job.run(load=self._load)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_run_job, (self._num_threads, self._device)


def _make_run_job(num_threads: int, device: str | None) -> _RunJob:
    use_device(device)
    torch.set_num_threads(num_threads)
    set_matmul_precision()
    return _RunJob(num_threads)


@dataclass(frozen=True)
class ClusterMap:
    """Runs evaluations on the nodes of a cluster, and in this process what they cannot do.

    This process takes over if no node with cores is left, a node cannot read a model, a job ends its processes again
    and again, or the nodes cost too much. What is done stays done. A job whose node is lost is run again.

    Attributes:
        address: The cluster.
        prepare: Called with the number of jobs before they start.
        check: Called every second; raises `BudgetError` if the nodes cost too much.
        release: Ends the nodes when this process takes over; None if they are not this process's to end.
    """

    address: str
    prepare: Callable[[int], object] = lambda _: None
    check: Callable[[], object] = lambda: None
    release: Callable[[], object] | None = None

    def __call__(self, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the place of each job and its result, in any order."""
        left = dict(enumerate(jobs))
        if not left:
            return
        self.prepare(len(left))
        try:
            with closing(_map_on_ray(jobs, address=self.address, on_wait=self._check)) as results:
                for place, result in results:
                    del left[place]
                    yield place, result
        except (UnreadableModelError, BudgetError, WorkerError) as error:
            if isinstance(error, BudgetError) and self.release is None:
                raise
            messages.print(f"{error}; the evaluation continues on this machine", soft_wrap=True)
            if self.release is not None:
                self.release()
        places = list(left)
        for index, result in LocalMap()(list(left.values())):
            yield places[index], result

    def _check(self) -> None:
        self.check()
        if not has_cores():
            raise WorkerError("evaluation: no node of the cluster with cores is left")


def _map_on_ray(
    jobs: Sequence[Any], *, address: str | None, on_wait: Callable[[], object] = lambda: None
) -> Generator[tuple[int, Any]]:
    if not jobs:
        return
    # The rows of a task are sent apart, once to each node.
    members = [
        one.member
        if one.member.encoder is not None
        else replace(one.member, path=shared_name(one.member.path))
        for one in jobs
    ]
    sent = [
        replace(job, member=member, data=None) for job, member in zip(jobs, members, strict=True)
    ]
    rows = [job.data for job in jobs]
    yield from map_on_ray(
        _run_sent_job, sent, shared=rows, gpus_each=gpu_share, address=address, on_wait=on_wait
    )


def _run_sent_job(sent: Any, data: AnyData) -> Any:
    """Run a job that was sent without its rows, in a process that imports this module: it can load ensembles too."""
    job, member = replace(sent, data=data), sent.member
    if member.encoder is not None:
        return job.run(load=load_model)
    path, encoder = load_shared(member.path, member.key)
    return replace(job, member=replace(member, path=path)).run(load=lambda _: encoder)
