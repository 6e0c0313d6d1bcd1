"""The result in a few sentences, the trials that failed, and how to repeat the run."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from raysent import __version__
from raysent.redaction import without_secrets
from raysent.report.blocks import (
    DASH,
    Cell,
    Column,
    Facts,
    Section,
    Table,
    counted,
    duration,
    fixed,
    number,
    significant,
    text_of,
    whole,
)
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.trial import BROKEN, Status
from raysent.training.memory import show_bytes

# A trial's status -> how a sentence says it.
STATUS: dict[Status, str] = {
    "finished": "finished",
    "stopped": "stopped early",
    "failed": "failed",
    "nan": "diverged",
    "running": "running",
    "waiting": "waiting",
}


def summary(run: Run) -> Section | None:
    """Return what a run came to; None for a sweep that was to train nothing."""
    if run.trains_nothing:
        return None
    if run.kind == "evaluation":
        return Section(
            "summary", "Summary", " ".join(filter(None, (_evaluated(run), _ensemble(run))))
        )
    lead = " ".join(text for text in (_best(run), _trials(run), _ensemble(run)) if text)
    return Section("summary", "Summary", lead, [Facts(_figures(run))])


def _evaluated(run: Run) -> str:
    models, tasks = (
        len({score.model for score in run.scores}),
        len({score.task for score in run.scores}),
    )
    return f"{counted(models, 'model')} evaluated on {counted(tasks, 'task')}." if models else ""


def _best(run: Run) -> str:
    best = run.best
    if best is None:
        return f"No trial has reported {run.metric} yet."
    subject = f"The best of {counted(len(run.trials), 'trial')} is {run.title(best.name)}, with"
    return f"{subject if run.sweep else 'The run reaches'} {run.metric} {_against_chance(run, run.value(best))}."


def _against_chance(run: Run, value: float | None) -> str:
    if run.chance is None:
        return significant(value)
    ratio, chance = run.chance_ratio(value), significant(run.chance, 3)
    return significant(value) + (
        f" (chance: {chance})" if ratio is None else f", {ratio:.1f} × chance ({chance})"
    )


def _trials(run: Run) -> str:
    if run.sweep is None or not run.trials:
        return ""
    counts = Counter(trial.status for trial in run.trials)
    parts = [f"{counts[status]} {text}" for status, text in STATUS.items() if counts[status]]
    return f"Trials: {', '.join(parts)}."


def _verdict(interval: tuple[float, float]) -> str:
    low, high = interval
    return (
        "better than"
        if low > 0
        else "worse than"
        if high < 0
        else "not significantly different from"
    )


def _ensemble(run: Run) -> str:
    if run.ensemble is None:
        return ""
    gain = run.ensemble.mean.difference
    low, high = gain.interval
    return (
        f"The ensemble of {len(run.ensemble.members)} is {_verdict(gain.interval)} its best single member "
        f"({run.title(run.ensemble.best_member)}) in the mean over tasks: {fixed(gain.value, sign=True)} points "
        f"(95 % interval {fixed(low, sign=True)} to {fixed(high, sign=True)})."
    )


def _figures(run: Run) -> list[tuple[str, str]]:
    value = run.value(run.best) if run.best else None
    ratio = run.chance_ratio(value)
    figures = [("best " + run.metric.replace("_", " "), significant(value))]
    if ratio is not None:
        figures.append(("of chance", f"{ratio:.1f} ×"))
    if run.sweep is not None:
        done = sum(trial.status in ("finished", "stopped") for trial in run.trials)
        figures.append(("trials done", f"{done} of {run.sweep.space.limits.trials}"))
    figures.append(("wall clock", duration(run.seconds)))
    memory = [
        report.memory_bytes
        for trial in run.trials
        for report in trial.reports
        if report.memory_bytes
    ]
    figures += [("largest process", show_bytes(max(memory)))] if memory else []
    return figures


def failures(run: Run) -> Section | None:
    """Return a table of the trials that failed or diverged; None if there are none."""
    broken = [trial for trial in run.trials if trial.status in BROKEN or trial.error]
    if not broken:
        return None
    columns = [
        Column("trial"),
        Column("status"),
        Column("after", "number"),
        Column("reason"),
        Column("searched values"),
    ]
    rows = [
        [
            Cell(trial.name),
            Cell(trial.status, mark=trial.status),
            Cell(duration(trial.seconds), trial.seconds),
            Cell(_reason(trial)),
            Cell(", ".join(f"{name}={text_of(value)}" for name, value in trial.params.items())),
        ]
        for trial in broken
    ]
    lead = "The sweep continued without these trials. Their values are not used in any comparison above."
    return Section("failures", "Failures", lead if run.sweep else "", [Table(columns, rows)])


def _reason(trial: Trial) -> str:
    if trial.error:
        return trial.error
    return (
        "the loss was NaN or infinite; the last good checkpoint is kept"
        if trial.status == "nan"
        else DASH
    )


def reproduction(run: Run) -> Section | None:
    """Return the command, versions, seed and data that repeat the run; None for evaluated models."""
    made = _of_sweep(run) or _of_training(run)
    if not made:
        return None
    known = [(name, value) for name, value in made if value]
    known += [
        *_pool(run),
        ("report written by", f"raysent {__version__}, Python {platform.python_version()}"),
    ]
    asked = (
        "command" if run.sweep is not None and run.sweep.record.command else "search space, limits"
    )
    lead = f"The same {asked}, versions, corpus and seed draw the same trials in the same order."
    return Section(
        "reproduce",
        "How to reproduce this",
        lead if run.sweep else "",
        [Facts(known, is_code=True)],
    )


def _of_sweep(run: Run) -> list[tuple[str, str]]:
    if run.sweep is None:
        return []
    record = run.sweep.record
    corpus = record.facts.get("corpus", {})
    started = datetime.fromtimestamp(record.started, tz=UTC)
    return [
        ("command", without_secrets(shlex.join(record.command))),
        ("started", f"{started:%Y-%m-%d %H:%M} UTC" if record.started else ""),
        ("seed", str(record.seed)),
        ("corpus", _path(corpus.get("path"))),
        ("corpus key", str(corpus.get("key") or "")),
        ("corpus size", ", ".join(_sizes(corpus))),
        ("search space", record.source),
        ("versions", _versions(record.versions)),
    ]


def _of_training(run: Run) -> list[tuple[str, str]]:
    if run.training is None:
        return []
    config = run.training.config
    return [
        ("corpus", _path(config.source.path)),
        ("seed", str(config.seed)),
        ("versions", _versions(run.training.versions)),
    ]


def _path(path: str | list[str] | None) -> str:
    return " ".join(path) if isinstance(path, list) else path or ""


def _sizes(corpus: Mapping[str, Any]) -> Iterator[str]:
    for name, value in corpus.items():
        if name.startswith("num_") and number(value) is not None:
            yield f"{whole(number(value))} {name.removeprefix('num_')}"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _pool(run: Run) -> list[tuple[str, str]]:
    if not run.pool:
        return []
    found = [("validation set", text_of(run.pool.get("hash")))]
    names = ("num_sources", "num_candidates", "chance_accuracy")
    sources, candidates, chance = (number(run.pool.get(name)) for name in names)
    if sources is not None and candidates is not None:
        size = f"{whole(sources)} sentences, {whole(candidates)} candidates for each; chance {significant(chance)}"
        found.append(("validation size", size))
    return found
