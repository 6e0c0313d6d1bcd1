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
    TENSORS_FILE,
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
    # By the path, or the identity of an encoder in memory, so that each stands once.
    sources: dict[str | int, str | SentenceEncoder] = {}
    for model in models:
        if not isinstance(model, SentenceEncoder):
            paths = _paths(str(model))
        elif model.source:
            paths = _paths(model.source)
        else:
            sources[id(model)] = model
            continue
        sources |= {path: path for path in paths}
    if not sources:
        raise ArtifactError(
            f"MODEL: needs at least one run or model, such as a folder, {known_forms()}; given none"
        )
    distinct = list(sources.values())
    members = []
    for name, source in zip(_unique_names(distinct), distinct, strict=True):
        if isinstance(source, str):
            members.append(Member(name, source, model_key(source)))
        else:
            members.append(Member(name, name, uuid4().hex, source))
    return members


def model_key(path: str) -> str:
    """Return a hash of a model's content: configuration, values and vocabulary; of others, its members' hashes."""
    scheme_and_argument = find_scheme(path)
    if scheme_and_argument is not None:
        scheme, argument = scheme_and_argument
        return scheme.key(argument)
    folder = open_folder(path)
    files_folder = model_folder(folder)
    if files_folder is not None:
        files = [files_folder / name for name in (MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE)]
        return content_key(*map(_digest, files))
    keys = [model_key(member) for member in part_paths(folder)]
    fusion = folder / FUSION_FILE
    if fusion.is_file():
        return content_key(keys, read_json(fusion).get("word_weight"))
    return content_key(keys)


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
    if model_key(path) == key:
        return load(path)
    return load_earlier(path, key)


def _same_here(path: str, key: str) -> str:
    """Return the path of an encoder of the hub on this machine, where its cache lacks the commit; else the path."""
    scheme, name = split_path(path)
    if not scheme or name is None:
        return path
    folder = other_folder(name)
    if folder is None:
        return path
    local = f"{scheme}{folder}"
    if model_key(local) == key:
        return local
    return path


def _moved(path: str, key: str, beside: Path) -> str:
    """Return where a model's folder was moved to together with another one; the path where it is still there."""
    scheme, name = split_path(path)
    if name is None or is_remote(name) or not Path(name).is_absolute() or Path(name).exists():
        return path
    # The end of the old path is looked for below each folder above what was saved, the longest end first.
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
    for folder in (path, path / "model"):
        if (folder / MODEL_FILE).is_file():
            return folder
    return None


def fault_of(path: Path) -> str | None:
    """Return why a folder's model is not whole, as where a process ended while it wrote; None for a whole one."""
    from raysent.models.files import read_record, verify_files  # noqa: PLC0415 - torch comes with it

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
    if is_scheme_name(name):
        return True
    path = Path(name)
    is_combined = (path / ENSEMBLE_FILE).is_file() or (path / FUSION_FILE).is_file()
    return is_combined or model_folder(path) is not None or (path / TRIALS_FOLDER).is_dir()


def part_paths(folder: Path) -> list[str]:
    """Return the paths of the models that a composition or an ensemble is made of."""
    if (folder / COMPOSITION_FILE).is_file():
        from raysent.models import member_folders  # noqa: PLC0415 - as above

        return [str(path) for path in member_folders(folder).values()]
    return ensemble_members(folder)


def ensemble_members(folder: Path) -> list[str]:
    """Return the paths of an ensemble's or a fusion's members, as `load` takes them.

    Raises:
        ArtifactError: If the ensemble's file is missing or of another kind.
    """
    file = folder / FUSION_FILE
    if not file.is_file():
        file = folder / ENSEMBLE_FILE
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
    scheme, argument = split_path(path)
    if argument is None or is_remote(argument):
        return path
    hub_name = _hub_name(scheme, argument)
    if hub_name is not None:
        return scheme + hub_name
    member = expanded(argument).resolve()
    ensemble = folder.resolve()
    if member.is_relative_to(ensemble.parent):
        return scheme + os.path.relpath(member, ensemble)
    return scheme + to_uri(member)


def shared_name(path: str) -> str:
    """Return the name of a model for other machines: absolute paths, and addresses of what is in a bucket."""
    scheme, argument = split_path(path)
    if argument is None or is_remote(argument):
        return path
    hub_name = _hub_name(scheme, argument)
    if hub_name is not None:
        return scheme + hub_name
    return scheme + to_uri(expanded(argument))


def _hub_name(scheme: str, argument: str) -> str | None:
    """Return the name of an encoder of the hub with its commit; None for a folder, and for a path without a scheme."""
    if not scheme:
        return None
    return pinned_name(argument)


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
    scheme, argument = split_path(name)
    try:
        path = name
        if argument is not None:
            path = scheme + str(open_folder(argument))
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
    scheme, argument = split_path(path)
    if argument is None:
        return path
    if is_remote(argument):
        return scheme + str(open_folder(argument))
    member = (folder / argument).resolve()
    if scheme and not member.exists() and (Path(argument).exists() or is_encoder_name(argument)):
        # It is a name of the hub; and earlier versions stored a path as the user wrote it.
        return path
    if not member.is_relative_to(folder.resolve()):
        refresh(member)
    return scheme + str(member)


def _paths(name: str) -> list[str]:
    """Return the paths of the models that a name stands for; see `expand`."""
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
    seed_folders = sorted(path.glob(f"{SEED_FOLDER}*"))
    trained = [str(folder) for folder in seed_folders if model_folder(folder) is not None]
    if trained:
        return trained
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
    short_names = [_short_name(source) for source in sources]
    counts = Counter(short_names)
    names = []
    for source, short_name in zip(sources, short_names, strict=True):
        if counts[short_name] > 1 and isinstance(source, str) and not is_scheme_name(source):
            names.append(f"{_folder_above(source).name}-{short_name}")
        else:
            names.append(short_name)
    by_path = dict(zip(map(str, sources), names, strict=True))
    unique_names: list[str] = []
    for source, name in zip(sources, names, strict=True):
        base = name
        if isinstance(source, str):
            # What a scheme makes of another one of the models has that one's name.
            scheme, path = split_path(source)
            if scheme and path in by_path:
                base = scheme + by_path[path]
        candidates = chain([base], (f"{base}-{number}" for number in count(2)))
        unique_names.append(next(name for name in candidates if name not in unique_names))
    return unique_names


def _folder_above(path: str) -> Path:
    """Return the folder that parts two models of one name: of a trial the sweep's, of another the one above."""
    folder = Path(path).resolve()
    if folder.parent.name == TRIALS_FOLDER:
        return folder.parent.parent
    return folder.parent


def _short_name(source: str | SentenceEncoder) -> str:
    if isinstance(source, SentenceEncoder):
        return type(source).__name__
    scheme_and_argument = find_scheme(source)
    if scheme_and_argument is None:
        return Path(source).resolve().name
    scheme, argument = scheme_and_argument
    return scheme.label(argument)


def _digest(path: Path) -> str:
    try:
        return file_sha256(path)
    except ArtifactError:
        raise ArtifactError(
            f"{address_of(path)}: no such file; the model is incomplete, restore it or train again"
        ) from None
