"""`adapt`: whether training on a text helps a model, and by which objective, judged on rows that chose nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raysent import config as configuration
from raysent.config import Document, StrictModel
from raysent.cost.config import parse_duration
from raysent.data.corpus import sentence_texts
from raysent.ensembles.soup import save_soup
from raysent.ensembles.task_ensemble import score_model
from raysent.errors import ArtifactError, ConfigError, DataError, TrainingError
from raysent.evaluation.bootstrap import BootstrapEstimate, mean_estimate
from raysent.evaluation.divided import divide_tasks
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand, model_folder
from raysent.evaluation.records import Record
from raysent.evaluation.task import PROBED, AnyData, Task, TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import resolve_tasks
from raysent.live import TrainingView
from raysent.models import SentenceModel
from raysent.pipeline.arguments import TRANSFORMERS, overrides_of, run_folder_of, start_of
from raysent.pipeline.distillation import within_time
from raysent.pipeline.evaluation import map_jobs
from raysent.progress import ProgressLines, messages
from raysent.storage import address_of, open_folder, remove_folder, write_json, write_text
from raysent.storage.layout import EVALUATION_FOLDER, MODEL_FILE, RUN_FILE, TRIALS_FOLDER
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import check_run
from raysent.training.run import RunConfig

RESULT_FILE, ADAPTED_FOLDER = "adapted.json", "adapted"
# Name -> an objective; what is compared at equal time.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "readings": {"type": "contrast", "positives": "self"},
    "neighbours": {"type": "contrast", "positives": "context"},
    "words": {"type": "masked_words"},
    "deletions": {"type": "denoising"},
    "contexts": {"type": "context_prediction"},
}
# Only of a model of two encoders, which the others train to one.
_OF_TWO = "contexts"
# Each objective is tried at both; a transformer's are lower.
_RATES, _RATES_OF_TRANSFORMERS = (1e-4, 1e-3), (3e-5, 3e-4)
# Without tasks: sentences of held-out documents, a quarter of which trains a probe, a quarter chooses and half judges.
_HELD_OUT, _MOST_DOCUMENTS, _MOST_SENTENCES, _FEWEST_SENTENCES = 0.2, 100, 8000, 60
# In points: an interval that is printed as from +0.0 is not called above zero.
_LEAST_GAIN = 0.05
_BY_DOCUMENTS = (
    "judged by which held-out document a sentence is from, in percent of what there is to know of it: a gain below "
    "half a point was none on tasks half of the time; name your tasks to be sure"
)


class _Documents(OwnTask):
    """Which document a sentence is from: few of many are named rightly, but all their probabilities say something."""

    def load(self, data_dir: Path | None = None) -> AnyData:
        data = super().load(data_dir)
        assert isinstance(data, TaskData)
        return replace(data, metric="information")


class Adapted(StrictModel):
    """What training on a text does for a model.

    Attributes:
        folder: Where the trainings and their scores are.
        helps: Whether the interval of `difference` is above zero by a tenth of a point, rounded.
        objective: What the validation rows chose: a training's objective and learning rate, or a soup of trainings.
        difference: Its test score minus that of the given model, in points, the mean over tasks; paired.
        model: The adapted model's folder if it helps, else the given model.
        validation: Training, the given model, and a soup of trainings if it is above the best -> mean validation score,
            in percent.
        left_out: Objective, or training, -> why it cannot train the model.
        sentence: All of it in words.
    """

    folder: str
    helps: bool
    objective: str
    difference: BootstrapEstimate
    model: str
    validation: dict[str, float]
    left_out: dict[str, str]
    sentence: str


def adapt(  # noqa: PLR0913 - the options of the command
    model: str | Path,
    *,
    corpus: str | Path,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    time: str = "10m",
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Adapted:
    """Train a model further on a text by several objectives in equal time, and say whether it helps.

    Validation rows choose the objective; test rows, which chose nothing, judge it against the given model by a paired
    interval. The same call with the same folder goes on where it was stopped.

    Args:
        model: Folder of a training or a trial; or a pretrained encoder: its folder, or a name such as
            ``all-MiniLM-L6-v2`` or ``owner/name@revision``.
        corpus: Text to train on.
        tasks: Tasks that judge: names, own tables and task files, or `raysent.Task`; by default it is judged by which
            held-out document of the text a sentence is from.
        data: Folder of task files in SentEval's layout.
        time: Time of all trainings together on this machine; those that have begun in the folder keep their steps.
        set: Dotted name -> value of the runs, such as ``training.batch_size``.
        output: The folder; ``runs/adapt-DATE`` by default.
        seed: Seed of everything random.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If a value is wrong, no objective can train the model, or there is nothing to judge by.
        TrainingError: If no training's loss is finite until its first report.
        RaysentError: If the model, the text or a task cannot be used.
    """
    try:
        seconds = parse_duration(time)
    except ConfigError as error:
        raise ConfigError(f"time: {error}") from None
    data_dir, folder = None if data is None else Path(data), run_folder_of(output, "adapt")
    _check_replaced(folder / ADAPTED_FOLDER)
    chosen = [] if tasks is None else resolve_tasks(tasks, data_dir, scorings=PROBED)
    runs, left_out = _runs(model, str(corpus), seed, set, has_tasks=bool(chosen))
    with ProgressLines(is_quiet=not progress) as bar:
        for config in runs.values():
            check_run(config, open_training_data(config, progress=bar))
    places = {name: folder / TRIALS_FOLDER / name for name in runs}
    judges = chosen or [_documents(next(iter(runs.values())), folder)]
    judge = divide_tasks(
        folder, [(task, data_dir) for task in judges]
    )  # nothing opens its test rows before the end
    if progress and any((place / RUN_FILE).is_file() for place in places.values()):
        messages.print(
            "trainings that have begun keep their steps, and the time is for the others; -o NEW begins again"
        )
    failed = {
        name: _train(runs[name], place, seconds / len(runs), progress=progress)
        for name, place in places.items()
    }
    left_out |= {name: why for name, why in failed.items() if why}
    places = {name: place for name, place in places.items() if not failed[name]}
    if not places:
        raise TrainingError(f"{address_of(folder)}: {next(iter(left_out.values()))}")
    given = model_folder(open_folder(model)) or f"start:{next(iter(places.values()))}"
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        options: dict[str, Any] = {"progress": bar, "map_jobs": map_jobs(), "divides": True}
        evaluator = Evaluator(folder / EVALUATION_FOLDER, data_dir, **options)
        known = evaluator.records(expand([given, *places.values()]), judge)
        if soup := save_soup(dict(list(known.items())[1:]), evaluator, run=folder, tasks=judge):
            known[soup[0]], places[soup[0].name] = soup[1], Path(soup[0].path)
    means, best, difference = _judged(list(known.values()))
    name, adapted, helps = (
        list(places)[best - 1],
        folder / ADAPTED_FOLDER,
        difference.interval[0] >= _LEAST_GAIN,
    )
    remove_folder(adapted, below=folder)
    if helps:
        SentenceModel.load(places[name]).save(adapted)
    take = address_of(adapted) if helps else str(model)
    by = ", ".join(task.name for task in chosen) or "documents"
    result = Adapted(
        folder=address_of(folder),
        helps=helps,
        objective=name,
        difference=difference,
        model=take,
        validation=dict(zip(["given", *places], means, strict=True)),
        left_out=left_out,
        sentence=_sentence(name, difference, by, take, helps=helps)
        + ("" if chosen else f"; {_BY_DOCUMENTS}"),
    )
    write_json(folder / RESULT_FILE, result.model_dump(mode="json"))
    return result


def _check_replaced(adapted: Path) -> None:
    """Refuse a folder in the place of the adapted model that is no model: it would be replaced."""
    is_own = not adapted.exists() or (adapted / MODEL_FILE).is_file()
    if not is_own:
        raise ArtifactError(
            f"{address_of(adapted)}: must be a model of an earlier call, as this one replaces it; "
            "name another output"
        )


def _train(config: RunConfig, place: Path, seconds: float, *, progress: bool) -> str:
    """Train a run for a time; return why it has no model, which is empty if its loss was finite until a report."""
    timed = within_time(config, open_training_data(config), seconds, folder=place)
    if timed.training.max_steps == 1:
        return f"must have time for two steps; given {seconds:.0f} s, in which it has one"
    if progress:
        messages.print(
            f"{place.name}: {timed.training.max_steps:,} steps, into {address_of(place)}"
        )
    with TrainingView(messages, place, is_quiet=not progress) as view:
        outcome = fit(timed, place, report=view.on_report)
    return "" if model_folder(place) is not None else outcome.message or outcome.status


def _judged(records: Sequence[Sequence[Record]]) -> tuple[list[float], int, BootstrapEstimate]:
    """Return the mean validation scores [models], the place of the best after the first, and its gain on test rows."""
    means = [float(np.mean([record.validation for record in of_model])) for of_model in records]
    best = 1 + int(np.argmax(means[1:]))
    pairs = zip(records[best], records[0], strict=True)
    differences = [score_model(one).tested.minus(score_model(other).tested) for one, other in pairs]
    return means, best, mean_estimate(differences)


def _sentence(
    name: str, difference: BootstrapEstimate, tasks: str, model: str, *, helps: bool
) -> str:
    low, high = difference.interval
    value = f"{difference.value:+.1f} [{low:+.1f}, {high:+.1f}] points from the given model on test rows of {tasks}, "
    found = f"{name}, which validation rows chose, is {value}"
    return found + (
        f"so it helps: take {model}"
        if helps
        else f"so it is not shown to help: take {model} as it is"
    )


def _runs(
    model: str | Path, corpus: str, seed: int, values: Mapping[str, Any] | None, *, has_tasks: bool
) -> tuple[dict[str, RunConfig], dict[str, str]]:
    start, kind, num_towers = start_of(model)
    text = {"path": corpus, **({} if has_tasks else {"validation_fraction": _HELD_OUT})}
    training = {"batch_size": 128, "schedule": "linear", "num_reports": 2}
    start |= {
        "validation": {"num_sentences": 1000},
        "seed": seed,
    }  # scores of tasks choose, not these
    runs, left_out = dict[str, RunConfig](), dict[str, str]()
    for name, objective in OBJECTIVES.items():
        if name == _OF_TWO and num_towers < 2:
            continue
        for rate in _RATES_OF_TRANSFORMERS if kind in TRANSFORMERS else _RATES:
            parts = {
                "corpus": text,
                "objective": objective,
                "training": {**training, "learning_rate": rate},
            }
            document = Document({**start, **parts}).with_overrides(overrides_of({}, values))
            try:
                config = configuration.validate(RunConfig, document)
            except ConfigError as error:
                left_out[name] = str(error)
            else:  # a rate that is set replaces both
                runs[f"{name}-{config.training.learning_rate:g}"] = config
    if runs:
        return runs, left_out
    why = next(iter(left_out.values()))
    if values:  # raises where the model is the reason
        _runs(model, corpus, seed, None, has_tasks=has_tasks)
        raise ConfigError(why)
    raise ConfigError(f"model: must be one that an objective can train; {why}")


def _documents(config: RunConfig, folder: Path) -> Task:
    corpus = open_training_data(config).corpus
    assert corpus is not None
    starts = corpus.document_starts[corpus.document_starts >= corpus.validation.first]
    sizes = np.diff(starts)
    kept = [
        one
        for one in np.argsort(-sizes, kind="stable")[:_MOST_DOCUMENTS]
        if sizes[one] >= _FEWEST_SENTENCES
    ]
    if len(kept) < 2:
        raise DataError(
            f"corpus: must have two held-out documents of {_FEWEST_SENTENCES} sentences, by which the model is judged; "
            f"given {len(kept)}; name tasks"
        )
    texts = sentence_texts(config.corpus, unicode_form=config.vocabulary.unicode_form)
    generator = np.random.default_rng(0)
    path = folder / "documents.csv"
    table = io.StringIO()
    rows = csv.writer(table)
    rows.writerow(("text", "label", "split"))
    for number, one in enumerate(kept):
        places = starts[one] + generator.permutation(sizes[one])[: _MOST_SENTENCES // len(kept)]
        parts = [("train", "test", "validation", "test")[place % 4] for place in range(len(places))]
        rows.writerows(
            zip(texts.texts(places), [f"document{number}"] * len(parts), parts, strict=True)
        )
    write_text(path, table.getvalue())
    return _Documents(path)
