"""Which pretrained encoders take part in a sweep's answer: those that are named, else what this machine has.

In: the names of the user or of the space, and the tasks' texts. Out: models' names as `load` takes them, and a line
that says which take part and why. Nothing is downloaded in silence, and nothing large unless it is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from raysent.data.languages import language_name, language_of_texts
from raysent.data.vocabulary import SubwordVocabulary
from raysent.errors import ArtifactError, RaysentError
from raysent.evaluation.task import VALIDATED, RetrievalData, Task, TaskData
from raysent.models import load as load_model
from raysent.models.backbone import read_backbone
from raysent.models.hub import hub_answers
from raysent.models.known import (
    LARGE_MEGABYTES,
    download,
    encoder_at_hand,
    find_encoder,
    find_local,
    known_encoders,
    smallest_encoder,
)
from raysent.models.model import SentenceModel
from raysent.models.schemes import find_scheme, split_path, with_scheme
from raysent.platforms import expanded
from raysent.screen import shortened

WITH_VARIABLE = "RAYSENT_WITH"
# What a user writes to have no pretrained encoder.
NONE = "none"
# Texts of a task that are looked at for what an encoder does not read.
_NUM_SAMPLED = 1000
_MOST_UNKNOWN = 0.02
_HOW = "--with NAME or --with FOLDER names one"
_WORTH = "one is worth 5 to 16 points of accuracy on English tables with few labels"
_FEW = "no pretrained encoder (worth 5 to 16 points with few labels)"


@dataclass(frozen=True)
class ChosenEncoders:
    """The pretrained encoders that take part.

    Attributes:
        paths: Their names, as `load` takes them.
        line: Which take part and why, for a reader; empty where the user named them.
        missing: What to do for one where none takes part, in a line of a screen.
        is_expected: Whether one would be downloaded first, and then take part.
    """

    paths: tuple[str, ...]
    line: str = ""
    missing: str = ""
    is_expected: bool = False

    @property
    def short(self) -> str:
        """Their names alone."""
        places = [split_path(path)[1] or path for path in self.paths]
        return ", ".join(Path(place).name for place in places)

    @property
    def notes(self) -> list[str]:
        """Which take part and why, where the plan has their names alone."""
        return [self.line] if self.line else []

    @property
    def shown(self) -> list[str]:
        """The lines of a plan: which take part, in whatever way they were chosen."""
        if self.line:
            return [self.line]
        return [f"{path} takes part" for path in self.paths]


def choose_encoders(
    named: Sequence[str] | None,
    tasks: Sequence[Task],
    data: Path | None,
    *,
    say: Callable[[str], object],
    may_download: bool = True,
) -> ChosenEncoders:
    """Return the pretrained encoders that take part in the answer on tasks.

    Args:
        named: Folders and names; `none` or an empty list for no encoder; None for those of the environment variable
            `RAYSENT_WITH`, separated by commas, and where that is not set to look for one.
        tasks: The tasks.
        data: Folder of task files.
        say: Called with a line before something is downloaded.
        may_download: Whether an encoder that is not on this machine may be downloaded; else the line says that it would
            be.

    Raises:
        ArtifactError: If a model that is named cannot be found, or is no pretrained encoder.
    """
    by_default = os.environ.get(WITH_VARIABLE)
    if named is None and by_default is not None:
        named = [name.strip() for name in by_default.split(",") if name.strip()]
    if named is not None:
        wanted = [name for name in named if name.lower() != NONE]
        return ChosenEncoders(tuple(dict.fromkeys(map(_named_path, wanted))))
    language = _language_of(tasks, data)
    if language is None:
        return ChosenEncoders(())
    return _at_hand(language, say=say, may_download=may_download)


def with_middle_layers(paths: Sequence[str]) -> list[str]:
    """Return encoders, each followed by its middle layer where it has one."""
    members: list[str] = []
    for path in paths:
        members.append(path)
        scheme, place = split_path(path)
        if scheme == "st:" and place is not None and _has_layers(place):
            members.append(f"middle:{place}")
    return members


def reading_notes(paths: Sequence[str], tasks: Sequence[Task], data: Path | None) -> list[str]:
    """Return a line for each encoder that does not know much of a task's text, or does not read its texts to the end.

    Args:
        paths: Encoders' names, as `load` takes them.
        tasks: The tasks.
        data: Folder of task files.
    """
    notes = []
    for path in paths:
        model = load_model(path)
        if not isinstance(model, SentenceModel):
            continue
        for task in tasks:
            texts = _sample_of(task, data)
            notes += [
                f"{task.name}: {split_path(path)[1]} {what}" for what in _unread(model, texts)
            ]
    return notes


def _sample_of(task: Task, data: Path | None) -> list[str]:
    """Return texts of a task, at most so many that reading them takes a moment."""
    rows = task.load(data)
    texts: list[str] = []
    if isinstance(rows, TaskData):
        texts = rows.sentences[0]
    elif isinstance(rows, RetrievalData):
        texts = rows.passages
    step = max(1, len(texts) // _NUM_SAMPLED)
    return list(texts[::step])


def _unread(model: SentenceModel, texts: Sequence[str]) -> list[str]:
    """Return what a model does not read of texts, in words."""
    vocabulary = model.vocabulary
    if not texts or not isinstance(vocabulary, SubwordVocabulary):
        return []
    tokens = vocabulary.tokenize(texts)
    lengths = np.array([len(row) for row in tokens]) + vocabulary.num_special
    num_unknown = sum(
        vocabulary.id(token) == vocabulary.unknown_id for row in tokens for token in row
    )
    unknown_share = num_unknown / max(1, sum(map(len, tokens)))
    cut_share = float(np.mean(lengths > model.max_length))
    unread = []
    if unknown_share > _MOST_UNKNOWN:
        unread.append(f"does not know {unknown_share:.1%} of the text's tokens")
    if cut_share > 0:
        unread.append(
            f"reads the first {model.max_length:,} tokens of a text, and {cut_share:.1%} of the texts are longer"
        )
    return unread


def _named_path(name: str) -> str:
    path = with_scheme(name)
    found = find_scheme(path)
    if found is None:
        raise ArtifactError(
            f"pretrained: must be a folder of sentence-transformers or transformers, or a known encoder's name; "
            f"given {name}; a model that raysent trained is named as MODEL of 'raysent ensemble'"
        )
    scheme, place = split_path(path)
    if place is None:
        raise ArtifactError(f"pretrained: must be a pretrained encoder; given {name}")
    if expanded(place).is_dir():
        return scheme + str(expanded(place).resolve())
    found[0].key(found[1])  # finds its files, or says why there are none
    return path


def _language_of(tasks: Sequence[Task], data: Path | None) -> str | None:
    """Return the language of the first task that has texts of its own; None where none has."""
    for task in tasks:
        if task.scoring not in VALIDATED:
            continue
        rows = task.load(data)
        if isinstance(rows, TaskData):
            return language_of_texts(rows.sentences[0])
        if isinstance(rows, RetrievalData):
            return language_of_texts(rows.passages)
    return None


def _at_hand(language: str, *, say: Callable[[str], object], may_download: bool) -> ChosenEncoders:
    if find_spec("transformers") is None:
        line = f"no pretrained encoder takes part: pip install 'raysent[pretrained]' reads them; {_WORTH}"
        missing = f"{_FEW}: pip install 'raysent[pretrained]'"
        return ChosenEncoders((), line, missing)
    files = encoder_at_hand(language)
    if files is not None and files.known is not None:
        line = f"{files.known.summary} is on this machine and takes part; --with none leaves it out"
        return ChosenEncoders((f"st:{files.name}",), line)
    smallest = smallest_encoder(language)
    is_small = smallest is not None and smallest.megabytes <= LARGE_MEGABYTES
    if smallest is not None and is_small and hub_answers():
        if not may_download:
            line = (
                f"{smallest.summary} would be downloaded and take part; --with none leaves it out"
            )
            return ChosenEncoders((), line, missing=shortened(line), is_expected=True)
        try:
            files = download(smallest, say=say)
        except ArtifactError as error:
            missing = shortened(f"no pretrained encoder takes part: {error}")
            return ChosenEncoders((), f"no pretrained encoder takes part: {error}", missing)
        return ChosenEncoders((f"st:{files.name}",), f"{smallest.short_name} takes part")
    others = [known.short_name for known in known_encoders() if find_local(known) is not None]
    if others:
        line = (
            f"{', '.join(others)} on this machine reads no texts in {language_name(language)}, and takes no part; "
            f"{_HOW}"
        )
        missing = f"no pretrained encoder here reads {language_name(language)}; {_HOW}"
        return ChosenEncoders((), line, missing)
    line = f"no pretrained encoder is on this machine, and none can be downloaded; {_WORTH}; {_HOW}"
    return ChosenEncoders((), line, f"{_FEW}: {_HOW}")


def _has_layers(place: str) -> bool:
    """Return whether raysent's own tower reads an encoder, and so its layers too; its weights are not read."""
    try:
        read_backbone(str(find_encoder(place, has_weights=False).folder))
    except RaysentError:
        return False
    return True
