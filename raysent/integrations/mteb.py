"""Models on tasks of the `mteb` package.

`MtebModel` is a model as mteb takes it: `mteb.evaluate(MtebModel(raysent.load("runs/one")), tasks)`. `evaluate_on_mteb`
runs tasks by name, or those that a Python file defines, and keeps the scores as records of raysent and in mteb's form.

Source: `mteb.models.EncoderProtocol`, `mteb.evaluate` and `mteb.ResultCache` of mteb 2.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from raysent import __version__
from raysent.errors import ArtifactError, ConfigError, DataError, did_you_mean
from raysent.evaluation.members import Member
from raysent.evaluation.records import (
    MTEB,
    MtebScore,
    costs_of,
    read_score,
    record_folder,
    write_score,
)
from raysent.models import load
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.parallel import Progress
from raysent.storage import content_key

_KEY_DIGITS = 16


class MtebModel:
    """A model with the methods that mteb calls.

    Attributes:
        encoder: The model.
        mteb_model_meta: Its entry in mteb's results.
    """

    def __init__(
        self,
        model: str | Path | SentenceEncoder,
        *,
        name: str | None = None,
        revision: str = __version__,
    ) -> None:
        """Wrap a model.

        Args:
            model: A model or an ensemble, or its name.
            name: Its name in mteb's results; by default that of its folder.
            revision: Its revision in mteb's results.

        Raises:
            ConfigError: If mteb is not installed.
        """
        _check_installed("MtebModel")
        self.encoder = load(model) if isinstance(model, str | Path) else model
        if not name and self.encoder.source:
            name = Path(self.encoder.source).name
        shown = name or type(self.encoder).__name__
        meta = import_module("mteb.models").ModelMeta
        about = {
            "name": f"raysent/{shown.replace(':', '-')}",
            "revision": revision,
            "embed_dim": self.encoder.get_sentence_embedding_dimension(),
        }
        self.mteb_model_meta = meta.create_empty(about)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **kwargs: Any) -> Float32:
        """Return the vectors of batches of texts, float32 [texts, dim], with the prompt of queries or documents."""
        kind = str(getattr(kwargs.get("prompt_type"), "value", kwargs.get("prompt_type")))
        texts = [text for batch in inputs for text in batch["text"]]
        vectors: Float32
        if kind == "query":
            vectors = self.encoder.encode_query(texts)
        elif kind == "document":
            vectors = self.encoder.encode_document(texts)
        else:
            vectors = self.encoder.encode(texts)
        return vectors

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Tensor:
        """Return the similarity of every vector of `a` and every vector of `b` [rows, columns]."""
        return self.encoder.similarity(torch.as_tensor(a), b)

    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Tensor:
        """Return the similarity row by row [rows]."""
        return self.encoder.similarity_pairwise(torch.as_tensor(a), b)


def evaluate_on_mteb(
    members: Sequence[Member],
    names: Sequence[str | Any],
    *,
    output: Path,
    progress: Progress | None = None,
) -> list[MtebScore]:
    """Return the main score of every model on tasks of mteb, in the order given.

    A score is kept as `<output>/<model>/mteb/<task>.json`, and read there if model, data and mteb are the same; scores
    of a file's own tasks are computed again, because their data has no revision. mteb's own results are in
    `<output>/mteb`, which `mteb.ResultCache` reads.

    Args:
        members: The models.
        names: Names of mteb's tasks, Python files whose classes are tasks, or tasks.
        output: Folder of the records.
        progress: Called with what is evaluated.

    Raises:
        ConfigError: If mteb is not installed, or a task is unknown.
        DataError: If a task's data cannot be loaded.
    """
    _check_installed("mteb")
    tasks = find_mteb_tasks(names)
    scores = []
    for number, member in enumerate(members):
        encoder = member.encoder
        for task_number, (task, is_published) in enumerate(tasks):
            if progress is not None:
                progress(
                    f"{member.name}: {task.metadata.name}",
                    number * len(tasks) + task_number,
                    len(members) * len(tasks),
                )
            folder = record_folder(output / member.folder, MTEB)
            key = _key(member, task)
            score = None
            # A file's own task has no revision by which a change of its data would be seen.
            if is_published:
                with contextlib.suppress(ArtifactError):  # a damaged one is computed again
                    score = read_score(folder, task.metadata.name, MtebScore, key=key)
            if score is None:
                if encoder is None:
                    encoder = load(member.path)
                score = _score(member, encoder, task, cache=output / MTEB)
                write_score(folder, score, key=key)
            scores.append(score)
    return scores


def find_mteb_tasks(names: Sequence[str | Any]) -> list[tuple[Any, bool]]:
    """Return tasks, and whether each is one of mteb's own.

    Raises:
        ConfigError: If there is no task of a name, or a file defines none.
    """
    tasks: list[tuple[Any, bool]] = []
    for name in names:
        if not isinstance(name, str):
            tasks.append((name, False))
        elif name.endswith(".py"):
            tasks += [(task, False) for task in _own_tasks(Path(name))]
        else:
            tasks.append((_published_task(name), True))
    return tasks


def _published_task(name: str) -> Any:
    library = import_module("mteb.get_tasks")
    try:
        return library.get_task(name)
    except KeyError:
        names = [
            task.metadata.name for task in import_module("mteb").get_tasks(exclude_superseded=False)
        ]
        raise ConfigError(f"mteb {name}: unknown task of mteb{did_you_mean(name, names)}") from None


def _own_tasks(path: Path) -> list[Any]:
    if not path.is_file():
        raise ConfigError(
            f"mteb {path}: no such file; name a file that defines tasks, or a task of mteb"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    base = import_module("mteb.abstasks").AbsTask
    kinds = [
        kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base)
    ]
    task_classes = [
        kind for kind in kinds if kind.__module__ == module.__name__ and "metadata" in vars(kind)
    ]
    if not task_classes:
        raise ConfigError(
            f"mteb {path}: must define a task; no class of mteb.AbsTask with `metadata` found"
        )
    return [kind() for kind in task_classes]


def _key(member: Member, task: Any) -> str:
    about = task.metadata
    return content_key(
        member.key, about.name, about.revision, list(task.eval_splits), version("mteb")
    )


def _score(member: Member, encoder: SentenceEncoder, task: Any, *, cache: Path) -> MtebScore:
    library = import_module("mteb")
    name = task.metadata.name
    try:
        task.load_data()
    except Exception as error:  # whatever a task's own loading and the hub's client raise
        reason = " ".join(str(error).split())
        raise DataError(
            f"mteb {name}: its data cannot be loaded: {type(error).__name__}: {reason}"
        ) from None
    model = MtebModel(encoder, name=member.folder, revision=member.key[:_KEY_DIGITS])
    options = {
        "cache": library.ResultCache(cache),
        "overwrite_strategy": "always",
        "co2_tracker": False,
    }
    [result] = library.evaluate(model, task, show_progress_bar=False, **options).task_results
    by_split = {
        split: {str(subset["hf_subset"]): 100 * float(subset["main_score"]) for subset in subsets}
        for split, subsets in result.scores.items()
    }
    return MtebScore(
        model=member.name,
        task=name,
        measure=str(task.metadata.main_score),
        test=100 * float(result.get_score()),
        by_split=by_split,
        dataset_revision=str(result.dataset_revision),
        mteb_version=str(result.mteb_version),
        costs=costs_of(Path(member.path)),
    )


def _check_installed(where: str) -> None:
    if find_spec("mteb") is None:
        raise ConfigError(f"{where}: needs mteb; install raysent[mteb]")


# What `raysent evaluate --mteb` finds.
SUITES = {"mteb": evaluate_on_mteb}
