"""What a sweep of tasks alone searches: every family, on the text of the tasks' own training rows, for ten minutes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysent.config import Override
from raysent.data.corpus import corpus_language
from raysent.errors import ConfigError
from raysent.evaluation.task import VALIDATED, RetrievalData, Task, TaskData
from raysent.evaluation.tasks import load_divided, resolve_tasks
from raysent.pipeline.arguments import ranking_tasks, space_of, tasks_of
from raysent.storage import atomic_write, cache_folder, content_key
from raysent.sweeps.space import SearchSpace, with_overrides

SPACE, TRIALS, TIME = "everything", 12, "10m"
# The text of rows, in the cache until a run takes it along.
_FOLDER, _FILE = "texts", "text.jsonl"
_ENDS = ("time", "deadline", "budget")


def default_space(
    *,
    tasks: Sequence[str | Task] | None,
    corpus: str | Path | None,
    data: str | Path | None,
    set: Mapping[str, Any] | None,
    **arguments: Any,
) -> SearchSpace:
    """Return the space of a sweep that is given tasks and no space, with a reason for what was chosen.

    Args:
        tasks: Tasks, as for `sweep`.
        corpus: Text to train on; by default that of the tasks' training rows, each row a document.
        data: Folder of task files.
        set: As for `sweep`.
        arguments: Other arguments of `space_of`.

    Raises:
        ConfigError: If no task is named, or none has rows of its own to train on.
        DataError: If a task's files are wrong.
    """
    if not tasks:
        raise ConfigError(
            "space: must be given where no task is; name one, such as quick_thoughts, or a task, such as reviews.csv"
        )
    values, reasons = dict(set or {}), {}
    names = {*values, *(f"limits.{name}" for name in arguments), *(f"cost.{name}" for name in arguments)}
    if corpus is None and "corpus.path" not in values:
        place = None if data is None else Path(data)
        rows: list[TaskData | RetrievalData] = [*load_divided(tasks, place)]
        chosen = resolve_tasks(tasks, place, scorings=VALIDATED)
        found = [task.load(place) for task in chosen if task.scoring == "retrieval"]
        rows += [data for data in found if isinstance(data, RetrievalData)]
        if not rows:
            raise ConfigError(f"corpus: must be given; {', '.join(map(str, tasks))} has no table of rows to train on")
        corpus, reasons["corpus"] = _text_of(rows)
        values = {"corpus.format": "text", **values}
    if not names & {f"{section}.{name}" for section in ("limits", "cost") for name in _ENDS}:
        arguments, reasons["limits.time"] = {**arguments, "time": TIME}, "for training; no other limit is given"
    if "limits.trials" not in names:
        arguments, reasons["limits.trials"] = {**arguments, "trials": TRIALS}, "of all families in turn"
    space = space_of(SPACE, corpus=corpus, set=values, data=data, **arguments)
    if "vocabulary.type" not in values and corpus_language(space.config(space.first_params()).corpus) != "en":
        space = with_overrides(space, [Override("base.vocabulary.type", "auto", "the text's language")])
    if arguments.get("metric") is None and "metric" not in values:
        ranking = ranking_tasks(space, tasks_of(space, tasks, data, progress=False), data, are_given=True)
        if ranking is not None:
            ranked = Override("validation.downstream", ranking.model_dump(exclude_none=True), "tasks")
            space = with_overrides(space, [ranked])
    return with_overrides(space, [Override("fitted", reasons, "tasks")])


def take_along(space: SearchSpace, folder: Path) -> SearchSpace:
    """Return a space whose text, where it was made of tasks' rows, is in the run's folder and not in the cache."""
    path = Path(str(space.document.values.get("base", {}).get("corpus", {}).get("path", "")))
    if path.parent != cache_folder() / _FOLDER:
        return space
    with atomic_write(folder / _FILE) as copy:
        shutil.copyfile(path, copy)
    return with_overrides(space, [Override("base.corpus.path", str((folder / _FILE).resolve()), "corpus")])


def _text_of(tasks: Sequence[TaskData | RetrievalData]) -> tuple[Path, str]:
    """Write tasks' passages and the texts of their training rows, each once; returns the file, and why it is read."""
    found = (
        text
        for data in tasks
        for text in (
            data.passages
            if isinstance(data, RetrievalData)
            else (column[row] for row in data.train.tolist() for column in data.sentences)
        )
    )
    texts = dict.fromkeys(text for text in found if text.strip())
    # In an order that has nothing to do with labels, by which many tables are sorted.
    ordered = sorted(texts, key=content_key)
    path = cache_folder() / _FOLDER / f"{content_key(ordered)}.jsonl"
    if not path.exists():
        with atomic_write(path) as new:
            new.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in ordered), "utf-8")
    names = ", ".join(data.task for data in tasks)
    return path, f"the text of {names}: {len(ordered):,} training texts, none of the rows that test"
