"""All claims of the papers with their verdicts, as `benchmarks/results/claims.md`.

    python -m benchmarks.claims FOLDER [--output FILE]

FOLDER holds one folder for each paper, as `raysent reproduce PAPER --claim all -o FOLDER/PAPER` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysent.reproduction import known_papers, read_paper
from raysent.reproduction.files import ClaimEntry, PaperFile
from raysent.reproduction.reported import reported_tables
from raysent.reproduction.run import RESULTS_FILE
from raysent.reproduction.scores import Column, reported_rows
from raysent.storage import read_json

HEAD = """# The papers' claims

`raysent reproduce PAPER --claim all --data DIR -o FOLDER/PAPER` for each paper; `python -m benchmarks.claims FOLDER`.

Each arm is trained at scale `small` of `papers/*.yaml`, on the same seeds and for equal steps (`cumulative` has the
steps of both of its trainings, as in the paper). The difference is better less worse: the mean over seeds of
paired differences of mean test scores, in points, with its 95 % interval (Student's t); a similarity task's score is
Pearson's correlation times 100. A claim is reproduced where the interval lies above its margin, 0 if none is named,
and refuted where it lies below: a claim of "no worse" has a margin below 0, half a point by our choice where the paper
names none. "Refuted" is said of this size alone.
"After Holm" is the verdict with the error of all claims of this page together at 5 %; one not run counts with p = 1.
"Place" is where the paper says it, *ours* where no paper does; "paper's" is the paper's own difference, on those of the
tasks that its tables have for both arms. Earlier verdicts are of seeds 0 to 4, on which arms were also chosen, or
of other arms, tasks or pairs for training, as each says. Arms were trained and evaluated on one thread of an AMD EPYC,
CSE's but for SICK on one of an Intel Xeon with AMX; binary codes had the same verdicts there, on the same seeds.

"""
COLUMNS = (
    *(
        "claim",
        "place",
        "paper's",
        "verdict",
        "after Holm",
        "better",
        "worse",
        "difference, 95 % interval",
    ),
    *("margin", "seeds", "tasks", "why"),
)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the folder of each paper's reproduction")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/claims.md"))
    options = parser.parse_args()
    page = claims_page((name, options.folder / name) for name in known_papers())
    options.output.write_text(HEAD + page, encoding="utf-8")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values such that those below a level are wrong together with at most that chance. Source: Holm, 1979."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.sort(p_values) * np.arange(len(order), 0, -1)).clip(
        max=1
    )
    return adjusted.tolist()


def reported_difference(paper: PaperFile, claim: ClaimEntry) -> float | None:
    """Return the paper's own difference of a claim's arms, a mean over its tasks; None where no table has both.

    A mean over the sets of a task, plain or weighted by pairs, counts as the task.
    """
    if claim.reported:
        better, worse = (_figures_of(paper, row) for row in claim.reported)
        shared = [
            column
            for column in better
            if column in worse and (column.task in claim.tasks or claim.metric)
        ]
        return float(np.mean([better[column] - worse[column] for column in shared]))
    for number, table in paper.tables.items():
        figures = reported_rows(paper, number, table)
        arms = {row.model: figures.get(name, {}) for name, row in table.models().items()}
        better, worse = (arms.get(arm or "", {}) for arm in (claim.better, claim.worse))
        if claim.better != claim.worse and (
            shared := [task for task in claim.tasks if task in better and task in worse]
        ):
            return float(np.mean([better[task] - worse[task] for task in shared]))
    return None


def _figures_of(paper: PaperFile, row: str) -> dict[Column, float]:
    """Return the figures of a row in all tables of a paper that have it: scores, without their other measures."""
    found: dict[Column, float] = {}
    for table in reported_tables():
        if table.paper != paper.paper or row not in table.rows:
            continue
        columns = map(Column.of, table.columns)
        for column, figure in zip(columns, table.rows[row], strict=True):
            if figure is not None and column.measure in ("", "pearson_weighted"):
                found.setdefault(column, figure)
    return found


def claims_page(papers: Iterable[tuple[str, Path]]) -> str:
    """Return a Markdown page of all claims of some papers: those with results, and those not run.

    Args:
        papers: Each paper's name, and the folder where it was reproduced; the folder may not exist.
    """
    rows = []
    for name, folder in papers:
        path = folder / RESULTS_FILE
        known = read_json(path).get("claims", {}) if path.is_file() else {}
        paper = read_paper(name)
        rows += [
            (paper, entry, known.get(claim, {"verdict": "not run"}))
            for claim, entry in paper.claims.items()
        ]
    adjusted = holm([found.get("p") if found.get("p") is not None else 1.0 for *_, found in rows])
    lines: dict[str, list[str]] = {}
    for (paper, entry, found), p_value in zip(rows, adjusted, strict=True):
        reported = reported_difference(paper, entry)
        place = [
            entry.claim,
            f"*{entry.place}*" if entry.place == "ours" else entry.place,
            _signed(reported),
        ]
        cells = [*place, *_result(entry, found, p_value)]
        lines.setdefault(f"{paper.title} ({paper.paper})", []).append(f"| {' | '.join(cells)} |")
    head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
    tables = [f"## {title}\n\n{head}\n" + "\n".join(of_paper) for title, of_paper in lines.items()]
    earlier = [
        f"- {paper.title}: {entry.claim} – {line}"
        for paper, entry, _ in rows
        for line in entry.before
    ]
    return (
        "\n\n".join([_counts(rows), *tables, "\n".join(["## Earlier verdicts\n", *earlier])]) + "\n"
    )


def _counts(rows: Sequence[tuple[Any, ClaimEntry, Mapping[str, Any]]]) -> str:
    """Return how many comparisons a paper states, and how many of those and of ours have each verdict."""
    parts = []
    for what, is_ours in (("stated in a paper", False), ("ours", True)):
        verdicts = [
            found["verdict"] for _, entry, found in rows if (entry.place == "ours") == is_ours
        ]
        counted = ", ".join(
            f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts))
        )
        parts.append(f"{len(verdicts)} {what} ({counted})")
    return f"{len(rows)} comparisons: {'; '.join(parts)}."


def _result(entry: ClaimEntry, found: Mapping[str, Any], p_value: float) -> list[str]:
    margin = f"{entry.margin:+g}" if entry.margin else ""
    if found["verdict"] == "not run":
        # Without the place on the machine that looked for it.
        reason = entry.needs or found.get("reason", "").partition(" (")[0] or entry.why
        return [
            "*not run*",
            "",
            entry.better or "",
            entry.worse or "",
            "",
            margin,
            "",
            entry.measured,
            reason,
        ]
    protocols = [f" ({protocol})" for protocol in entry.protocols or ()] or ["", ""]
    sides = zip(
        (entry.better, entry.worse), protocols, (found["better"], found["worse"]), strict=True
    )
    arms = [f"{arm}{protocol} {np.mean(scores):.2f}" for arm, protocol, scores in sides]
    after = found["verdict"] if p_value < 0.05 else "undecidable"
    difference = f"{found['difference']:+.2f} [{', '.join(map(_signed, found['interval']))}]"
    seeds = f"{min(found['seeds'])} to {max(found['seeds'])}"
    return [
        f"**{found['verdict']}**",
        after,
        *arms,
        difference,
        margin,
        seeds,
        entry.measured,
        entry.why,
    ]


def _signed(number: float | None) -> str:
    return "" if number is None else f"{number:+.2f}"


if __name__ == "__main__":
    main()
