"""A saved model's files: reading and writing `model.json`, and setting parameters from tensors by name.

`model.json` holds the parts of the model and a manifest: size and SHA-256 of the other files, type and shape of each
tensor, and a hash of itself. All are verified when the model is read, so that no damaged model loads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from torch import Tensor, nn

from raysent.config import Document, StrictModel, validate
from raysent.data.unicode_form import OF_EARLIER, UnicodeForm
from raysent.errors import ArtifactError, ConfigError
from raysent.models.config import ModelConfig
from raysent.models.origin import Origin, trained
from raysent.storage import (
    address_of,
    file_sha256,
    load_tensors,
    open_folder,
    path_below,
    read_json,
    tensor_types,
    write_json,
)
from raysent.storage.layout import (
    ENCODER_FOLDER,
    MODEL_FILE,
    RUN_FILE,
    SWEEP_FILE,
    TENSORS_FILE,
    VOCABULARY_FILE,
)

KIND = "raysent model"
_FORMAT = 2
# A fixed table counts for each tower and each member that reads it.
_MAX_OVERCOUNT = 100


class Record(StrictModel):
    """The content of `model.json`.

    Attributes:
        config: The parts of the model.
        max_length: Tokens read of a longer sentence.
        num_words: Words of its vocabulary.
        num_classes: Labels of the pairs that it was trained on; 0 where they had none.
        learned_tasks: Tasks whose labels it learned from, with the hashes of their rows; those of its start too.
        unicode_form: The form of Unicode in which it reads text; that of its vocabulary.
        origin: How its values came about; None where an earlier version wrote it without a run beside it.
    """

    config: ModelConfig
    max_length: int = pydantic.Field(ge=1, le=1_000_000)
    num_words: int = pydantic.Field(ge=2, le=1 << 31)
    num_classes: int = pydantic.Field(default=0, ge=0, le=1 << 31)
    learned_tasks: dict[str, str] = pydantic.Field(default={})
    unicode_form: UnicodeForm = OF_EARLIER
    origin: Origin | None = None


def best_encoder(name: str) -> str:
    """Return the folder of a sweep's best encoder; any other folder as it is named.

    Raises:
        ArtifactError: If the sweep has none yet.
    """
    folder = open_folder(name)
    if (folder / MODEL_FILE).exists() or not (folder / SWEEP_FILE).exists():
        return name
    if not (folder / ENCODER_FOLDER / MODEL_FILE).exists():
        raise ArtifactError(
            f"{address_of(folder)}: this sweep has no best encoder yet; finish it with "
            f"'raysent resume {address_of(folder)}', or name one of its trials"
        )
    return f"{name.rstrip('/')}/{ENCODER_FOLDER}"


def write_record(folder: Path, record: Record) -> None:
    """Write `model.json` for a folder that has the other files."""
    names = (TENSORS_FILE, VOCABULARY_FILE)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
    }
    about = {
        "kind": KIND,
        "format": _FORMAT,
        **record.model_dump(mode="json"),
        "files": files,
        "tensors": tensor_types(folder / TENSORS_FILE),
    }
    write_json(folder / MODEL_FILE, {**about, "sha256": _digest(about)}, sealed=False)


def _digest(about: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of `model.json` without this digest."""
    content = {name: part for name, part in about.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_record(folder: Path) -> Record:
    """Read `model.json`.

    Raises:
        ArtifactError: If it is missing, truncated, changed, of another kind or of another version.
    """
    path = folder / MODEL_FILE
    record = parse_record(_read(path), source=path, fix="restore it or train again")
    if record.origin is not None:
        return record
    return record.model_copy(update={"origin": _origin_of_run(folder, record.config)})


def _origin_of_run(folder: Path, config: ModelConfig) -> Origin | None:
    """Return the origin of a model that an earlier version saved: the run beside it, if that trains these parts."""
    run_folder = folder.parent if folder.name == "model" else folder
    try:
        run = read_json(run_folder / RUN_FILE)
    except ArtifactError:  # none, or a damaged one, which says nothing
        return None
    if not isinstance(run, dict) or config.objective is None:
        return None
    run_config = run.get("config")
    if not isinstance(run_config, dict):
        return None
    for name, part in (("encoder", config.encoder), ("objective", config.objective)):
        recorded = run_config.get(name)
        if not isinstance(recorded, dict) or recorded.get("type") != part.type:
            return None
    return trained(config)


def parse_record(about: Any, *, source: Path, fix: str) -> Record:
    """Return the record among the values of a file.

    Args:
        about: The file's values; those of other names are ignored.
        source: The file, for messages.
        fix: What to do if it is damaged, for messages.

    Raises:
        ArtifactError: If a value is missing, or one that no version writes.
    """
    fields: dict[str, Any] = {}
    if isinstance(about, dict):
        fields = {name: about[name] for name in Record.model_fields if name in about}
    try:
        return validate(Record, Document(fields, source=str(source)))
    except ConfigError as error:
        raise ArtifactError(f"{source}: changed or of another version ({error}); {fix}") from None


def _read(path: Path) -> dict[str, Any]:
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise ArtifactError(
            f"{path}: not a model of this version of raysent; name the folder of a trained model"
        )
    if about.get("format") != _FORMAT:
        raise ArtifactError(
            f"{path}: of another version of raysent; make the model again with 'raysent train'"
        )
    if about.get("sha256") != _digest(about):
        raise ArtifactError(f"{path}: changed since it was written; restore it or train again")
    return about


def verify_files(folder: Path) -> None:
    """Compare the files of a model with its manifest.

    Raises:
        ArtifactError: If a file is missing or was changed since the model was saved.
    """
    manifest = _read(folder / MODEL_FILE).get("files", {})
    for name, expected in manifest.items():
        path = path_below(folder, name)
        if not path.is_file():
            raise ArtifactError(f"{path}: no such file")
        if file_sha256(path) != expected["sha256"]:
            raise ArtifactError(
                f"{path}: truncated or changed since the model was saved; restore it or train again"
            )


def check_parameters(record: Record, tensors: Mapping[str, Tensor], *, source: Path | str) -> None:
    """Refuse a configuration of a much larger model than the tensors hold, before memory is allocated for it.

    Raises:
        ArtifactError: If the model has more parameters than there are numbers.
    """
    num_given = sum(tensor.numel() for tensor in tensors.values())
    try:
        expected: float = sum(
            tower.num_parameters(record.num_words) for tower in record.config.towers
        )
    except RuntimeError:  # more than torch can count
        expected = float("inf")
    if expected > _MAX_OVERCOUNT * num_given:
        raise ArtifactError(
            f"{source}: of another model: must hold {expected:,} numbers; given {num_given:,}; restore it"
        )


def encoder_tensors(folder: Path) -> dict[str, Tensor]:
    """Return a saved model's encoder parameters by name, without those of its objective, postprocessing and code.

    Raises:
        ArtifactError: If the file is missing, truncated or changed.
    """
    verify_files(folder)
    return {
        name: tensor
        for name, tensor in load_tensors(folder / TENSORS_FILE).items()
        if name.startswith(("f.", "g."))
    }


def fill(
    parameters: Mapping[str, nn.Parameter], tensors: dict[str, Tensor], *, source: Path | str
) -> None:
    """Set parameters from the tensors of the same names.

    Args:
        parameters: The parameters by name.
        tensors: Their new values, which are copied.
        source: The tensors' file, for messages.

    Raises:
        ArtifactError: If names, shapes or types are those of another model, or a value is not finite.
    """
    if tensors.keys() != parameters.keys():
        odd_name = min(tensors.keys() ^ parameters.keys())
        raise ArtifactError(
            f"{source}: of another model ('{odd_name}' is in one of the two only); restore it"
        )
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape:
            raise ArtifactError(
                f"{source}: of another model: '{name}' must be {tuple(parameter.shape)}; given {tuple(tensor.shape)}"
            )
        if tensor.dtype != parameter.dtype:
            raise ArtifactError(
                f"{source}: '{name}' must be {parameter.dtype}; given {tensor.dtype}; restore it"
            )
        if not _is_finite(tensor):
            raise ArtifactError(
                f"{source}: '{name}' holds values that are not finite; train again or restore it"
            )
        parameter.data.copy_(tensor)


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite; by NumPy, as torch first starts its threads, in 0.1 s."""
    on_cpu = tensor.detach().cpu()
    if on_cpu.dtype == torch.bfloat16:
        # NumPy has no such type.
        on_cpu = on_cpu.float()
    return bool(np.isfinite(on_cpu.numpy()).all())
