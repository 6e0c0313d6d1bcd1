"""What a user names -> members: models with a path, a short name and a hash of their content."""

from __future__ import annotations

import functools
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from uuid import uuid4

from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.models import TENSORS_FILE, member_folders
from raysent.models.files import read_record, verify_files
from raysent.models.known import is_encoder_name, other_folder, pinned_name
from raysent.models.schemes import (
    find_scheme,
    is_scheme_name,
    known_forms,
    load,
    load_earlier,
    missing_model,
    split_path,
    with_scheme,
)
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.platforms import expanded
from raysent.storage import (
    address_of,
    content_key,
    file_sha256,
    is_remote,
    open_folder,
    read_json,
    refresh,
    safe_name,
    to_uri,
)
from raysent.storage.layout import (
    COMPOSITION_FILE,
    ENSEMBLE_FILE,
    FUSION_FILE,
    MODEL_FILE,
    OUTCOME_FILE,
    SEED_FOLDER,
    TRIALS_FOLDER,
    VOCABULARY_FILE,
)

_SHARE = "put it on storage that all machines share, or on s3://"

# A folder of a model, a run or a sweep, a scheme's name such as ``hash:50``, or an encoder in memory.
Model = str | Path | SentenceEncoder


class UnreadableModelError(ConfigError):
    """A machine of a cluster cannot read a model that another machine named."""


@dataclass(frozen=True)
class Member:
    """A model to evaluate.

    Attributes:
        name: A short name, unique among the models that are evaluated together.
        path: The argument of `load`.
        key: A hash of the model's content: equal keys mean equal vectors.
        encoder: The model itself, if it is in memory; then `path` is not loaded.
    """

    name: str
    path: str
    key: str
    encoder: SentenceEncoder | None = field(default=None, repr=False, compare=False)

    @property
    def folder(self) -> str:
        """Return the name of the folder of its records."""
        return safe_name(self.name)


def expand(models: Sequence[Model]) -> list[Member]:
    """Return the models that names stand for, each once.

    A sweep's folder stands for its trials that have a model, a folder of trainings with several seeds for each of them.
    An encoder that was loaded stands for its folder. The content of another one in memory is not hashed, so its records
    are never read again.

    Raises:
        ArtifactError: If a name is neither a model nor a sweep with a trained trial, or there is no name.
    """
    sources: list[str | SentenceEncoder] = []
    for model in models:
        if isinstance(model, SentenceEncoder):
            sources += _paths(model.source) if model.source else [model]
        else:
            sources += _paths(str(model))
    if not sources:
        raise ArtifactError(
            f"MODEL: needs at least one run or model, such as a folder, {known_forms()}; given none"
        )
    sources = list({one if isinstance(one, str) else id(one): one for one in sources}.values())
    return [
        Member(name, source, model_key(source))
        if isinstance(source, str)
        else Member(name, name, uuid4().hex, source)
        for name, source in zip(_unique_names(sources), sources, strict=True)
    ]


def model_key(path: str) -> str:
    """Return a hash of a model's content: configuration, values and vocabulary; of others, its members' hashes."""
    found = find_scheme(path)
    if found is not None:
        scheme, rest = found
        return scheme.key(rest)
    place = open_folder(path)
    folder = model_folder(place)
    if folder is None:
        keys = [model_key(member) for member in part_paths(place)]
        fusion = place / FUSION_FILE
        return (
            content_key(keys, read_json(fusion).get("word_weight"))
            if fusion.is_file()
            else content_key(keys)
        )
    files = [folder / name for name in (MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE)]
    return content_key(*map(_digest, files))


def load_saved(path: str, key: str, *, beside: Path | None = None) -> SentenceEncoder | None:
    """Return a model that was saved by name and key, reading as it did then; None where its content is another.

    Args:
        path: Its name.
        key: The hash of its content.
        beside: What was saved. Where the model's folder is gone, it may have been moved together with this.
    """
    path = _same_here(path, key)
    if beside is not None:
        path = _moved(path, key, beside.resolve())
    return load(path) if model_key(path) == key else load_earlier(path, key)


