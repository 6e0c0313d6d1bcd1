"""`start:PATH`: a trained model with the values that it had before its first step; what training added is the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from raysent.errors import ArtifactError, ConfigError
from raysent.models.embeddings import WordTable
from raysent.models.files import encoder_tensors, read_record
from raysent.models.model import SentenceModel
from raysent.storage import (
    address_of,
    content_key,
    file_sha256,
    load_tensors,
    open_folder,
    read_json,
)
from raysent.storage.layout import (
    MODEL_FILE,
    RUN_FILE,
    START_FILE,
    TENSORS_FILE,
    VOCABULARY_FILE,
)

FORM = "start:PATH"


def label(rest: str) -> str:
    """Return the name with the last part of the path."""
    return f"start:{Path(rest).name}"


def key(rest: str) -> str:
    """Return a key of the configuration, the vocabulary and the seed, and of word vectors that are not trained."""
    folder = model_folder(rest)
    files = (MODEL_FILE, VOCABULARY_FILE, TENSORS_FILE)
    parts: list[Any] = [file_sha256(folder / name) for name in files]
    run = _run(folder)
    parts.append(run["seed"])
    if run.get("initial"):
        parts.append(run["initial"])
    return content_key("start", *parts)


def load(rest: str) -> SentenceModel:
    """Return the model at its start.

    Raises:
        ArtifactError: If the folder holds no trained model.
        ConfigError: If its first word vectors were counted from its text, and its folder does not have them.
    """
    folder = model_folder(rest)
    trained = SentenceModel.load(folder)
    record = trained.record
    run = _run(folder)

    def vectors_of_corpus(dim: int) -> npt.NDArray[np.float32]:
        counted = _counted_vectors(folder).get(str(dim))
        if counted is None:
            counted = _fixed_vectors(trained, dim)
        if counted is None:
            raise ConfigError(
                f"start:{rest}: its first word vectors were counted from its text and {START_FILE}, which holds them, "
                "is not in its folder; train it again"
            )
        vectors: npt.NDArray[np.float32] = counted.detach().numpy()
        return vectors

    initial = None
    if run.get("initial") is not None:
        initial = open_folder(run["initial"])
    model = SentenceModel.build(
        record.config,
        trained.vocabulary,
        seed=int(run["seed"]),
        word_vectors=vectors_of_corpus,
        max_length=record.max_length,
        num_classes=record.num_classes,
        has_objective=False,
        initial=None if initial is None else encoder_tensors(initial),
    )
    if initial is not None:
        started_from = read_record(initial)
        model.learned_tasks = started_from.learned_tasks
        model.origin = started_from.origin
    return model.eval()


def _fixed_vectors(trained: SentenceModel, dim: int) -> Tensor | None:
    """Return a model's word vectors of a size that training did not change; None where it has none."""
    for tower in trained.towers:
        for module in tower.modules():
            if not isinstance(module, WordTable) or module.weight.requires_grad:
                continue
            if module.weight.shape[1] == dim:
                return module.weight
    return None


def has_run(name: str) -> bool:
    """Return whether the record of a run, which holds its seed, is there for a name such as `words:start:PATH`."""
    try:
        folder = model_folder(name.rpartition("start:")[2])
    except ArtifactError:
        return False
    return _file_of_run(folder, RUN_FILE) is not None


def model_folder(name: str) -> Path:
    """Return the folder of a trained model's files.

    Raises:
        ArtifactError: If there is none.
    """
    folder = open_folder(name)
    for files_folder in (folder, folder / "model"):
        if (files_folder / MODEL_FILE).is_file():
            return files_folder
    raise ArtifactError(f"{address_of(folder)}: holds no {MODEL_FILE}; name a training or a trial")


def _file_of_run(folder: Path, file_name: str) -> Path | None:
    """Return a file beside a model's files or in the folder above, as of a run; None if there is none."""
    for path in (folder / file_name, folder.parent / file_name):
        if path.is_file():
            return path
    return None


def _counted_vectors(folder: Path) -> dict[str, Tensor]:
    """Return the word vectors that a run counted from its text, by their size."""
    path = _file_of_run(folder, START_FILE)
    if path is None:
        return {}
    return load_tensors(path)


def _run(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run that trained a model."""
    path = _file_of_run(folder, RUN_FILE)
    if path is None:
        raise ArtifactError(
            f"start:{address_of(folder)}: has no {RUN_FILE}, which holds its seed; name a training or a trial"
        )
    config: dict[str, Any] = read_json(path)["config"]
    return config
