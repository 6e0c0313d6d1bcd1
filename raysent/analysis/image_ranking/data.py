"""Image features and captions -> the three splits of an image-sentence ranking.

Similarities of captions and images -> ranks, recalls and median ranks in both directions.

Source: Kiros et al. 2015, `eval_rank`; the five folds of Karpathy & Fei-Fei 2015.
Differs: an image may have any number of captions; of equal similarities the earlier one ranks first.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysent.errors import DataError, did_you_mean

SPLITS = ("train", "dev", "test")
COLUMNS = ("image", "split", "caption")


@dataclass(frozen=True)
class Split:
    """Images of one split and their captions.

    Attributes:
        images: Features, float32 [images, features].
        captions: Sentences, those of one image side by side.
        image_of: Number of each caption's image, int64 [captions], ascending.
    """

    images: npt.NDArray[np.float32]
    captions: tuple[str, ...]
    image_of: npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankingData:
    """What linear maps are trained on, chosen by and judged on."""

    train: Split
    dev: Split
    test: Split


def read_ranking_data(images: Path, captions: Path) -> RankingData:
    """Read the features of images and their captions.

    Args:
        images: A ``.npy`` file, float [images, features], a row an image.
        captions: Lines of row number (from 0), split (train, dev or test) and caption with tabs between, below a line
            that names these columns.

    Raises:
        DataError: If a file is missing or truncated, a line is odd, an image stands in two splits, a split is empty or
            a feature is not finite.
    """
    features = _read_features(images)
    rows = list(_rows(captions, num_images=len(features)))
    split_of: dict[int, str] = {}
    for at, image, split, _ in rows:
        if split_of.setdefault(image, split) != split:
            raise DataError(f"{captions}:{at}: an image must stand in one split; {image} is in {split_of[image]} too")
    return RankingData(*(_split(features, rows, name, captions) for name in SPLITS))


def _read_features(path: Path) -> npt.NDArray[np.float32]:
    try:
        features = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: truncated or not .npy ({error}); write it with numpy.save") from None
    if not isinstance(features, np.ndarray) or features.ndim != 2 or not np.issubdtype(features.dtype, np.floating):
        given = f"{getattr(features, 'dtype', 'several arrays')} {list(getattr(features, 'shape', []))}"
        raise DataError(f"{path}: must be floating-point numbers [images, features]; given {given}")
    return features


def _rows(path: Path, *, num_images: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield line number, image, split and caption."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    if tuple(lines[0].rstrip("\r").split("\t")) != COLUMNS:
        raise DataError(
            f"{path}:1: must name the columns {', '.join(COLUMNS)} with tabs between; given '{lines[0][:60]}'"
        )
    for at, row in enumerate(csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE), start=2):
        if not row:
            continue
        if len(row) != len(COLUMNS) or not row[2].strip():
            raise DataError(f"{path}:{at}: must be image, split and caption with tabs between; given {len(row)} values")
        if not (row[0].isascii() and row[0].isdigit() and int(row[0]) < num_images):
            raise DataError(
                f"{path}:{at}: image must be a row of the features, 0 to {num_images - 1}; given '{row[0]}'"
            )
        if row[1] not in SPLITS:
            raise DataError(
                f"{path}:{at}: split must be one of {', '.join(SPLITS)}; given '{row[1]}'{did_you_mean(row[1], SPLITS)}"
            )
        yield at, int(row[0]), row[1], " ".join(row[2].split())


def _split(
    features: npt.NDArray[np.float32], rows: Sequence[tuple[int, int, str, str]], name: str, path: Path
) -> Split:
    """Return one split, its images in order of their rows and captions in order of the file within an image."""
    own = sorted((image, at, caption) for at, image, split, caption in rows if split == name)
    if not own:
        raise DataError(f"{path}: must hold captions of the split {name}; given none")
    images, image_of = np.unique([image for image, _, _ in own], return_inverse=True)
    chosen = np.asarray(features[images], dtype=np.float32)
    if not np.isfinite(chosen).all():
        odd = int(images[~np.isfinite(chosen).all(axis=1)][0])
        raise DataError(f"{path}: image {odd}: every feature must be finite; given NaN or infinity")
    return Split(chosen, tuple(caption for _, _, caption in own), image_of.astype(np.int64))


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
