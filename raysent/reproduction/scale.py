"""The scale `paper` of sweeps and trainings: the settings that a space's paper published, and the grids around them.

What the paper fixed is set, and what it searched is searched, by its own grid where the text gives one. What it tuned
without a grid is searched by one of ours; the plan says which is which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raysent.config import Override
from raysent.errors import ConfigError
from raysent.reproduction.files import read_paper
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.space.limits import PublishedModel
from raysent.sweeps.space.space import FAMILY, Choice

# The parts of a run that a paper publishes; its text is the user's.
_PUBLISHED = (
    "vocabulary",
    "encoder",
    "second_encoder",
    "objective",
    "postprocessing",
    "code",
    "training",
)
_PAPER_GRID, _OUR_GRID = "the paper's grid", "ours: the paper gives no grid"


def published_overrides(space: SearchSpace, *, data: Path | None) -> list[Override]:
    """Return the settings that a space's paper published, and the search around them in place of the space's own.

    Vocabulary, encoders, objective, postprocessing, code and training become those of `raysent reproduce --scale
    paper`. The text stays that of the space, and so does the model that runs start with; pairs are the paper's where
    the space has none.

    Args:
        space: The space.
        data: Folder of the files that published settings name; None for ``data``.

    Raises:
        ConfigError: If the space has no published settings.
    """
    published, option = space.published, "scale=paper"
    if published is None:
        raise ConfigError(
            f"scale paper: must be used with a space that names its published settings; '{space.name}' has none; "
            "'raysent reproduce' trains the models of a paper"
        )
    names = _names(space)
    models = {
        label: _parts(published, model, names, data) for label, model in _labels(published).items()
    }
    choice = next(iter(published.choices), None)
    parts = next(iter(models.values()))
    search: dict[str, Any] = {}
    if (
        choice == FAMILY
    ):  # each has all of its parts, and `base` has nothing that another one would add to
        parts = {**parts, "vocabulary": {}, "training": {}}
        search[FAMILY] = {"choice": _with_own_text(space, models)}
    elif choice is not None:
        search[choice] = {"choice": {label: one[choice] for label, one in models.items()}}
    search |= {**published.paper_grid, **published.our_grid}
    stratum = space.evaluation.stratify_by
    return [
        Override("fit", [name for name in space.fit if name == "metric"], option),
        Override("fitted", _reasons(published, parts, choice), option),
        *(Override(name, value, option) for name, value in parts.items()),
        Override("search", search, option),
        Override("when", _conditions(published.when or space.when, search), option),
        *([] if stratum in search else [Override("evaluation.stratify_by", None, option)]),
    ]


def _names(space: SearchSpace) -> tuple[str, ...]:
    """Return the parts of a run that are taken: the published ones, and pairs where the space has none of its own."""
    return _PUBLISHED if space.setting("pairs") else (*_PUBLISHED, "pairs")


def _labels(published: PublishedModel) -> dict[str, str | dict[str, str]]:
    """Return the models by the label of the choice that has them; a single one by an empty label."""
    if published.model is not None:
        return {"": published.model}
    return next(iter(published.choices.values()))


def _parts(
    published: PublishedModel,
    model: str | Mapping[str, str],
    names: Collection[str],
    data: Path | None,
) -> dict[str, Any]:
    """Return the published parts of a model; of several, one encoder with all of theirs, and else those of the last."""
    if isinstance(model, str):
        of_model, _, name = model.rpartition("/")
        paper = read_paper(of_model or published.paper or "")
        run = paper.values(name, scale="paper", data=data or Path("data"))
        return {name: value for name, value in run.items() if name in names and value}
    parts = {member: _parts(published, one, names, data) for member, one in model.items()}
    encoder = {"type": "concat", "members": {name: one["encoder"] for name, one in parts.items()}}
    return {**list(parts.values())[-1], "encoder": encoder}


def _reasons(
    published: PublishedModel, parts: Mapping[str, Any], choice: str | None
) -> dict[str, str]:
    """Return where each setting is from: the models of a paper, its grid, or ours."""
    sources: dict[str, list[str]] = {}
    for model in published.models:
        of_model, _, name = model.rpartition("/")
        sources.setdefault(of_model or published.paper or "", []).append(name)
    texts = [
        f"{read_paper(source).paper}, '{', '.join(names)}' of 'raysent reproduce {source}'"
        for source, names in sources.items()
    ]
    why = f"published: {'; '.join(texts)}"
    reasons = {FAMILY: why} if choice == FAMILY else dict.fromkeys(parts, why)
    reasons |= dict.fromkeys(published.paper_grid, _PAPER_GRID)
    return reasons | dict.fromkeys(published.our_grid, _OUR_GRID)


def _conditions(
    when: Mapping[str, Mapping[str, Any]], search: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the conditions on names that are searched, of values that are."""
    kept: dict[str, dict[str, Any]] = {}
    for name, tests in when.items():
        for other, written in tests.items() if name in search else ():
            labels = written if isinstance(written, list) else [written]
            allowed = [label for label in labels if label in _values(search.get(other))]
            if allowed:
                kept.setdefault(name, {})[other] = allowed
    return kept


def _values(domain: Any) -> list[Any]:
    """Return the labels of a choice as it is written; none of another domain."""
    return list(domain["choice"]) if isinstance(domain, dict) and "choice" in domain else []


def _with_own_text(
    space: SearchSpace, models: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the parts of families, with those of the space's that no paper publishes, such as pairs."""
    domain = space.domains.get(FAMILY)
    own = domain.options if isinstance(domain, Choice) else {}
    found = {}
    for label, parts in models.items():
        of_space = own.get(label) or {}
        kept = {name: value for name, value in of_space.items() if name not in _PUBLISHED}
        found[label] = {**parts, **kept}
    return found


SCALES = {"paper": published_overrides}
