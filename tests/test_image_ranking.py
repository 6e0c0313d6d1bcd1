"""Image ranking, a script beside the papers: recalls against sorting, the loss against a plain sum, malformed files."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference
import torch

from raysent.config import shipped_path
from raysent.errors import DataError
from raysent.models.schemes.hash import HashEncoder

_SPEC = importlib.util.spec_from_file_location(
    "image_ranking", shipped_path("papers") / "image_ranking.py"
)
script = sys.modules["image_ranking"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)
PROTOCOLS, Split = script.PROTOCOLS, script.Split
WORDS = [f"word{number}" for number in range(60)]


def write_data(
    folder: Path, *, num_images: int = 60, num_dev: int = 20, noise: float = 0.0
) -> tuple[Path, Path]:
    """Write images whose features are a linear map of the mean of their captions' vectors, plus noise."""
    generator = np.random.default_rng(0)
    lines, features = ["image\tsplit\tcaption"], []
    turn = generator.standard_normal((32, 48)).astype(np.float32)
    for image in range(num_images):
        text = " ".join(generator.choice(WORDS, 4, replace=False))
        split = (
            "train"
            if image < num_images - num_dev - 20
            else "dev"
            if image < num_images - 20
            else "test"
        )
        lines += [f"{image}\t{split}\t{text}"] * 2
        features.append(
            HashEncoder(32).encode([text])[0] @ turn + noise * generator.standard_normal(48)
        )
    np.save(folder / "images.npy", np.stack(features).astype(np.float32))
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
    return folder / "images.npy", folder / "captions.tsv"


@pytest.mark.parametrize("seed", range(3))
def test_recalls_equal_sorting(seed) -> None:
    """Recalls and medians are those of sorting every list; the earlier of equals is first; captions per image vary."""
    generator = np.random.default_rng(seed)
    image_of = np.sort(np.concatenate([np.arange(12), generator.integers(0, 12, 30)]))
    similarity = generator.integers(0, 6, (42, 12)).astype(np.float32)
    np.testing.assert_allclose(
        script.recalls_of(similarity, image_of), reference.image_recalls(similarity, image_of)
    )


def test_folds_are_at_most_five_of_equal_size() -> None:
    """Images that do not fill a fold, or exceed five, are left out as in the published folds; few are one fold."""
    image_of = torch.arange(13).repeat_interleave(2)
    assert list(script.folds(image_of, num_images=13, fold_size=4)) == [
        (slice(at, at + 4), slice(2 * at, 2 * at + 8)) for at in (0, 4, 8)
    ]
    assert len(list(script.folds(image_of, num_images=13, fold_size=2))) == 5
    assert list(script.folds(image_of, num_images=13, fold_size=14)) == [
        (slice(0, 13), slice(0, 26))
    ]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_loss_equals_its_sum(name) -> None:
    """The loss is the sum of every pair's hinges, one at a time."""
    protocol = replace(PROTOCOLS[name], dim=5, num_contrastive=3, margin=0.5)
    generator = torch.Generator().manual_seed(0)
    image_of = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    data = Split(
        torch.randn(4, 6, generator=generator), torch.randn(7, 3, generator=generator), image_of
    )
    both = script.LinearMaps(6, 3, protocol, generator=generator)
    rows = torch.tensor([4, 1])
    others = torch.tensor([[[0, 3, 3], [6, 1, 2]], [[5, 0, 1], [2, 2, 6]]])
    found = script.loss(both, data, rows, others, protocol)
    images = both.image(data.images[image_of]).detach().numpy().astype(np.float64)
    captions = both.sentence(data.captions).detach().numpy().astype(np.float64)
    listed = [
        (row, others[0, at].tolist(), others[1, at].tolist())
        for at, row in enumerate(rows.tolist())
    ]
    expected = reference.ranking_loss(
        images, captions, listed, margin=0.5, normalizes_images=protocol.normalizes_images
    )
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_contrastive_examples_of_senteval_are_outside_the_step() -> None:
    """SentEval draws every pair outside the step and none inside; the code of Kiros et al. draws from all."""
    rows, generator = torch.tensor([7, 2, 3]), torch.Generator().manual_seed(0)
    image_of = torch.arange(9)
    drawn = script.contrastive(
        image_of, rows, replace(PROTOCOLS["senteval"], num_contrastive=200), generator
    )
    assert set(drawn.flatten().tolist()) == {0, 1, 4, 5, 6, 8}
    released = replace(PROTOCOLS["kiros-released"], num_contrastive=200)
    drawn = script.contrastive(image_of, rows, released, generator)
    assert set(drawn.flatten().tolist()) == set(range(9))


def test_contrastive_examples_of_the_text_are_of_other_images() -> None:
    """An image's own other captions are not incorrect ones; every other pair is drawn, about equally often."""
    image_of = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    rows, generator = torch.tensor([0, 2, 4, 6]), torch.Generator().manual_seed(0)
    drawn = script.contrastive(
        image_of, rows, replace(PROTOCOLS["kiros"], num_contrastive=2000), generator
    )
    for place, row in enumerate(rows.tolist()):
        others = [pair for pair in range(7) if image_of[pair] != image_of[row]]
        counts = torch.bincount(drawn[:, place].flatten(), minlength=7)
        assert sorted(torch.nonzero(counts).flatten().tolist()) == others
        assert counts[others].min() > 0.8 * 4000 / len(others)


