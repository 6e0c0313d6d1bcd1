"""`load`: the name of a model -> the model. A name is that of a folder, or of a scheme, such as `hash:50`."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

from raysent.errors import ArtifactError
from raysent.models.schemes import find_scheme, known_forms, scheme_hint
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import address_of, open_folder
from raysent.storage.layout import COMPOSITION_FILE, ENSEMBLE_FILE, MODEL_FILE

# The file that identifies a folder of each kind, and the function that reads the folder. By name, because ensembles are
# a layer above, and so that a model does not wait for what only ensembles import.
LOADERS = {
    MODEL_FILE: "raysent.models.model:SentenceModel.load",
    COMPOSITION_FILE: "raysent.models.composition:load_composition",
    ENSEMBLE_FILE: "raysent.ensembles.ensemble:load_ensemble",
}


def load(name: str | Path) -> SentenceEncoder:
    """Return a model by the name of its folder, or by a scheme's name.

    Args:
        name: Folder of a run, a trial, a model or an ensemble, also in ``s3://``; or a name such as ``hash:50``.

    Raises:
        ArtifactError: If there is no such folder, or its files are truncated or of another kind.
        ConfigError: If the scheme has no model of this name.
    """
    found = find_scheme(name) if isinstance(name, str) else None
    if found is not None:
        scheme, rest = found
        return _named(scheme.load(rest), str(name))
    folder = open_folder(name)
    if not folder.is_dir():
        raise missing_model(folder, "no such folder")
    for file_name, loader in LOADERS.items():
        for place in (folder, folder / "model"):
            if (place / file_name).is_file():
                return _named(resolve_name(loader)(place), address_of(folder))
    raise ArtifactError(
        f"{address_of(folder)}: holds no {' and no '.join(LOADERS)}; name a trained model's folder or an ensemble's"
    )


def _named(encoder: SentenceEncoder, name: str) -> SentenceEncoder:
    encoder.source = name
    return encoder


def missing_model(folder: Path, reason: str) -> ArtifactError:
    """Return the error for a name that is neither a folder nor that of a known scheme."""
    name = address_of(folder)
    return ArtifactError(
        f"{name}: {reason}{scheme_hint(name)}; name a run, a trial, a model, an ensemble, {known_forms()}"
    )
