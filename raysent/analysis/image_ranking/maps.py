"""Sentence vectors and image features -> two linear maps into one space, trained with a margin both ways.

Source: Kiros et al. 2015 (`kiros`), Conneau & Kiela 2018 (`senteval`), each as its authors' code does it.
Differs: random numbers are torch's; `kiros` also looks at dev at the end of each pass, since a small set has none of
the 500 steps between two looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.analysis.image_ranking.data import BothWays, both_ways, folds_of, mean_of
from raysent.errors import DataError
from raysent.models.layers import linear_layer


@dataclass(frozen=True)
class Features:
    """A split as the maps see it.

    Attributes:
        images: Features, float32 [images, features].
        captions: Sentence vectors, float32 [captions, dim], those of one image side by side.
        image_of: Number of each caption's image, int64 [captions], ascending.
    """

    images: Tensor
    captions: Tensor
    image_of: Tensor


@dataclass(frozen=True)
class Protocol:
    """How the maps are trained and chosen.

    Attributes:
        name: What it is called.
        batch_size: Pairs of image and caption a step.
        num_contrastive: Other images, and other captions, that each pair of a step is compared with.
        learning_rate: Of Adam.
        max_epochs: Passes over the training pairs at most.
        check_every: Steps between two looks at dev; None for the end of each pass.
        patience: Looks without a gain, in all, that are forgiven: the next one ends training; None for any number.
        normalizes_images: Whether images have unit length in training; in ranking they always do.
        excludes_batch: Whether the others come from outside the step's own pairs.
        initial_scale: First weights are uniform within this over the root of the input's size.
        has_initial_bias: Whether the first biases are drawn in the same way; else they are 0.
        dim: Size of the common space.
        margin: How much nearer a pair must be than a wrong one.
    """

    name: str
    batch_size: int
    num_contrastive: int
    learning_rate: float
    max_epochs: int
    check_every: int | None
    patience: int | None
    normalizes_images: bool
    excludes_batch: bool
    initial_scale: float
    has_initial_bias: bool
    dim: int = 1000
    margin: float = 0.2


KIROS = Protocol(
    "kiros",
    batch_size=100,
    num_contrastive=50,
    learning_rate=2e-4,
    max_epochs=15,
    check_every=500,
    patience=None,
    normalizes_images=False,
    excludes_batch=False,
    initial_scale=2**0.5,
    has_initial_bias=False,
)
SENTEVAL = Protocol(
    "senteval",
    batch_size=128,
    num_contrastive=30,
    learning_rate=1e-3,
    max_epochs=20,
    check_every=None,
    patience=3,
    normalizes_images=True,
    excludes_batch=True,
    initial_scale=1.0,
    has_initial_bias=True,
)
PROTOCOLS = {protocol.name: protocol for protocol in (KIROS, SENTEVAL)}


class Maps(nn.Module):
    """An image's and a sentence's way into the common space."""

    def __init__(self, num_features: int, dim: int, protocol: Protocol, *, generator: torch.Generator) -> None:
        super().__init__()
        self.image = _linear(num_features, protocol, generator)
        self.sentence = _linear(dim, protocol, generator)

    def similarity(self, features: Features) -> npt.NDArray[np.float32]:
        """Return the cosine of every caption with every image in the common space, float32 [captions, images]."""
        with torch.inference_mode():
            images = nn.functional.normalize(self.image(features.images), dim=1)
            captions = nn.functional.normalize(self.sentence(features.captions), dim=1)
            cosine: npt.NDArray[np.float32] = (captions @ images.T).numpy()
        return cosine


def train_maps(
    train: Features,
    dev: Features,
    protocol: Protocol,
    *,
    seed: int,
    fold_size: int = 1000,
    progress: Callable[[int, int], None] | None = None,
) -> Maps:
    """Return the maps that did best on dev, by the sum of the six recalls.

    Args:
        train: What is learnt from.
        dev: What chooses.
        protocol: How.
        seed: Fixes first weights, order and contrastive examples.
        fold_size: Images of a fold of dev.
        progress: Told the passes done and all of them.

    Raises:
        DataError: If training leaves the finite numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    maps = Maps(train.images.shape[1], train.captions.shape[1], protocol, generator=generator)
    optimizer = torch.optim.Adam(maps.parameters(), lr=protocol.learning_rate)
    choice = _Choice(maps, dev, fold_size=fold_size)
    step = 0
    for epoch in range(protocol.max_epochs):
        for rows in _batches(len(train.captions), protocol.batch_size, generator):
            optimizer.zero_grad()
            _loss(maps, train, rows, protocol, generator).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if protocol.check_every is not None and step % protocol.check_every == 0:
                choice.look()
        choice.look()
        if progress:
            progress(epoch + 1, protocol.max_epochs)
        if protocol.patience is not None and choice.num_without_gain > protocol.patience:
            break
    maps.load_state_dict(choice.best)
    return maps