def test_scores_of_the_text_are_cosines() -> None:
    """An image's features that are scaled change nothing in training, as in ranking; in the released code they do."""
    generator = torch.Generator().manual_seed(0)
    image_of = torch.tensor([0, 0, 1, 2])
    images = torch.randn(3, 6, generator=generator)
    captions = torch.randn(4, 5, generator=generator)
    rows, others = torch.tensor([0, 3]), torch.tensor([[[2, 3], [0, 1]], [[2, 3], [0, 2]]])
    same = {}
    for name in ("kiros", "kiros-released"):
        protocol = replace(PROTOCOLS[name], dim=4, margin=2.0, num_contrastive=2)
        maps = script.LinearMaps(6, 5, protocol, generator=torch.Generator().manual_seed(1))
        losses = [
            script.loss(
                maps, Split(scale * images, captions, image_of), rows, others, protocol
            ).item()
            for scale in (1.0, 3.0)
        ]
        same[name] = losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert same == {"kiros": True, "kiros-released": False}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_command_learns_a_linear_map(monkeypatch, capsys, tmp_path, name) -> None:
    """If images are a linear map of their captions, every test image ranks first in both directions."""
    options = {
        "dim": 64,
        "batch_size": 20,
        "learning_rate": 0.01,
        "max_epochs": 10,
        "patience": None,
    }
    monkeypatch.setitem(PROTOCOLS, name, replace(PROTOCOLS[name], **options))
    files = map(str, write_data(tmp_path, num_images=420, num_dev=100))
    assert script.main(["hash:32", *files, "--protocol", name]) == 0
    captions, images = capsys.readouterr().out.splitlines()
    assert (
        captions
        == "hash:32: captions of an image: R@1 100.0, R@5 100.0, R@10 100.0, median rank 1.0"
    )
    assert (
        images == "hash:32: images of a caption: R@1 100.0, R@5 100.0, R@10 100.0, median rank 1.0"
    )


def test_rank_is_deterministic_and_near_chance_for_noise(tmp_path) -> None:
    """The same seed gives the same recalls; recalls of random features are near chance."""
    protocol = replace(PROTOCOLS["kiros"], dim=10, max_epochs=2)
    splits = script.read_splits(*write_data(tmp_path, num_images=120, noise=1e4))
    first, second = (
        script.rank("hash:32", splits, protocol, seed=1, fold_size=1000) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert first[1, 0] < 30


def test_read_splits_groups_captions_by_image(tmp_path) -> None:
    """Captions of one image need not be consecutive in the file; blank lines are ignored."""
    np.save(tmp_path / "i.npy", np.arange(8, dtype=np.float64).reshape(4, 2))
    lines = [
        "image\tsplit\tcaption",
        "3\ttrain\tc  d",
        "1\ttrain\ta",
        "",
        "3\ttrain\tb",
        "0\tdev\te",
        "2\ttest\tf",
    ]
    (tmp_path / "c.tsv").write_text("\n".join(lines))
    train = script.read_splits(tmp_path / "i.npy", tmp_path / "c.tsv")["train"]
    assert train.captions == ["a", "c d", "b"]
    assert train.image_of.tolist() == [0, 1, 1]
    assert train.images.tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0\ttrain\ta"], "c.tsv:1: must name the columns image, split, caption with tabs between"),
        (
            ["0\ttrain"],
            "c.tsv:2: must be image, split and caption with tabs between; given 2 values",
        ),
        (["4\ttrain\ta"], "c.tsv:2: image must be a row of the features, 0 to 3; given '4'"),
        (
            ["1\ttrian\ta"],
            "split must be one of train, dev, test; given 'trian'; did you mean 'train'?",
        ),
        (["1\ttrain\ta", "1\tdev\tb"], "c.tsv:3: image 1 must be in one split; is in train too"),
        (["1\ttrain\ta"], "c.tsv: must hold captions of every split; given none of dev, test"),
    ],
)
def test_malformed_captions_are_refused(capsys, tmp_path, lines, message) -> None:
    """The error names the line."""
    np.save(tmp_path / "i.npy", np.zeros((4, 2), np.float32))
    header = [] if ":1:" in message else ["image\tsplit\tcaption"]
    (tmp_path / "c.tsv").write_text("\n".join([*header, *lines]))
    assert script.main(["hash:8", str(tmp_path / "i.npy"), str(tmp_path / "c.tsv")]) == 2
    assert message in capsys.readouterr().err


def test_malformed_features_are_refused(tmp_path) -> None:
    """Truncated files, other types of numbers and NaN are errors."""
    images, captions = write_data(tmp_path)
    whole = images.read_bytes()
    for bad in (np.full((60, 2), np.nan), np.zeros(3, int)):
        np.save(images, bad)
        with pytest.raises(
            DataError,
            match=r"must be finite floating-point numbers \[images, features\]; given others$",
        ):
            script.read_splits(images, captions)
    images.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"must be a .npy array"):
        script.read_splits(images, captions)
