"""Whitening of a trained model: the directions in which its vectors vary most, each with the same variance.

In: a model and a sample of sentences without labels. Out: models that differ from it in their postprocessing alone, for
any number of dimensions; their vectors have unit length. The encoder is not trained.

Source: Su et al., 2021, Whitening sentence representations, algorithm 1 and section 3.3 (whitening-k).
"""

from __future__ import annotations

import torch

from raysent.data.vocabulary import Sentences
from raysent.errors import ConfigError, DataError
from raysent.models.model import SentenceModel
from raysent.models.postprocessing import whitening_directions

# The smallest dimension that `dimensions` names; fewer have lost on every set that was tried.
_SMALLEST = 64


class Whitening:
    """What whitens the vectors of one model, computed once and applied with any number of dimensions.

    Attributes:
        rank: Directions in which the vectors of the sample vary: the most dimensions that can be kept.
        num_sentences: Sentences of the sample.
    """

    def __init__(self, model: SentenceModel, sentences: Sentences) -> None:
        """Compute the directions.

        Args:
            model: A trained model without a code; of one that is whitened already, the whitening is replaced.
            sentences: Ids of the model's words, more sentences than dimensions are to be kept.

        Raises:
            ConfigError: If the model has a code.
            DataError: If the sample has fewer than two sentences, or all have the same vector.
        """
        if model.code is not None:
            raise ConfigError("MODEL: its vectors are bits, which are not whitened; name the model that it was made of")
        self.num_sentences = len(sentences.lengths)
        if self.num_sentences < 2:
            raise DataError(f"corpus: must have at least two sentences; given {self.num_sentences}")
        self._model = model.eval()
        self._center, self._directions = whitening_directions(model.combined_vectors(sentences))
        self.rank = self._directions.shape[1]
        if not self.rank:
            raise DataError("corpus: its sentences must have different vectors; given one vector for all")

    def dimensions(self) -> list[int]:
        """Return dimensions worth comparing, ascending: 64, 128, 256, … below the rank, and the rank itself."""
        powers = [_SMALLEST << shift for shift in range(self.rank.bit_length()) if _SMALLEST << shift < self.rank]
        return [*powers, self.rank]

    def apply(self, dimension: int) -> SentenceModel:
        """Return the whitened model.

        Args:
            dimension: Numbers of a vector, from 1 to `rank`.

        Raises:
            ConfigError: If it is out of range.
        """
        if not 1 <= dimension <= self.rank:
            raise ConfigError(
                f"dimension: must be from 1 to {self.rank}, the directions in which the vectors of the sample vary; "
                f"given {dimension}"
            )
        record, own = self._model.record, self._model.config.postprocessing
        # The settings describe the sample that was used; a smaller one cannot have this rank.
        changed = own.model_copy(update={"whitening": dimension, "num_sentences": self.num_sentences})
        config = record.config.model_copy(update={"postprocessing": changed})
        tensors = {
            **self._model.kept_tensors(),
            "postprocessing.center": torch.zeros(len(self._center)),
            "postprocessing.projection": torch.zeros(len(self._center), dimension),
        }
        model = SentenceModel.from_tensors(record._replace(config=config), self._model.vocabulary, tensors)
        model.postprocessing.set_whitening(self._center, self._directions)
        return model