def _same_here(path: str, key: str) -> str:
    """Return the path of an encoder of the hub on this machine, where its cache lacks the commit; else the path."""
    scheme, name = split_path(path)
    folder = other_folder(name) if scheme and name is not None else None
    if folder is None:
        return path
    local = f"{scheme}{folder}"
    return local if model_key(local) == key else path


def _moved(path: str, key: str, beside: Path) -> str:
    """Return where a model's folder was moved to together with another one; the path where it is still there."""
    scheme, name = split_path(path)
    if name is None or is_remote(name) or not Path(name).is_absolute() or Path(name).exists():
        return path
    parts = Path(name).parts[1:]
    for above in beside.parents:
        for start in range(len(parts)):
            folder = above.joinpath(*parts[start:])
            if folder.is_dir() and _has_key(f"{scheme}{folder}", key):
                return f"{scheme}{folder}"
    return path


def _has_key(path: str, key: str) -> bool:
    try:
        return model_key(path) == key
    except RaysentError:
        return False


def model_folder(path: Path) -> Path | None:
    """Return the folder of the model's files, `path` or `path/model`, or None if it holds no model."""
    return next((place for place in (path, path / "model") if (place / MODEL_FILE).is_file()), None)


def fault_of(path: Path) -> str | None:
    """Return why a folder's model is not whole, as where a process ended while it wrote; None for a whole one."""
    folder = model_folder(path)
    if folder is None:
        return f"{address_of(path)}: holds no {MODEL_FILE}"
    try:
        read_record(folder)
        verify_files(folder)
    except ArtifactError as error:
        return str(error)
    return None


def is_model(name: str) -> bool:
    """Return whether a name is that of a model, a sweep or an ensemble, without loading it."""
    path = Path(name)
    return (
        is_scheme_name(name)
        or model_folder(path) is not None
        or (path / TRIALS_FOLDER).is_dir()
        or any((path / name).is_file() for name in (ENSEMBLE_FILE, FUSION_FILE))
    )


def part_paths(folder: Path) -> list[str]:
    """Return the paths of the models that a composition or an ensemble is made of."""
    if (folder / COMPOSITION_FILE).is_file():
        return [str(path) for path in member_folders(folder).values()]
    return ensemble_members(folder)


def ensemble_members(folder: Path) -> list[str]:
    """Return the paths of an ensemble's or a fusion's members, as `load` takes them.

    Raises:
        ArtifactError: If the ensemble's file is missing or of another kind.
    """
    file = folder / (FUSION_FILE if (folder / FUSION_FILE).is_file() else ENSEMBLE_FILE)
    about = read_json(file)
    try:
        paths = [str(about["paths"][name]) for name in about["members"]]
    except (KeyError, TypeError):
        raise ArtifactError(f"{file}: not an ensemble of this version; make it again") from None
    return [_located(path, folder) for path in paths]


def saved_path(path: str, folder: Path) -> str:
    """Return a member's path, or its scheme's name with a path, as `ensemble.json` in `folder` stores it.

    The path is relative for a member inside the folder or beside it, so that both can be moved together, and otherwise
    absolute.
    """
    scheme, place = split_path(path)
    if place is None or is_remote(place):
        return path
    name = pinned_name(place) if scheme else None
    if name is not None:
        return scheme + name
    member, base = expanded(place).resolve(), folder.resolve()
    return scheme + (
        os.path.relpath(member, base) if member.is_relative_to(base.parent) else to_uri(member)
    )


def shared_name(path: str) -> str:
    """Return the name of a model for other machines: absolute paths, and addresses of what is in a bucket."""
    scheme, place = split_path(path)
    if place is None or is_remote(place):
        return path
    name = pinned_name(place) if scheme else None
    return scheme + (to_uri(expanded(place)) if name is None else name)


