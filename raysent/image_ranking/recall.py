"""Similarities of captions and images -> ranks, recalls and median ranks in both directions.

Source: Kiros et al. 2015, `eval_rank`; the five folds of Karpathy & Fei-Fei 2015.
Differs: an image may have any number of captions; of equal similarities the earlier one ranks first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CUTOFFS = (1, 5, 10)


@dataclass(frozen=True)
class Recalls:
    """How well one direction ranks.

    Attributes:
        r1: Share of queries whose answer ranks first, in percent.
        r5: Among the first five.
        r10: Among the first ten.
        median_rank: Median of the answers' ranks, counted from 1; the lower of two middle ones' mean.
    """

    r1: float
    r5: float
    r10: float
    median_rank: float

    @property
    def total(self) -> float:
        """The sum of the three recalls."""
        return self.r1 + self.r5 + self.r10


@dataclass(frozen=True)
class BothWays:
    """Recalls of images asked by captions' ranks and of captions asked by images'."""

    captions_of_image: Recalls
    images_of_caption: Recalls

    @property
    def total(self) -> float:
        """The sum of all six recalls: what the best maps are chosen by."""
        return self.captions_of_image.total + self.images_of_caption.total


def both_ways(similarity: npt.NDArray[np.float32], image_of: npt.NDArray[np.int64]) -> BothWays:
    """Return the recalls of one set.

    Args:
        similarity: Of every caption with every image, float32 [captions, images], finite.
        image_of: Number of each caption's image, int64 [captions].
    """
    of_caption = _ranks(similarity, image_of)
    # Of an image's captions, the one that ranks best counts.
    of_pair = _ranks_of_columns(similarity, image_of)
    best = np.full(similarity.shape[1], similarity.shape[0], dtype=np.int64)
    np.minimum.at(best, image_of, of_pair)
    return BothWays(captions_of_image=_recalls(best), images_of_caption=_recalls(of_caption))


def folds_of(image_of: npt.NDArray[np.int64], *, num_images: int, fold_size: int) -> list[tuple[slice, slice]]:
    """Return the images and captions of consecutive folds: five of `fold_size`, or as many as there are images for.

    A set smaller than one fold is one fold.
    """
    if num_images < fold_size:
        return [(slice(0, num_images), slice(0, len(image_of)))]
    starts = range(0, min(num_images // fold_size, 5) * fold_size, fold_size)
    ends = [np.searchsorted(image_of, [start, start + fold_size]).tolist() for start in starts]
    return [(slice(start, start + fold_size), slice(*end)) for start, end in zip(starts, ends, strict=True)]


def mean_of(folds: Iterable[BothWays]) -> BothWays:
    """Return the mean of each figure over folds."""
    found = list(folds)
    return BothWays(_mean([one.captions_of_image for one in found]), _mean([one.images_of_caption for one in found]))


def _mean(recalls: Sequence[Recalls]) -> Recalls:
    figures = np.array([[one.r1, one.r5, one.r10, one.median_rank] for one in recalls])
    return Recalls(*figures.mean(axis=0).tolist())


def _ranks(similarity: np.ndarray, answers: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the rank, from 0, of each row's answer among the columns."""
    own = similarity[np.arange(len(answers)), answers][:, None]
    is_before = np.arange(similarity.shape[1]) < answers[:, None]
    ranks: npt.NDArray[np.int64] = ((similarity > own) | ((similarity == own) & is_before)).sum(axis=1)
    return ranks


def _ranks_of_columns(similarity: np.ndarray, image_of: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the rank, from 0, of each caption among all captions for its own image."""
    order = np.argsort(-similarity, axis=0, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(len(order))[:, None], axis=0)
    ranks: npt.NDArray[np.int64] = places[np.arange(len(image_of)), image_of]
    return ranks


def _recalls(ranks: npt.NDArray[np.int64]) -> Recalls:
    r1, r5, r10 = (100 * float((ranks < cutoff).mean()) for cutoff in CUTOFFS)
    return Recalls(r1, r5, r10, median_rank=float(np.floor(np.median(ranks)) + 1))
