"""The hub of Hugging Face: models in its cache, and downloads that are whole or are not taken for a model.

In: a model's name on the hub, `owner/name`, and a revision. Out: the folder of the hub's cache with its files.

The hub's own client downloads, one file after another: weights first, and last what names the kind of a folder and the
branch that it is of. So a download that ends in the middle, in whatever way, leaves no folder that the next command
takes for a model. Files are compared with the hub's own hashes; one that came damaged is removed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from raysent.errors import ArtifactError, shown
from raysent.reading import parse_json
from raysent.storage import file_sha256, storage_errors
from raysent.storage.layout import CARD_FILE

# Files that say what a folder is; each kind of model has at least one.
MODULES_FILE = "modules.json"
CONFIG_FILE = "config.json"
_DESCRIPTIONS = (MODULES_FILE, CONFIG_FILE)

# What describes a model; code of a folder is part of it, and runs where it is trusted.
_DESCRIBING = frozenset({".json", ".txt", ".model", ".py"})
_SAFE_WEIGHTS = ".safetensors"
_OLDER_WEIGHTS = ".bin"
# Folders of weights in the form of other libraries.
_OTHER_FOLDERS = frozenset({"onnx", "openvino", "coreml"})
_WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
)
# Tokenizers of bytes or characters, which have no list of words.
_TOKENIZERS_WITHOUT_FILES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
# How long the hub may take to say what a model consists of.
ANSWER_S = 5.0
# Above this a bar shows how much of a file is there.
_SHOWN_BYTES = 5_000_000
_MEGABYTE = 1_000_000

Say = Callable[[str], object]


class HubError(ArtifactError):
    """A model that the hub's cache lacks and the hub does not give: the reason alone."""


@dataclass(frozen=True)
class HubFile:
    """A file of a model, as the hub lists it.

    Attributes:
        path: Its path inside the model.
        num_bytes: Its size.
        sha256: Its SHA-256; None for a small file.
        blob: Git's name of a small file, a SHA-1 of its content; None where the hub does not say.
    """

    path: str
    num_bytes: int
    sha256: str | None = None
    blob: str | None = None

    def is_whole(self, local: Path) -> bool:
        """Return whether a local file has the content that the hub lists."""
        if self.sha256 is not None:
            return file_sha256(local) == self.sha256
        if self.blob is None:
            return local.stat().st_size == self.num_bytes
        content = local.read_bytes()
        header = b"blob %d\0" % len(content)
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == self.blob


@dataclass(frozen=True)
class Listing:
    """What the hub says of a model.

    Attributes:
        name: Its name.
        commit: The commit of a revision.
        license: Its licence; None where it names none.
        files: Its files.
    """

    name: str
    commit: str
    license: str | None
    files: tuple[HubFile, ...]


def client() -> Any:
    """Return the hub's client, which comes with tokenizers; None where it is missing."""
    if find_spec("huggingface_hub") is None:
        return None
    for part in ("constants", "utils"):  # which the package has once they are imported
        import_module(f"huggingface_hub.{part}")
    return import_module("huggingface_hub")


# -- the cache ---------------------------------------------------------------------------------------------------------


def cached_folder(name: str, revision: str | None, *, has_weights: bool) -> Path | None:
    """Return the folder of the hub's cache that holds a model; None if it is not there whole.

    Args:
        name: The model's name on the hub.
        revision: Branch, tag or commit; None for the main branch.
        has_weights: Whether its weights have to be there, or only what describes it.
    """
    library = client()
    if library is None:
        return None
    for description in _DESCRIPTIONS:
        described = library.try_to_load_from_cache(name, description, revision=revision)
        if isinstance(described, str):
            folder = Path(described).parent
            is_whole = first_lacking(folder, has_weights=has_weights) is None
            return folder if is_whole else None
    return None


def commit_of(folder: Path) -> str | None:
    """Return the commit that a folder of the hub's cache is of; None for another folder."""
    if folder.parent.name != "snapshots":
        return None
    return folder.name


