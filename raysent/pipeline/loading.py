"""`load`: what a folder holds. It imports nothing that only training or searching needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from raysent.ensembles.predictor import MakePredictors, Predictor
from raysent.models import load as load_model
from raysent.models.pretrained import trust_remote_code as trusting
from raysent.models.schemes import is_scheme_name, with_scheme
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.models.vector_codes import VectorCode, load_code
from raysent.storage import open_folder
from raysent.storage.layout import CODE_FILE


def load(path: str | Path, *, trust_remote_code: bool = False) -> SentenceEncoder | VectorCode:
    """Return what a folder holds, or a model by a scheme's name.

    - A folder of `train`, `expand`, `bag` or `average`, or of one trial of a sweep: a `SentenceModel`.
    - A folder of `sweep`: the model to take, `best`, where it has one task; else the best model with vectors,
      `encoder`. `Sweep` reads its trials.
    - A folder of `ensemble`, or `best` of a sweep: an `Ensemble`.
    - A folder of `binarize --keep`: a `VectorCode`.

    Args:
        path: The folder, also in ``s3://``; or a name such as ``all-MiniLM-L6-v2`` or ``hash:50``.
        trust_remote_code: Whether code in a pretrained model's folder may run.

    Raises:
        RaysentError: If there is no such folder, or its files are truncated or of another kind.
    """
    with trusting(trust_remote_code):
        if is_scheme_name(with_scheme(str(path))):
            return _predicting(load_model(path))
        folder = open_folder(path)
        if (folder / CODE_FILE).is_file():
            return load_code(folder)
        return _predicting(load_model(path))


def _predicting(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return an encoder with what predicts its tasks, which its records are read for once it predicts."""
    if encoder.predictors is None:
        encoder.predictors = Predictor(encoder, partial(_recorded, encoder))
    return encoder


def _recorded(encoder: SentenceEncoder) -> MakePredictors:
    from raysent.ensembles.task_predictor import recorded  # noqa: PLC0415 - of those that predict alone

    return recorded(encoder)
