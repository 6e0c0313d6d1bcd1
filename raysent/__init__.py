"""Train sentence encoders, search their hyperparameters across a cluster, and combine the best into ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysent.models.sentence_encoder import SentenceEncoder

__all__ = ["__version__", "load"]
__version__ = "0.2.0"


def load(path: str | Path) -> SentenceEncoder:
    """Return what a path names: a trained model, a sweep's ensemble or else its best trial, or ``hash:DIM``.

    Args:
        path: Folder of a run, a trial, a model or an ensemble; or the built-in reference ``hash:DIM``, the mean of
            DIM-dimensional word vectors drawn from each word's hash.

    Returns:
        An encoder: ``encode(list_of_sentences, batch_size=…, normalize_embeddings=…)`` gives float32 [sentences, dim].

    Raises:
        RaysentError: If there is no such model, or its files are truncated or of another kind.
    """
    # Late, so that `import raysent` and `raysent --help` do not wait for torch; the first teaches the second to
    # read ensembles.
    import raysent.ensembles  # noqa: F401, PLC0415
    from raysent.models import load as load_model  # noqa: PLC0415

    return load_model(path)
