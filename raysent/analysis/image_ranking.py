"""Ranking of images by sentences and of sentences by images, with linear maps into a common space.

`rank_images` takes models, image features and captions. It trains two linear maps per model, from sentence vectors and
from image features, with a margin loss in both directions. It returns recalls at 1, 5 and 10 and the median rank. Where
asked, it saves each trained model with its map: the model's vector, and beside it the one in the common space.

Source: Kiros et al., 2015 (protocol `kiros` and `eval_rank`), Conneau and Kiela, 2018 (protocol `senteval`), each as in
the authors' code; Karpathy and Fei-Fei, 2015 (five folds).
Differs: random numbers are those of torch. `kiros` also evaluates on dev after each epoch, because a small set has
fewer than the 500 steps between evaluations. An image may have any number of captions. Of equal similarities the
earlier one ranks first.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysent.errors import ConfigError, DataError, did_you_mean
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member, expand, model_folder
from raysent.kernels.devices import set_matmul_precision
from raysent.models import LinearMap, check_new, compose_with_map
from raysent.models import load as load_model
from raysent.models.layers import linear_layer
from raysent.models.sentence_encoder import SentenceEncoder

SPLITS = ("train", "dev", "test")
COLUMNS = ("image", "split", "caption")
CUTOFFS = (1, 5, 10)
MAX_FOLDS = 5


@dataclass(frozen=True)
class RankingSplit:
    """Images of one split and their captions.

    Attributes:
        images: Features, float32 [images, features].
        captions: Sentences; the captions of an image are consecutive.
        image_of: Index of each caption's image, int64 [captions], ascending.
    """

    images: npt.NDArray[np.float32]
    captions: tuple[str, ...]
    image_of: npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankingData:
    """The rows that train the linear maps, choose among them, and test them."""

    train: RankingSplit
    dev: RankingSplit
    test: RankingSplit


@dataclass(frozen=True)
class Recalls:
    """Recalls in one direction.

    Attributes:
        r1: Percentage of queries whose answer ranks first.
        r5: Among the first five.
        r10: Among the first ten.
        median_rank: Median rank of the answers, counted from 1; a half is rounded down.
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
class RankingRecalls:
    """Recalls in both directions: captions found by an image, and images found by a caption."""

    captions_of_image: Recalls
    images_of_caption: Recalls

    @property
    def total(self) -> float:
        """The sum of all six recalls, by which the best maps are chosen."""
        return self.captions_of_image.total + self.images_of_caption.total


@dataclass(frozen=True)
class RankingScore:
    """A model's recalls.

    Attributes:
        model: The model's name.
        protocol: How the maps were trained.
        seed: Of initial weights and order.
        num_images: Images in a fold of test.
        num_folds: Folds of test whose mean is taken.
        dev: On the images that chose the maps.
        test: On images that chose nothing.
    """

    model: str
    protocol: str
    seed: int
    num_images: int
    num_folds: int
    dev: RankingRecalls
    test: RankingRecalls


