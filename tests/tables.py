"""Tables for tests: columns written in the form that a file's name ends in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import ipc

# Of which short texts consist.
WORDS = [
    "cat",
    "dog",
    "mat",
    "rain",
    "night",
    "film",
    "book",
    "train",
    "city",
    "river",
    "sun",
    "moon",
    "tree",
    "house",
    "car",
    "song",
    "bird",
    "fish",
]


def write_table(
    path: Path, columns: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
) -> str:
    """Write columns, or rows, and return the path; a name without an end is a folder of `datasets`."""
    frame = pd.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=7)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    elif path.suffix:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    else:
        save_dataset(path, pa.Table.from_pandas(frame))
    return str(path)


def save_dataset(folder: Path, table: pa.Table, class_names: Sequence[str] | None = None) -> None:
    """Write a folder as `datasets.Dataset.save_to_disk` does, in two files; `class_names` are those of `label`."""
    folder.mkdir(parents=True)
    if class_names is not None:
        features = {"label": {"names": list(class_names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    for name, part in (("a.arrow", table.slice(0, 9)), ("b.arrow", table.slice(9))):
        with ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(part, max_chunksize=5)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "a.arrow"}, {"filename": "b.arrow"}]})
    )
    (folder / "dataset_info.json").write_text("{}")
