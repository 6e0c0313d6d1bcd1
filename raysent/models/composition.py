"""`Composition`: trained models side by side, as one model in a folder of its own.

A vector is the members' vectors one after another, each of unit length, as the composed models of Quick-Thoughts and
Skip-Thoughts are. Every member keeps its own vocabulary, its own clipping of gradients in training, and any size, which
one run of the encoder `concat` cannot give them. The folder holds `composition.json` and a copy of each member.

Source: Kiros et al., 2015, section 3 (combine-skip); Logeswaran and Lee, 2018, section 4.2 (combine and MC).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from raysent.errors import ArtifactError, ConfigError
from raysent.models.files import TENSORS_FILE
from raysent.models.model import SentenceModel
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import address_of, read_json, storage_errors, write_json
from raysent.storage.layout import COMPOSITION_FILE, MEMBERS_FOLDER, MODEL_FILE, OUTCOME_FILE, VOCABULARY_FILE

KIND = "raysent composition"
# Beside a member's files: the linear map that `raysent rank --output` of 0.2 saved.
_RETIRED_MAP = "map.safetensors"
_FILES = (MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE)


class Composition(SentenceEncoder):
    """Models side by side.

    Attributes:
        members: The models by name, in the order of their blocks.
    """

    def __init__(self, members: Mapping[str, SentenceModel]) -> None:
        """Hold the members, at least one."""
        self.members = dict(members)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the sum of the sizes of the members."""
        return sum(member.get_sentence_embedding_dimension() for member in self.members.values())

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that some member reads of a longer sentence."""
        return max(member.max_length for member in self.members.values())

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the members' blocks one after another, float32 [sentences, dim]; see `SentenceEncoder`.

        A member's own blocks keep their lengths: two towers are two blocks of unit length.
        """
        blocks = [member.encode_texts(sentences, batch_size=batch_size) for member in self.members.values()]
        return np.concatenate(blocks, axis=1)

    def use_device(self, device: torch.device) -> None:
        """Move the members."""
        for member in self.members.values():
            member.use_device(device)


def compose(models: Mapping[str, Path], output: Path) -> Composition:
    """Make one model of several trained ones and save it.

    Args:
        models: Name of the member -> folder of its model, a run's or a trial's.
        output: Folder of the composition; must not hold one yet.

    Raises:
        ConfigError: If fewer than two models are given, a member has a code, or `output` is not empty.
        ArtifactError: If a folder holds no model, or `output` cannot be written.
    """
    if len(models) < 2:
        raise ConfigError(f"MODEL: a composition needs at least two models; given {len(models)}")
    check_new(output)
    members = {name: SentenceModel.load(folder) for name, folder in models.items()}
    for name, member in members.items():
        if member.code is not None:
            raise ConfigError(f"{name}: its vectors are bits, which do not compose; name the model that it was made of")
    _save(models, output)
    return Composition(members)


def check_new(output: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        ConfigError: If it does.
    """
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"--output {address_of(output)}: must be a new or an empty folder; name another")


def _save(models: Mapping[str, Path], output: Path) -> None:
    with storage_errors(output):
        for name, folder in models.items():
            place = output / MEMBERS_FOLDER / name
            place.mkdir(parents=True, exist_ok=True)
            for file in _FILES:
                shutil.copyfile(folder / file, place / file)
            if (folder / OUTCOME_FILE).is_file():  # how long it trained
                shutil.copyfile(folder / OUTCOME_FILE, place / OUTCOME_FILE)
    # Last, because it marks the members as complete.
    write_json(output / COMPOSITION_FILE, {"kind": KIND, "members": list(models)})


def member_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of a composition's members by name.

    Raises:
        ArtifactError: If its file is missing or of another kind.
    """
    about = read_json(folder / COMPOSITION_FILE)
    if not isinstance(about, dict) or about.get("kind") != KIND or not isinstance(about.get("members"), list):
        raise ArtifactError(f"{address_of(folder / COMPOSITION_FILE)}: not a composition; compose the models again")
    return {str(name): folder / MEMBERS_FOLDER / str(name) for name in about["members"]}


def load_composition(folder: Path) -> Composition:
    """Load a saved composition.

    Raises:
        ArtifactError: If a file is missing, truncated or of another kind.
    """
    folders = member_folders(folder)
    if any((path / _RETIRED_MAP).is_file() for path in folders.values()):
        raise ArtifactError(f"{address_of(folder)}: holds a map of sentences, which is read no longer; name the model")
    return Composition({name: SentenceModel.load(path) for name, path in folders.items()})
