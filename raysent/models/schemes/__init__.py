"""Schemes: what a model's name such as `hash:50` means. One file per scheme; the folder is the registry.

A file of this folder, or the value of an entry point of the group `raysent.schemes`, is a `Scheme`. Its prefix is the
part of `FORM` before the colon; a file has the name of its prefix. Every command that takes a model takes such a name
in place of a folder: `load` returns the model of either.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from raysent.errors import ArtifactError, ConfigError
from raysent.models.known import find_known, is_encoder_folder, is_encoder_name
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.registry import Registry, load_point
from raysent.storage import address_of, open_folder
from raysent.storage.layout import (
    BEST_FOLDER,
    COMPOSITION_FILE,
    ENCODER_FOLDER,
    ENSEMBLE_FILE,
    FUSION_FILE,
    MODEL_FILE,
    SWEEP_FILE,
)


class Scheme(Protocol):
    """The form of a scheme's module; `rest` is the part of a name after the colon.

    Call order: `label` and `key` when a command reads its arguments, `load` when it encodes. A saved ensemble stores
    the name, and compares the key before it loads the model again. A module may also define `num_bytes(rest)`, the size
    of the model's files, and `load_earlier(rest, key)`, the model that an earlier version knew by a key, or None.

    Attributes:
        FORM: How a name is written, for messages, such as `hash:DIM`; or `tfidf[:chars]` where the part after the
            colon may be left out, or `bm25` where there is none. A form that ends in `:PATH` takes a path or the name
            of another scheme with one, which a saved ensemble stores as it stores paths.
    """

    FORM: str

    def label(self, rest: str) -> str:
        """Return a short name for tables and files.

        Raises:
            ConfigError: If no model can have this name.
        """

    def key(self, rest: str) -> str:
        """Return a key of the model's content: models with the same key give the same vectors.

        Raises:
            ConfigError: If no model can have this name.
        """

    def load(self, rest: str) -> SentenceEncoder:
        """Return the model.

        Raises:
            RaysentError: If no model can have this name, or it cannot be loaded.
        """


def _by_prefix(module: Any) -> Mapping[str, Scheme]:
    prefix = str(getattr(module, "FORM", "")).replace("[:", ":").partition(":")[0]
    if not prefix:
        raise ConfigError(
            f"{getattr(module, '__name__', module)}: must define FORM, such as 'hash:DIM'"
        )
    return {prefix: module}


# By file: a name such as `tfidf` must not wait for the libraries that other schemes need.
SCHEMES: Registry[Scheme] = Registry(
    "scheme", package=__name__, folders=__path__, read=_by_prefix, is_by_file=True
)


def find_scheme(name: str) -> tuple[Scheme, str] | None:
    """Return the scheme of a model's name and the rest of the name; None for a path.

    A colon alone makes no scheme: a drive letter or a folder's name may have one, so the prefix must be registered.
    """
    prefix, colon, after_colon = name.partition(":")
    if prefix not in SCHEMES:
        return None
    scheme = SCHEMES[prefix]
    if colon:
        return scheme, after_colon
    # Where the part after the colon may be left out, a folder of that name comes first.
    may_be_bare = prefix == scheme.FORM or scheme.FORM.startswith(f"{prefix}[")
    if may_be_bare and not Path(name).exists():
        return scheme, ""
    return None


def is_scheme_name(name: str) -> bool:
    """Return whether a model's name is that of a scheme rather than a path."""
    return find_scheme(name) is not None


def split_path(name: str) -> tuple[str, str | None]:
    """Return the part of a model's name before a path, and the path: `words:start:` and `runs/one`.

    The path is None where the name has none, as in `hash:50`; a name without a scheme is a path.
    """
    scheme_and_rest = find_scheme(name)
    if scheme_and_rest is None:
        return "", name
    scheme, after_colon = scheme_and_rest
    if not scheme.FORM.endswith(":PATH"):
        return name, None
    # The part after the colon may be the name of another scheme.
    start, path = split_path(after_colon)
    return name.removesuffix(after_colon) + start, path


def with_scheme(name: str) -> str:
    """Return a model's name with `st:` or `static:` before it where it is that of a pretrained encoder, else as it is.

    Such a name is a folder of sentence-transformers or transformers that raysent did not write, a known encoder with
    its owner or without, or a name of the hub whose first part is no folder here. Those of model2vec are `static:`.
    """
    if find_scheme(name) is not None:
        return name
    folder = open_folder(name) if name else Path()
    if folder.is_dir():
        if _model_file(folder) is not None or not is_encoder_folder(folder):
            return name
        from raysent.models.static import is_static_folder  # noqa: PLC0415 - torch comes with it

        return f"static:{name}" if is_static_folder(folder) else f"st:{name}"
    known_encoder = find_known(name)
    if known_encoder is not None and known_encoder.is_static:
        return f"static:{name}"
    # A path below a folder that is here is a path with a mistake, unless an encoder has that name.
    if known_encoder is None and Path(name).parent.exists():
        return name
    return f"st:{name}" if is_encoder_name(name) else name


def known_forms() -> str:
    """Return how names of the known schemes are written, for messages: ``a, b or c``."""
    *first_forms, last_form = (scheme.FORM for scheme in SCHEMES.values())
    if not first_forms:
        return last_form
    return f"{', '.join(first_forms)} or {last_form}"


