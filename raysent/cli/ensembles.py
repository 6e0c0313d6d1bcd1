"""`raysent ensemble`: what is typed, and what is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.ensembles import ALL, EnsembleResult, Outcome, check_method, combine
from raysent.ensembles.combined import ENSEMBLE, plain_means
from raysent.ensembles.cost import Choice, Cost, total_cost
from raysent.storage import address_of

DASH = "–"


def ensemble(
    models: Sequence[str],
    *,
    output: Path,
    data: Path | None,
    tasks: Sequence[str],
    method: str,
    top: int | None,
    limits: Mapping[str, float | None],
    joins_vectors: bool,
    as_json: bool,
) -> int:
    """Combine models and print what that gives."""
    with ProgressLines(prefix="judging ", is_quiet=as_json) as progress:
        combined = combine(
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
        print_json(ensemble_values(combined))
        return 0
    print_ensemble(combined)
    _print_methods(combined)
    _print_costs(combined)
    results.print(f"ensemble: {address_of(combined.path)}", soft_wrap=True)
    return 0


def check_options(method: str) -> None:
    """Refuse an unknown method before any model is read.

    Raises:
        ConfigError: With the nearest name.
    """
    check_method(method, others=[ALL])


def ensemble_values(combined: EnsembleResult) -> dict[str, Any]:
    """Return an ensemble's outcome as plain values; `results` holds a row per model and task."""
    about = combined.plain()
    scores = {task: found.pop("scores") for task, found in about["tasks"].items()}
    return {
        "path": address_of(combined.path),
        **about,
        "difference": combined.difference.value,
        "interval": list(combined.difference.interval),
        "results": [
            {"model": name, "task": task, "protocol": combined.protocol, **of_task[name]}
            for name in combined.outcomes()
            for task, of_task in scores.items()
        ],
        "weights": {task.task: about["tasks"][task.task]["weights"] for task in combined.tasks},
    }


def print_ensemble(combined: EnsembleResult) -> None:
    """Print test scores of members, other methods and the ensemble, and what the ensemble adds."""
    outcomes = combined.outcomes()
    order = [*combined.names, *(name for name in outcomes if name not in (ENSEMBLE, *combined.names)), ENSEMBLE]
    rows = [(_title(name, combined), *_test_scores(outcomes[name])) for name in order]
    print_table([f"test, protocol {combined.protocol}", *(task.task for task in combined.tasks), "mean"], rows)
    low, high = combined.difference.interval
    best = combined.names[combined.best_member]
    results.print(
        f"ensemble against the best member on validation ({best}): {combined.difference.value:+.2f} points of mean "
        f"test score, 95 % interval [{low:+.2f}, {high:+.2f}]",
        soft_wrap=True,
    )
    if combined.replaced:
        messages.print(
            f"{', '.join(combined.replaced)}: {combined.method} does worse than the best member under cross-fitting, "
            "so that member answers there",
            soft_wrap=True,
        )


def _title(name: str, combined: EnsembleResult) -> str:
    return f"{ENSEMBLE} ({combined.method})" if name == ENSEMBLE else name


def _test_scores(outcomes: Sequence[Outcome]) -> list[str]:
    mean = plain_means(outcomes)["test"]
    return [f"{outcome.test.value:.2f}" for outcome in outcomes] + [f"{mean:.2f}"]


def _print_methods(combined: EnsembleResult) -> None:
    """Print the honest scores of all methods, means over tasks, and how well their probabilities are calibrated."""
    rows = []
    for name, outcomes in combined.outcomes().items():
        if name in combined.names:
            continue
        means = plain_means(outcomes)
        measures = {measure: found["value"] for measure, found in means["measures"].items()}
        rows.append(
            (
                _title(name, combined),
                _with_interval(means["cross_fitted"]["value"], means["cross_fitted"]["interval"]),
                f"{means['optimism']:+.2f}",
                _with_interval(means["test"], means["interval"]),
                f"{measures['nll']:.3f}",
                f"{measures['brier']:.3f}",
                f"{measures['ece']:.1f}",
                _replaced(outcomes, combined),
            )
        )
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %", "best member instead"]
    results.print()
    print_table(headings, rows)


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _replaced(outcomes: Sequence[Outcome], combined: EnsembleResult) -> str:
    """Return in how many of all tasks' folds the best member stood in."""
    num_folds = sum(task.num_folds for task in combined.tasks)
    return f"{sum(outcome.num_replaced for outcome in outcomes)} of {num_folds}"


def _print_costs(combined: EnsembleResult) -> None:
    """Print what the sets of members cost that no other equals at their price."""
    rows = [_cost_row(choice, combined.names) for choice in combined.choices if choice.fronts]
    rows.append((f"all {len(combined.members)}", *_prices(total_cost(combined.costs)), DASH, ""))
    results.print()
    print_table(["members", "ms / 1,000", "MiB", "training s", "base rule, cross-fitted", "least for its"], rows)


def _cost_row(choice: Choice, names: Sequence[str]) -> tuple[str, ...]:
    members = " + ".join(names[place] for place in choice.members)
    fronts = {"encode_ms": "time", "num_bytes": "size"}
    return members, *_prices(choice.cost), f"{choice.score:.2f}", ", ".join(fronts[front] for front in choice.fronts)


def _prices(cost: Cost) -> tuple[str, str, str]:
    training = DASH if cost.training_s is None else f"{cost.training_s:,.0f}"
    return f"{cost.encode_ms:,.1f}", f"{cost.num_bytes / 2**20:,.1f}", training
