"""What it takes to do it again: the command, the versions, and the keys of what it ran on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raysent import __version__
from raysent.config import get_dotted
from raysent.report.blocks import Facts, Section, fixed, number, significant, text_of
from raysent.report.ensemble_files import mapping
from raysent.report.run import Run

PLACES = {
    "command": ("command",),
    "started": ("started",),
    "seed": ("seed", "config.seed"),
    "corpus": ("corpus.path", "config.corpus.path"),
    "corpus key": ("corpus.key",),
    "search space": ("source",),
}


def section(run: Run) -> Section | None:
    """Return what is known of how the run was made."""
    items = [(name, _found(run.settings, places)) for name, places in PLACES.items()]
    facts = [(name, _as_text(name, value)) for name, value in items if value not in (None, [], "")]
    facts += _sizes(run.settings) + _pool(run) + _versions(run.settings)
    facts.append(("report written by", f"raysent {__version__}, Python {sys.version.split()[0]}"))
    if run.kind == "judged models":
        return None
    lead = "The same command, versions, corpus and seed give the same trials in the same order."
    return Section("reproduce", "To do it again", lead if run.is_sweep else "", [Facts(facts, code=True)])


def _found(settings: Mapping[str, Any], places: tuple[str, ...]) -> Any:
    return next((value for place in places if (value := get_dotted(settings, place)) is not None), None)


def _as_text(name: str, value: Any) -> str:
    """Return a fact's text: times as dates, lists as words in a row."""
    seconds = number(value)
    if name == "started" and seconds is not None:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    if isinstance(value, list):
        return " ".join(map(text_of, value))
    return text_of(value)


def _sizes(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sizes of the corpus, wherever they stand in its record."""
    corpus = mapping(settings.get("corpus"))
    found = {name.removeprefix("num_"): number(value) for name, value in corpus.items() if name.startswith("num_")}
    texts = [f"{value:,.0f} {name}" for name, value in found.items() if value is not None]
    return [("corpus size", ", ".join(texts))] if texts else []


def _pool(run: Run) -> list[tuple[str, str]]:
    """Return what names the frozen pool that scores are taken on."""
    if not run.pool:
        return []
    name = ("validation pool", text_of(run.pool.get("hash")))
    if run.pool.get("num_sources") is None:
        return [name]
    sources, candidates = (number(run.pool.get(name)) for name in ("num_sources", "num_candidates"))
    size = f"{fixed(sources, 0)} sentences, each among {fixed(candidates, 0)} candidates"
    return [
        name,
        ("pool size", f"{size}; chance {significant(run.chance)}"),
    ]


def _versions(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = mapping(settings.get("versions"))
    return [("versions", ", ".join(f"{name} {text_of(value)}" for name, value in versions.items()))] if versions else []
