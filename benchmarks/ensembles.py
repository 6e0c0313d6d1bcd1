"""Every method of combining over members of several families, on every task present: the ensemble table as Markdown.

The figures are the program's own: cross-fitted scores with intervals and optimism, test scores, NLL, Brier score and
calibration error, the never-worse rule, costs and the front of score against time.

    python benchmarks/ensembles.py --data senteval/downstream --tasks MR,TREC models/qt-uni models/cse … -o OUTPUT
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from raysent.ensembles import ALL, EnsembleResult, combine
from raysent.ensembles.combined import ENSEMBLE, plain_means


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_interval(value: float, interval: Sequence[float]) -> str:
    """Return a figure and its 95 % interval."""
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def by_task(combined: EnsembleResult, figure: str) -> str:
    """Return the table of one figure, `cross_fitted` or `test`: members and methods by tasks, and the mean."""
    rows = []
    for name, outcomes in combined.outcomes().items():
        title = f"**{combined.method}**" if name == ENSEMBLE else name
        found = [getattr(outcome, figure) for outcome in outcomes]
        mean = np.mean([one.value for one in found])
        rows.append([title, *(f"{one.value:.2f} ± {np.diff(one.interval)[0] / 2:.2f}" for one in found), f"{mean:.2f}"])
    return table([figure.replace("_", "-"), *(task.task for task in combined.tasks), "mean"], rows)


def means(combined: EnsembleResult) -> str:
    """Return the table of means over tasks, by cross-fitted score."""
    num_folds = sum(task.num_folds for task in combined.tasks)
    rows = []
    for name, outcomes in combined.outcomes().items():
        found = plain_means(outcomes)
        measures = {measure: value["value"] for measure, value in found["measures"].items()}
        replaced = "" if name in combined.names else f"{sum(o.num_replaced for o in outcomes)} of {num_folds}"
        rows.append(
            [
                f"**{combined.method}**" if name == ENSEMBLE else name,
                with_interval(found["cross_fitted"]["value"], found["cross_fitted"]["interval"]),
                f"{found['optimism']:+.2f}",
                with_interval(found["test"], found["interval"]),
                f"{measures['nll']:.3f}",
                f"{measures['brier']:.3f}",
                f"{measures['ece']:.1f}",
                replaced,
            ]
        )
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %", "best member instead"]
    return table(headings, rows)


def differences(combined: EnsembleResult) -> str:
    """Return how much each method's mean test score is above the best member's, paired over rows."""
    rows = []
    for name, outcomes in combined.outcomes().items():
        if name in combined.names:
            continue
        gaps = [one.test.minus(task.members[0].test) for one, task in zip(outcomes, combined.tasks, strict=True)]
        low, high = np.percentile(np.mean([gap.draws for gap in gaps], axis=0), (2.5, 97.5))
        value = np.mean([gap.value for gap in gaps])
        rows.append([combined.method if name == ENSEMBLE else name, f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"])
    return table(["mean test score above the best member's", "points, 95 % interval"], rows)


def certificates(combined: EnsembleResult) -> str:
    """Return shares of members and what the fit found out, task by task."""
    rows = [
        [
            task.task + (" (best member)" if task.is_replaced else ""),
            *(f"{share:.2f}" for share in task.weights),
            f"{task.diversity.ambiguity:.3f}",
            ", ".join(f"{name} {value:.3g}" for name, value in task.final.diagnostics.items()),
        ]
        for task in combined.tasks
    ]
    return table([f"shares by {combined.method}", *combined.names, "ambiguity", "diagnostics"], rows)


def front(combined: EnsembleResult) -> str:
    """Return the sets of members on the front of score against time to encode."""
    rows = [
        [
            " + ".join(combined.names[place] for place in choice.members),
            f"{choice.cost.encode_ms:.0f}",
            f"{choice.cost.num_bytes / 2**20:.1f}",
            f"{choice.score:.2f}",
        ]
        for choice in combined.choices
        if "encode_ms" in choice.fronts
    ]
    return table(["members", "ms / 1,000 sentences", "MiB", "base rule, cross-fitted"], rows)


def main() -> None:
    """Combine and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--tasks", default=None)
    parser.add_argument("--output", "-o", type=Path, required=True)
    options = parser.parse_args()
    tasks = options.tasks.split(",") if options.tasks else None
    started = time.process_time()
    combined = combine(
        options.models, output=options.output, tasks=tasks, data_dir=options.data, method=ALL, joins_vectors=True
    )
    parts = [means(combined), differences(combined), by_task(combined, "cross_fitted"), by_task(combined, "test")]
    print("\n\n".join([*parts, certificates(combined), front(combined)]))
    print(f"\nProcessor time: {time.process_time() - started:.0f} s, records that were there already not counted.")


if __name__ == "__main__":
    main()
