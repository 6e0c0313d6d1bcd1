"""Folders of saved models, changed for tests."""

import json
from pathlib import Path
from typing import Any


def without_manifest(folder: Path, **changes: Any) -> None:
    """Turn a model's folder into one of raysent 0.1, which has no manifest, with changed values in `model.json`."""
    about = json.loads((folder / "model.json").read_text())
    for name in ("files", "tensors", "sha256"):
        about.pop(name, None)
    (folder / "model.json").write_text(json.dumps({**about, "format": 1, **changes}))
