"""The scale `paper` of sweeps and trainings: the settings that a space's paper published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysent.config import Override, dotted_values, get_dotted
from raysent.errors import ConfigError
from raysent.reproduction.files import PaperFile, read_paper
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


def published_overrides(space: SearchSpace, *, data: Path | None) -> list[Override]:
    """Return the settings that a space's paper published, which also end the search over them.

    Vocabulary, encoders, objective, postprocessing, code and training become those of `raysent reproduce --scale
    paper`. The text stays that of the space. Where each family has a model, its encoder is that model's, and all else
    is of the first one.

    Args:
        space: The space.
        data: Folder of the files that published settings name; None for ``data``.

    Raises:
        ConfigError: If the space has no published settings.
    """
    if space.published is None:
        raise ConfigError(
            f"scale paper: must be used with a space that names its published settings; '{space.name}' has none; "
            "'raysent reproduce' trains the models of a paper"
        )
    paper, option = read_paper(space.published.paper), "scale=paper"
    families = {
        label: _encoder_of(paper, model, data) for label, model in space.published.families.items()
    }
    names = _models_of(space.published)
    run = paper.values(names[0], scale="paper", data=data or Path("data"))
    parts = {name: value for name, value in run.items() if name in _PUBLISHED}
    why = f"published: {paper.paper}, '{', '.join(names)}' of 'raysent reproduce {space.published.paper}'"
    return [
        Override("fit", [name for name in space.fit if name == "metric"], option),
        Override("fitted", dict.fromkeys(parts, why), option),
        *(Override(name, value, option) for name, value in parts.items()),
        # Each value again, which ends the search over its name.
        *(Override(name, value, option) for name, value in dotted_values(parts)),
        *_family_overrides(space, families, option),
    ]


def _models_of(published: PublishedModel) -> list[str]:
    """Return the models of a paper's graph that a space names, each once."""
    if published.model is not None:
        return [published.model]
    named = published.families.values()
    return list(
        dict.fromkeys(
            model for one in named for model in ([one] if isinstance(one, str) else one.values())
        )
    )


def _encoder_of(paper: PaperFile, model: str | dict[str, str], data: Path | None) -> dict[str, Any]:
    """Return the published encoder of a family: of one model, or of several as members of one encoder."""
    if isinstance(model, dict):
        members = {member: _encoder_of(paper, name, data) for member, name in model.items()}
        return {"type": "concat", "members": members}
    encoder: dict[str, Any] = paper.values(model, scale="paper", data=data or Path("data"))[
        "encoder"
    ]
    return encoder


def _family_overrides(
    space: SearchSpace, families: Mapping[str, dict[str, Any]], option: str
) -> list[Override]:
    """Return what sets the published encoder in each family, and ends the search over what it sets."""
    domain = space.domains.get(FAMILY)
    if not families or not isinstance(domain, Choice):
        return []
    options = {
        label: {**value, "encoder": families[str(label)]}
        for label, value in domain.options.items()
        if str(label) in families
    }
    ended = [
        name
        for name in space.search
        if any(get_dotted(run, name) is not None for run in options.values())
    ]
    return [
        Override(f"search.{FAMILY}", {"choice": options}, option),
        *(Override(f"search.{name}", None, option) for name in ended),
    ]


SCALES = {"paper": published_overrides}