class _Choice:
    """The maps that did best on dev so far.

    Attributes:
        best: Their values.
        num_without_gain: How many looks found nothing better.
    """

    def __init__(self, maps: Maps, dev: Features, *, fold_size: int) -> None:
        self._maps, self._dev, self._fold_size = maps, dev, fold_size
        self._score = -1.0
        self.best: dict[str, Tensor] = {}
        self.num_without_gain = 0

    def look(self) -> None:
        """Judge the maps as they are now, and keep them if they are better than any before."""
        score = judge(self._maps, self._dev, fold_size=self._fold_size).total
        if score > self._score:
            self._score = score
            self.best = {name: value.detach().clone() for name, value in self._maps.state_dict().items()}
        else:
            self.num_without_gain += 1


def judge(maps: Maps, features: Features, *, fold_size: int = 1000) -> BothWays:
    """Return the recalls of a split, the mean over folds of `fold_size` images.

    Raises:
        DataError: If a similarity is not finite.
    """
    found = []
    image_of = features.image_of.numpy()
    for images, captions in folds_of(image_of, num_images=len(features.images), fold_size=fold_size):
        own = image_of[captions] - images.start
        fold = Features(features.images[images], features.captions[captions], torch.from_numpy(own))
        similarity = maps.similarity(fold)
        if not np.isfinite(similarity).all():
            raise DataError("image ranking: similarities must be finite; given NaN; scale the image features down")
        found.append(both_ways(similarity, own))
    return mean_of(found)


def _linear(size: int, protocol: Protocol, generator: torch.Generator) -> nn.Linear:
    layer = linear_layer(size, protocol.dim, generator=generator)
    layer.weight.data.mul_(protocol.initial_scale)
    if not protocol.has_initial_bias:
        layer.bias.data.zero_()
    return layer


def _batches(num_pairs: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each step of a pass, strided slices of one permutation; each holds at most `batch_size`."""
    order = torch.randperm(num_pairs, generator=generator)
    num_batches = -(-num_pairs // batch_size)
    for first in range(num_batches):
        yield order[first::num_batches]


def _loss(maps: Maps, train: Features, rows: Tensor, protocol: Protocol, generator: torch.Generator) -> Tensor:
    """Return the sum of the hinges of a step's pairs, each against other captions and other images.

    Every pair has others of its own; what a step draws twice is mapped once.
    """
    other_captions, other_images = _others(len(train.captions), rows, protocol, generator)
    captions, own, wrong = _mapped(rows, other_captions, lambda ids: maps.sentence(train.captions[ids]))
    captions = nn.functional.normalize(captions, dim=1)
    image_rows, image_others = train.image_of[rows], train.image_of[other_images]
    images, own_images, wrong_images = _mapped(image_rows, image_others, lambda ids: maps.image(train.images[ids]))
    if protocol.normalizes_images:
        images = nn.functional.normalize(images, dim=1)
    anchors, targets = images[own_images], captions[own]
    right = (anchors * targets).sum(dim=1, keepdim=True)
    # [rows, distinct]: every product that a hinge may ask for, and more of them than are asked for.
    hinge_captions = (protocol.margin - right + (anchors @ captions.T).gather(1, wrong)).clamp(min=0)
    hinge_images = (protocol.margin - right + (targets @ images.T).gather(1, wrong_images)).clamp(min=0)
    return hinge_captions.sum() + hinge_images.sum()


def _mapped(rows: Tensor, others: Tensor, read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return each distinct item mapped [distinct, dim], and the places in it of rows [rows] and others [rows, n]."""
    distinct, places = torch.unique(torch.cat([rows[:, None], others], dim=1), return_inverse=True)
    return read(distinct), places[:, 0], places[:, 1:]


def _others(num_pairs: int, rows: Tensor, protocol: Protocol, generator: torch.Generator) -> Tensor:
    """Return pairs drawn with replacement, for captions and for images, int64 [2, rows, contrastive]."""
    shape = (2, len(rows), protocol.num_contrastive)
    if not protocol.excludes_batch or len(rows) == num_pairs:
        return torch.randint(num_pairs, shape, generator=generator)
    drawn = torch.randint(num_pairs - len(rows), shape, generator=generator)
    # The n-th pair that is not in the step: as many places further as rows of the step stand before it.
    ordered = rows.sort().values
    return drawn + torch.searchsorted(ordered - torch.arange(len(rows)), drawn, right=True)
