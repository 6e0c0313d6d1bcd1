"""Folders of saved models, written or changed for tests."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save


def sign(folder: Path, **changes: Any) -> None:
    """Write a manifest that fits the changed files of a model's folder, with changed values in `model.json`."""
    about = {**json.loads((folder / "model.json").read_text()), **changes}
    del about["sha256"]
    for name in about["files"]:
        data = (folder / name).read_bytes()
        about["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(about, sort_keys=True)
    (folder / "model.json").write_text(
        json.dumps({**about, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    )


def write_model(folder: Path, values: bytes | None = None) -> Path:
    """Write files named as those of a trained model of three parameters, or with the values given."""
    folder.mkdir(parents=True)
    tensors = save({"a": np.ones(3, dtype=np.float32)}) if values is None else values
    for name, content in (
        ("model.json", b"{}"),
        ("model.safetensors", tensors),
        ("vocabulary.txt", b"a"),
    ):
        (folder / name).write_bytes(content)
    return folder
