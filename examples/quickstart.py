"""Search hyperparameters, evaluate the best model on your own labels, combine it with a baseline, and encode text.

    python quickstart.py                      a few minutes on two cores; writes runs/first
    python quickstart.py my_space.yaml        another search space, by its file or name

The labelled sentences are in `tickets.csv`, beside this file: support tickets, each a bug report or a feature request.
"""

from __future__ import annotations

import sys
from pathlib import Path

import raysent

TICKETS = Path(__file__).parent / "tickets.csv"


def main(space: str = "quickstart", run: str = "runs/first") -> None:
    """Run a sweep into a new folder, and use what it found."""
    sweep = raysent.sweep(space, run=run, trials=4)
    print(sweep.trials[[sweep.metric, "status", *sweep.space.domains]])

    # "hash:50" is the mean of random word vectors: what a model without training scores.
    scores = raysent.evaluate([sweep.best, "hash:50"], tasks=[str(TICKETS)], output=f"{run}-scores")
    print(scores[["model", "task", "test", "low", "high"]])

    both = raysent.ensemble([sweep.best, "hash:50"], tasks=[str(TICKETS)], output=f"{run}-both")
    print(both.predict("tickets", ["the export crashes when the file is empty"]))

    vectors = sweep.best.encode(["The export fails.", "Exporting does not work."], normalize_embeddings=True)
    print(f"cosine similarity {vectors[0] @ vectors[1]:.2f}")
    print(f"report: {sweep.report}")


if __name__ == "__main__":
    main(*sys.argv[1:])
