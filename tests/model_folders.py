"""Folders of saved models, written or changed for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save


def without_manifest(folder: Path, **changes: Any) -> None:
    """Turn a model's folder into one of raysent 0.1, which has no manifest, with changed values in `model.json`."""
    about = json.loads((folder / "model.json").read_text())
    for name in ("files", "tensors", "sha256"):
        about.pop(name, None)
    (folder / "model.json").write_text(json.dumps({**about, "format": 1, **changes}))


def write_model(folder: Path, values: bytes | None = None) -> Path:
    """Write files named as those of a trained model of three parameters, or with the values given."""
    folder.mkdir(parents=True)
    tensors = save({"a": np.ones(3, dtype=np.float32)}) if values is None else values
    for name, content in (("model.json", b"{}"), ("model.safetensors", tensors), ("vocabulary.txt", b"a")):
        (folder / name).write_bytes(content)
    return folder
