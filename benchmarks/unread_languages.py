"""An English pretrained encoder at hand, and tables in languages that it does not read.

    python -m benchmarks.unread_languages --data FOLDER [--sizes 300,2000] [--fresh 1000] [--folder OUT]

Of German tweets, Chinese and Korean reviews and Thai posts fresh rows are laid aside, and so many others are a user's
table. Three commands answer it: without an encoder (`--with none`), as it is typed, and with the English encoder named.
The table has the line of the plan, the scores on fresh rows, and by how much each of the two others is above the
answer without an encoder, with a paired 95 % interval. Cells are kept in OUT.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import parsed
from benchmarks.peers import by_raysent, drawn
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.known import encoder_at_hand
from raysent.pipeline.pretrained import choose_encoders
from raysent.storage import read_json, write_json

TABLES = {
    "German tweets": "de/germeval2018",
    "Chinese reviews": "zh/hotels",
    "Thai posts": "th/wisesight",
    "Korean reviews": "ko/films",
}
RESAMPLES = 2000


def cell(name: str, frame: pd.DataFrame, size: int, num_fresh: int, encoder: str) -> dict[str, Any]:
    """Return which fresh rows each command is right on, and the line of the plan."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    order = generator.permutation(len(frame))
    fresh = frame.iloc[order[:num_fresh]]
    train = drawn(frame.iloc[order[num_fresh:]], size, generator)
    right = {}
    for way, encoders in {"none": ["none"], "at hand": None, "named": [encoder]}.items():
        predicted, _ = by_raysent(train, fresh, "table", encoders)
        right[way] = (predicted.astype(str) == fresh["label"].astype(str)).astype(int).tolist()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.jsonl"
        train.to_json(table, orient="records", lines=True, force_ascii=False)
        (task,) = resolve_tasks([f"{table}:text=text_a,label=label"])
        line = choose_encoders(None, [task], None, say=lambda _: None).line
    return {"table": name, "size": size, "right": right, "line": line}


def above(right: list[int], other: list[int]) -> str:
    """Return by how many points one is above another, with its interval."""
    differences = 100.0 * np.subtract(right, other)
    generator = np.random.default_rng(0)
    rows = generator.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.percentile(differences[rows].mean(axis=1), (2.5, 97.5))
    return f"{differences.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    """Run the benchmark as the module's docstring says."""
    options = parsed(__doc__, data="", sizes="300,2000", fresh=1000, folder="build/unread")
    files = encoder_at_hand("en")
    if files is None or not options.data:
        raise SystemExit("needs --data, and an English encoder on this machine")
    print("| table | rows | without | as typed | named | as typed above | named above |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    lines = {}
    for name, path in TABLES.items():
        frame = pd.read_csv(Path(options.data) / "languages" / f"{path}.csv.gz").dropna()
        frame = frame.rename(columns={"text": "text_a"}).drop_duplicates("text_a")
        frame = frame.reset_index(drop=True)
        for size in map(int, options.sizes.split(",")):
            place = Path(options.folder) / f"{path.replace('/', '-')}-{size}.json"
            if not place.exists():
                write_json(place, cell(name, frame, size, options.fresh, f"st:{files.name}"))
            kept = read_json(place)
            right = kept["right"]
            scores = [f"{100 * np.mean(right[way]):.1f}" for way in ("none", "at hand", "named")]
            gains = [above(right[way], right["none"]) for way in ("at hand", "named")]
            print(f"| {name} | {size:,} | {' | '.join([*scores, *gains])} |", flush=True)
            lines[name] = kept["line"]
    for name, line in lines.items():
        print(f"{name}: {line}")


if __name__ == "__main__":
    main()
