"""The first lines: what came out, in words."""

from __future__ import annotations

from collections import Counter

from raysent.report.blocks import Facts, Section, counted, duration, fixed, significant
from raysent.report.run import Run

WORDS = ("finished", "stopped", "failed", "nan", "running", "waiting")


def section(run: Run) -> Section:
    """Return the summary."""
    if run.kind == "judged models":
        return Section(key="summary", title="Summary", lead=" ".join([_judged(run), _ensemble(run)]).strip())
    lead = " ".join(part for part in (_best(run), _trials(run), _ensemble(run)) if part)
    return Section(key="summary", title="Summary", lead=lead, blocks=[Facts(_figures(run))])


def _judged(run: Run) -> str:
    """Say what was done with models that were trained elsewhere."""
    models, tasks = len({score.model for score in run.scores}), len({score.task for score in run.scores})
    parts = [f"{counted(models, 'model')} judged on {counted(tasks, 'task')}"] if models else []
    parts += [counted(len(run.analyses), "analysis", "analyses")] if run.analyses else []
    return f"{'; '.join(parts)}." if parts else "Nothing was judged yet."


def _best(run: Run) -> str:
    """Say which trial is best and how far from chance it stands."""
    best = run.best
    if best is None:
        return f"No trial has reached a {run.metric} yet."
    subject = f"The best of {counted(len(run.trials), 'trial')} is {run.title(best.name)}, with"
    value = significant(run.value(best))
    return f"{subject if run.is_sweep else 'The run reaches'} {run.metric} {value}{_against_chance(run)}."


def _against_chance(run: Run) -> str:
    if run.chance is None:
        return ""
    ratio = run.against_chance(run.value(run.best) if run.best else None)
    chance = significant(run.chance, 3)
    return f" (chance: {chance})" if ratio is None else f", {ratio:.1f} × chance ({chance})"


def _trials(run: Run) -> str:
    """Count the trials by what became of them."""
    if not run.is_sweep:
        return ""
    words = {"stopped": "stopped early", "nan": "ended by a loss that is not a number"}
    counts = Counter(trial.status for trial in run.trials)
    known = [*WORDS, *sorted(set(counts) - set(WORDS))]
    parts = [f"{counts[word]} {words.get(word, word)}" for word in known if counts[word]]
    return f"Of the trials, {', '.join(parts)}." if parts else ""


def _ensemble(run: Run) -> str:
    """Say what pooling adds, with its interval, and in plain words whether that can be told from nothing."""
    ensemble = run.ensemble
    if ensemble is None or ensemble.gain is None:
        return ""
    rival = f"its best single member ({run.title(ensemble.rival)})" if ensemble.rival else "its best single member"
    if ensemble.gain_interval is None:
        return f"The ensemble's mean over tasks is {fixed(ensemble.gain, sign=True)} points from {rival}."
    low, high = ensemble.gain_interval
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not told apart from"
    ends = f"95 % interval {fixed(low, sign=True)} to {fixed(high, sign=True)}"
    return (
        f"The ensemble of {len(ensemble.members)} is {verdict} {rival} on the mean over tasks: "
        f"{fixed(ensemble.gain, sign=True)} points ({ends})."
    )


def _figures(run: Run) -> list[tuple[str, str]]:
    """Return the few figures that stand large at the top."""
    value = run.value(run.best) if run.best else None
    ratio = run.against_chance(value)
    figures = [("best " + run.metric.replace("_", " "), significant(value))]
    if ratio is not None:
        figures.append(("of chance", f"{ratio:.1f} ×"))
    if run.is_sweep:
        done = sum(trial.status in ("finished", "stopped") for trial in run.trials)
        figures.append(("trials done", f"{done} of {len(run.trials)}"))
    figures.append(("wall clock", duration(run.seconds)))
    if run.ensemble is not None and run.ensemble.gain is not None:
        figures.append(("ensemble over best member", f"{fixed(run.ensemble.gain, sign=True)} points"))
    return figures
