"""Pretrained sentence encoders by name: which are known, which are on this machine, and where the files of one are.

In: a folder, a name of the hub (`owner/name`, also with `@revision`), or a short name such as
`all-MiniLM-L6-v2`; or the language of a text. Out: `EncoderFiles`, the one answer to where a pretrained
encoder's files are, for every command.

Files are looked for in this order: a folder of that name; the hub's cache; the folders of the environment variable
`RAYSENT_MODELS`; installed packages that carry a known encoder; and last the hub, by its own client. What is known of
an encoder is data, in `known.yaml`; hashes of weights that were downloaded once are kept in the user's cache folder.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pydantic

from raysent.config import StrictModel, read_yaml, validate
from raysent.errors import ArtifactError, ConfigError
from raysent.models import hub
from raysent.platforms import expanded
from raysent.storage import cache_folder, file_sha256, open_folder, read_json, write_json

FOLDERS_VARIABLE = "RAYSENT_MODELS"
# More than this is downloaded only by its name.
LARGE_MEGABYTES = 500

_KNOWN_FILE = Path(__file__).parent / "known.yaml"
_RECORDED_FILE = "encoders.json"
_WEIGHTS_FILE = "model.safetensors"
_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_SHORT_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
# Whose models are named without their owner by nearly everyone.
_USUAL_OWNER = "sentence-transformers"
# What names an encoder that is read as it is, where models of other kinds are named too.
PRETRAINED_SCHEMES = ("st:", "hf:")
# What names the table that is distilled from an encoder.
STATIC_SCHEME = "static:"
Say = Callable[[str], object]
# Languages whose name a line has in place of their code.
_LANGUAGE_NAMES = {"en": "English"}


class KnownEncoder(StrictModel):
    """What is known of an encoder before any of its files is read.

    Attributes:
        name: Its name on the hub.
        languages: Codes of the languages that it reads; `many` for models of a hundred.
        license: Its licence.
        megabytes: Size of its weights.
        dimensions: Numbers of a vector.
        tokens: Tokens read of a longer text; None where all are.
        prompts: Texts that stand before a `query` or a `document`.
        is_static: Whether it is a table of word vectors, which is read in microseconds.
        has_code: Whether its folder has code of its own, which must be trusted.
        files: SHA-256 of its files, by their paths, where they were read.
        packages: Python packages that carry the files, with the folder inside.
    """

    name: str
    languages: list[str] | Literal["many"]
    license: str
    megabytes: int
    dimensions: int
    tokens: int | None = None
    prompts: dict[str, str] = pydantic.Field(default_factory=dict)
    is_static: bool = False
    has_code: bool = False
    files: dict[str, str] = pydantic.Field(default_factory=dict, repr=False)
    packages: dict[str, str] = pydantic.Field(default_factory=dict)

    @property
    def short_name(self) -> str:
        """The name without its owner."""
        return self.name.partition("/")[2]

    def reads(self, language: str) -> bool:
        """Return whether it was trained on texts of a language, given by its code."""
        return self.languages == "many" or language in self.languages

    @property
    def summary(self) -> str:
        """Its short name, size, licence and languages, for a line."""
        languages = "many languages"
        if self.languages != "many":
            languages = ", ".join(_LANGUAGE_NAMES.get(code, code) for code in self.languages)
        return f"{self.short_name} ({self.megabytes} MB, {self.license}, {languages})"


class _KnownFile(StrictModel):
    encoders: list[KnownEncoder]


@dataclass(frozen=True)
class EncoderFiles:
    """Where a pretrained encoder's files are.

    Attributes:
        name: Its name on the hub, or the folder as it was named.
        folder: The folder, which holds the files.
        revision: The commit of the hub; None for files that came from elsewhere.
        known: What is known of it; None where its name says nothing.
    """

    name: str
    folder: Path
    revision: str | None = None
    known: KnownEncoder | None = None

    @property
    def is_of_hub(self) -> bool:
        """Whether the hub gives the same files again, on any machine."""
        return self.revision is not None


@functools.cache
def known_encoders() -> tuple[KnownEncoder, ...]:
    """Return the encoders that are known, small ones first within each kind."""
    return tuple(validate(_KnownFile, read_yaml(_KNOWN_FILE)).encoders)


def find_known(name: str) -> KnownEncoder | None:
    """Return the known encoder of a name, with or without its owner; case does not matter."""
    wanted = name.partition("@")[0].lower()
    for encoder in known_encoders():
        if wanted in (encoder.name.lower(), encoder.short_name.lower()):
            return encoder
    return None


def is_encoder_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of sentence-transformers or of transformers."""
    if (folder / hub.MODULES_FILE).is_file():
        return True
    config = folder / hub.CONFIG_FILE
    if not config.is_file():
        return False
    settings = read_json(config)
    return isinstance(settings, dict) and "model_type" in settings


