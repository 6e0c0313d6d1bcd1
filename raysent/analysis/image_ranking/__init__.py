"""How well sentence vectors rank images and images sentences, by linear maps trained on features that a user brings.

In: models, image features and captions. Out: recalls at 1, 5 and 10 and the median rank, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from raysent.analysis.image_ranking.data import BothWays, RankingData, Recalls, Split, folds_of, read_ranking_data
from raysent.analysis.image_ranking.maps import PROTOCOLS, Features, judge, train_maps
from raysent.errors import ConfigError, DataError, did_you_mean
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member, expand
from raysent.models import load as load_model
from raysent.models.sentence_encoder import SentenceEncoder

__all__ = ["PROTOCOLS", "BothWays", "RankingScore", "Recalls", "rank_images", "read_ranking_data"]


@dataclass(frozen=True)
class RankingScore:
    """A model's figures.

    Attributes:
        model: The model's name.
        protocol: How the maps were trained.
        seed: What fixed their first weights and order.
        num_images: Images of a fold of test.
        num_folds: Folds of test that the figures are the mean of.
        dev: On the images that chose the maps.
        test: On images that chose nothing.
    """

    model: str
    protocol: str
    seed: int
    num_images: int
    num_folds: int
    dev: BothWays
    test: BothWays


def rank_images(
    models: Sequence[str | Path],
    data: RankingData,
    *,
    protocol: str = "kiros",
    seed: int = 1234,
    fold_size: int = 1000,
    load: Load | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[RankingScore]:
    """Train the maps of each model and judge them.

    Args:
        models: Models' folders, ``hash:DIM``, or a sweep's folder, which stands for its trials that have a model.
        data: Image features and captions.
        protocol: ``kiros`` or ``senteval``.
        seed: Fixes all that is random.
        fold_size: Images of a fold; dev and test are judged by the mean of up to five.
        load: Path -> encoder; `raysent.models.load` by default.
        progress: Called with what is being done.

    Raises:
        ConfigError: If the protocol is unknown.
        DataError: If a model gives NaN, or training leaves the finite numbers.
        ArtifactError: If a model cannot be loaded.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"protocol: must be one of {', '.join(PROTOCOLS)}; given '{protocol}'{did_you_mean(protocol, PROTOCOLS)}"
        )
    how, found = PROTOCOLS[protocol], []
    for member in expand(models):
        encoder = (load or load_model)(member.path)
        train, dev, test = (_features(encoder, split, member) for split in (data.train, data.dev, data.test))
        tell = None if progress is None else _named(progress, f"ranking by {member.name}")
        maps = train_maps(train, dev, how, seed=seed, fold_size=fold_size, progress=tell)
        folds = folds_of(data.test.image_of, num_images=len(data.test.images), fold_size=fold_size)
        found.append(
            RankingScore(
                model=member.name,
                protocol=protocol,
                seed=seed,
                num_images=folds[0][0].stop,
                num_folds=len(folds),
                dev=judge(maps, dev, fold_size=fold_size),
                test=judge(maps, test, fold_size=fold_size),
            )
        )
    return found


def _features(encoder: SentenceEncoder, split: Split, member: Member) -> Features:
    """Return a split with its captions encoded.

    Raises:
        DataError: If a vector has a value that is not finite.
    """
    vectors = torch.from_numpy(encoder.encode(list(split.captions)))
    if not torch.isfinite(vectors).all():
        raise DataError(f"{member.name}: vectors must be finite; given NaN or infinity; train it again")
    return Features(torch.from_numpy(split.images), vectors, torch.from_numpy(split.image_of))


def _named(progress: Callable[[str, int, int], None], what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)
