"""A saved model's files: reading and writing `model.json`, and setting parameters from tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raysent import config as configuration
from raysent.errors import ArtifactError, ConfigError
from raysent.models.config import ModelConfig
from raysent.storage import load_tensors, read_json, write_json
from raysent.storage.layout import MODEL_FILE

TENSORS_FILE = "model.safetensors"

KIND = "raysent model"
_FORMAT = 1


class Record(NamedTuple):
    """The content of `model.json`.

    Attributes:
        config: The parts of the model.
        max_length: Tokens read of a longer sentence.
        num_words: Words of its vocabulary.
        num_classes: Labels of the pairs that it was trained on; 0 where they had none.
    """

    config: ModelConfig
    max_length: int
    num_words: int
    num_classes: int


def write_record(folder: Path, record: Record) -> None:
    """Write `model.json`."""
    about = {"kind": KIND, "format": _FORMAT, **record._asdict(), "config": record.config.model_dump(mode="json")}
    write_json(folder / MODEL_FILE, about)


def read_record(folder: Path) -> Record:
    """Read `model.json`.

    Raises:
        ArtifactError: If it is missing, truncated, of another kind or of another version.
    """
    path = folder / MODEL_FILE
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != KIND or about.get("format") != _FORMAT:
        raise ArtifactError(f"{path}: not a model of this version of raysent; name the folder of a trained model")
    try:
        document = configuration.Document(values=about["config"], source=str(path))
        config = configuration.validate(ModelConfig, document, context=configuration.UPGRADE)
        return Record(config, int(about["max_length"]), int(about["num_words"]), int(about.get("num_classes", 0)))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: changed or of another version ({error}); restore it or train again") from None


def encoder_tensors(folder: Path) -> dict[str, Tensor]:
    """Return a saved model's encoder parameters by name, without those of its objective, postprocessing and code.

    Raises:
        ArtifactError: If the file is missing or truncated.
    """
    read_record(folder)
    return {name: value for name, value in load_tensors(folder / TENSORS_FILE).items() if name.startswith(("f.", "g."))}


def fill(own: Mapping[str, nn.Parameter], tensors: dict[str, Tensor], *, source: Path | str) -> None:
    """Set parameters from the tensors of the same names.

    Raises:
        ArtifactError: If names or shapes are those of another model, or a value is not finite.
    """
    if tensors.keys() != own.keys():
        odd = sorted(tensors.keys() ^ own.keys())[0]
        raise ArtifactError(f"{source}: of another model ('{odd}' is in one of the two only); restore it")
    for name, parameter in own.items():
        given = tensors[name]
        if given.shape != parameter.shape:
            raise ArtifactError(
                f"{source}: of another model: '{name}' must be {tuple(parameter.shape)}; given {tuple(given.shape)}"
            )
        if not torch.isfinite(given).all():
            raise ArtifactError(f"{source}: '{name}' holds values that are not finite; train again or restore it")
        parameter.data.copy_(given)