def is_encoder_name(name: str) -> bool:
    """Return whether a name is that of a known encoder, or has the form of a name on the hub."""
    return find_known(name) is not None or _HUB_NAME.fullmatch(name) is not None


# -- where the files are -----------------------------------------------------------------------------------------------


def find_encoder(
    name: str,
    *,
    revision: str | None = None,
    has_weights: bool = True,
    may_download: bool = True,
    where: str = "encoder.path",
) -> EncoderFiles:
    """Return where the files of an encoder are; those of the hub that are not here are downloaded.

    Args:
        name: A folder, also ``s3://``; a name of the hub, `owner/name`, also with ``@revision``; or a short name; with
            ``st:`` or ``hf:`` before it or without.
        revision: Branch, tag or commit of the hub, where the name has none.
        has_weights: Whether its weights are needed, or only what describes it.
        may_download: Whether the hub is asked; False for what has to be here.
        where: What names it, for messages.

    Raises:
        ArtifactError: If there is no such folder, and the hub gives none.
    """
    folder = _named_folder(name)
    if folder is None and name.startswith(PRETRAINED_SCHEMES):
        name = name.partition(":")[2]
        folder = _named_folder(name)
    if folder is not None:
        return EncoderFiles(name, folder.resolve(), known=None)
    known_encoder = find_known(name)
    hub_name, named_revision = _on_hub(name, known_encoder)
    if hub_name is None:
        raise _no_encoder(name, where, "no such folder")
    revision = revision or named_revision
    # A commit that is named gives its own files, whatever is known of others.
    expected = known_encoder if revision is None else None
    cached = _in_cache(hub_name, revision, has_weights=has_weights, known=known_encoder)
    fault = None
    if cached is not None:
        fault = _fault(cached, hub_name, expected, has_weights=has_weights)
        if fault is None:
            return EncoderFiles(hub_name, cached, hub.commit_of(cached), known_encoder)
    if expected is not None:
        local = _local_folder(expected)
        if local is not None:
            return EncoderFiles(hub_name, local, known=expected)
    if not may_download:
        if fault is not None:
            raise ArtifactError(f"{where}: {fault}")
        raise _no_encoder(name, where, "no such folder, and it is not on this machine")
    try:
        downloaded = hub.download(hub_name, revision, has_weights=has_weights)
    except hub.HubError as error:
        if fault is not None:
            raise ArtifactError(f"{where}: {fault}") from None
        raise _no_encoder(name, where, f"no such folder, and the hub gives none: {error}") from None
    files = _recorded_files(hub_name, downloaded, expected, where=where)
    return replace(files, known=known_encoder)


def pinned_name(name: str) -> str | None:
    """Return the name by which every machine finds an encoder that is here, with its commit; None for a folder.

    Args:
        name: As for `find_encoder`.
    """
    if _named_folder(name) is not None:
        return None
    try:
        files = find_encoder(name, has_weights=False, may_download=False)
    except ArtifactError:
        hub_name, revision = _on_hub(name, find_known(name))
        if hub_name is None or revision is None:
            return None
        return f"{hub_name}@{revision}"
    if files.revision is None:
        return files.name
    return f"{files.name}@{files.revision}"


def other_folder(name: str) -> Path | None:
    """Return the folder of a known encoder that this machine has elsewhere than in the hub's cache, at no commit.

    Args:
        name: A name of the hub with a commit that its cache lacks. The caller compares the files.
    """
    known_encoder = find_known(name)
    hub_name, revision = _on_hub(name, known_encoder)
    if known_encoder is None or hub_name is None or revision is None:
        return None
    if _named_folder(name) is not None or _in_cache(hub_name, revision, has_weights=True):
        return None
    files = find_local(known_encoder)
    return None if files is None else files.folder