def _scheme_hint(name: str) -> str:
    """Return the part of a message about a missing folder whose name looks like that of a scheme; else empty."""
    prefix, colon, after_colon = name.partition(":")
    is_drive_or_address = len(prefix) < 2 or after_colon.startswith("//")
    if not colon or is_drive_or_address or prefix in SCHEMES:
        return ""
    try:
        SCHEMES.find(prefix, where=f"and '{prefix}:'")
    except ConfigError as error:
        return f", {error}"
    return ""


# The file that identifies a folder of each kind, and the entry point of the group `raysent.loaders` that reads it:
# ensembles are a layer above, and a model does not wait for what only they import.
LOADERS = {
    MODEL_FILE: "model",
    COMPOSITION_FILE: "composition",
    ENSEMBLE_FILE: "ensemble",
    FUSION_FILE: "fusion",
}


def load(name: str | Path) -> SentenceEncoder:
    """Return a model by the name of its folder, or by a scheme's name.

    Args:
        name: Folder of a run, a trial, a model, an ensemble or a sweep, also in ``s3://``; that or the name of a
            pretrained encoder, such as ``all-MiniLM-L6-v2``; or a name such as ``hash:50``. A sweep stands for its
            answer on its task, or for its best encoder.

    Raises:
        ArtifactError: If there is no such folder, or its files are truncated or of another kind.
        ConfigError: If the scheme has no model of this name.
    """
    name = with_scheme(str(name))
    scheme_and_rest = find_scheme(name)
    if scheme_and_rest is not None:
        scheme, after_colon = scheme_and_rest
        return _named(scheme.load(after_colon), name)
    folder = open_folder(name)
    if not folder.is_dir():
        raise missing_model(folder, "no such folder")
    if (folder / SWEEP_FILE).is_file():
        folder = _model_of_sweep(folder)
    model_file = _model_file(folder)
    if model_file is None:
        raise ArtifactError(
            f"{address_of(folder)}: holds no {' and no '.join(LOADERS)}; name a trained model's folder or an ensemble's"
        )
    load_folder = load_point("raysent.loaders", LOADERS[model_file.name])
    return _named(load_folder(model_file.parent), address_of(folder))


def _model_file(folder: Path) -> Path | None:
    """Return the file that identifies a folder of raysent, or the folder of its model; None for another folder."""
    for file_name in LOADERS:
        for path in (folder / file_name, folder / "model" / file_name):
            if path.is_file():
                return path
    return None


def load_earlier(name: str, key: str) -> SentenceEncoder | None:
    """Return the model of a scheme's name that an earlier version knew by a key; None where there is none."""
    scheme_and_rest = find_scheme(name)
    if scheme_and_rest is None:
        return None
    scheme, after_colon = scheme_and_rest
    load_known = getattr(scheme, "load_earlier", None)
    if load_known is None:
        return None
    encoder = load_known(after_colon, key)
    return None if encoder is None else _named(encoder, name)


def _model_of_sweep(folder: Path, *, has_vectors: bool = False) -> Path:
    """Return the folder of a sweep's model to take: its answer on its task, or the best encoder.

    Args:
        folder: The sweep's folder.
        has_vectors: Whether to return the encoder, as always for a sweep of no task or several; or what ranks passages.

    Raises:
        ArtifactError: If there is none yet.
    """
    files = [folder / BEST_FOLDER / FUSION_FILE, folder / ENCODER_FOLDER / MODEL_FILE]
    if not has_vectors:
        files.insert(0, folder / BEST_FOLDER / ENSEMBLE_FILE)
    for file in files:
        if file.is_file():
            return file.parent
    run = address_of(folder)
    raise ArtifactError(
        f"{run}: a sweep without a model to take; finish it with 'raysent resume {shlex.quote(run)}'"
    )


def encoder_name(model: str | Path, *, say: Callable[..., object] | None = None) -> str | Path:
    """Return a model's name for what needs vectors: of a sweep its best encoder's folder; `say` prints so.

    Of a sweep's answer too, if that has no vectors of its own.

    Raises:
        ArtifactError: If the sweep has none yet.
    """
    name = with_scheme(str(model))
    if is_scheme_name(name):
        return name
    folder = open_folder(model)
    if not (folder / SWEEP_FILE).is_file():
        return _encoder_of_answer(folder) or model
    encoder = address_of(_model_of_sweep(folder, has_vectors=True))
    if say is not None:
        say(f"{address_of(folder)}: its best model with vectors is used, {encoder}", soft_wrap=True)
    return encoder


def encoder_beside(answer: Path) -> Path | None:
    """Return the folder of a sweep's best encoder, where a folder is that of its answer, RUN/best or RUN/best/TASK."""
    for folder in (answer, answer.parent):
        encoder = folder.parent / ENCODER_FOLDER
        if folder.name == BEST_FOLDER and (encoder / MODEL_FILE).is_file():
            return encoder
    return None


def _encoder_of_answer(folder: Path) -> str | None:
    """Return the encoder that stands in for a sweep's answer without vectors; None for any other folder."""
    if encoder_beside(folder) is None or not (folder / ENSEMBLE_FILE).is_file():
        return None
    answer = load(folder)
    if answer.vectors_of is not None:
        # The answer prints here that the vectors are another model's.
        answer.get_sentence_embedding_dimension()
    return answer.vectors_of


def _named(encoder: SentenceEncoder, name: str) -> SentenceEncoder:
    encoder.source = name
    return encoder


def missing_model(folder: Path, reason: str) -> ArtifactError:
    """Return the error for a name that is neither a folder nor that of a known scheme."""
    name = address_of(folder)
    return ArtifactError(
        f"{name}: {reason}{_scheme_hint(name)}; name a run, a trial, a model, an ensemble, {known_forms()}"
    )
