"""Targets of an export. One file per target; the folder is the registry.

A file of this folder, or the value of an entry point of the group `raysent.formats`, is a `Format`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from raysent.ensembles import Ensemble
from raysent.errors import ConfigError
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.registry import Registry

Encode = Callable[..., Float32]


class Format(Protocol):
    """The form of a target's module.

    Call order: `check_model` before anything is written, `write`, then `open`, whose function must return what the
    model's `encode` returns, with the prompt `PROMPT` where a module has that; `usage_of(models)` may replace `USAGE`.
    Where a module has `METHODS`, such as ``encode_query``, the function takes their names too, after the sentences.

    Attributes:
        TARGET: The name of the target.
        EXTRA: The extra of raysent that installs what `write` and `open` import.
        LIBRARY: The name of the library on model cards.
        USAGE: Lines of Python that read the folder `FOLDER` and encode sentences.
        DIFFERS_ON: Sentences whose vectors the target cannot give, as the module's docstring says.
    """

    TARGET: str
    EXTRA: str
    LIBRARY: str
    USAGE: str
    DIFFERS_ON: tuple[str, ...]

    def check_model(self, models: Sequence[SentenceModel]) -> None:
        """Refuse models that the target cannot express.

        Raises:
            ConfigError: With what the target needs.
        """

    def write(self, models: Sequence[SentenceModel], folder: Path) -> None:
        """Write the files; of several models, the vectors stand one after another, each of unit length."""

    def open(self, folder: Path) -> Encode:
        """Return a function that encodes with the files alone, by the target's library."""


def _by_target(module: Any) -> Mapping[str, Format]:
    target = getattr(module, "TARGET", None)
    if not isinstance(target, str):
        raise ConfigError(
            f"{getattr(module, '__name__', module)}: must define TARGET, the name of the target"
        )
    return {target: module}


FORMATS: Registry[Format] = Registry("format", package=__name__, folders=__path__, read=_by_target)


def trained_models(encoder: SentenceEncoder) -> list[SentenceModel]:
    """Return the models that an encoder consists of.

    Raises:
        ConfigError: If one of them was not trained by raysent.
    """
    members = [encoder]
    if isinstance(encoder, Ensemble):
        members = [member.encoder for member in encoder.members]
    models = []
    for member in members:
        if not isinstance(member, SentenceModel):
            name = member.source or type(member).__name__
            raise ConfigError(
                f"{name}: cannot be exported: only models that raysent trained have a form of other libraries"
            )
        models.append(member)
    return models
