"""What it takes to do it again: the command, the versions, and the keys of what it ran on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raysent import __version__
from raysent.config import get_dotted
from raysent.report.blocks import Facts, Section, number, text_of
from raysent.report.run_files import Run
from raysent.report.score_files import mapping

PLACES = {
    "command": ("command", "command_line", "argv"),
    "started": ("started", "started_at"),
    "seed": ("seed", "config.seed"),
    "corpus": ("corpus.path", "base.corpus.path", "config.corpus.path"),
    "corpus key": ("corpus.key", "corpus_key"),
    "validation pool": ("pool.hash", "validation_pool.hash", "pool_hash", "pool.key"),
    "candidates": ("pool.num_candidates", "base.validation.num_candidates", "config.validation.num_candidates"),
}


def section(run: Run) -> Section:
    """Return what is known of how the run was made."""
    items = [(name, _found(run.settings, places)) for name, places in PLACES.items()]
    facts = [(name, _as_text(name, value)) for name, value in items if value is not None]
    facts += _sizes(run.settings) + _versions(run.settings)
    facts.append(("report written by", f"raysent {__version__}, Python {sys.version.split()[0]}"))
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
    sizes = {**corpus, **mapping(corpus.get("sizes"))}
    found = {name.removeprefix("num_"): number(value) for name, value in sizes.items() if name.startswith("num_")}
    texts = [f"{value:,.0f} {name}" for name, value in found.items() if value is not None]
    return [("corpus size", ", ".join(texts))] if texts else []


def _versions(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = dict(mapping(settings.get("versions")))
    for name in ("raysent", "torch", "ray"):
        value = settings.get(f"{name}_version")
        if value is not None:
            versions.setdefault(name, value)
    return [("versions", ", ".join(f"{name} {text_of(value)}" for name, value in versions.items()))] if versions else []
