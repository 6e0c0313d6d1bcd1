"""`start:PATH`: a trained model as it was before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from every_part import run_of
from tiny_run import tiny_run

from raysent.errors import ConfigError
from raysent.models import SentenceModel, load
from raysent.models.objectives import OBJECTIVES
from raysent.storage.layout import RUN_FILE, START_FILE
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import build_model
from raysent.training.run import RunConfig

COUNTED = {"dim": 6, "vectors": "ppmi"}
BOTH = {
    "fixed": {"type": "gru", "hidden_size": 4, "embedding": {**COUNTED, "trained": False}},
    "trained": {"type": "gru", "hidden_size": 4, "embedding": {"dim": 5, "vectors": "ppmi"}},
}


def first_model(config: RunConfig) -> SentenceModel:
    """Return the model that a run begins with."""
    return build_model(config, open_training_data(config))


def same_weights(one: SentenceModel, other: SentenceModel) -> bool:
    """Return whether the encoders of two models are bit-equal."""
    mine, its = one.f.state_dict(), other.f.state_dict()
    return mine.keys() == its.keys() and all(
        torch.equal(value, its[name]) for name, value in mine.items()
    )


@pytest.mark.parametrize(
    ("encoder", "has_file"),
    [
        ({"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}}, False),
        ({"type": "gru", "hidden_size": 8, "embedding": COUNTED}, True),
        ({"type": "concat", "members": BOTH}, True),
        (
            {
                "type": "concat",
                "members": {**BOTH, "trained": {**BOTH["trained"], "embedding": {"dim": 5}}},
            },
            False,
        ),
    ],
    ids=["random", "counted", "fixed beside counted", "fixed beside random"],
)
def test_weights_are_those_before_the_first_step(tmp_path, encoder, has_file):
    """Word vectors that were counted from the text and then trained are kept; fixed ones are in the model itself."""
    config, run = tiny_run(tmp_path, encoder=encoder), tmp_path / "run"
    fit(config, run)
    (tmp_path / "text.txt").unlink()  # a start needs no text
    start = load(f"start:{run}")
    assert (run / START_FILE).is_file() == has_file
    assert not same_weights(start, load(run))
    (tmp_path / "again").mkdir()
    again = tiny_run(tmp_path / "again", encoder=encoder)
    assert same_weights(start, first_model(again))


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_start_of_every_objective_encodes(tmp_path, objective):
    """Also of those that need counts of words, a teacher or labels to train."""
    config = run_of(tmp_path, objective)
    fit(config, tmp_path / "run")
    start = load(f"start:{tmp_path / 'run'}")
    assert same_weights(start, first_model(config))
    assert (
        start.encode(["w1 w2", "w3"]).shape == load(tmp_path / "run").encode(["w1 w2", "w3"]).shape
    )


def test_training_on_starts_with_the_weights_of_another_run(tmp_path):
    """Not with those that its own seed would draw."""
    fit(tiny_run(tmp_path, encoder__embedding=COUNTED), tmp_path / "one")
    config = tiny_run(tmp_path, encoder__embedding=COUNTED, initial=str(tmp_path / "one"), seed=3)
    fit(config, tmp_path / "two")
    assert not (tmp_path / "two" / START_FILE).exists()
    assert same_weights(load(f"start:{tmp_path / 'two'}"), load(tmp_path / "one"))
    assert not same_weights(load(tmp_path / "two"), load(tmp_path / "one"))


def test_counted_vectors_are_not_taken_from_a_fixed_file_of_their_size(tmp_path):
    """A tower of both begins with what was counted and with the file."""
    (tmp_path / "vectors.txt").write_text(
        "".join(f"w{word} " + "7 " * 6 + "\n" for word in range(60))
    )
    file = {"dim": 6, "vectors": str(tmp_path / "vectors.txt"), "trained": False}
    members = {
        "file": {**BOTH["fixed"], "embedding": file},
        "counted": {**BOTH["trained"], "embedding": COUNTED},
    }
    config = tiny_run(tmp_path, encoder={"type": "concat", "members": members})
    fit(config, tmp_path / "run")
    assert same_weights(load(f"start:{tmp_path / 'run'}"), first_model(config))


def test_missing_vectors_are_one_line(tmp_path):
    """A run of an earlier version did not keep its counted vectors."""
    run: Path = tmp_path / "run"
    fit(tiny_run(tmp_path, encoder__embedding=COUNTED), run)
    (run / START_FILE).unlink()
    with pytest.raises(
        ConfigError, match=rf"^start:.*run: .* counted from its text and {START_FILE}, .*; train it"
    ):
        load(f"start:{run}")
    (run / RUN_FILE).unlink()
    with pytest.raises(Exception, match=rf"^start:.*: has no {RUN_FILE}"):
        load(f"start:{run}")
