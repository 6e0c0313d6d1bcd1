"""All claims of the papers with their verdicts, as `benchmarks/results/claims.md`.

    python -m benchmarks.claims FOLDER [--output FILE]

FOLDER holds one folder for each paper, as `raysent reproduce PAPER --claim all -o FOLDER/PAPER` writes it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from raysent.reproduction import claims_page, known_papers

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


if __name__ == "__main__":
    main()