def find_local(known: KnownEncoder) -> EncoderFiles | None:
    """Return where a known encoder's files are on this machine; None if they are not. Nothing is downloaded."""
    cached = _in_cache(known.name, None, has_weights=True, known=known)
    if cached is not None and _fault(cached, known.name, known) is None:
        return EncoderFiles(known.name, cached, hub.commit_of(cached), known)
    local = _local_folder(known)
    return None if local is None else EncoderFiles(known.name, local, known=known)


def encoder_at_hand(language: str) -> EncoderFiles | None:
    """Return the first known encoder that reads a language and is on this machine; None if none is."""
    for encoder in known_encoders():
        if encoder.is_static or encoder.has_code or not encoder.reads(language):
            continue
        files = find_local(encoder)
        if files is not None:
            return files
    return None


def reads_language(name: str, language: str) -> bool:
    """Return whether an encoder was trained on texts of a language; of an encoder that is not known, True.

    Args:
        name: As for `find_encoder`; a folder is recognised by its files.
        language: The language's code.
    """
    folder = _named_folder(name)
    if folder is None:
        encoder = find_known(name)
    else:
        of_folder = (encoder for encoder in known_encoders() if _is_known(folder, encoder))
        encoder = next(of_folder, None)
    return encoder is None or encoder.reads(language)


def smallest_encoder(language: str) -> KnownEncoder | None:
    """Return the smallest known encoder that reads a language and needs no code of its own; None if none does."""
    able = [
        encoder
        for encoder in known_encoders()
        if encoder.reads(language) and not encoder.is_static and not encoder.has_code
    ]
    return min(able, key=lambda encoder: encoder.megabytes, default=None)


def _named_folder(name: str) -> Path | None:
    if not name:
        return None
    folder = expanded(open_folder(name))
    return folder if folder.is_dir() else None


def _on_hub(name: str, known: KnownEncoder | None) -> tuple[str | None, str | None]:
    """Return the name on the hub and the revision that a user's name stands for."""
    full = _HUB_NAME.fullmatch(name)
    if full is not None:
        hub_name = known.name if known else full["name"]
        return hub_name, full["revision"]
    short = _SHORT_NAME.fullmatch(name)
    if short is None:
        return None, None
    if known is not None:
        return known.name, short["revision"]
    usual_name = f"{_USUAL_OWNER}/{short['name']}"
    # Any word has the form of a short name: only what the hub's cache has is taken for one.
    if _in_cache(usual_name, short["revision"], has_weights=False) is None:
        return None, short["revision"]
    return usual_name, short["revision"]


