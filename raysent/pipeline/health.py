"""`doctor`: what a path holds, and whether it is sound.

A table or a text is read without what trains and searches; `ensembles` and `sweeps` are imported once they are used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from raysent import ensembles, sweeps
from raysent.config import leaves, read_yaml
from raysent.data.corpus import (
    CorpusConfig,
    corpus_language,
    corpus_notes,
    corpus_sizes,
    count_text,
)
from raysent.data.languages import language_name, language_of_texts
from raysent.data.tables import is_table
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.task import VALIDATED, TaskData
from raysent.evaluation.task_files.settings import CORPUS_FILE
from raysent.evaluation.tasks import FilesStatus, check_data, resolve_tasks
from raysent.storage import address_of, is_remote, open_folder
from raysent.storage.layout import (
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    FUSION_FILE,
    MODEL_FILE,
    RUN_FILE,
    SWEEP_FILE,
)
from raysent.sweeps import space as space_files

# Classes that are shown with their rows.
_SHOWN_CLASSES = 12
_SPACE_SUFFIXES = (".yaml", ".yml")
_TEXT_SUFFIXES = (".txt", ".md", ".html", ".htm", ".jsonl")
# Of sentences without a neighbour: from this part on, objectives that read neighbours learn little.
_MANY_ALONE = 0.5
# Where shipped spaces and papers look for what they read, and the folder of SentEval's tasks in it.
_DATA_FOLDER, _SENTEVAL_FOLDER = "data", "senteval"
# Folders that are not examined here, by a file in them.
_OTHER_KINDS = {
    RUN_FILE: "a training",
    ENSEMBLE_FILE: "an ensemble",
    MODEL_FILE: "a model",
    COMPOSITION_FILE: "a model",
    FUSION_FILE: "a model",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Health:
    """What `doctor` found.

    Attributes:
        lines: What there is, in words: a short line, which a sweep begins with too, then a line for each fact.
        problems: What is damaged, one line each; empty if all is well.
        facts: The same as plain values.
    """

    lines: tuple[str, ...]
    problems: tuple[str, ...]
    facts: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"problems": list(self.problems), **self.facts}


def doctor(path: str | Path) -> Health:
    """Say what a table, a text, a search space, a run or a folder of task files holds; nothing is changed.

    Args:
        path: A table, which is read as for `--task`; a file or a folder of running text, read as for `--corpus`; a
            search-space file or the bare name of a shipped one, which is checked at every edge of its search; a sweep's
            folder, whose journal and ledger are checked; a folder in SentEval's layout, whose files are counted; or one
            in the layout of docs/papers.md, of which it says what shipped spaces find in it.

    Raises:
        RaysentError: If there is no such file or folder, or it cannot be read.
    """
    if is_remote(str(path)):
        return _of_sweep(open_folder(path))
    if is_table(path):
        return _of_table(str(path))
    place = Path(path)
    if place.is_dir():
        return _of_folder(place)
    is_text = place.is_file() and place.suffix.lower() not in _SPACE_SUFFIXES
    return _of_text(str(path)) if is_text else _of_space(path)


def _of_folder(folder: Path) -> Health:
    """Return what a folder holds: a sweep, passages with queries, task files, or text.

    Raises:
        ConfigError: If it is the folder of a model, an ensemble or a training.
    """
    if (folder / SWEEP_FILE).exists():
        return _of_sweep(folder)
    if (folder / CORPUS_FILE).is_file():
        return _of_table(str(folder))
    for file, kind in _OTHER_KINDS.items():
        if (folder / file).is_file():
            raise ConfigError(
                f"{folder}: must be a table, a text, a search space, a sweep or a folder of task files; given "
                f"{kind}; 'raysent evaluate {shlex.quote(str(folder))} --task TABLE' scores it"
            )
    if _is_data(folder):
        return _of_data(folder)
    found = check_data(folder)
    has_text = all(task.status == "missing" for task in found) and any(
        file.name.removesuffix(".gz").lower().endswith(_TEXT_SUFFIXES) for file in folder.rglob("*")
    )
    return _of_text(str(folder)) if has_text else _of_tasks(folder, found)


def _answer(
    short: str, facts: Iterable[tuple[str, str]], *, warnings: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the one form of an answer: a short line, then a name and a text a line; empty texts are left out."""
    rows = [(name, text) for name, text in facts if text]
    rows[-1:-1] = [("warning", warning) for warning in warnings]
    width = max((len(name) for name, _ in rows), default=0)
    return (short, *(f"  {name:<{width}}  {text}" for name, text in rows))