@functools.lru_cache(maxsize=1)
def load_shared(name: str, key: str) -> tuple[str, SentenceEncoder]:
    """Return the path here of a model that another machine named by `shared_name`, and the model.

    The last one is kept, for a process that encodes one thing after another.

    Args:
        name: The model's name.
        key: The hash of its content on the other machine.

    Raises:
        UnreadableModelError: If this machine cannot read it, or has another one in its place.
    """
    scheme, place = split_path(name)
    try:
        path = name if place is None else scheme + str(open_folder(place))
        path = _same_here(path, key)
        is_same = model_key(path) == key
        encoder = load(path)
    except RaysentError as error:
        reason = f"machine {socket.gethostname()} cannot read the model ({error}); {_SHARE}"
        raise UnreadableModelError(f"{name}: {reason}") from None
    if not is_same:
        raise UnreadableModelError(
            f"{name}: machine {socket.gethostname()} has another model there; {_SHARE}"
        )
    return path, encoder


def _located(path: str, folder: Path) -> str:
    """Return the path that `load` takes for what `saved_path` stored; downloads what is in a bucket."""
    scheme, place = split_path(path)
    if place is None:
        return path
    if is_remote(place):
        return scheme + str(open_folder(place))
    found = (folder / place).resolve()
    if scheme and not found.exists() and (Path(place).exists() or is_encoder_name(place)):
        return path  # a name of the hub; and earlier versions stored a path as the user wrote it
    if not found.is_relative_to(folder.resolve()):
        refresh(found)
    return scheme + str(found)


def _paths(name: str) -> list[str]:
    name = with_scheme(name)
    if is_scheme_name(name):
        return [name]
    path = open_folder(name)
    if model_folder(path) is not None:
        return [str(path)]
    if (path / TRIALS_FOLDER).is_dir():
        trials = sorted(trial for trial in (path / TRIALS_FOLDER).iterdir() if _is_trained(trial))
        if not trials:
            raise ArtifactError(
                f"{address_of(path / TRIALS_FOLDER)}: must hold a trained trial; found none; finish the sweep first"
            )
        return [str(trial) for trial in trials]
    if any((path / file).is_file() for file in (ENSEMBLE_FILE, COMPOSITION_FILE, FUSION_FILE)):
        return [str(path)]
    seeds = sorted(
        place for place in path.glob(f"{SEED_FOLDER}*") if model_folder(place) is not None
    )
    if seeds:
        return [str(place) for place in seeds]
    if not path.exists():
        raise missing_model(path, "no such run or model")
    raise ArtifactError(
        f"{address_of(path)}: holds no {MODEL_FILE}, {TRIALS_FOLDER} or {ENSEMBLE_FILE}; name a run or a model"
    )


def _is_trained(trial: Path) -> bool:
    """Return whether a trial has left a model; half of one, of a trial that was ended as it wrote, is none."""
    if model_folder(trial) is None:
        return False
    has_ended_itself = (trial / OUTCOME_FILE).is_file()
    return has_ended_itself or fault_of(trial) is None


def _unique_names(sources: Sequence[str | SentenceEncoder]) -> list[str]:
    """Return short unique names: the folder's, with the sweep's before it if two are equal, numbered if still equal."""
    names = [_short_name(source) for source in sources]
    counts = Counter(names)
    for index, source in enumerate(sources):
        if counts[names[index]] > 1 and isinstance(source, str) and not is_scheme_name(source):
            folder = Path(source).resolve()
            above = folder.parent.parent if folder.parent.name == TRIALS_FOLDER else folder.parent
            names[index] = f"{above.name}-{names[index]}"
    by_path = dict(zip(map(str, sources), names, strict=True))
    for index, source in enumerate(
        sources
    ):  # what a scheme makes of another one of them has that one's name
        start, path = split_path(source) if isinstance(source, str) else ("", None)
        names[index] = start + by_path[path] if start and path in by_path else names[index]
    taken: set[str] = set()
    for index, name in enumerate(names):
        names[index] = next(
            one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken
        )
        taken.add(names[index])
    return names


def _short_name(source: str | SentenceEncoder) -> str:
    if isinstance(source, SentenceEncoder):
        return type(source).__name__
    found = find_scheme(source)
    return Path(source).resolve().name if found is None else found[0].label(found[1])


def _digest(path: Path) -> str:
    try:
        return file_sha256(path)
    except ArtifactError:
        raise ArtifactError(
            f"{address_of(path)}: no such file; the model is incomplete, restore it or train again"
        ) from None