def _no_encoder(name: str, where: str, reason: str) -> ArtifactError:
    names = [encoder.short_name for encoder in known_encoders()]
    near = get_close_matches(name.partition("/")[2] or name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return ArtifactError(
        f"{where}: must be a model's folder, its name on the hub (owner/name) or that of a known encoder; "
        f"given {name}: {reason}{hint}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing while it reads or writes a model; missing weights are checked by the caller."""
    if find_spec("transformers") is None:
        yield
        return
    logging = import_module("transformers").utils.logging
    before = logging.get_verbosity()
    shows_progress = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shows_progress:
            logging.enable_progress_bar()


# -- the hub -----------------------------------------------------------------------------------------------------------


def download(known: KnownEncoder, *, say: Say) -> EncoderFiles:
    """Download a known encoder that was not named, with a line before it, and check it against what is known.

    Raises:
        ArtifactError: If the hub does not give it whole, gives other files than are known, or more than
            `LARGE_MEGABYTES`.
    """
    try:
        folder = hub.download(
            known.name, None, has_weights=True, most_megabytes=LARGE_MEGABYTES, say=say
        )
    except hub.HubError as error:
        raise ArtifactError(f"{known.short_name}: {error}") from None
    return _recorded_files(known.name, folder, known, where="--with")


def _recorded_files(
    name: str, folder: Path, known: KnownEncoder | None, *, where: str
) -> EncoderFiles:
    """Return a folder of the hub's cache that was downloaded or completed; its hash and commit are kept."""
    commit = hub.commit_of(folder)
    fault = _fault(folder, name, known)
    if fault is not None:
        raise ArtifactError(f"{where}: {fault}")
    weights = folder / _WEIGHTS_FILE
    if known is not None and weights.is_file():
        digest = _sha256(weights, weights.stat().st_mtime_ns)
        if _recorded().get(known.name) != {"sha256": digest, "revision": commit or ""}:
            _record_hash(known.name, digest, commit)
    return EncoderFiles(name, folder, commit, known)


def _in_cache(
    name: str, revision: str | None, *, has_weights: bool, known: KnownEncoder | None = None
) -> Path | None:
    """Return the folder of the hub's cache that holds a model; None if it is not there whole."""
    folder = hub.cached_folder(name, revision, has_weights=has_weights)
    if folder is None or known is None:
        return folder
    # Other libraries read the transformer alone: without its modules it would have other vectors.
    is_whole = known.is_static or (folder / hub.MODULES_FILE).is_file()
    return folder if is_whole else None


def _fault(
    folder: Path, name: str, known: KnownEncoder | None, *, has_weights: bool = True
) -> str | None:
    """Return why files of the hub's cache are not those of a known encoder; None where nothing says so."""
    if known is None:
        return None
    hashes = dict(known.files)
    recorded = _recorded().get(known.name)
    if not hashes and recorded is not None and recorded["revision"] == hub.commit_of(folder):
        hashes[_WEIGHTS_FILE] = recorded["sha256"]
    for file_name, digest in hashes.items():
        path = folder / file_name
        is_read = path.is_file() and (has_weights or file_name != _WEIGHTS_FILE)
        if is_read and _sha256(path, path.stat().st_mtime_ns) != digest:
            return (
                f"{name}: {file_name} in {folder} is not the one that is known by its SHA-256, {digest[:12]}…; remove "
                f"that folder, or take the files as they are by {name}@COMMIT"
            )
    return None


# -- folders and packages that carry a known encoder -------------------------------------------------------------------


def _local_folder(known: KnownEncoder) -> Path | None:
    """Return the folder of a known encoder in `RAYSENT_MODELS` or an installed package; None if there is none."""
    in_packages = (_folder_in_package(*package) for package in known.packages.items())
    for folder in (*_folders_of_models(), *in_packages):
        if folder is not None and _is_known(folder, known):
            return folder
    return None


def _folders_of_models() -> Iterator[Path]:
    """Yield the folders that `RAYSENT_MODELS` names, each a model or a folder of models."""
    for name in filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)):
        folder = expanded(name)
        if is_encoder_folder(folder):
            yield folder
        elif folder.is_dir():
            yield from (inner for inner in sorted(folder.iterdir()) if is_encoder_folder(inner))


def _folder_in_package(package: str, inner: str) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file(inner)))
    return folder if is_encoder_folder(folder) else None


def _is_known(folder: Path, known: KnownEncoder) -> bool:
    """Return whether a folder holds a known encoder: by its hashes, else by the folder's own name."""
    if known.files:
        return _has_files(folder, known.files)
    recorded = _recorded().get(known.name)
    if recorded is not None:
        return _has_files(folder, {_WEIGHTS_FILE: recorded["sha256"]})
    return folder.name.lower() in (known.short_name.lower(), known.name.lower().replace("/", "--"))


def _has_files(folder: Path, hashes: Mapping[str, str]) -> bool:
    paths = {folder / name: digest for name, digest in hashes.items()}
    if not all(path.is_file() for path in paths):
        return False
    return all(_sha256(path, path.stat().st_mtime_ns) == digest for path, digest in paths.items())


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, _changed: int) -> str:
    return file_sha256(path)


def _recorded() -> dict[str, dict[str, str]]:
    """Return the hashes of weights that were downloaded once, by the encoder's name."""
    path = cache_folder() / _RECORDED_FILE
    if not path.is_file():
        return {}
    try:
        records = read_json(path)
    except (ArtifactError, ConfigError):  # a cache: what is damaged is not known
        return {}
    if not isinstance(records, dict):
        return {}
    return {
        name: record
        for name, record in records.items()
        if isinstance(record, dict) and isinstance(record.get("sha256"), str)
    }


def _record_hash(name: str, digest: str, revision: str | None) -> None:
    record = {"sha256": digest, "revision": revision or ""}
    write_json(cache_folder() / _RECORDED_FILE, {**_recorded(), name: record})