@dataclass(frozen=True)
class RankingProtocol:
    """How the maps are trained and chosen.

    Attributes:
        name: The protocol's name.
        batch_size: Pairs of image and caption per step.
        num_contrastive: Other images, and other captions, that each pair of a step is compared with.
        learning_rate: Of Adam.
        max_epochs: Maximal passes over the training pairs.
        check_every: Steps between evaluations on dev; None to evaluate only after each epoch.
        patience: Evaluations without improvement, in total, that do not yet stop training; None for any number.
        normalizes_images: Whether images have unit length in training; in ranking they always do.
        excludes_batch: Whether the contrastive examples come from outside the step's own pairs.
        initial_scale: Initial weights are uniform within this over the square root of the input's size.
        has_initial_bias: Whether initial biases are drawn in the same way; else they are 0.
        dim: Size of the common space.
        margin: Minimal difference in cosine between a pair and a contrastive one.
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


KIROS = RankingProtocol(
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
SENTEVAL = RankingProtocol(
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
RANKING_PROTOCOLS = {protocol.name: protocol for protocol in (KIROS, SENTEVAL)}


def rank_images(
    models: Sequence[str | Path],
    data: RankingData,
    *,
    protocol: str = "kiros",
    seed: int = 1234,
    fold_size: int = 1000,
    output: Path | None = None,
    load: Load | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[RankingScore]:
    """Train the maps of each model and return their recalls.

    Args:
        models: Folders of models, ``hash:DIM``, or a sweep's folder, which stands for its trials with a model.
        data: Image features and captions.
        protocol: ``kiros`` or ``senteval``.
        seed: Of everything random.
        fold_size: Images in a fold; recalls on dev and test are means over up to five folds.
        output: Folder in which each model is saved with its map of sentences, under its name; none by default.
        load: Path -> encoder; `raysent.models.load` by default.
        progress: Called with the progress.

    Raises:
        ConfigError: If the protocol is unknown, or a model cannot be saved with a map.
        DataError: If a model gives NaN, or training diverges.
        ArtifactError: If a model cannot be loaded.
    """
    set_matmul_precision()
    if protocol not in RANKING_PROTOCOLS:
        known = ", ".join(RANKING_PROTOCOLS)
        raise ConfigError(
            f"protocol: must be one of {known}; given '{protocol}'{did_you_mean(protocol, RANKING_PROTOCOLS)}"
        )
    chosen, found = RANKING_PROTOCOLS[protocol], []
    members = expand(models)
    places = {} if output is None else {member: output / member.name for member in members}
    for member, place in places.items():
        _check_saveable(member, place)
    for member in members:
        encoder = (load or load_model)(member.path)
        train, dev, test = (_encoded(encoder, split) for split in (data.train, data.dev, data.test))
        report = None if progress is None else _named(progress, f"ranking by {member.name}")
        maps = train_maps(train, dev, chosen, seed=seed, fold_size=fold_size, progress=report)
        if member in places:
            source = model_folder(Path(member.path))
            assert source is not None  # checked above
            weight, bias = (values.detach().numpy() for values in (maps.sentence.weight, maps.sentence.bias))
            compose_with_map(source, LinearMap(weight, bias), places[member])
        folds = ranking_folds(data.test.image_of, num_images=len(data.test.images), fold_size=fold_size)
        found.append(
            RankingScore(
                model=member.name,
                protocol=protocol,
                seed=seed,
                num_images=folds[0][0].stop,
                num_folds=len(folds),
                dev=evaluate_maps(maps, dev, fold_size=fold_size),
                test=evaluate_maps(maps, test, fold_size=fold_size),
            )
        )
    return found


def _check_saveable(member: Member, folder: Path) -> None:
    """Refuse a model that is not a trained one of its own folder, or a place that is taken.

    Raises:
        ConfigError: With what must hold.
    """
    if model_folder(Path(member.path)) is None:
        raise ConfigError(f"--output: {member.name} must be a trained model's folder, to be saved with its map")
    check_new(folder)


def _encoded(encoder: SentenceEncoder, split: RankingSplit) -> EncodedSplit:
    """Return a split with encoded captions."""
    vectors = torch.from_numpy(encoder.encode(list(split.captions)))
    return EncodedSplit(torch.from_numpy(split.images), vectors, torch.from_numpy(split.image_of))


def _named(progress: Callable[[str, int, int], None], step: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(step, done, total)


def read_ranking_data(images: Path, captions: Path) -> RankingData:
    """Read the features of images and their captions.

    Args:
        images: A ``.npy`` file, float [images, features], one row per image.
        captions: Lines of row (from 0), split (train, dev or test) and caption, separated by tabs, below a line that
            names these columns.

    Raises:
        DataError: If a file is missing or truncated, a line is malformed, an image is in two splits, a split is empty,
            or a feature is not finite.
    """
    features = _read_features(images)
    rows = list(_rows(captions, num_images=len(features)))
    split_of: dict[int, str] = {}
    for line, image, split, _ in rows:
        if split_of.setdefault(image, split) != split:
            raise DataError(f"{captions}:{line}: an image must be in one split; {image} is in {split_of[image]} too")
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
    for line, row in enumerate(csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE), start=2):
        if not row:
            continue
        if len(row) != len(COLUMNS) or not row[2].strip():
            raise DataError(
                f"{path}:{line}: must be image, split and caption with tabs between; given {len(row)} values"
            )
        if not (row[0].isascii() and row[0].isdigit() and int(row[0]) < num_images):
            raise DataError(
                f"{path}:{line}: image must be a row of the features, 0 to {num_images - 1}; given '{row[0]}'"
            )
        if row[1] not in SPLITS:
            nearest = did_you_mean(row[1], SPLITS)
            raise DataError(f"{path}:{line}: split must be one of {', '.join(SPLITS)}; given '{row[1]}'{nearest}")
        yield line, int(row[0]), row[1], " ".join(row[2].split())


def _split(
    features: npt.NDArray[np.float32], rows: Sequence[tuple[int, int, str, str]], name: str, path: Path
) -> RankingSplit:
    """Return one split, with images in the order of their rows and an image's captions in the order of the file."""
    own = sorted((image, line, caption) for line, image, split, caption in rows if split == name)
    if not own:
        raise DataError(f"{path}: must hold captions of the split {name}; given none")
    images, image_of = np.unique([image for image, _, _ in own], return_inverse=True)
    chosen = np.asarray(features[images], dtype=np.float32)
    if not np.isfinite(chosen).all():
        odd = int(images[~np.isfinite(chosen).all(axis=1)][0])
        raise DataError(f"{path}: image {odd}: every feature must be finite; given NaN or infinity")
    return RankingSplit(chosen, tuple(caption for _, _, caption in own), image_of.astype(np.int64))


