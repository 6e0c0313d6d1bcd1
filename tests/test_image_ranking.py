"""Image ranking: recalls against sorting, the loss against a plain sum, known results, and malformed files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from command import CommandLine
from tiny_run import tiny_run

from raysent.analysis import image_ranking
from raysent.analysis.image_ranking import (
    RANKING_PROTOCOLS,
    EncodedSplit,
    LinearMaps,
    rank_images,
    ranking_folds,
    ranking_recalls,
    read_ranking_data,
    train_maps,
)
from raysent.errors import ConfigError, DataError
from raysent.evaluation.members import costs_of, model_key
from raysent.models import load
from raysent.models.schemes.hash import HashEncoder
from raysent.training.loop import fit

WORDS = [f"word{number}" for number in range(60)]


def write_data(
    folder: Path, *, num_images: int = 60, captions_each: int = 2, num_dev: int = 20, noise: float = 0.0
) -> tuple[Path, Path]:
    """Write images whose features are a linear map of the mean of their captions' vectors, plus noise."""
    generator = np.random.default_rng(0)
    lines, features = ["image\tsplit\tcaption"], []
    turn = generator.standard_normal((32, 48)).astype(np.float32)
    for image in range(num_images):
        text = " ".join(generator.choice(WORDS, 4, replace=False))
        split = "train" if image < num_images - num_dev - 20 else "dev" if image < num_images - 20 else "test"
        lines += [f"{image}\t{split}\t{text}" for _ in range(captions_each)]
        features.append(HashEncoder(32).encode([text])[0] @ turn + noise * generator.standard_normal(48))
    np.save(folder / "images.npy", np.stack(features).astype(np.float32))
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
    return folder / "images.npy", folder / "captions.tsv"


@pytest.mark.parametrize("seed", range(3))
def test_ranking_recalls_equal_sorting(seed) -> None:
    """Recalls and medians are those of sorting every list; the earlier of equals is first; captions per image vary."""
    generator = np.random.default_rng(seed)
    image_of = np.sort(np.concatenate([np.arange(12), generator.integers(0, 12, 30)]))
    similarity = generator.integers(0, 6, (42, 12)).astype(np.float32)
    found = ranking_recalls(similarity, image_of)
    expected = reference.image_recalls(similarity, image_of)
    for way, figures in zip((found.captions_of_image, found.images_of_caption), expected, strict=True):
        assert [way.r1, way.r5, way.r10, way.median_rank] == pytest.approx(figures)


def test_ranking_folds_are_at_most_five_of_equal_size() -> None:
    """Images that do not fill a fold, or exceed five, are left out as in the published folds; few are one fold."""
    image_of = np.repeat(np.arange(13), 2)
    assert ranking_folds(image_of, num_images=13, fold_size=4) == [
        (slice(at, at + 4), slice(2 * at, 2 * at + 8)) for at in (0, 4, 8)
    ]
    assert len(ranking_folds(image_of, num_images=13, fold_size=2)) == 5
    assert ranking_folds(image_of, num_images=13, fold_size=14) == [(slice(0, 13), slice(0, 26))]


@pytest.mark.parametrize("name", RANKING_PROTOCOLS)
def test_loss_equals_its_sum(monkeypatch, name) -> None:
    """The loss is the sum of every pair's hinges, one at a time."""
    protocol = replace(RANKING_PROTOCOLS[name], dim=5, num_contrastive=3, margin=0.5)
    generator = torch.Generator().manual_seed(0)
    image_of = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    data = EncodedSplit(torch.randn(4, 6, generator=generator), torch.randn(7, 3, generator=generator), image_of)
    both = LinearMaps(6, 3, protocol, generator=generator)
    rows = torch.tensor([4, 1])
    others = torch.tensor([[[0, 3, 3], [6, 1, 2]], [[5, 0, 1], [2, 2, 6]]])
    monkeypatch.setattr(image_ranking, "_contrastive", lambda *_: others)
    found = image_ranking._loss(both, data, rows, protocol, generator)
    images = both.image(data.images[image_of]).detach().numpy().astype(np.float64)
    captions = both.sentence(data.captions).detach().numpy().astype(np.float64)
    listed = [(row, others[0, at].tolist(), others[1, at].tolist()) for at, row in enumerate(rows.tolist())]
    expected = reference.ranking_loss(
        images, captions, listed, margin=0.5, normalizes_images=protocol.normalizes_images
    )
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_contrastive_examples_of_senteval_are_outside_the_step() -> None:
    """SentEval draws every pair outside the step and none inside; Kiros draws from all."""
    rows, generator = torch.tensor([7, 2, 3]), torch.Generator().manual_seed(0)
    drawn = image_ranking._contrastive(9, rows, replace(RANKING_PROTOCOLS["senteval"], num_contrastive=200), generator)
    assert set(drawn.flatten().tolist()) == {0, 1, 4, 5, 6, 8}
    drawn = image_ranking._contrastive(9, rows, replace(RANKING_PROTOCOLS["kiros"], num_contrastive=200), generator)
    assert set(drawn.flatten().tolist()) == set(range(9))


