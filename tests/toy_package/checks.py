"""Checks with the toy package installed; `tests/test_toy_package.py` runs them in an environment that has it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from command import CommandLine
from tiny_run import tiny_run, write_corpus

import raysent
from benchmarks.simulation import replay
from raysent.models import SentenceModel
from raysent.sweeps import read_sweep
from raysent.sweeps.machines import trial_bytes
from raysent.training.loop import fit

COMPONENTS = {
    "encoders": "toy_attention",
    "objectives": "toy_hinge",
    "codes": "toy_signs",
    "schemes": "toy",
    "tasks": "toy-lengths",
    "protocols": "toy_protocol",
    "ensemble_methods": "toy_first",
    "samplers": "toy_corners",
    "schedulers": "toy_stop",
    "trackers": "toy_lines",
    "formats": "toy_copy",
}
ENCODER = {"type": "toy_attention", "embedding": {"dim": 6}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    """Return a model with the encoder and the objective of the package, trained for a few steps and loaded."""
    folder = tmp_path_factory.mktemp("run")
    fit(tiny_run(folder, encoder=ENCODER, objective={"type": "toy_hinge"}), folder / "one")
    return raysent.load(folder / "one")  # type: ignore[return-value]


def test_components_lists_each_kind(monkeypatch, capsys):
    """The table, the command and its JSON name every component with its package."""
    table = raysent.components()
    own = table[table["package"] == "toy-components 0.1.0"]
    assert dict(zip(own["kind"], own["name"], strict=True)) == COMPONENTS
    assert (own["summary"] != "").all()
    assert table.attrs["broken"] == {}
    command = CommandLine(monkeypatch, capsys)
    listed = json.loads(command("components", "--json").out)["components"]
    assert {one["name"] for one in listed if one["package"].startswith("toy-")} == set(
        COMPONENTS.values()
    )
    assert "toy_attention" in command("components", "encoders").out


def test_every_kind_that_raysent_has_is_in_the_package():
    """A new kind of component is added to the package."""
    assert set(raysent.components()["kind"]) == set(COMPONENTS)


def test_model_is_trained_saved_and_loaded(model):
    """The encoder's vectors, of the width in its configuration."""
    vectors = model.encode(["w1 w2 w3", "w4"])
    assert vectors.shape == (2, 16)
    assert np.isfinite(vectors).all()


def test_memory_of_an_attention_grows_with_its_width(tmp_path):
    """64 and 4,096: parameters and states are counted, as the encoder declares them."""
    small, large = (
        trial_bytes(
            tiny_run(tmp_path, encoder={**ENCODER, "width": width}, objective={"type": "toy_hinge"})
        )
        for width in (64, 4096)
    )
    assert large > 1.1 * small


def test_code_is_trained_on_the_vectors_of_a_model(model, tmp_path):
    """The bits are the signs of the vectors."""
    coded = tiny_run(
        tmp_path,
        initial=model.source,
        encoder=None,
        objective={"type": "reconstruction"},
        code={"type": "toy_signs"},
    )
    fit(coded, tmp_path / "coded")
    texts = ["w1 w2 w3", "w4"]
    bits = raysent.load(tmp_path / "coded").encode(texts)
    assert np.array_equal(bits, model.encode(texts) > 0)


def test_format_is_used_by_export(model, tmp_path):
    """The folder is compared with the model before it appears."""
    raysent.export(model, tmp_path / "copy", to="toy_copy")
    assert raysent.load(tmp_path / "copy").encode(["w1"]).shape == (1, 16)


def test_scheme_task_protocol_and_method_work_together(model, tmp_path):
    """A model of the scheme and the trained one, on the task, by the protocol, combined by the method."""
    assert raysent.load("toy:3").encode(["abcd"]).tolist() == [[4.0, 4.0, 4.0]]
    options: dict[str, Any] = {
        "tasks": ["toy_lengths"],
        "protocol": "toy_protocol",
        "progress": False,
    }
    scores = raysent.evaluate([model, "toy:3"], output=tmp_path / "scores", **options)
    assert list(scores["protocol"]) == ["toy_protocol"] * 2
    assert scores.set_index("model")["test"]["toy:3"] == 100
    raysent.ensemble([model, "toy:3"], method="toy_first", output=tmp_path / "both", **options)
    loaded = raysent.load(tmp_path / "both")
    assert isinstance(loaded, raysent.Ensemble)
    assert loaded.predict("toy-lengths", ["w1 w2 w3", "w1 w2 w3 w4 w5 w6 w7"]) == ["short", "long"]
    assert loaded.result.tasks["toy-lengths"].diagnostics["toy"] == 1


def test_sweep_uses_every_component(tmp_path):
    """Sampler, scheduler and tracker direct a sweep over the encoder and the objective, evaluated on the task."""
    base = tiny_run(tmp_path, encoder=ENCODER, objective={"type": "toy_hinge"}).model_dump(
        exclude_unset=True
    )
    base["corpus"]["path"] = str(write_corpus(tmp_path))
    space = {
        "base": base,
        "search": {"encoder.width": {"choice": [4, 8]}},
        "limits": {
            "trials": 5,
            "concurrent": 1,
            "sampler": {"type": "toy_corners", "first": 0},
            "scheduler": "toy_stop",
        },
        "trackers": ["toy_lines"],
        "evaluation": {"baselines": False},
    }
    sweep = raysent.sweep(space, run=tmp_path / "run", tasks=["toy-lengths"], progress=False)
    trials = sweep.trials.sort_index()
    assert list(trials["encoder.width"]) == [4, 8]
    assert list(trials["status"]) == ["finished", "stopped"]
    assert sweep.ensemble.tasks == ["toy-lengths"]
    recorded = read_sweep(tmp_path / "run")
    assert "completed" in (tmp_path / "run" / "toy_events.txt").read_text().splitlines()
    assert replay(recorded.space, seed=0, events=recorded.events).difference == ""
    assert isinstance(sweep.scores, pd.DataFrame)
