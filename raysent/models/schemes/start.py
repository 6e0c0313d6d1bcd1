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
    files = [file_sha256(folder / name) for name in (MODEL_FILE, VOCABULARY_FILE, TENSORS_FILE)]
    run = _run(folder)
    return content_key(
        "start", *files, run["seed"], *([run["initial"]] if run.get("initial") else [])
    )


def load(rest: str) -> SentenceModel:
    """Return the model at its start.

    Raises:
        ArtifactError: If the folder holds no trained model.
        ConfigError: If its first word vectors were counted from its text, and its folder does not have them.
    """
    folder = model_folder(rest)
    trained = SentenceModel.load(folder)
    record, run = trained.record, _run(folder)

    def vectors_of_corpus(dim: int) -> npt.NDArray[np.float32]:
        tables = (
            module
            for tower in trained.towers
            for module in tower.modules()
            if isinstance(module, WordTable)
        )
        fixed = (
            one.weight
            for one in tables
            if one.weight.shape[1] == dim and not one.weight.requires_grad
        )
        kept = _counted_vectors(folder).get(str(dim), next(fixed, None))
        if kept is None:
            raise ConfigError(
                f"start:{rest}: its first word vectors were counted from its text and {START_FILE}, which holds them, "
                "is not in its folder; train it again"
            )
        vectors: npt.NDArray[np.float32] = kept.detach().numpy()
        return vectors

    initial = None if run.get("initial") is None else open_folder(run["initial"])
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


def has_run(name: str) -> bool:
    """Return whether the record of a run, which holds its seed, is there for a name such as `words:start:PATH`."""
    try:
        folder = model_folder(name.rpartition("start:")[2])
    except ArtifactError:
        return False
    return any((place / RUN_FILE).is_file() for place in (folder, folder.parent))


def model_folder(name: str) -> Path:
    """Return the folder of a trained model's files.

    Raises:
        ArtifactError: If there is none.
    """
    path = open_folder(name)
    found = next(
        (place for place in (path, path / "model") if (place / MODEL_FILE).is_file()), None
    )
    if found is None:
        raise ArtifactError(
            f"{address_of(path)}: holds no {MODEL_FILE}; name a training or a trial"
        )
    return found


def _counted_vectors(folder: Path) -> dict[str, Tensor]:
    path = next(
        (place / START_FILE for place in (folder, folder.parent) if (place / START_FILE).is_file()),
        None,
    )
    return {} if path is None else load_tensors(path)


def _run(folder: Path) -> dict[str, Any]:
    for place in (folder, folder.parent):
        if (place / RUN_FILE).is_file():
            config: dict[str, Any] = read_json(place / RUN_FILE)["config"]
            return config
    raise ArtifactError(
        f"start:{address_of(folder)}: has no {RUN_FILE}, which holds its seed; name a training or a trial"
    )