def first_lacking(folder: Path, *, has_weights: bool) -> str | None:
    """Return the first file that a folder needs by its own description and lacks; None for a whole one."""
    modules = _modules_of(folder)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if modules and "Transformer" not in kinds:
        # What the files of such a module are called is known to its library alone.
        if not has_weights or any(folder.rglob("*.safetensors")) or any(folder.rglob("*.bin")):
            return None
        return _WEIGHTS_FILES[0]
    root = PurePosixPath()
    needed: list[tuple[PurePosixPath, Sequence[str]]] = []
    for kind, module in zip(kinds, modules, strict=True):
        inner = PurePosixPath(str(module.get("path") or ""))
        if kind == "Transformer":
            root = inner
        elif kind in ("Pooling", "Dense"):
            needed.append((inner, (CONFIG_FILE,)))
        if kind == "Dense" and has_weights:
            needed.append((inner, _WEIGHTS_FILES))
    needed.append((root, (CONFIG_FILE,)))
    settings = _read_json(folder / root / "tokenizer_config.json")
    if not isinstance(settings, dict):
        settings = {}
    if settings.get("tokenizer_class") not in _TOKENIZERS_WITHOUT_FILES:
        needed.append((root, _TOKENIZER_FILES))
    for inner, names in needed:
        if not any((folder / inner / name).is_file() for name in names):
            return str(inner / names[0])
    return _lacking_weights(folder / root) if has_weights else None


def _modules_of(folder: Path) -> list[dict[str, Any]]:
    """Return what `modules.json` says of each module; nothing where there is no such file, or a damaged one."""
    modules = _read_json(folder / MODULES_FILE)
    if not isinstance(modules, list):
        return []
    return [module for module in modules if isinstance(module, dict)]


def _read_json(path: Path) -> Any:
    """Return the content of a file; None where it is missing or damaged."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):  # the reader of the model says what is wrong
        return None


def _lacking_weights(root: Path) -> str | None:
    """Return the first file of weights that a transformer's folder lacks, in one file or in several."""
    for name in _WEIGHTS_FILES:
        if (root / name).is_file():
            return None
        index = _read_json(root / f"{name}.index.json")
        if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
            parts = sorted(set(index["weight_map"].values()))
            return next((part for part in parts if not (root / part).is_file()), None)
    # Files of other names, such as those of a variant, are left to the library.
    if any(root.glob("*.safetensors")) or any(root.glob("pytorch_model*.bin")):
        return None
    return _WEIGHTS_FILES[0]


# -- the hub itself ----------------------------------------------------------------------------------------------------


def hub_answers() -> bool:
    """Return whether the hub can be asked: it is not switched off, and answers within a few seconds."""
    library = client()
    if library is None or library.constants.HF_HUB_OFFLINE:
        return False
    try:
        library.utils.get_session().head(library.constants.ENDPOINT, timeout=ANSWER_S)
    except Exception:  # of the client's HTTP library, which differs by version
        return False
    return True


def download(
    name: str,
    revision: str | None,
    *,
    has_weights: bool,
    most_megabytes: int | None = None,
    say: Say | None = None,
) -> Path:
    """Return the folder of the hub's cache with a model's files, of which those that it lacks are downloaded.

    Args:
        name: The model's name on the hub.
        revision: Branch, tag or commit; None for the main branch.
        has_weights: Whether its weights are needed, or only what describes it.
        most_megabytes: More than this is refused; None for any size.
        say: Called with a line before something is downloaded, of its size and licence; by default it is printed.

    Raises:
        HubError: If the hub does not give the model whole. Nothing is left that would be taken for it.
    """
    library = client()
    if library is None:
        raise HubError("the hub's client is not installed; run pip install huggingface_hub")
    if library.constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set, so that the hub is not asked")
    with _reasons(library, name, revision):
        listing = describe(name, revision)
        files = _in_order(wanted(listing.files, has_weights=has_weights))
        missing = [file for file in files if _local(library, listing, file) is None]
        num_bytes = sum(file.num_bytes for file in missing)
        _check_size(listing, num_bytes, most_megabytes)
        _check_room(library, num_bytes)
        if missing:
            _say_before(listing, num_bytes, say)
        return _fetch(library, listing, files, revision)


