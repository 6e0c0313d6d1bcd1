"""`reproduce`: a paper's models are made, evaluated, and printed beside the reported figures; resumable.

Models, records and scores are kept in the output folder. The same call continues after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysent.errors import ConfigError, RaysentError, did_you_mean
from raysent.reproduction.files import ClaimEntry, PaperFile, Scale, read_paper
from raysent.reproduction.making import Graph
from raysent.reproduction.scores import ClaimResult, Scores, TableResult, claim_result, reported_rows
from raysent.storage import read_json, write_json

RESULTS_FILE = "results.json"
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Reproduction:
    """What was reproduced of a paper.

    Attributes:
        paper: Its title.
        scale: The scale.
        tables: The tables.
        claims: The claims.
        hours: Wall-clock time of this call.
    """

    paper: str
    scale: Scale
    tables: tuple[TableResult, ...]
    claims: tuple[ClaimResult, ...]
    hours: float


def reproduce(
    name: str,
    *,
    data: Path,
    output: Path,
    scale: Scale = "small",
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    max_hours: float | None = None,
    progress: OnProgress | None = None,
) -> Reproduction:
    """Make a paper's models and evaluate them.

    Args:
        name: A shipped paper, or a file.
        data: Folder of the datasets, with `senteval/` in it.
        output: Folder of models, records and results; a second call continues there.
        scale: `small`, or `paper` for the published settings.
        tables: Numbers of the tables; all by default.
        claims: Names of claims to run on several seeds; `all` for every one.
        max_hours: No model is begun after this time.
        progress: Called with a line for every model, table and claim.

    Raises:
        ConfigError: If the paper, a table or a claim is unknown, or the paper's file is wrong.
    """
    paper = read_paper(name)
    chosen = _chosen(paper.tables, tables, what="table", option="tables")
    named = None if "all" in claims else claims
    wanted = _chosen(paper.claims, named, what="claim", option="claims") if claims else []
    runner = _Runner(Graph(paper, scale, data, output), max_hours=max_hours, progress=progress or (lambda _: None))
    runner.graph.derive()
    found_tables: list[TableResult] = []
    found_claims: list[ClaimResult] = []

    def result() -> Reproduction:
        return Reproduction(paper.title, scale, tuple(found_tables), tuple(found_claims), runner.hours)

    for number in chosen:
        found_tables.append(runner.table(number))
        _save(result(), output)
    for claim in wanted:
        found_claims.append(runner.claim(claim))
        _save(result(), output)
    return result()


def wanted_models(paper: PaperFile, *, tables: Sequence[str] | None, claims: Sequence[str]) -> list[str]:
    """Return the models of tables and claims, each once; arguments as for `reproduce`.

    Raises:
        ConfigError: If a table or a claim is unknown.
    """
    numbers = _chosen(paper.tables, tables, what="table", option="tables")
    named = None if "all" in claims else claims
    chosen = _chosen(paper.claims, named, what="claim", option="claims") if claims else []
    of_tables = [row.model for number in numbers for row in paper.tables[number].models().values()]
    arms = [arm for name in chosen for arm in (paper.claims[name].better, paper.claims[name].worse)]
    return list(dict.fromkeys([*of_tables, *(arm for arm in arms if arm is not None)]))


def _chosen(known: Mapping[str, Any], names: Sequence[str] | None, *, what: str, option: str) -> list[str]:
    for name in names or ():
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise ConfigError(f"{option} {name}: no such {what}{hint}; known: {', '.join(known)}")
    return list(known if names is None else names)


class _Runner:
    """Makes and evaluates what tables and claims need, each model once."""

    def __init__(self, graph: Graph, *, max_hours: float | None, progress: OnProgress) -> None:
        self.graph, self._paper = graph, graph.paper
        self._scores = Scores(graph)
        self._max_hours, self._progress = max_hours, progress
        self._started = time.perf_counter()
        self._failed: dict[tuple[str, int], str] = {}
        self._made: set[tuple[str, int]] = set()

    @property
    def hours(self) -> float:
        """Hours since the start."""
        return (time.perf_counter() - self._started) / 3600

    def table(self, number: str) -> TableResult:
        """Make a table's models and evaluate them."""
        entry = self._paper.tables[number]
        protocol = self._paper.scales[self.graph.scale].protocol or entry.protocol
        tasks = self._scores.present(entry.tasks)
        ours, skipped = {}, {}
        for name, row in entry.models().items():
            problem = self._make(row.model, 0)
            if problem:
                skipped[name] = problem
                continue
            self._progress(f"table {number}: {name}")
            try:
                ours[name] = self._scores.of_model(row.model, 0, tasks=tasks, protocol=protocol)
            except RaysentError as error:
                skipped[name] = str(error)
        reported = reported_rows(self._paper, number, entry)
        return TableResult(number, entry.title, protocol, tuple(entry.tasks), ours, reported, skipped)

    def claim(self, name: str) -> ClaimResult:
        """Make a claim's arms on all seeds and compare them."""
        entry = self._paper.claims[name]
        if entry.needs or entry.better is None or entry.worse is None:
            return ClaimResult(name, entry.claim, "not run", reason=entry.needs)
        tasks = self._scores.present(entry.tasks)
        if not (tasks or entry.metric or entry.searched):
            return ClaimResult(name, entry.claim, "not run", reason=f"needs the files of {', '.join(entry.tasks)}")
        usual = self._paper.scales[self.graph.scale].protocol or "fast"
        sides = list(zip((entry.better, entry.worse), entry.protocols or (usual, usual), strict=True))
        scores: list[tuple[float, float]] = []
        for seed in range(entry.seeds):
            for arm, _ in sides:
                problem = self._make(arm, seed)
                if problem:
                    return ClaimResult(name, entry.claim, "not run", reason=f"{arm}: {problem}")
            if entry.is_in_time:
                ours, theirs = (self.graph.training_s(arm, seed) for arm, _ in sides)
                if ours > theirs:
                    reason = f"seed {seed}: {entry.better} trained {ours:.0f} s, {entry.worse} {theirs:.0f} s"
                    return ClaimResult(name, entry.claim, "not run", reason=reason)
            of_seed = []
            for arm, protocol in sides:
                self._progress(f"claim {name}: {arm}, seed {seed}")
                of_seed.append(self._scores.of_arm(entry, arm, seed, tasks=tasks, protocol=protocol))
            scores.append((of_seed[0], of_seed[1]))
        better, worse = zip(*scores, strict=True)
        return claim_result(name, entry, better=better, worse=worse)

    def _make(self, name: str, seed: int) -> str:
        """Make a model and its parts; return why it cannot be made, or an empty text."""
        missing = self._paper.missing(name, scale=self.graph.scale, data=self.graph.data)
        if missing:
            return f"needs {', '.join(missing)}"
        for part in self._paper.order([name]):
            problem = self._failed.get((part, seed), "") or self._make_one(part, seed)
            if problem:
                return problem
        return ""

    def _make_one(self, name: str, seed: int) -> str:
        if (name, seed) in self._made:
            return ""
        if self._max_hours is not None and self.hours > self._max_hours:
            return f"not begun: the limit of {self._max_hours:g} hours is reached"
        self._progress(f"making {name}, seed {seed}")
        try:
            self.graph.make(name, seed)
        except RaysentError as error:
            self._failed[(name, seed)] = str(error)
            return str(error)
        self._made.add((name, seed))
        return ""