def _of_sweep(folder: Path) -> Health:
    record = sweeps.load_record(folder)
    problems: list[str] = []

    def checked(read: Callable[[], T]) -> T | None:
        """Return what is read; None, and its problem in the list, if a file is damaged."""
        try:
            return read()
        except ArtifactError as error:
            problems.append(str(error))
            return None

    def events_of_journal() -> list[sweeps.Event]:
        events = list(sweeps.read_events(folder))
        sweeps.check_journal(folder, events)
        return events

    def sum_of_ledger() -> float:
        sweeps.check_ledger(folder, events or ())
        return sweeps.spent_usd(folder)

    events = checked(events_of_journal)
    entries = checked(lambda: sweeps.read_ledger(folder))
    spent = None if entries is None else checked(sum_of_ledger)
    facts = {
        "run": address_of(folder),
        "num_events": None if events is None else len(events),
        "num_entries": None if entries is None else len(entries),
        "spent_usd": spent,
    }
    trials = sweeps.trials_of(events or ())
    num_ended = sum(trial.status in sweeps.ENDED for trial in trials.values())
    run = shlex.quote(address_of(folder))
    answers = checked(lambda: "; ".join(_answer_texts(folder))) or ""
    is_over = any(event["event"] == "completed" for event in events or ())
    lines = _answer(
        f"{address_of(folder)}: a sweep of {record.space.name}, {num_ended} of "
        f"{record.space.limits.trials} models trained",
        [
            ("journal", "damaged" if events is None else f"{len(events)} events"),
            ("ledger", "damaged" if entries is None else f"{len(entries)} entries"),
            ("spent", "unknown" if spent is None else f"{spent:.2f} usd"),
            ("answer", answers),
            ("next", f"raysent report {run}" if is_over else f"raysent resume {run}"),
        ],
    )
    return Health(lines, tuple(problems), facts)


def _answer_texts(folder: Path) -> list[str]:
    """Return the answer on each task, with its score."""
    return [
        f"{answer.task} {answer.short_score}, {answer.answer.title}"
        for _, answer in ensembles.read_answers(folder)
    ]


def _of_tasks(folder: Path, found: Sequence[FilesStatus]) -> Health:
    complete = [task for task in found if task.status == "complete"]
    facts = [(task.task, f"complete, {task.num_rows:,} rows") for task in complete]
    facts += [
        (task.task, f"{task.problem}; published at {task.source}")
        for task in found
        if task.status == "missing"
    ]
    problems = tuple(task.problem for task in found if task.status == "wrong")
    if all(task.status == "missing" for task in found):
        problems = (f"{folder}: must hold the files of a task at least; found none",)
    data = shlex.quote(str(folder))
    lines = _answer(
        f"{folder}: {len(complete)} of {len(found)} tasks in SentEval's layout",
        [*facts, ("sweep", f"raysent sweep quick_thoughts --corpus TEXT --data {data}")],
    )
    return Health(
        lines, problems, {"folder": str(folder), "tasks": [asdict(task) for task in found]}
    )


def _is_data(folder: Path) -> bool:
    """Return whether a folder has the layout of docs/papers.md: a file of it, or the folder of the tasks."""
    names = (_SENTEVAL_FOLDER, *_readers_of_data())
    return any((folder / name).exists() for name in names)


def _of_data(folder: Path) -> Health:
    """Return which files of the layout of docs/papers.md a folder holds, and which shipped spaces lack one."""
    has_tasks = (folder / _SENTEVAL_FOLDER).is_dir()
    tasks = check_data(folder / _SENTEVAL_FOLDER) if has_tasks else []
    readers = dict(sorted(_readers_of_data().items()))
    there = {name for name in readers if (folder / name).exists()}
    facts = []
    for name, spaces in readers.items():
        state = "there" if name in there else "missing"
        facts.append((name, f"{state}; read by {', '.join(spaces)}"))
    facts += [
        (task.task, f"complete, {task.num_rows:,} rows")
        for task in tasks
        if task.status == "complete"
    ]
    lacking = {space for name, spaces in readers.items() if name not in there for space in spaces}
    whole = sorted({space for spaces in readers.values() for space in spaces} - lacking)
    facts.append(("spaces", f"have all their files: {', '.join(whole) or 'none'}"))
    lines = _answer(
        f"{folder}: {len(there)} of {len(readers)} files that shipped spaces read, in the layout of docs/papers.md",
        facts,
    )
    problems = tuple(task.problem for task in tasks if task.status == "wrong")
    files = [
        {"file": name, "is_there": name in there, "spaces": spaces}
        for name, spaces in readers.items()
    ]
    values = {"folder": str(folder), "files": files, "tasks": [asdict(task) for task in tasks]}
    return Health(lines, problems, values)


def _readers_of_data() -> dict[str, list[str]]:
    """Return the files below the folder of data that shipped spaces name, each with the spaces that read it."""
    readers: dict[str, list[str]] = {}
    for path in space_files.shipped_spaces():
        for text in leaves(read_yaml(path).values):
            head, _, name = str(text).partition("/")
            if head == _DATA_FOLDER and path.stem not in readers.setdefault(name, []):
                readers[name].append(path.stem)
    return readers