def describe(name: str, revision: str | None) -> Listing:
    """Return what the hub says of a model, within seconds; raises what the hub's client raises."""
    interface = client().HfApi()
    information = interface.model_info(
        name, revision=revision, files_metadata=True, timeout=ANSWER_S
    )
    card = information.card_data
    license_name = None if card is None else card.get("license")
    files = tuple(_hub_file(sibling) for sibling in information.siblings or ())
    return Listing(name, str(information.sha), license_name, files)


def _hub_file(sibling: Any) -> HubFile:
    """Return what the hub's client says of a file: a large one has a SHA-256, any other the hash that git gives it."""
    num_bytes = sibling.size or 0
    if sibling.lfs is None:
        return HubFile(
            path=sibling.rfilename, num_bytes=num_bytes, sha256=None, blob=sibling.blob_id
        )
    return HubFile(
        path=sibling.rfilename, num_bytes=num_bytes, sha256=sibling.lfs["sha256"], blob=None
    )


def wanted(files: Sequence[HubFile], *, has_weights: bool) -> list[HubFile]:
    """Return the files of a model that are read: not the same weights twice, nor those of other libraries."""
    wanted_files = []
    folders_of_safetensors = set()
    for file in files:
        path = PurePosixPath(file.path)
        if not _is_wanted(path, has_weights=has_weights):
            continue
        wanted_files.append(file)
        if file.path.endswith(_SAFE_WEIGHTS):
            folders_of_safetensors.add(path.parent)
    return [
        file
        for file in wanted_files
        if not file.path.endswith(_OLDER_WEIGHTS)
        or PurePosixPath(file.path).parent not in folders_of_safetensors
    ]


def _is_wanted(path: PurePosixPath, *, has_weights: bool) -> bool:
    """Return whether a file is of a kind that is read."""
    if any(part.startswith(".") or part in _OTHER_FOLDERS for part in path.parts):
        return False
    if path.suffix in (_SAFE_WEIGHTS, _OLDER_WEIGHTS):
        return has_weights
    return path.suffix in _DESCRIBING or str(path) == CARD_FILE


def _in_order(files: Sequence[HubFile]) -> list[HubFile]:
    """Return files in the order in which they are fetched: weights, the rest, and last what names the folder's kind."""

    def position(file: HubFile) -> int:
        if file.path in _DESCRIPTIONS:
            return 2 + _DESCRIPTIONS.index(file.path)
        return 0 if _is_weights(file) else 1

    return sorted(files, key=position)


def _local(library: Any, listing: Listing, file: HubFile) -> Path | None:
    """Return the path of a file in the hub's cache; None if it is not there."""
    path = library.try_to_load_from_cache(listing.name, file.path, revision=listing.commit)
    return Path(path) if isinstance(path, str) else None


def _check_size(listing: Listing, num_bytes: int, most_megabytes: int | None) -> None:
    if most_megabytes is not None and num_bytes > most_megabytes * _MEGABYTE:
        raise HubError(
            f"it has {num_bytes / _MEGABYTE:,.0f} MB, and more than {most_megabytes} are downloaded by name alone: "
            f"--with {listing.name}"
        )


def _check_room(library: Any, num_bytes: int) -> None:
    cache = Path(library.constants.HF_HUB_CACHE)
    # The cache's folder may not be there yet; of a disk that is not there the download says so.
    folder = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), None)
    if folder is None:
        return
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise HubError(
            f"it needs {num_bytes / _MEGABYTE:,.0f} MB, and {free / _MEGABYTE:,.0f} MB are free in {cache}; "
            "free some space or name another folder by HF_HOME"
        )


def _say_before(listing: Listing, num_bytes: int, say: Say | None) -> None:
    size = f"{max(1, round(num_bytes / _MEGABYTE)):,} MB"
    terms = f"licence {listing.license}" if listing.license else "no licence named"
    line = f"downloading {listing.name} from the hub: {size}, {terms}"
    if say is None:
        from raysent.progress import messages  # noqa: PLC0415 - rich takes long to import, and loading a model prints nothing

        messages.print(line, soft_wrap=True)
    else:
        say(line)


