"""All claims of the papers with their verdicts, as `benchmarks/results/claims.md`.

    python -m benchmarks.claims FOLDER [--output FILE]

FOLDER holds one folder for each paper, as `raysent reproduce PAPER --claim all -o FOLDER/PAPER` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raysent.reproduction import known_papers, read_paper
from raysent.reproduction.files import ClaimEntry
from raysent.reproduction.run import RESULTS_FILE
from raysent.storage import read_json

HEAD = """# The papers' claims

Each arm is trained at scale `small` of `papers/*.yaml`, on the same seeds and for equal steps. A verdict is the sign of
the 95 % interval (Student's t over seeds) of the paired differences of mean test scores, in points; a similarity task's
score is Pearson's correlation times 100. "Refuted" is said of this size alone.

Written by `python -m benchmarks.claims`.

"""
VERDICTS = ("reproduced", "refuted at this size", "undecidable", "not run")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the folder of each paper's reproduction")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/claims.md"))
    options = parser.parse_args()
    page = claims_page((name, options.folder / name) for name in known_papers())
    counts = [f"{page.count(f'*{verdict}*')} {verdict}" for verdict in VERDICTS]
    options.output.write_text(f"{HEAD}{', '.join(counts).capitalize()}.\n\n{page}", encoding="utf-8")


def claims_page(papers: Iterable[tuple[str, Path]]) -> str:
    """Return a Markdown page of all claims of some papers: those with results, and those not run.

    Args:
        papers: Each paper's name, and the folder where it was reproduced; the folder may not exist.
    """
    parts = []
    for name, folder in papers:
        paper = read_paper(name)
        path = folder / RESULTS_FILE
        known = read_json(path).get("claims", {}) if path.is_file() else {}
        lines = [_claim_line(entry, known.get(claim)) for claim, entry in paper.claims.items()]
        head = "| claim | verdict | better | worse | difference, 95 % interval | seeds | tasks | why |"
        parts.append("\n".join([f"## {paper.title} ({paper.paper})\n", head, "|---" * 8 + "|", *lines]))
    return "\n\n".join(parts) + "\n"


def _claim_line(entry: ClaimEntry, found: Mapping[str, Any] | None) -> str:
    if found is None or found["verdict"] == "not run":
        reason = entry.needs or (found or {}).get("reason") or entry.why
        arms = f"| {entry.better or ''} | {entry.worse or ''} "
        return f"| {entry.claim} | *not run* {arms}| | | {entry.measured} | {reason} |"
    protocols = [f" ({protocol})" for protocol in entry.protocols or ()] or ["", ""]
    sides = zip((entry.better, entry.worse), protocols, (found["better"], found["worse"]), strict=True)
    arms = " | ".join(f"{arm}{protocol} {np.mean(scores):.2f}" for arm, protocol, scores in sides)
    low, high = found["interval"]
    figures = f"{found['difference']:+.2f} [{low:+.2f}, {high:+.2f}] | {len(found['better'])}"
    return f"| {entry.claim} | **{found['verdict']}** | {arms} | {figures} | {entry.measured} | {entry.why} |"


if __name__ == "__main__":
    main()
