"""Every ensemble method over members of several families, on every available task: the ensemble table as Markdown.

All numbers are computed by raysent: cross-validated scores with intervals and optimism, test scores, NLL, Brier score
and calibration error, replacements by the best member, costs, and the Pareto front of score against time.

    python benchmarks/ensembles.py --data senteval/downstream --tasks MR,TREC models/qt-uni models/cse … -o OUTPUT
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from raysent.ensembles import ALL, ENSEMBLE, EnsembleResult, combine
from raysent.ensembles.result import IntervalEstimate, MeanScores


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_interval(value: float, interval: Sequence[float]) -> str:
    """Return a value and its 95 % interval."""
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def title(name: str, result: EnsembleResult) -> str:
    """Return the label of a method or a member in a table."""
    return f"**{result.method}**" if name == ENSEMBLE else name


def estimate(scores: MeanScores, measure: str) -> IntervalEstimate:
    """Return the score `cross_fitted` or `test` with its interval."""
    if measure == "cross_fitted":
        return scores.cross_fitted
    return IntervalEstimate(value=scores.test, interval=scores.interval)


def by_task(result: EnsembleResult, measure: str) -> str:
    """Return the table of one score, `cross_fitted` or `test`: members and methods by tasks, and the mean."""
    rows = []
    for name, mean in result.mean.scores.items():
        found = [estimate(task.scores[name], measure) for task in result.tasks.values()]
        cells = [f"{one.value:.2f} ± {(one.interval[1] - one.interval[0]) / 2:.2f}" for one in found]
        rows.append([title(name, result), *cells, f"{estimate(mean, measure).value:.2f}"])
    return table([measure.replace("_", "-"), *result.tasks, "mean"], rows)


def means(result: EnsembleResult) -> str:
    """Return the table of means over tasks, by cross-validated score."""
    tasks = result.tasks.values()
    num_folds = sum(len(task.fold_weights) for task in tasks)
    rows = []
    for name, scores in sorted(result.mean.scores.items(), key=lambda item: -item[1].cross_fitted.value):
        num_replaced = sum(task.scores[name].num_replaced for task in tasks)
        rows.append(
            [
                title(name, result),
                with_interval(scores.cross_fitted.value, scores.cross_fitted.interval),
                f"{scores.optimism:+.2f}",
                with_interval(scores.test, scores.interval),
                *(f"{scores.measures[measure].value:.3f}" for measure in ("nll", "brier")),
                f"{scores.measures['ece'].value:.1f}",
                "" if name in result.members else f"{num_replaced} of {num_folds}",
            ]
        )
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %", "best member instead"]
    return table(headings, rows)


def difference(result: EnsembleResult) -> str:
    """Return the ensemble's mean test score minus the best member's, paired over rows."""
    gain = result.mean.difference
    row = [result.method, with_interval(gain.value, gain.interval)]
    return table(["mean test score minus the best member's", "points, 95 % interval"], [row])


def weights(result: EnsembleResult) -> str:
    """Return the members' weights and the diagnostics of the fit, task by task."""
    rows = [
        [
            name + (" (best member)" if task.is_replaced else ""),
            *(f"{task.weights[member]:.2f}" for member in result.members),
            "infinite" if task.diversity.ambiguity is None else f"{task.diversity.ambiguity:.3f}",
            ", ".join(f"{diagnostic} {value:.3g}" for diagnostic, value in task.diagnostics.items()),
        ]
        for name, task in result.tasks.items()
    ]
    return table([f"weights by {result.method}", *result.members, "ambiguity", "diagnostics"], rows)


def front(result: EnsembleResult) -> str:
    """Return the subsets of members on the Pareto front of score against encoding time."""
    rows = [
        [" + ".join(one.members), f"{one.encode_ms:.0f}", f"{one.num_bytes / 2**20:.1f}", f"{one.score:.2f}"]
        for one in result.choices
        if "encode_ms" in one.fronts
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
    result = combine(
        options.models, output=options.output, tasks=tasks, data_dir=options.data, method=ALL, joins_vectors=True
    )
    parts = [means(result), difference(result), by_task(result, "cross_fitted"), by_task(result, "test")]
    print("\n\n".join([*parts, weights(result), front(result)]))
    print(f"\nProcessor time: {time.process_time() - started:.0f} s, without records that existed already.")


if __name__ == "__main__":
    main()