def _of_table(path: str) -> Health:
    """Return what a sweep would read in a table, and what looks wrong."""
    tasks = resolve_tasks([path], scorings=VALIDATED)
    warnings = [warning for task in tasks for warning in task.remarks.warnings]
    lines: list[str] = []
    facts: list[dict[str, Any]] = []
    for task in tasks:
        rows = task.load()
        fact: dict[str, Any] = {"task": task.name, "scoring": task.scoring}
        named = [("read as", note.partition(": ")[2]) for note in task.remarks.notes]
        if isinstance(rows, TaskData):
            fact |= _facts_of_rows(rows)
            named += _named_facts(fact)
        facts.append(fact)
        lines += _answer(task.remarks.summary or task.name, named)
    command = f"raysent sweep --task {shlex.quote(path)}"
    last = [("sweep", f"{command} compares a pretrained encoder, TF-IDF and their ensembles")]
    lines += _answer("", last, warnings=warnings)[1:]
    return Health(tuple(lines), (), {"file": path, "tasks": facts, "warnings": warnings})


def _facts_of_rows(rows: TaskData) -> dict[str, Any]:
    """Return plain values about a table's rows: sizes, lengths in words, language and copies."""
    lengths = np.array([len(text.split()) for column in rows.sentences for text in column])
    texts = list(zip(*rows.sentences, strict=True))
    facts: dict[str, Any] = {
        "num_rows": len(rows),
        "num_test": len(rows.test),
        "words": {
            "median": float(np.median(lengths)),
            "p90": float(np.quantile(lengths, 0.9)),
            "most": int(lengths.max()),
        },
        "language": language_of_texts(rows.sentences[0]),
        "num_copies": len(texts) - len(set(texts)),
        "num_together": 0 if not len(rows.units) else len(rows) - len(np.unique(rows.units)),
    }
    if not rows.is_scored:
        counts = np.bincount(rows.labels, minlength=len(rows.label_names))
        facts["classes"] = dict(zip(rows.label_names, counts.tolist(), strict=True))
    return facts


def _named_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the same in words."""
    words, classes = facts["words"], facts.get("classes", {})
    largest = sorted(classes.items(), key=lambda of_class: -of_class[1])
    shown = [f"{name} {count:,}" for name, count in largest[:_SHOWN_CLASSES]]
    num_more = len(largest) - len(shown)
    shown += [f"{num_more} more, the smallest {largest[-1][1]:,}"] if num_more else []
    together = facts["num_together"]
    return [
        ("classes", ", ".join(shown)),
        (
            "lengths",
            f"{words['median']:g} words in the median, {words['p90']:g} in the longest tenth, "
            f"{words['most']:,} at most",
        ),
        ("language", language_name(facts["language"])),
        ("copies", f"{facts['num_copies']:,} rows have the text of another one"),
        (
            "kept together",
            f"{together:,} rows that are copies, near-copies or of one group of others are never parted"
            if together
            else "",
        ),
    ]


def _of_text(path: str) -> Health:
    """Return what a sweep would read in running text."""
    config = CorpusConfig(path=path)
    num_sentences, counts, _ = count_text(config)
    sizes = corpus_sizes(config)
    language = corpus_language(config)
    facts = {
        "file": path,
        "num_sentences": num_sentences,
        "num_documents": len(sizes),
        "num_words": int(counts.sum()),
        "num_distinct_words": int((counts > 0).sum()),
        "language": language,
    }
    alone = float(sizes[sizes < 2].sum() / max(1, sizes.sum()))
    warnings = list(
        (f"{alone:.0%} of the sentences stand alone in their document, and have no neighbour",)
        if alone > _MANY_ALONE
        else ()
    )
    lines = _answer(
        f"{path}: {num_sentences:,} sentences in {len(sizes):,} documents",
        [
            *(("read as", note) for note in corpus_notes(config)),
            ("words", f"{facts['num_words']:,}, {facts['num_distinct_words']:,} distinct"),
            ("language", language_name(language)),
            ("documents", f"{int(np.median(sizes)):,} sentences in the median"),
            ("sweep", f"raysent sweep quick_thoughts --corpus {shlex.quote(path)}"),
        ],
        warnings=warnings,
    )
    return Health(lines, (), {**facts, "warnings": warnings})


def _of_space(path: str | Path) -> Health:
    space = space_files.read_space(space_files.find_space(str(path)))
    sweeps.check_task_names(space)
    facts = {"file": str(path), "names": len(space.domains), "trials": space.limits.trials}
    lines = _answer(
        f"{path}: ok, searches {facts['names']} names in {facts['trials']} trials",
        [
            ("searched", ", ".join(space.domains)),
            ("ranked by", space.metric),
            ("sweep", f"raysent sweep {shlex.quote(str(path))}"),
        ],
    )
    return Health(lines, (), facts)
