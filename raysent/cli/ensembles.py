"""CLI of `raysent ensemble`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.ensembles import (
    ALL,
    ENSEMBLE,
    CostLimits,
    EnsembleResult,
    MemberCost,
    MemberSubset,
    check_method,
    combine,
    total_cost,
)
from raysent.storage import address_of
from raysent.storage.layout import ENSEMBLE_FILE

DASH = "–"


def ensemble(
    models: Sequence[str],
    *,
    output: Path,
    data: Path | None,
    tasks: Sequence[str],
    method: str,
    top: int | None,
    limits: CostLimits,
    joins_vectors: bool,
    as_json: bool,
) -> int:
    """Combine models and print the scores."""
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        result = combine(
            models,
            output=output,
            tasks=tasks,
            data_dir=data,
            method=method,
            top=top,
            limits=limits,
            joins_vectors=joins_vectors,
            progress=progress,
        )
    if as_json:
        print_json(ensemble_values(result, output))
        return 0
    print_ensemble(result)
    _print_methods(result)
    _print_costs(result)
    results.print(f"ensemble: {address_of(output / ENSEMBLE_FILE)}", soft_wrap=True)
    return 0


def check_options(method: str) -> None:
    """Refuse an unknown method before any model is read.

    Raises:
        ConfigError: With the nearest name.
    """
    check_method(method, others=[ALL])


def ensemble_values(result: EnsembleResult, folder: Path) -> dict[str, Any]:
    """Return an ensemble's scores as plain values; `results` holds one row per model and task."""
    values = result.values()
    scores = {task: found.pop("scores") for task, found in values["tasks"].items()}
    return {
        "path": address_of(folder / ENSEMBLE_FILE),
        **values,
        "difference": result.mean.difference.value,
        "interval": list(result.mean.difference.interval),
        "results": [
            {"model": name, "task": task, "protocol": result.protocol, **of_task[name]}
            for name in result.mean.scores
            for task, of_task in scores.items()
        ],
        "weights": {task: found.weights for task, found in result.tasks.items()},
    }


def print_ensemble(result: EnsembleResult) -> None:
    """Print test scores of members, other methods and the ensemble, and the ensemble's gain over the best member."""
    others = [name for name in result.mean.scores if name not in (ENSEMBLE, *result.members)]
    rows = [(_title(name, result), *_test_scores(name, result)) for name in (*result.members, *others, ENSEMBLE)]
    print_table([f"test, protocol {result.protocol}", *result.tasks, "mean"], rows)
    gain = result.mean.difference
    results.print(
        f"ensemble against the best member on validation ({result.best_member}): {gain.value:+.2f} points of mean "
        f"test score, 95 % interval [{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]",
        soft_wrap=True,
    )
    if result.replaced:
        messages.print(
            f"{', '.join(result.replaced)}: {result.method} has a lower cross-validated score than the best member, "
            "which replaces it there",
            soft_wrap=True,
        )


def _title(name: str, result: EnsembleResult) -> str:
    return f"{ENSEMBLE} ({result.method})" if name == ENSEMBLE else name


def _test_scores(name: str, result: EnsembleResult) -> list[str]:
    on_tasks = [task.scores[name].test for task in result.tasks.values()]
    return [f"{score:.2f}" for score in (*on_tasks, result.mean.scores[name].test)]


def _print_methods(result: EnsembleResult) -> None:
    """Print the cross-validated scores of all methods, means over tasks, and the calibration of their probabilities."""
    rows = []
    for name, means in result.mean.scores.items():
        if name in result.members:
            continue
        measures = means.measures
        rows.append(
            (
                _title(name, result),
                _with_interval(means.cross_fitted.value, means.cross_fitted.interval),
                f"{means.optimism:+.2f}",
                _with_interval(means.test, means.interval),
                f"{measures['nll'].value:.3f}",
                f"{measures['brier'].value:.3f}",
                f"{measures['ece'].value:.1f}",
                _replaced(name, result),
            )
        )
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %", "best member instead"]
    results.print()
    print_table(headings, rows)


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _replaced(name: str, result: EnsembleResult) -> str:
    """Return in how many of all tasks' folds the best member replaces a method."""
    tasks = result.tasks.values()
    return f"{sum(task.scores[name].num_replaced for task in tasks)} of {sum(len(task.fold_weights) for task in tasks)}"


def _print_costs(result: EnsembleResult) -> None:
    """Print the subsets of members on the front of score against cost."""
    rows = [_cost_row(subset) for subset in result.choices if subset.fronts]
    rows.append((f"all {len(result.members)}", *_cost(total_cost(list(result.costs.values()))), DASH, ""))
    results.print()
    print_table(["members", "ms / 1,000", "MiB", "training s", "base rule, cross-fitted", "least for its"], rows)


def _cost_row(subset: MemberSubset) -> tuple[str, ...]:
    fronts = {"encode_ms": "time", "num_bytes": "size"}
    best_for = ", ".join(fronts[front] for front in subset.fronts)
    return " + ".join(subset.members), *_cost(subset), f"{subset.score:.2f}", best_for


def _cost(cost: MemberCost) -> tuple[str, str, str]:
    training = DASH if cost.training_s is None else f"{cost.training_s:,.0f}"
    return f"{cost.encode_ms:,.1f}", f"{cost.num_bytes / 2**20:,.1f}", training
