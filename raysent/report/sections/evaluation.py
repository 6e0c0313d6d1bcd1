"""Scores on tasks: of the evaluated models, and against the number of labels."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.ensembles.label_curves import Curve, LabelCurve
from raysent.evaluation.baselines import CHANCE
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.evaluation.records import (
    LEARNED,
    LEARNED_NOTE,
    MTEB,
    SIMILARITY,
    AnyScore,
    Costs,
    mean_heading,
)
from raysent.evaluation.retrieval import RETRIEVAL
from raysent.report.blocks import (
    DASH,
    Block,
    Cell,
    Column,
    Figure,
    Note,
    Section,
    Table,
    fixed,
    hours_cell,
    label,
    whole,
)
from raysent.report.figures import BEST, PALETTE, QUIET, figure, level_line, level_text
from raysent.report.run import Run
from raysent.storage import address_of


def task_scores(run: Run) -> Section:
    """Return a table of models by tasks for each protocol, or the command that evaluates."""
    key, title = "tasks", "Scores on tasks"
    if not run.scores:
        command = f"raysent evaluate {shlex.quote(address_of(run.folder))}"
        return Section(key, title, blocks=[Note("Not evaluated yet. To evaluate:", command)])
    lead = (
        "Test scores of linear probes on frozen sentence vectors, in percent. The best model of each task is "
        "highlighted. Validation scores and intervals are in the tooltips."
    )
    if any(getattr(score, "learned", False) for score in run.scores):
        lead += f" {LEARNED_NOTE}."
    if any(score.f1 is not None for score in run.scores):
        lead += " A second figure after a slash is F1."
    protocols = sorted({score.protocol for score in run.scores})
    return Section(key, title, lead, [_table(run, protocol) for protocol in protocols])


def _table(run: Run, protocol: str) -> Table:
    """Return models by tasks; correlations among percentages are right of the mean, which does not include them."""
    scores = {
        (score.model, score.task): score for score in run.scores if score.protocol == protocol
    }
    is_mixed = protocol != SIMILARITY
    correlations = sorted(
        {task for (_, task), score in scores.items() if is_mixed and score.is_correlation}
    )
    tasks = sorted({task for _, task in scores} - set(correlations))
    means = {
        model: _mean(scores.get((model, task)) for task in tasks)
        for model in sorted({m for m, _ in scores})
    }
    best = {
        task: _best(score.test for (_, name), score in scores.items() if name == task)
        for _, task in scores
    }
    best_mean = _best(means.values())
    has_costs = any(run.cost(model) != Costs() for model in means)
    columns = [
        Column("model"),
        *(
            [Column("parameters", "number"), Column("trained", "number", "validation included")]
            if has_costs
            else []
        ),
        *(Column(task, "number") for task in tasks),
        *([Column(mean_heading(tasks), "number", "over the tasks left of it")] if tasks else []),
        *(Column(f"{task} r", "number", "Pearson's correlation × 100") for task in correlations),
    ]
    rows = [
        [
            Cell(run.title(model)),
            *(
                [
                    Cell(whole(cost.num_parameters), cost.num_parameters),
                    hours_cell(cost.training_hours),
                ]
                * has_costs
            ),
            *(_cell(scores.get((model, task)), best[task]) for task in tasks),
            *([Cell(fixed(mean), mean, mark=_mark(mean, best_mean))] if tasks else []),
            *(_cell(scores.get((model, task)), best[task]) for task in correlations),
        ]
        for model, mean in sorted(
            means.items(), key=lambda item: (item[1] is None, -(item[1] or 0.0))
        )
        for cost in [run.cost(model)]
    ]
    return Table(columns, rows, _caption(protocol))


def _caption(protocol: str) -> str:
    if protocol == SIMILARITY:
        return "similarity of the vectors, nothing trained: Pearson's correlation with human ratings × 100"
    if protocol == MTEB:
        return "main scores of MTEB's tasks × 100"
    if protocol == RETRIEVAL:
        return "passages ranked for queries, nothing trained: nDCG@10 × 100"
    return f"protocol {protocol}"


def _mean(scores: Iterable[AnyScore | None]) -> float | None:
    values = [None if score is None else score.test for score in scores]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _best(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mark(value: float | None, best: float | None) -> str:
    return "best" if value is not None and best is not None and value >= best else ""


def _cell(score: AnyScore | None, best: float | None) -> Cell:
    if score is None:
        return Cell(DASH)
    ends = (
        ""
        if score.interval is None
        else f", 95 % interval {fixed(score.interval[0])} to {fixed(score.interval[1])}"
    )
    text = fixed(score.test) if score.f1 is None else f"{fixed(score.test)}/{fixed(score.f1)}"
    text += LEARNED * getattr(score, "learned", False)
    return Cell(
        text,
        score.test,
        mark=_mark(score.test, best),
        title=f"validation {fixed(score.validation)}{ends}",
    )


def against_labels(run: Run) -> Section | None:
    """Return a plot and tables for each task; None if no scores against the number of labels were taken."""
    if not run.label_curves:
        return None
    lead = (
        "Test scores in percent, with probes and weights of ensembles fitted on so many labels; means over draws of "
        "labels; on queries, models trained further on so many pairs. Thick lines are ensembles, thin lines members, "
        "dashed lines baselines. Intervals are 95 %."
    )
    if any(curve.learned for found in run.label_curves for curve in found.curves.values()):
        lead += f" {LEARNED_NOTE}."
    blocks: list[Block] = []
    for found in run.label_curves:
        blocks += [_label_plot(run, found), _label_table(run, found)]
    return Section("labels", "Scores against the number of labels", lead, blocks)


def _ordered(found: LabelCurve) -> list[tuple[str, Curve]]:
    return sorted(
        found.curves.items(), key=lambda item: -sum(point.value for point in item[1].points)
    )


def _label_plot(run: Run, found: LabelCurve) -> Figure:
    models = [(name, curve) for name, curve in _ordered(found) if name != CHANCE]
    sizes, level = list(found.sizes), dict[str, Any]()
    if (
        found.counted == "labels"
    ):  # queries have no such score, and 0 would be a large part of the plot
        level["shapes"] = [level_line(found.chance, QUIET)]
        level["annotations"] = [level_text(found.chance, f"chance {fixed(found.chance)}", QUIET)]
    return figure(
        [
            _line(run, name, curve, sizes, color=_color(curve, place))
            for place, (name, curve) in enumerate(models)
        ],
        height=380 + 22 * len(models),
        label=f"Test scores on {found.task} of {len(models)} models against the number of {found.counted}.",
        title=found.task,
        caption=f"{found.sentence}. {found.num_test:,} test rows.",
        showlegend=True,
        legend_orientation="v",
        meta="tall legend",
        xaxis_type="log",
        xaxis_title_text=found.counted,
        xaxis_tickvals=sizes,
        xaxis_ticktext=[f"{size:,}" for size in sizes],
        yaxis_title_text="test score",
        **level,
    )


def _color(curve: Curve, place: int) -> str:
    if curve.kind == "ensemble":
        return BEST
    return QUIET if curve.kind == "baseline" else PALETTE[place % len(PALETTE)]


def _line(run: Run, name: str, curve: Curve, sizes: Sequence[int], *, color: str) -> Any:
    values = [point.value for point in curve.points]
    return go.Scatter(
        x=sizes,
        y=values,
        error_y={
            "type": "data",
            "array": [point.interval[1] - point.value for point in curve.points],
            "arrayminus": [point.value - point.interval[0] for point in curve.points],
            "thickness": 1,
            "width": 3,
        },
        mode="lines+markers",
        line={
            "color": color,
            "width": 3 if curve.kind == "ensemble" else 1.5,
            "dash": "dash" if curve.kind == "baseline" or "+" in name else "solid",
        },
        marker={
            "size": 6,
            "symbol": ["circle", "square", "diamond", "x", "cross"][sum(map(ord, name)) % 5],
        },
        name=label(run.title(name)) + LEARNED * curve.learned,
        hovertemplate=f"{label(run.title(name))}<br>%{{x:,}}: %{{y:.1f}}<extra></extra>",
    )


def _label_table(run: Run, found: LabelCurve) -> Table:
    best = [
        max(curve.points[place].value for curve in found.curves.values())
        for place in range(len(found.sizes))
    ]
    draws = [f"{count} {'draw' if count == 1 else 'draws'}" for count in found.num_draws]
    columns = [
        Column("model"),
        Column("kind"),
        *(
            Column(f"{size:,}", "number", text)
            for size, text in zip(found.sizes, draws, strict=True)
        ),
    ]
    rows = [
        [
            Cell(run.title(name) + LEARNED * curve.learned),
            Cell(curve.kind),
            *(
                _label_cell(point, is_best=point.value >= top)
                for point, top in zip(curve.points, best, strict=True)
            ),
        ]
        for name, curve in _ordered(found)
    ]
    return Table(columns, rows, f"{found.task}: test score by number of {found.counted}")


def _label_cell(point: BootstrapEstimate, *, is_best: bool) -> Cell:
    title = f"95 % interval {fixed(point.interval[0])} to {fixed(point.interval[1])}"
    return Cell(fixed(point.value), point.value, mark="best" if is_best else "", title=title)
