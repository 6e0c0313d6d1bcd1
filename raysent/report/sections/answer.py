"""What to take on each task, what it is worth on rows that chose nothing, and what simpler things give."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.ensembles import Answer, Candidate, commands
from raysent.ensembles.answer import capital
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Note,
    Section,
    Table,
    fixed,
    label,
    whole,
)
from raysent.report.figures import ACCENT, BEST, NAMES_AXIS, figure, whiskers
from raysent.report.run import Run
from raysent.storage import address_of

# Characters of a line of a name beside a plot: on a narrow screen the points need more room than the names.
_NAME_WIDTH = 24


def what_to_take(run: Run) -> Section | None:
    """Return what to take on each task; None before the evaluation."""
    if not run.answers:
        return None
    blocks: list[Block] = []
    for folder, answer in run.answers:
        use, serve = commands(folder, answer)
        what = "To index passages:" if answer.ranks else "To predict rows:"
        model = f"Your model: {address_of(folder)} ({answer.answer.title})"
        worth = [answer.score_text, *answer.remarks]
        notes = [Note(f"{model}."), *(Note(f"{capital(text)}.") for text in worth), Note(what, use)]
        blocks += [*notes, Note("To serve it:", serve), _plot(answer), _table(answer)]
    lead = " ".join(dict.fromkeys(answer.basis for _, answer in run.answers))
    return Section("answer", "Your model", lead, blocks)


def _plot(answer: Answer) -> Figure:
    shown = [*reversed(answer.simpler), answer.answer]
    return figure(
        [_points(shown, answer)],
        height=80 + 44 * len(shown),
        label=f"Hold-out scores on {answer.task}: "
        + ", ".join(f"{one.title} {fixed(one.test, 1)}" for one in shown)
        + ".",
        title=f"{answer.task}: your model and its baselines",
        caption=f"{answer.test_text}; whiskers are 95 % intervals.",
        xaxis_title_text=f"hold-out {answer.metric_text}",
        **NAMES_AXIS,
    )


def _points(shown: Sequence[Candidate], answer: Answer) -> Any:
    names = ["your model" if one is answer.answer else one.title for one in shown]
    return go.Scatter(
        x=[one.test for one in shown],
        y=[
            "<br>".join(map(label, textwrap.wrap(name, _NAME_WIDTH, break_long_words=False)))
            for name in names
        ],
        mode="markers",
        marker={"size": 10, "color": [BEST if one is answer.answer else ACCENT for one in shown]},
        error_x=whiskers([one.test for one in shown], [one.interval for one in shown]),
        hovertemplate="%{y}: %{x:.1f}<extra></extra>",
    )


def _table(answer: Answer) -> Table:
    columns = [
        Column("model"),
        Column("cross-validated", "number", answer.basis),
        Column("hold-out", "number", "with its 95 % interval in the tooltip"),
        Column(
            "your model is above by",
            "number",
            f"points on {answer.test_text}, with the interval of the paired difference",
        ),
        Column("ms / 1,000 texts", "number", "on the machine that evaluated it"),
    ]
    # Of combinations of the same members the answer is shown, else the best; one of a single member is that member.
    shown = {(one.title, one.members): one for one in (*reversed(answer.candidates), answer.answer)}
    rows = [_row(answer, one) for one in answer.candidates if shown[one.title, one.members] is one]
    return Table(columns, rows, "leaderboard: everything that was scored", is_tall=True)


def _row(answer: Answer, one: Candidate) -> list[Cell]:
    is_taken = one is answer.answer
    low, high = one.behind.interval
    gain = (
        ""
        if is_taken
        else f"{fixed(one.behind.value, 1, sign=True)} [{fixed(low, 1)}, {fixed(high, 1)}]"
    )
    return [
        Cell(one.title, mark="best" if is_taken else ""),
        Cell(fixed(one.validation, 1), one.validation),
        Cell(
            fixed(one.test, 1),
            one.test,
            title=f"{fixed(one.interval[0], 1)} to {fixed(one.interval[1], 1)}",
        ),
        Cell(gain, one.behind.value),
        Cell(whole(one.encode_ms), one.encode_ms),
    ]
