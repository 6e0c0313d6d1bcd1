"""`export`: a model or an ensemble -> a folder for another library, compared with the model before it is kept.

`push` uploads such a folder to the Hugging Face hub, by the hub's own client.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from raysent.errors import ArtifactError, ConfigError
from raysent.exports.card import check_license, model_card
from raysent.exports.check import Check, compare, refuse
from raysent.exports.formats import FORMATS, trained_models
from raysent.models import load
from raysent.models.schemes import encoder_name
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.storage import open_folder, storage_errors, write_text
from raysent.storage.layout import CARD_FILE

_MODULES = {"sentence-transformers": ("sentence_transformers",), "onnx": ("onnx", "onnxruntime", "onnxscript")}


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
        license: An identifier of the hub for the model card, such as ``apache-2.0``; or ``other: NAME``.
        sentences: Text to compare the export with the model on; by default 200 sentences of the model's words.

    Raises:
        ConfigError: If the license or the target is unknown, or the target is not installed or cannot express
            the model.
        ArtifactError: If the folder exists, cannot be written, or does not equal the model.
    """
    target = FORMATS.find(to, where=f"to {to}")
    check_license(license)
    missing = [name for name in _MODULES.get(target.EXTRA, ()) if find_spec(name) is None]
    if missing:
        raise ConfigError(f"to {to}: needs {', '.join(missing)}; install raysent[{target.EXTRA}]")
    encoder = load(encoder_name(model)) if isinstance(model, str | Path) else model
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


def push(folder: str | Path, name: str, *, is_public: bool = False, endpoint: str | None = None) -> str:
    """Upload an exported folder as a model of the Hugging Face hub, and return its address.

    The token is the one that the hub's client finds: `HF_TOKEN`, or that of `hf auth login`. A model that exists gets a
    new commit.

    Args:
        folder: What `export` wrote.
        name: The model's name on the hub, such as ``owner/name``.
        is_public: Whether a new model is public; it is private otherwise.
        endpoint: The hub's address; by default the client's.

    Raises:
        ConfigError: If huggingface_hub is not installed, or the folder is no export.
        ArtifactError: If the hub refuses or does not answer.
    """
    if find_spec("huggingface_hub") is None:
        raise ConfigError("push: needs huggingface_hub; install raysent[sentence-transformers]")
    path = Path(folder)
    if not (path / CARD_FILE).is_file():
        raise ConfigError(f"push: must push the folder of an export; found no {CARD_FILE} in {path}")
    hub = import_module("huggingface_hub").HfApi(endpoint=endpoint)
    try:
        hub.create_repo(name, private=not is_public, exist_ok=True)
        done = hub.upload_folder(repo_id=name, folder_path=str(path), commit_message="Export of raysent")
    except Exception as error:  # the client's errors, and those of its HTTP library
        reason = " ".join(str(error).split())
        raise ArtifactError(
            f"push {name}: {type(error).__name__}: {reason}; {path} is complete, 'hf upload {name} {path}' pushes it"
        ) from None
    return str(getattr(done, "repo_url", "") or done)
