"""Pairs of captions of one image, a loose paraphrase, as a `.tsv` file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from raysent.storage import write_text


def write_caption_pairs(data: Path, path: Path) -> None:
    """Write two pairs for each image of the training split of Flickr30k's captions, unless the file exists."""
    if path.exists():
        return
    lines = []
    with gzip.open(data / "captions" / "flickr30k_captions.jsonl.gz", "rt", encoding="utf-8") as stream:
        for image in map(json.loads, stream):
            if image["split"] == "train":
                first = image["captions"]
                lines += [f"{first[0]}\t{first[1]}\n", f"{first[2]}\t{first[3]}\n"]
    write_text(path, "".join(lines))
