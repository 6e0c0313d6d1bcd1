"""Compositions: trained models as one model, and the members of one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import tiny_run

from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.members import expand, model_key
from raysent.evaluation.records import costs_of
from raysent.models import SentenceModel, compose, load
from raysent.training.loop import fit
from raysent.training.optimization import clip_gradients, member_groups

SENTENCES = ["w1 w2 w3", "", "w9 w4"]
GRU = {"type": "gru", "hidden_size": 4, "embedding": {"dim": 6}}
BAG = {"type": "bag", "embedding": {"dim": 4}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained models of other sizes, the second with a small vocabulary."""
    folder = tmp_path_factory.mktemp("trained")
    fit(tiny_run(folder, encoder=GRU, training__max_steps=3), folder / "a")
    fit(tiny_run(folder, encoder=BAG, vocabulary={"size": 12}, training__max_steps=3), folder / "b")
    return folder


def test_composition_encodes_as_its_members_side_by_side(trained, tmp_path):
    """Also after loading, from another place, and each with its own vocabulary."""
    made = compose({"a": trained / "a", "b": trained / "b"}, tmp_path / "both")
    (tmp_path / "both").rename(tmp_path / "moved")
    loaded = load(tmp_path / "moved")
    models = [SentenceModel.load(trained / name) for name in "ab"]
    assert len(models[0].vocabulary) > len(models[1].vocabulary)
    expected = np.concatenate([model.encode(SENTENCES) for model in models], axis=1)
    np.testing.assert_array_equal(loaded.encode(SENTENCES), expected)
    np.testing.assert_array_equal(made.encode(SENTENCES), expected)
    assert loaded.get_sentence_embedding_dimension() == expected.shape[1] == 16
    np.testing.assert_allclose(
        np.linalg.norm(loaded.encode(SENTENCES, normalize_embeddings=True), axis=1), 1, rtol=1e-5
    )


def test_composition_is_a_model_to_evaluate(trained, tmp_path):
    """It has a key of its members' content, their costs, and can be named where a model can."""
    compose({"a": trained / "a", "b": trained / "b"}, tmp_path / "both")
    (member,) = expand([tmp_path / "both"])
    assert member.key == model_key(str(tmp_path / "both"))
    assert costs_of(tmp_path / "both") == costs_of(trained / "a") + costs_of(trained / "b")
    compose({"b": trained / "b", "a": trained / "a"}, tmp_path / "other")
    assert model_key(str(tmp_path / "other")) != member.key


def test_compose_refuses_what_does_not_compose(trained, tmp_path):
    """One model, a folder in use, a folder without a model."""
    with pytest.raises(
        ConfigError, match=r"^MODEL: a composition needs at least two models; given 1$"
    ):
        compose({"a": trained / "a"}, tmp_path / "one")
    with pytest.raises(ConfigError, match=r"must be a new or an empty folder; name another$"):
        compose({"a": trained / "a", "b": trained / "b"}, trained)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: must be a new or an empty folder; name another$"):
        compose({"a": trained / "a", "b": trained / "b"}, tmp_path / "file")
    with pytest.raises(ArtifactError, match="model.json"):
        compose({"a": trained / "a", "c": trained / "c"}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_members_of_one_run_are_clipped_alone(tmp_path):
    """With `clip_per: member` each member takes the steps that it takes when it is trained alone."""
    options = {"training__clip": 1e-3, "training__max_steps": 4}
    members = {"uni": GRU, "bag": BAG}
    both = {"type": "concat", "members": members}
    fit(
        tiny_run(tmp_path, encoder=both, training__clip_per="member", **options),
        tmp_path / "member",
    )
    fit(
        tiny_run(tmp_path, encoder=both, training__clip_per="global", **options),
        tmp_path / "global",
    )
    model = SentenceModel.load(tmp_path / "member")
    assert len(member_groups(model)) == 2
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(map(len, member_groups(model))) == len(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for group in member_groups(model):
        clip_gradients(group, limit=1.0, per="global")
        norm = torch.cat([parameter.grad.flatten() for parameter in group]).norm()
        assert norm.item() == pytest.approx(1.0, rel=1e-5)
    vectors = [
        SentenceModel.load(tmp_path / name).encode(SENTENCES) for name in ("member", "global")
    ]
    assert not np.array_equal(*vectors)
