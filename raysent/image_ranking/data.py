"""Image features and captions -> the three splits of an image-sentence ranking."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
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