@dataclass(frozen=True)
class EncodedSplit:
    """A split with encoded captions.

    Attributes:
        images: Features, float32 [images, features].
        captions: Sentence vectors, float32 [captions, dim]; the captions of an image are consecutive.
        image_of: Index of each caption's image, int64 [captions], ascending.
    """

    images: Tensor
    captions: Tensor
    image_of: Tensor


class LinearMaps(nn.Module):
    """Maps of images and of sentences into the common space."""

    def __init__(self, num_features: int, dim: int, protocol: RankingProtocol, *, generator: torch.Generator) -> None:
        super().__init__()
        self.image = _linear(num_features, protocol, generator)
        self.sentence = _linear(dim, protocol, generator)

    def similarity(self, split: EncodedSplit) -> npt.NDArray[np.float32]:
        """Return the cosine of every caption with every image in the common space, float32 [captions, images]."""
        with torch.inference_mode():
            images = nn.functional.normalize(self.image(split.images), dim=1)
            captions = nn.functional.normalize(self.sentence(split.captions), dim=1)
            cosine: npt.NDArray[np.float32] = (captions @ images.T).numpy()
        return cosine


def _linear(size: int, protocol: RankingProtocol, generator: torch.Generator) -> nn.Linear:
    layer = linear_layer(size, protocol.dim, generator=generator)
    layer.weight.data.mul_(protocol.initial_scale)
    if not protocol.has_initial_bias:
        layer.bias.data.zero_()
    return layer


def train_maps(
    train: EncodedSplit,
    dev: EncodedSplit,
    protocol: RankingProtocol,
    *,
    seed: int,
    fold_size: int = 1000,
    progress: Callable[[int, int], None] | None = None,
) -> LinearMaps:
    """Return the maps with the highest sum of recalls on dev.

    Args:
        train: The pairs to learn.
        dev: The pairs that choose the maps.
        protocol: How to train.
        seed: Of initial weights, order and contrastive examples.
        fold_size: Images in a fold of dev.
        progress: Called with the epochs done and the maximal number of epochs.

    Raises:
        DataError: If training diverges.
    """
    generator = torch.Generator().manual_seed(seed)
    maps = LinearMaps(train.images.shape[1], train.captions.shape[1], protocol, generator=generator)
    optimizer = torch.optim.Adam(maps.parameters(), lr=protocol.learning_rate)
    best = _BestMaps(maps, dev, fold_size=fold_size)
    step = 0
    for epoch in range(protocol.max_epochs):
        for rows in _batches(len(train.captions), protocol.batch_size, generator):
            optimizer.zero_grad()
            _loss(maps, train, rows, protocol, generator).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if protocol.check_every is not None and step % protocol.check_every == 0:
                best.evaluate()
        best.evaluate()
        if progress:
            progress(epoch + 1, protocol.max_epochs)
        if protocol.patience is not None and best.num_without_gain > protocol.patience:
            break
    maps.load_state_dict(best.values)
    return maps


class _BestMaps:
    """The maps with the highest sum of recalls on dev so far.

    Attributes:
        values: Their parameters.
        num_without_gain: The number of evaluations without improvement.
    """

    def __init__(self, maps: LinearMaps, dev: EncodedSplit, *, fold_size: int) -> None:
        self._maps, self._dev, self._fold_size = maps, dev, fold_size
        self._score = -1.0
        self.values: dict[str, Tensor] = {}
        self.num_without_gain = 0

    def evaluate(self) -> None:
        """Evaluate the maps' current parameters, and keep a copy if they are the best so far."""
        score = evaluate_maps(self._maps, self._dev, fold_size=self._fold_size).total
        if score > self._score:
            self._score = score
            self.values = {name: value.detach().clone() for name, value in self._maps.state_dict().items()}
        else:
            self.num_without_gain += 1