def _fetch(library: Any, listing: Listing, files: Sequence[HubFile], revision: str | None) -> Path:
    if not any(file.path in _DESCRIPTIONS for file in files):
        raise HubError(f"it must have a {MODULES_FILE} or a {CONFIG_FILE}, and has none")
    for file in files[:-1]:
        _fetch_file(library, listing, file, listing.commit)
    # The last one by the branch's name: the hub's client then records which commit the branch is at.
    folder = _fetch_file(library, listing, files[-1], revision).parent
    lacking = first_lacking(folder, has_weights=any(_is_weights(file) for file in files))
    if lacking is not None:
        raise HubError(f"its {lacking} is missing there")
    return folder


def _fetch_file(library: Any, listing: Listing, file: HubFile, revision: str | None) -> Path:
    """Return the local path of a file, whose content is the one that the hub lists."""
    cached = _local(library, listing, file)
    if cached is not None and not file.is_whole(cached):
        _remove(cached)
    with _showing(library, is_shown=file.num_bytes > _SHOWN_BYTES):
        local = Path(library.hf_hub_download(listing.name, file.path, revision=revision))
    if not file.is_whole(local):
        _remove(local)
        raise HubError(f"{file.path} came damaged, and was removed; give the same command again")
    return local


def _is_weights(file: HubFile) -> bool:
    return file.path.endswith((_SAFE_WEIGHTS, _OLDER_WEIGHTS))


def _remove(pointer: Path) -> None:
    """Remove a file of the cache, which is a link to its content where the system has links."""
    content = pointer.resolve()
    pointer.unlink(missing_ok=True)
    content.unlink(missing_ok=True)


@contextmanager
def _showing(library: Any, *, is_shown: bool) -> Iterator[None]:
    """Let the client show a bar on a terminal, or nothing; its warnings of attempts are no part of our messages."""
    from raysent.progress import is_terminal, messages  # noqa: PLC0415 - as above

    is_shown = is_shown and is_terminal(sys.stderr) and not messages.quiet
    was_hidden = library.utils.are_progress_bars_disabled()
    verbosity = library.utils.logging.get_verbosity()
    library.utils.logging.set_verbosity_error()
    if not is_shown:
        library.utils.disable_progress_bars()
    try:
        yield
    finally:
        library.utils.logging.set_verbosity(verbosity)
        if not was_hidden:
            library.utils.enable_progress_bars()


# -- why the hub gives none --------------------------------------------------------------------------------------------


@contextmanager
def _reasons(library: Any, name: str, revision: str | None) -> Iterator[None]:
    """Turn whatever the client or its HTTP library raises inside the block into a reason of one line."""
    try:
        with storage_errors(library.constants.HF_HUB_CACHE):
            yield
    except HubError:
        raise
    except ArtifactError as error:  # of the disk
        raise HubError(str(error)) from None
    # The client's errors, and those of its HTTP library, differ by version.
    except Exception as error:
        raise HubError(_reason(library, error, name, revision)) from None


def _reason(library: Any, error: BaseException, name: str, revision: str | None) -> str:
    endpoint = library.constants.ENDPOINT
    for cause in _causes(error):
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        for kind, reason in _REASONS.items():
            if kind in kinds:
                return reason.format(
                    endpoint=endpoint, name=name, revision=revision, seconds=ANSWER_S
                )
    return shown(str(error) or type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


# By names of classes, which are those of every version of the client and of the HTTP libraries that it used.
_REASONS: Mapping[str, str] = {
    "GatedRepoError": "its licence has to be accepted first, at {endpoint}/{name}",
    "RevisionNotFoundError": "the hub has no revision '{revision}' of it",
    "RepositoryNotFoundError": "the hub has none of this name, or it is private and needs 'hf auth login'",
    "HFValidationError": "no name on the hub has this form",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, so that the hub is not asked",
    "TimeoutException": "{endpoint} does not answer in time",
    "Timeout": "{endpoint} does not answer in time",
    "ConnectError": "{endpoint} cannot be reached",
    "ConnectionError": "{endpoint} cannot be reached",
    "ProtocolError": "the connection to {endpoint} was cut off; give the same command again",
    "NetworkError": "the connection to {endpoint} was cut off; give the same command again",
}
