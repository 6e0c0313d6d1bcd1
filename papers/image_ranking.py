"""Images found by captions and captions by images: `python papers/image_ranking.py MODEL… IMAGES.npy CAPTIONS.tsv`.

Two linear maps, of sentence vectors and of image features, lead into one space. A margin loss in both directions trains
them on `train`, the sum of the recalls on `dev` chooses among them, and `test` gives the recalls at 1, 5 and 10 and
the median rank, as means of up to five folds of 1,000 images.

IMAGES.npy is a floating-point array [images, features]. CAPTIONS.tsv has the columns image (its row, from 0), split
(train, dev or test) and caption, named by its first line. An image is in one split and has any number of captions.

Source: Kiros et al., 2015, section 3.4 (protocol `kiros`, whose scores are cosines, and whose contrastive captions are
of other images) and their code (`kiros-released`, images of any length in training, captions of all images;
`eval_rank`); Conneau and Kiela, 2018 (protocol `senteval`, as in their code); Karpathy and Fei-Fei, 2015 (five folds).
Differs: random numbers are those of torch. `kiros` also evaluates on dev after each epoch, because a small set has
fewer than the 500 steps between evaluations. Of equal similarities the earlier one ranks first.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import raysent
from raysent.errors import DataError, RaysentError, did_you_mean
from raysent.models.layers import linear_layer

SPLITS = ("train", "dev", "test")
COLUMNS = ("image", "split", "caption")
MEASURES = ("R@1", "R@5", "R@10", "median rank")
MAX_FOLDS = 5


@dataclass(frozen=True)
class Protocol:
    """How the maps are trained and chosen.

    Attributes:
        batch_size: Pairs of image and caption per step.
        num_contrastive: Other images, and other captions, that each pair of a step is compared with.
        learning_rate: Of Adam.
        max_epochs: Maximal passes over the training pairs.
        check_every: Steps between evaluations on dev; None to evaluate only after each epoch.
        patience: Evaluations without improvement, in total, that do not yet stop training; None for any number.
        normalizes_images: Whether images have unit length in training; in ranking they always do.
        excludes_own: Whether contrastive examples are of other images than a pair's own, which has further captions.
        excludes_batch: Whether the contrastive examples come from outside the step's own pairs.
        initial_scale: Initial weights are uniform within this over the square root of the input's size.
        has_initial_bias: Whether initial biases are drawn in the same way; else they are 0.
        dim: Size of the common space.
        margin: Minimal difference in cosine between a pair and a contrastive one.
    """

    batch_size: int
    num_contrastive: int
    learning_rate: float
    max_epochs: int
    check_every: int | None
    patience: int | None
    normalizes_images: bool
    excludes_own: bool
    excludes_batch: bool
    initial_scale: float
    has_initial_bias: bool
    dim: int = 1000
    margin: float = 0.2


_KIROS = Protocol(
    batch_size=100,
    num_contrastive=50,
    learning_rate=2e-4,
    max_epochs=15,
    check_every=500,
    patience=None,
    normalizes_images=True,
    excludes_own=True,
    excludes_batch=False,
    initial_scale=2**0.5,
    has_initial_bias=False,
)
PROTOCOLS = {
    "kiros": _KIROS,
    "kiros-released": replace(_KIROS, normalizes_images=False, excludes_own=False),
    "senteval": Protocol(
        batch_size=128,
        num_contrastive=30,
        learning_rate=1e-3,
        max_epochs=20,
        check_every=None,
        patience=3,
        normalizes_images=True,
        excludes_own=False,
        excludes_batch=True,
        initial_scale=1.0,
        has_initial_bias=True,
    ),
}


@dataclass(frozen=True)
class Split:
    """Images of one split and their captions.

    Attributes:
        images: Features, float32 [images, features].
        captions: Sentences, or once encoded their vectors, float32 [captions, dim]; those of an image are consecutive.
        image_of: Index of each caption's image, int64 [captions], ascending.
    """

    images: Tensor
    captions: Sequence[str] | Tensor
    image_of: Tensor


def read_splits(images: Path, captions: Path) -> dict[str, Split]:
    """Read the features of images and their captions.

    Raises:
        DataError: If a file is missing or truncated, a line is malformed, an image is in two splits, a split is empty,
            or a feature is not finite.
    """
    try:
        features = np.load(images, allow_pickle=False)
        lines = captions.read_text(encoding="utf-8").split("\n")
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{images}, {captions}: must be a .npy array and UTF-8 text ({error})"
        ) from None
    if (
        features.ndim != 2
        or not np.issubdtype(features.dtype, np.floating)
        or not np.isfinite(features).all()
    ):
        raise DataError(
            f"{images}: must be finite floating-point numbers [images, features]; given others"
        )
    if tuple(lines[0].rstrip("\r").split("\t")) != COLUMNS:
        raise DataError(
            f"{captions}:1: must name the columns {', '.join(COLUMNS)} with tabs between"
        )
    rows, split_of = [], {}
    for line, row in enumerate(
        csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE), start=2
    ):
        if row:
            image, split, caption = _checked(row, f"{captions}:{line}", num_images=len(features))
            if split_of.setdefault(image, split) != split:
                raise DataError(
                    f"{captions}:{line}: image {image} must be in one split; is in {split_of[image]} too"
                )
            rows.append((image, line, split, caption))
    if missing := set(SPLITS) - set(split_of.values()):
        raise DataError(
            f"{captions}: must hold captions of every split; given none of {', '.join(sorted(missing))}"
        )
    return {
        name: _split(features, sorted(row for row in rows if row[2] == name)) for name in SPLITS
    }


def _checked(row: list[str], where: str, *, num_images: int) -> tuple[int, str, str]:
    if len(row) != len(COLUMNS) or not row[2].strip():
        raise DataError(
            f"{where}: must be image, split and caption with tabs between; given {len(row)} values"
        )
    if not (row[0].isascii() and row[0].isdigit() and int(row[0]) < num_images):
        raise DataError(
            f"{where}: image must be a row of the features, 0 to {num_images - 1}; given '{row[0]}'"
        )
    if row[1] not in SPLITS:
        nearest = did_you_mean(row[1], SPLITS)
        raise DataError(
            f"{where}: split must be one of {', '.join(SPLITS)}; given '{row[1]}'{nearest}"
        )
    return int(row[0]), row[1], " ".join(row[2].split())


def _split(features: np.ndarray, rows: list[tuple[int, int, str, str]]) -> Split:
    images, image_of = np.unique([row[0] for row in rows], return_inverse=True)
    chosen = torch.from_numpy(features[images].astype(np.float32))
    return Split(chosen, [row[3] for row in rows], torch.from_numpy(image_of.astype(np.int64)))


class LinearMaps(nn.Module):
    """Maps of images and of sentences into the common space."""

    def __init__(
        self, num_features: int, dim: int, protocol: Protocol, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.image = _linear(num_features, protocol, generator)
        self.sentence = _linear(dim, protocol, generator)

    def similarity(self, split: Split) -> np.ndarray:
        """Return the cosine of every caption with every image in the common space, float32 [captions, images]."""
        with torch.inference_mode():
            images = nn.functional.normalize(self.image(split.images), dim=1)
            captions = nn.functional.normalize(self.sentence(split.captions), dim=1)
            return (captions @ images.T).numpy()


def _linear(size: int, protocol: Protocol, generator: torch.Generator) -> nn.Linear:
    layer = linear_layer(size, protocol.dim, generator=generator)
    layer.weight.data.mul_(protocol.initial_scale)
    if not protocol.has_initial_bias:
        layer.bias.data.zero_()
    return layer


def train_maps(
    train: Split, dev: Split, protocol: Protocol, *, seed: int, fold_size: int = 1000
) -> LinearMaps:
    """Return the maps with the highest sum of recalls on dev; both splits are encoded.

    Raises:
        DataError: If training diverges.
    """
    generator = torch.Generator().manual_seed(seed)
    maps = LinearMaps(train.images.shape[1], train.captions.shape[1], protocol, generator=generator)
    optimizer = torch.optim.Adam(maps.parameters(), lr=protocol.learning_rate)
    best, highest, num_without_gain, step = {}, -1.0, 0, 0

    def evaluate() -> None:
        nonlocal best, highest, num_without_gain
        score = recalls(maps, dev, fold_size=fold_size)[:, :3].sum()
        if score > highest:
            best, highest = (
                {name: value.clone() for name, value in maps.state_dict().items()},
                score,
            )
        else:
            num_without_gain += 1

    for _ in range(protocol.max_epochs):
        order = torch.randperm(len(train.captions), generator=generator)
        num_batches = -(-len(order) // protocol.batch_size)
        for first in range(num_batches):
            optimizer.zero_grad()
            rows = order[first::num_batches]
            loss(
                maps, train, rows, contrastive(train.image_of, rows, protocol, generator), protocol
            ).backward()
            optimizer.step()
            step += 1
            if protocol.check_every is not None and step % protocol.check_every == 0:
                evaluate()
        evaluate()
        if protocol.patience is not None and num_without_gain > protocol.patience:
            break
    maps.load_state_dict(best)
    return maps


def contrastive(
    image_of: Tensor, rows: Tensor, protocol: Protocol, generator: torch.Generator
) -> Tensor:
    """Return pairs drawn with replacement, for captions and for images, int64 [2, rows, contrastive].

    Args:
        image_of: The image of each pair, int64 [pairs], ascending.
        rows: The pairs of a step.
        protocol: Says which others may be drawn.
        generator: Of random numbers.
    """
    num_pairs = len(image_of)
    shape = (2, len(rows), protocol.num_contrastive)
    if protocol.excludes_own and bool(image_of[0] != image_of[-1]):
        first = torch.searchsorted(image_of, image_of[rows])[:, None]
        num_own = torch.searchsorted(image_of, image_of[rows], right=True)[:, None] - first
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        others = (drawn * (num_pairs - num_own)).long()
        # The n-th pair of another image has index n plus the number of the image's own pairs before it.
        return others + (others >= first) * num_own
    if not protocol.excludes_batch or len(rows) == num_pairs:
        return torch.randint(num_pairs, shape, generator=generator)
    drawn = torch.randint(num_pairs - len(rows), shape, generator=generator)
    # The n-th pair outside the step has index n plus the number of the step's rows before it.
    ordered = rows.sort().values
    return drawn + torch.searchsorted(ordered - torch.arange(len(rows)), drawn, right=True)


def loss(
    maps: LinearMaps, train: Split, rows: Tensor, others: Tensor, protocol: Protocol
) -> Tensor:
    """Return the sum of the hinges of a step's pairs [rows], each against contrastive pairs [2, rows, contrastive].

    An example that a step draws twice is mapped once.
    """
    captions, own, wrong = _mapped(rows, others[0], lambda ids: maps.sentence(train.captions[ids]))
    captions = nn.functional.normalize(captions, dim=1)
    image_rows, image_others = train.image_of[rows], train.image_of[others[1]]
    images, own_images, wrong_images = _mapped(
        image_rows, image_others, lambda ids: maps.image(train.images[ids])
    )
    if protocol.normalizes_images:
        images = nn.functional.normalize(images, dim=1)
    anchors, targets = images[own_images], captions[own]
    right = (anchors * targets).sum(dim=1, keepdim=True)
    hinge_captions = (protocol.margin - right + (anchors @ captions.T).gather(1, wrong)).clamp(
        min=0
    )
    hinge_images = (protocol.margin - right + (targets @ images.T).gather(1, wrong_images)).clamp(
        min=0
    )
    return hinge_captions.sum() + hinge_images.sum()


def _mapped(
    rows: Tensor, others: Tensor, read: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each distinct item mapped [distinct, dim], and the indices in it of rows [rows] and others [rows, n]."""
    distinct, inverse = torch.unique(torch.cat([rows[:, None], others], dim=1), return_inverse=True)
    return read(distinct), inverse[:, 0], inverse[:, 1:]


