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
_PAPER_GRID = "the paper's grid"
_OUR_GRID = "ours: the paper gives no grid"


def _published_overrides(space: SearchSpace, *, data: Path | None) -> list[Override]:
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
    published = space.published
    option = "scale=paper"
    if published is None:
        raise ConfigError(
            f"scale paper: must be used with a space that names its published settings; '{space.name}' has none; "
            "'raysent reproduce' trains the models of a paper"
        )
    names = _names(space)
    models = {}
    for label, model in _labels(published).items():
        models[label] = _parts(published, model, names, data)
    choice = next(iter(published.choices), None)
    parts = next(iter(models.values()))
    search: dict[str, Any] = {}
    if choice == FAMILY:
        # Each has all of its parts, and `base` has nothing that another one would add to.
        parts = {**parts, "vocabulary": {}, "training": {}}
        search[FAMILY] = {"choice": _with_own_text(space, models)}
    elif choice is not None:
        search[choice] = {"choice": {label: model[choice] for label, model in models.items()}}
    search |= {**published.paper_grid, **published.our_grid}
    overrides = [
        Override("fit", [name for name in space.fit if name == "metric"], option),
        Override("fitted", _reasons(published, parts, choice), option),
        *(Override(name, part, option) for name, part in parts.items()),
        Override("search", search, option),
        Override("when", _conditions(published.when or space.when, search), option),
    ]
    if space.evaluation.stratify_by not in search:
        overrides.append(Override("evaluation.stratify_by", None, option))
    return overrides


def _names(space: SearchSpace) -> tuple[str, ...]:
    """Return the parts of a run that are taken: the published ones, and pairs where the space has none of its own."""
    if space.setting("pairs"):
        return _PUBLISHED
    return (*_PUBLISHED, "pairs")


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
        return {part: settings for part, settings in run.items() if part in names and settings}
    members = {}
    parts: dict[str, Any] = {}
    for member, of_member in model.items():
        parts = _parts(published, of_member, names, data)
        members[member] = parts["encoder"]
    return {**parts, "encoder": {"type": "concat", "members": members}}


def _reasons(
    published: PublishedModel, parts: Mapping[str, Any], choice: str | None
) -> dict[str, str]:
    """Return where each setting is from: the models of a paper, its grid, or ours."""
    sources: dict[str, list[str]] = {}
    for model in published.models:
        of_model, _, name = model.rpartition("/")
        sources.setdefault(of_model or published.paper or "", []).append(name)
    texts = []
    for source, names in sources.items():
        models = ", ".join(names)
        texts.append(f"{read_paper(source).paper}, '{models}' of 'raysent reproduce {source}'")
    reason = f"published: {'; '.join(texts)}"
    if choice == FAMILY:
        reasons = {FAMILY: reason}
    else:
        reasons = dict.fromkeys(parts, reason)
    reasons |= dict.fromkeys(published.paper_grid, _PAPER_GRID)
    return reasons | dict.fromkeys(published.our_grid, _OUR_GRID)


def _conditions(
    when: Mapping[str, Mapping[str, Any]], search: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the conditions on names that are searched, of values that are."""
    conditions: dict[str, dict[str, Any]] = {}
    for name, tests in when.items():
        if name not in search:
            continue
        for tested_name, labels in tests.items():
            if not isinstance(labels, list):
                labels = [labels]  # noqa: PLW2901 - one label may stand without a list
            searched = _choice_labels(search.get(tested_name))
            allowed = [label for label in labels if label in searched]
            if allowed:
                conditions.setdefault(name, {})[tested_name] = allowed
    return conditions


def _choice_labels(domain: Any) -> list[Any]:
    """Return the labels of a choice as it is written; none of another domain."""
    if isinstance(domain, dict) and "choice" in domain:
        return list(domain["choice"])
    return []


def _with_own_text(
    space: SearchSpace, models: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the parts of families, with those of the space's that no paper publishes, such as pairs."""
    domain = space.domains.get(FAMILY)
    options: Mapping[Any, Any] = {}
    if isinstance(domain, Choice):
        options = domain.options
    families = {}
    for label, parts in models.items():
        families[label] = dict(parts)
        for name, settings in (options.get(label) or {}).items():
            if name not in _PUBLISHED:
                families[label][name] = settings
    return families


SCALES = {"paper": _published_overrides}
