"""`export`: a model or an ensemble -> a folder for another library, compared with the model before it is kept."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from raysent.errors import ArtifactError, ConfigError
from raysent.exports.card import model_card
from raysent.exports.check import Check, compare, refuse
from raysent.exports.formats import FORMATS, trained_models
from raysent.models import load
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import open_folder, storage_errors, write_text

CARD_FILE = "README.md"
_MODULES = {"sentence-transformers": ("sentence_transformers",), "onnx": ("onnx", "onnxruntime")}


@dataclass(frozen=True)
class Export:
    """A folder that was written.

    Attributes:
        folder: The folder.
        target: The name of the target.
        check: How it differs from the model.
    """

    folder: Path
    target: str
    check: Check


def export(
    model: str | Path | SentenceEncoder,
    output: str | Path,
    *,
    to: str = "sentence-transformers",
    license: str | None = None,
    sentences: list[str] | None = None,
) -> Export:
    """Write a model for another library.

    The folder appears only after it gave the model's vectors on a sample of sentences.

    Args:
        model: A trained model or an ensemble, or its folder.
        output: The new folder.
        to: A target: ``sentence-transformers``, ``static`` or ``onnx``.
        license: An identifier for the model card, such as ``apache-2.0``.
        sentences: Text to compare the export with the model on; by default 200 sentences of the model's words.

    Raises:
        ConfigError: If the target is unknown, is not installed or cannot express the model.
        ArtifactError: If the folder exists, cannot be written, or does not equal the model.
    """
    target = FORMATS.find(to, where=f"--to {to}")
    missing = [name for name in _MODULES.get(target.EXTRA, ()) if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--to {to}: needs {', '.join(missing)}; install raysent[{target.EXTRA}]")
    encoder = load(model) if isinstance(model, str | Path) else model
    models = trained_models(encoder)
    target.check_model(models)
    path = Path(output)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ArtifactError(f"{path}: exists; name a new folder")
    folder = open_folder(encoder.source) if encoder.source else None
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        target.write(models, temporary)
        check = compare(encoder, models, target.open(temporary), sentences, except_for=target.DIFFERS_ON)
        refuse(check, target=to)
        card = model_card(encoder, models, target=target, check=check, folder=folder, license=license)
        write_text(temporary / CARD_FILE, card)
        temporary.chmod(0o755)
        with storage_errors(path):
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Export(path, to, check)
