"""Search hyperparameters for your own labels, compare the best model with baselines, combine, predict, and encode text.

    python quickstart.py                      a few minutes on two cores; writes runs/first
    python quickstart.py my_space.yaml        another search space, by its file or name

The labelled sentences are in `tickets.csv`, beside this file: support tickets, each a bug report or a feature request.
Your own table with columns such as `text` and `label` stands in its place in the same way.
"""

from __future__ import annotations

import sys
from pathlib import Path

import raysent

TICKETS = str(Path(__file__).parent / "tickets.csv")


def main(space: str = "quickstart", run: str = "runs/first") -> None:
    """Run a sweep into a new folder, and use what it found."""
    # Trials are ranked by a probe on the labelled rows, and the best are evaluated on them.
    sweep = raysent.sweep(space, run=run, trials=4, metric=TICKETS, tasks=[TICKETS])
    print(sweep.trials[[sweep.metric, "status", *sweep.space.domains]])

    # TF-IDF, random word vectors and the model without training stand beside it.
    scores = raysent.evaluate([sweep.best], tasks=[TICKETS], output=f"{run}-scores")
    print(scores[["model", "task", "test", "low", "high"]])

    both = raysent.ensemble(
        [sweep.best, "tfidf"], tasks=[TICKETS], output=f"{run}-both", baselines=False
    )
    print(both.predict("tickets", ["the export crashes when the file is empty"]))

    vectors = sweep.best.encode(
        ["The export fails.", "Exporting does not work."], normalize_embeddings=True
    )
    print(f"cosine similarity {vectors[0] @ vectors[1]:.2f}")
    print(f"report: {sweep.report}")


if __name__ == "__main__":
    main(*sys.argv[1:])
