"""A tiny run with each objective that the registry finds, for what has to hold of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tiny_run import tiny_run

from raysent.models.objectives import OBJECTIVES, LabelBatches, PairBatches, TargetBatches
from raysent.training.run import RunConfig

_FIXED = {"dim": 6, "vectors": "ppmi", "trained": False, "unknown": "zero"}
_LINEAR = {"type": "linear", "hidden_size": 8, "embedding": _FIXED}
_VIEWS: dict[str, Any] = {
    "encoder": {"type": "gru", "bidirectional": True, "hidden_size": 8, "embedding": _FIXED},
    "second_encoder": _LINEAR,
}
# What objectives need beside their defaults and what they read.
_NEEDED: dict[str, dict[str, Any]] = {
    "view_agreement": {"second_encoder": {**_LINEAR, "embedding": {"dim": 6}}},
    "view_generation": _VIEWS,
    "view_joint": {**_VIEWS, "second_encoder": {**_LINEAR, "num_maps": 2}},
    "reconstruction": {"code": {"type": "autoencoder", "bits": 8}},
    "relatedness": {"objective": {"lambda_w": 0.5, "lambda_c": 0.5, "penalty_center": "zero"}},
    "paraphrase_margin": {"objective": {"lambda_w": 0.5, "lambda_c": 0.5}},
}


def run_of(folder: Path, name: str, **changes: Any) -> RunConfig:
    """Return a run with an objective: its configuration says which files it reads."""
    needed = {**_NEEDED.get(name, {})}
    objective = {"type": name, **needed.pop("objective", {}), **changes.pop("objective", {})}
    batches = OBJECTIVES[name].Config.model_validate(objective).batches
    words = np.random.default_rng(0).integers(0, 40, (120, 2, 4))
    texts = [[" ".join(f"w{word}" for word in side) for side in row] for row in words.tolist()]
    match batches:
        case PairBatches():
            lines = [
                f"{one}\t{other}\tc{row % 3}\t{1 + row % 5}"
                for row, (one, other) in enumerate(texts)
            ]
            (folder / "pairs.tsv").write_text("\n".join(lines))
            needed["pairs"] = {"path": str(folder / "pairs.tsv"), "label": 2, "score": 3}
        case LabelBatches():
            splits = ("train", "validation", "test")
            lines = [
                f"{one},c{row % 3},{splits[row // 3 % 3]}" for row, (one, _) in enumerate(texts)
            ]
            (folder / "rows.csv").write_text("\n".join(["text,label,split", *lines]))
            needed["labels"] = {"task": str(folder / "rows.csv")}
        case TargetBatches():
            objective = {"teacher": "hash:16", "max_loss": 100, **objective}
    return tiny_run(folder, **{**needed, "objective": objective, **changes})