@pytest.mark.parametrize("name", RANKING_PROTOCOLS)
def test_rank_images_learns_a_linear_map(tmp_path, monkeypatch, name) -> None:
    """If images are a linear map of their captions, every test image ranks first in both directions."""
    monkeypatch.setitem(
        RANKING_PROTOCOLS,
        name,
        replace(RANKING_PROTOCOLS[name], dim=64, batch_size=20, learning_rate=0.01, max_epochs=10, patience=None),
    )
    data = read_ranking_data(*write_data(tmp_path, num_images=420, num_dev=100))
    score = rank_images(["hash:32"], data, protocol=name)[0]
    assert (score.num_images, score.num_folds) == (20, 1)
    for way in (score.test.captions_of_image, score.test.images_of_caption):
        assert (way.r1, way.median_rank) == (100, 1)


def test_rank_images_is_deterministic_and_near_chance_for_noise(tmp_path, monkeypatch) -> None:
    """The same seed gives the same recalls; recalls of random features are near chance."""
    monkeypatch.setitem(RANKING_PROTOCOLS, "kiros", replace(RANKING_PROTOCOLS["kiros"], dim=10, max_epochs=2))
    data = read_ranking_data(*write_data(tmp_path, num_images=120, noise=1e4))
    first, second = (rank_images(["hash:32"], data)[0] for _ in range(2))
    assert first == second
    assert first.test.images_of_caption.r1 < 30


def test_rank_images_refuses_an_unknown_protocol(tmp_path) -> None:
    """The error names the nearest protocol."""
    data = read_ranking_data(*write_data(tmp_path))
    with pytest.raises(
        ConfigError, match=r"^protocol: must be one of kiros, senteval; given 'kiro'; did you mean 'kiros'\?$"
    ):
        rank_images(["hash:32"], data, protocol="kiro")


def test_read_ranking_data_groups_captions_by_image(tmp_path) -> None:
    """Captions of one image need not be consecutive in the file; blank lines are ignored."""
    np.save(tmp_path / "i.npy", np.arange(8, dtype=np.float64).reshape(4, 2))
    lines = ["image\tsplit\tcaption", "3\ttrain\tc  d", "1\ttrain\ta", "", "3\ttrain\tb", "0\tdev\te", "2\ttest\tf"]
    (tmp_path / "c.tsv").write_text("\n".join(lines))
    train = read_ranking_data(tmp_path / "i.npy", tmp_path / "c.tsv").train
    assert train.captions == ("a", "c d", "b")
    assert train.image_of.tolist() == [0, 1, 1]
    assert train.images.tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0\ttrain\ta"], r"c.tsv:1: must name the columns image, split, caption with tabs between; given '0\\ttrain"),
        (
            ["image\tsplit\tcaption", "0\ttrain"],
            "c.tsv:2: must be image, split and caption with tabs between; given 2 values",
        ),
        (["image\tsplit\tcaption", "4\ttrain\ta"], "c.tsv:2: image must be a row of the features, 0 to 3; given '4'"),
        (
            ["image\tsplit\tcaption", "1\ttrian\ta"],
            "split must be one of train, dev, test; given 'trian'; did you mean 'train'?",
        ),
        (
            ["image\tsplit\tcaption", "1\ttrain\ta", "1\tdev\tb"],
            "c.tsv:3: an image must be in one split; 1 is in train too",
        ),
        (["image\tsplit\tcaption", "1\ttrain\ta"], "c.tsv: must hold captions of the split dev; given none"),
    ],
)
def test_read_ranking_data_refuses_malformed_captions(tmp_path, lines, message) -> None:
    """The error names the line."""
    np.save(tmp_path / "i.npy", np.zeros((4, 2), np.float32))
    (tmp_path / "c.tsv").write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        read_ranking_data(tmp_path / "i.npy", tmp_path / "c.tsv")
    assert message.replace("\\\\t", "\t").replace("\\t", "\t") in str(caught.value)


