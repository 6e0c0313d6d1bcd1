"""`distill --into static`: an encoder becomes a table of sub-words, by model2vec, without text and without training.

In: a pretrained encoder, or a model whose encoder is one. Out: a folder of a model, which is loaded, evaluated,
exported and searched like any other, and needs neither its teacher nor model2vec.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raysent.errors import ConfigError
from raysent.models import SentenceModel
from raysent.models import load as load_model
from raysent.models.known import STATIC_SCHEME, EncoderFiles, find_encoder
from raysent.models.schemes import split_path, with_scheme
from raysent.models.schemes.static import model_of_table
from raysent.models.sentence_encoder import check_size
from raysent.models.standard import is_standard
from raysent.models.static import DIM, distill_table, is_static_folder, table_folder
from raysent.pipeline.derived import check_free, saved
from raysent.registry import load_point

INTO_STATIC = "static"
# Schemes of encoders as their folders have them.
_WHOLE = ("st:", "hf:", STATIC_SCHEME)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that only a training has.

    Raises:
        ConfigError: With the first that is given.
    """
    given = next((name for name, option in options.items() if option is not None), None)
    if given is not None:
        raise ConfigError(
            f"{given}: must be left out with --into {INTO_STATIC}, which trains nothing; --set takes dim=N"
        )


def write_static(teacher: str, folder: Path, *, dim: int | None = None) -> SentenceModel:
    """Write the static table of a teacher into a folder, as a model.

    Args:
        teacher: A pretrained encoder's name, or a model's folder, as `load` takes it.
        folder: The folder of the new model.
        dim: Size of a vector; 256 by default, and at most that of the encoder's states.

    Raises:
        ConfigError: If the teacher is no transformer, or the libraries are not installed.
        ArtifactError: If the teacher cannot be read, or the folder holds a model already.
    """
    check_free(folder)
    dim = DIM if dim is None else check_size("dim", dim)
    with TemporaryDirectory() as place:
        files = _files_of(teacher, Path(place) / "encoder")
        if is_static_folder(files.folder):
            raise ConfigError(
                f"into {INTO_STATIC}: must be a pretrained encoder; given {teacher}, a static table already"
            )
        if dim == DIM and _pretrained_name(teacher) is not None:
            table = table_folder(files)
        else:
            table = Path(place) / "table"
            table.mkdir()
            distill_table(files, table, dim=dim)
        return saved(model_of_table(table, name=teacher, encoder=files.name), folder)


def _pretrained_name(teacher: str) -> str | None:
    """Return the name or folder of the pretrained encoder that a teacher is as it stands; None for another model."""
    scheme, path = split_path(with_scheme(teacher))
    return path if scheme in _WHOLE else None


def _files_of(teacher: str, folder: Path) -> EncoderFiles:
    """Return where the files of a teacher's encoder are; those of a model are exported into a new folder."""
    name = _pretrained_name(teacher)
    if name is not None:
        return find_encoder(name, where="teacher")
    model = load_model(teacher)
    if not isinstance(model, SentenceModel) or not is_standard([model]):
        kind = model.config.encoder.type if isinstance(model, SentenceModel) else "no single model"
        raise ConfigError(
            f"into {INTO_STATIC}: must be a pretrained encoder, or a model of one tower whose encoder is one; "
            f"given {teacher}, {kind}; --into bag learns the vectors of any model"
        )
    load_point("raysent.api", "export")(model, folder)
    origin = model.origin
    if origin is not None and origin.kind == "pretrained":
        return EncoderFiles(origin.encoder, folder)
    return EncoderFiles(teacher, folder)
