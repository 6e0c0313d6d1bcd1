"""The scale `paper` of sweeps and trainings: the settings that a space's paper published."""

from __future__ import annotations

from pathlib import Path

from raysent.config import Override, dotted_values
from raysent.errors import ConfigError
from raysent.reproduction.files import read_paper
from raysent.sweeps.space import SearchSpace

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
    paper`. The text stays that of the space.

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
    run = paper.values(space.published.model, scale="paper", data=data or Path("data"))
    parts = {name: value for name, value in run.items() if name in _PUBLISHED}
    why = f"published: {paper.paper}, '{space.published.model}' of 'raysent reproduce {space.published.paper}'"
    return [
        Override("fit", [name for name in space.fit if name == "metric"], option),
        Override("fitted", dict.fromkeys(parts, why), option),
        *(Override(name, value, option) for name, value in parts.items()),
        # Each value again, which ends the search over its name.
        *(Override(name, value, option) for name, value in dotted_values(parts)),
    ]


SCALES = {"paper": published_overrides}