def _batches(num_pairs: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each step of an epoch: strided slices of a permutation, of at most `batch_size` rows."""
    order = torch.randperm(num_pairs, generator=generator)
    num_batches = -(-num_pairs // batch_size)
    for first in range(num_batches):
        yield order[first::num_batches]


def _loss(
    maps: LinearMaps, train: EncodedSplit, rows: Tensor, protocol: RankingProtocol, generator: torch.Generator
) -> Tensor:
    """Return the sum of the hinges of a step's pairs, each against contrastive captions and images.

    Every pair has its own contrastive examples; an example that a step draws twice is mapped once.
    """
    other_captions, other_images = _contrastive(len(train.captions), rows, protocol, generator)
    captions, own, wrong = _mapped(rows, other_captions, lambda ids: maps.sentence(train.captions[ids]))
    captions = nn.functional.normalize(captions, dim=1)
    image_rows, image_others = train.image_of[rows], train.image_of[other_images]
    images, own_images, wrong_images = _mapped(image_rows, image_others, lambda ids: maps.image(train.images[ids]))
    if protocol.normalizes_images:
        images = nn.functional.normalize(images, dim=1)
    anchors, targets = images[own_images], captions[own]
    right = (anchors * targets).sum(dim=1, keepdim=True)
    # [rows, distinct]: holds every product that a hinge needs, and others.
    hinge_captions = (protocol.margin - right + (anchors @ captions.T).gather(1, wrong)).clamp(min=0)
    hinge_images = (protocol.margin - right + (targets @ images.T).gather(1, wrong_images)).clamp(min=0)
    return hinge_captions.sum() + hinge_images.sum()


def _mapped(rows: Tensor, others: Tensor, read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return each distinct item mapped [distinct, dim], and the indices in it of rows [rows] and others [rows, n]."""
    distinct, inverse = torch.unique(torch.cat([rows[:, None], others], dim=1), return_inverse=True)
    return read(distinct), inverse[:, 0], inverse[:, 1:]


def _contrastive(num_pairs: int, rows: Tensor, protocol: RankingProtocol, generator: torch.Generator) -> Tensor:
    """Return pairs drawn with replacement, for captions and for images, int64 [2, rows, contrastive]."""
    shape = (2, len(rows), protocol.num_contrastive)
    if not protocol.excludes_batch or len(rows) == num_pairs:
        return torch.randint(num_pairs, shape, generator=generator)
    drawn = torch.randint(num_pairs - len(rows), shape, generator=generator)
    # The n-th pair outside the step has index n plus the number of the step's rows before it.
    ordered = rows.sort().values
    return drawn + torch.searchsorted(ordered - torch.arange(len(rows)), drawn, right=True)


def evaluate_maps(maps: LinearMaps, split: EncodedSplit, *, fold_size: int = 1000) -> RankingRecalls:
    """Return the recalls on a split, the mean over folds of `fold_size` images.

    Raises:
        DataError: If a similarity is not finite.
    """
    found = []
    image_of = split.image_of.numpy()
    for images, captions in ranking_folds(image_of, num_images=len(split.images), fold_size=fold_size):
        own = image_of[captions] - images.start
        fold = EncodedSplit(split.images[images], split.captions[captions], torch.from_numpy(own))
        similarity = maps.similarity(fold)
        if not np.isfinite(similarity).all():
            raise DataError("image ranking: similarities must be finite; given NaN; scale the image features down")
        found.append(ranking_recalls(similarity, own))
    return _mean_recalls(found)


def ranking_folds(image_of: npt.NDArray[np.int64], *, num_images: int, fold_size: int) -> list[tuple[slice, slice]]:
    """Return the images and captions of consecutive folds of `fold_size` images, at most `MAX_FOLDS`.

    Images that do not fill a fold are left out; a set smaller than one fold is one fold.
    """
    if num_images < fold_size:
        return [(slice(0, num_images), slice(0, len(image_of)))]
    starts = range(0, min(num_images // fold_size, MAX_FOLDS) * fold_size, fold_size)
    ends = [np.searchsorted(image_of, [start, start + fold_size]).tolist() for start in starts]
    return [(slice(start, start + fold_size), slice(*end)) for start, end in zip(starts, ends, strict=True)]


def ranking_recalls(similarity: npt.NDArray[np.float32], image_of: npt.NDArray[np.int64]) -> RankingRecalls:
    """Return the recalls of one set.

    Args:
        similarity: Of every caption with every image, float32 [captions, images], finite.
        image_of: Index of each caption's image, int64 [captions].
    """
    of_caption = _ranks(similarity, image_of)
    # Of an image's captions, the one with the best rank counts.
    of_pair = _ranks_of_columns(similarity, image_of)
    best = np.full(similarity.shape[1], similarity.shape[0], dtype=np.int64)
    np.minimum.at(best, image_of, of_pair)
    return RankingRecalls(captions_of_image=_recalls(best), images_of_caption=_recalls(of_caption))


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


def _mean_recalls(folds: Iterable[RankingRecalls]) -> RankingRecalls:
    """Return the mean of each value over folds."""
    found = list(folds)
    return RankingRecalls(
        _mean([one.captions_of_image for one in found]), _mean([one.images_of_caption for one in found])
    )


def _mean(recalls: Sequence[Recalls]) -> Recalls:
    values = np.array([[one.r1, one.r5, one.r10, one.median_rank] for one in recalls])
    return Recalls(*values.mean(axis=0).tolist())