def _save(result: Reproduction, output: Path) -> None:
    """Add results to those that the folder has."""
    path = output / RESULTS_FILE
    before = read_json(path) if path.is_file() else {}
    tables = {**before.get("tables", {}), **{table.number: asdict(table) for table in result.tables}}
    claims = {**before.get("claims", {}), **{claim.name: asdict(claim) for claim in result.claims}}
    write_json(path, {"paper": result.paper, "scale": result.scale, "tables": tables, "claims": claims})


def claims_page(papers: Iterable[tuple[str, Path]]) -> str:
    """Return a Markdown page of all claims of some papers: those with results, and those not run.

    Args:
        papers: Each paper's name, and the folder where it was reproduced; the folder may not exist.
    """
    parts = []
    for name, folder in papers:
        paper = read_paper(name)
        path = folder / RESULTS_FILE
        known = read_json(path).get("claims", {}) if path.is_file() else {}
        lines = [_claim_line(entry, known.get(claim)) for claim, entry in paper.claims.items()]
        head = "| claim | verdict | better | worse | difference, 95 % interval | seeds | tasks | why |"
        parts.append("\n".join([f"## {paper.title} ({paper.paper})\n", head, "|---" * 8 + "|", *lines]))
    return "\n\n".join(parts) + "\n"


def _claim_line(entry: ClaimEntry, found: Mapping[str, Any] | None) -> str:
    if found is None or found["verdict"] == "not run":
        reason = entry.needs or (found or {}).get("reason") or entry.why
        arms = f"| {entry.better or ''} | {entry.worse or ''} "
        return f"| {entry.claim} | *not run* {arms}| | | {entry.measured} | {reason} |"
    protocols = [f" ({protocol})" for protocol in entry.protocols or ()] or ["", ""]
    sides = zip((entry.better, entry.worse), protocols, (found["better"], found["worse"]), strict=True)
    arms = " | ".join(f"{arm}{protocol} {np.mean(scores):.2f}" for arm, protocol, scores in sides)
    low, high = found["interval"]
    figures = f"{found['difference']:+.2f} [{low:+.2f}, {high:+.2f}] | {len(found['better'])}"
    return f"| {entry.claim} | **{found['verdict']}** | {arms} | {figures} | {entry.measured} | {entry.why} |"