def recalls(maps: LinearMaps, split: Split, *, fold_size: int = 1000) -> np.ndarray:
    """Return `MEASURES` of captions by images and of images by captions, float64 [2, 4], the mean over folds.

    Raises:
        DataError: If a similarity is not finite.
    """
    found = []
    for images, captions in folds(
        split.image_of, num_images=len(split.images), fold_size=fold_size
    ):
        own = split.image_of[captions] - images.start
        similarity = maps.similarity(Split(split.images[images], split.captions[captions], own))
        if not np.isfinite(similarity).all():
            raise DataError(
                "image ranking: similarities must be finite; given NaN; scale the image features down"
            )
        found.append(recalls_of(similarity, own.numpy()))
    return np.mean(found, axis=0)


def folds(image_of: Tensor, *, num_images: int, fold_size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the images and captions of consecutive folds of `fold_size` images, at most `MAX_FOLDS`.

    Images that do not fill a fold are left out; a set smaller than one fold is one fold.
    """
    size = min(fold_size, num_images)
    for first in range(0, min(num_images // size, MAX_FOLDS) * size, size):
        start, end = torch.searchsorted(image_of, torch.tensor([first, first + size])).tolist()
        yield slice(first, first + size), slice(start, end)


def recalls_of(similarity: np.ndarray, image_of: np.ndarray) -> np.ndarray:
    """Return `MEASURES` of captions by images and of images by captions, float64 [2, 4], of one fold.

    Args:
        similarity: Of every caption with every image [captions, images], finite.
        image_of: Index of each caption's image, int64 [captions].
    """
    own = (np.arange(len(image_of)), image_of)
    of_caption = _places(similarity, axis=1)[own]
    best = np.full(
        similarity.shape[1], len(similarity)
    )  # of an image's captions, the one with the best rank counts
    np.minimum.at(best, image_of, _places(similarity, axis=0)[own])
    return np.array(
        [
            [
                *(100 * (ranks < cutoff).mean() for cutoff in (1, 5, 10)),
                np.floor(np.median(ranks)) + 1,
            ]
            for ranks in (best, of_caption)
        ]
    )


def _places(similarity: np.ndarray, *, axis: int) -> np.ndarray:
    """Return each value's place, from 0, among those along an axis, the highest first."""
    order = np.argsort(-similarity, axis=axis, kind="stable")
    return np.argsort(order, axis=axis, kind="stable")


def rank(
    model: str, splits: dict[str, Split], protocol: Protocol, *, seed: int, fold_size: int
) -> np.ndarray:
    """Return a model's recalls on test, float64 [2, 4]."""
    encoder = raysent.load(model)
    train, dev, test = (
        Split(split.images, torch.from_numpy(encoder.encode(list(split.captions))), split.image_of)
        for split in (splits[name] for name in SPLITS)
    )
    return recalls(
        train_maps(train, dev, protocol, seed=seed, fold_size=fold_size), test, fold_size=fold_size
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the recalls of each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("images", type=Path, metavar="IMAGES.npy")
    parser.add_argument("captions", type=Path, metavar="CAPTIONS.tsv")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="kiros")
    parser.add_argument("--seed", type=int, default=1234, help="of everything random")
    parser.add_argument("--fold-size", type=int, default=1000, help="images ranked together")
    given = parser.parse_args(arguments)
    try:
        splits = read_splits(given.images, given.captions)
        for model in given.models:
            chosen = PROTOCOLS[given.protocol]
            found = rank(model, splits, chosen, seed=given.seed, fold_size=given.fold_size)
            for way, values in zip(
                ("captions of an image", "images of a caption"), found, strict=True
            ):
                figures = ", ".join(
                    f"{name} {value:.1f}" for name, value in zip(MEASURES, values, strict=True)
                )
                print(f"{model}: {way}: {figures}")
    except RaysentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
