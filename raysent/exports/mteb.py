"""A model for the `mteb` package: `mteb.evaluate(MtebModel(raysent.load("runs/one")), tasks)`.

Source: `mteb.models.EncoderProtocol` of mteb 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from raysent import __version__
from raysent.errors import ConfigError
from raysent.models import load
from raysent.models.sentence_encoder import Float32, SentenceEncoder


class MtebModel:
    """A model with the methods that mteb calls.

    Attributes:
        encoder: The model.
        mteb_model_meta: Its entry in mteb's results.
    """

    def __init__(self, model: str | Path | SentenceEncoder, *, name: str | None = None) -> None:
        """Wrap a model.

        Args:
            model: A model or an ensemble, or its name.
            name: Its name in mteb's results; by default that of its folder.

        Raises:
            ConfigError: If mteb is not installed.
        """
        if find_spec("mteb") is None:
            raise ConfigError("MtebModel: needs mteb; install raysent[mteb]")
        self.encoder = load(model) if isinstance(model, str | Path) else model
        shown = name or (Path(self.encoder.source).name if self.encoder.source else type(self.encoder).__name__)
        meta = import_module("mteb.models").ModelMeta
        about = {
            "name": f"raysent/{shown.replace(':', '-')}",
            "revision": __version__,
            "embed_dim": self.encoder.get_sentence_embedding_dimension(),
        }
        self.mteb_model_meta = meta.create_empty(about)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **kwargs: Any) -> Float32:
        """Return the vectors of batches of texts, float32 [texts, dim]; what mteb says of the task is not used."""
        del kwargs
        vectors: Float32 = self.encoder.encode([text for batch in inputs for text in batch["text"]])
        return vectors

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Tensor:
        """Return the similarity of every vector of `a` and every vector of `b` [rows, columns]."""
        return self.encoder.similarity(torch.as_tensor(a), b)

    def similarity_pairwise(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Tensor:
        """Return the similarity row by row [rows]."""
        return self.encoder.similarity_pairwise(torch.as_tensor(a), b)