def test_read_ranking_data_refuses_malformed_features(tmp_path) -> None:
    """Truncated files, other types of numbers and NaN are errors."""
    images, captions = write_data(tmp_path)
    whole = images.read_bytes()
    features = np.load(images)
    features[0, 0] = np.nan
    np.save(images, features)
    with pytest.raises(DataError, match=r"image 0: every feature must be finite; given NaN or infinity$"):
        read_ranking_data(images, captions)
    images.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"images.npy: truncated or not .npy"):
        read_ranking_data(images, captions)
    np.save(images, np.zeros(3, int))
    with pytest.raises(DataError, match=r"must be floating-point numbers \[images, features\]; given int64 \[3\]$"):
        read_ranking_data(images, captions)


def test_command_rank_prints_both_directions(monkeypatch, capsys, tmp_path) -> None:
    """One row per model; `--json` prints one object."""
    monkeypatch.setitem(RANKING_PROTOCOLS, "kiros", replace(RANKING_PROTOCOLS["kiros"], dim=10, max_epochs=1))
    command, (images, captions) = CommandLine(monkeypatch, capsys), write_data(tmp_path)
    ran = command("rank", "hash:32", "hash:8", images, captions, "--fold-size", 5)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["hash:32", "hash:8"]
    assert lines[3] == "mean of 4 folds of 5 images; captions of an image, then images of a caption"
    found = json.loads(command("rank", "hash:32", images, captions, "--json").out)
    assert found["results"][0]["test"]["captions_of_image"]["r10"] > 0


def test_rank_saves_a_model_with_its_map(monkeypatch, capsys, tmp_path) -> None:
    """It loads and is evaluated like any model: its own vector, then that of the common space, which ranks as printed."""
    monkeypatch.setitem(RANKING_PROTOCOLS, "kiros", replace(RANKING_PROTOCOLS["kiros"], dim=10, max_epochs=2))
    command, (images, captions) = CommandLine(monkeypatch, capsys), write_data(tmp_path)
    fit(tiny_run(tmp_path, training__max_steps=3), tmp_path / "gru")
    ran = command("rank", tmp_path / "gru", images, captions, "--output", tmp_path / "out")
    assert ran.code == 0, ran.err
    source, saved = load(tmp_path / "gru"), load(tmp_path / "out" / "gru")
    data = read_ranking_data(images, captions)
    vectors = saved.encode(list(data.test.captions))
    own = source.encode(list(data.test.captions))
    assert saved.get_sentence_embedding_dimension() == vectors.shape[1] == own.shape[1] + 10
    np.testing.assert_array_equal(vectors[:, :-10], own)
    encoded = [
        EncodedSplit(torch.from_numpy(split.images), torch.from_numpy(source.encode(list(split.captions))), image_of)
        for split in (data.train, data.dev)
        for image_of in [torch.from_numpy(split.image_of)]
    ]
    maps = train_maps(*encoded, RANKING_PROTOCOLS["kiros"], seed=1234)
    mapped = torch.nn.functional.normalize(maps.sentence(torch.from_numpy(own)), dim=1).detach().numpy()
    np.testing.assert_allclose(vectors[:, -10:], mapped, atol=1e-5)
    assert model_key(str(tmp_path / "out" / "gru")) != model_key(str(tmp_path / "gru"))
    assert costs_of(tmp_path / "out" / "gru").num_parameters == costs_of(tmp_path / "gru").num_parameters
    again = command("rank", tmp_path / "gru", images, captions, "-o", tmp_path / "out")
    assert (again.code, again.err.splitlines()[-1]) == (
        2, f"error: --output {tmp_path}/out/gru: must be a new or an empty folder; name another"
    )  # fmt: skip
    ran = command("rank", "hash:8", images, captions, "-o", tmp_path / "other")
    assert ran.err == "error: --output: hash:8 must be a trained model's folder, to be saved with its map\n"
