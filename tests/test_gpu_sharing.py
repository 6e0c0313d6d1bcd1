"""The number of trials that share a GPU, and the memory that a run of any encoder and objective takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import nn

from raysent.config import parse_yaml
from raysent.data.vocabulary import VocabularyConfig
from raysent.models import encoders
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.pipeline.sweeps import _where
from raysent.sweeps.machines import GIB, machines_at, share_gpu, trial_bytes, trials_per_gpu
from raysent.sweeps.space import parse_space

QUICK_THOUGHTS = "base: {encoder: {type: gru, hidden_size: 8, embedding: {dim: 100}}, objective: {type: context_prediction}}"


class Attention(WordEncoderConfig):
    """An encoder of another package: self-attention with one head, and no formula of its own."""

    type: Literal["attention"] = "attention"
    width: int = 64

    @property
    def dim(self):
        """Size of one tower's vector."""
        return self.width


class AttentionTower(Tower):
    """Queries, keys, values and an output projection."""

    def __init__(self, config, tables):
        super().__init__()
        self.words = tables.table(config.embedding)
        self.input = nn.Linear(config.embedding.dim, config.width)
        self.attention = nn.MultiheadAttention(config.width, num_heads=1)


def config_of(text):
    """The run of a space of one run."""
    return parse_space(parse_yaml(text), name="toy").config({})


@pytest.mark.parametrize(
    ("gib", "need", "shared"), [(140, 2, 4), (140, 30, 2), (15, 2, 3), (15, 20, 1)]
)
def test_share_gpu_plans_with_twice_the_need(gib, need, shared):
    """At most four trials, and at least one."""
    assert share_gpu(gib * 2**30, need * 2**30) == shared


def test_trials_per_gpu_fits_the_largest_trial_on_the_smallest_gpu():
    """Two towers of the paper's size: four on an H200, one on a T4; an unknown GPU is not shared."""
    text = "base: {encoder: {type: gru, embedding: {dim: 620}}, objective: {type: context_prediction}}\n"
    space = parse_space(
        parse_yaml(text + "search: {encoder.hidden_size: {choice: [300, 2400]}}\n"), name="toy"
    )
    assert trials_per_gpu(space, {"GPU": 1.0, "accelerator_type:H200": 1.0}) == 4
    assert (
        trials_per_gpu(
            space, {"GPU": 2.0, "accelerator_type:H200": 1.0, "accelerator_type:T4": 1.0}
        )
        == 1
    )
    assert (
        trials_per_gpu(space, {"GPU": 1.0, "accelerator_type:X1": 1.0})
        == trials_per_gpu(space, {"GPU": 1.0})
        == 1
    )


@pytest.mark.parametrize(("gib", "shared"), [(140, 4), (3, 1)])
def test_plan_and_settings_count_the_trials_that_share_the_gpu_of_this_machine(
    monkeypatch, gib, shared
):
    """Ray let four trials train at once; the plan said twelve, and their settings were chosen for one at a time."""
    for name, value in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB)
    )
    monkeypatch.setattr("raysent.sweeps.machines.num_cores", lambda: 16)
    space = parse_space(parse_yaml(QUICK_THOUGHTS + "\nlimits: {trials: 12}\n"), name="toy")
    assert machines_at(None, space).trials_per_gpu == shared
    assert _where(space, None) == f"{shared} at a time on the GPU of this machine"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _where(space, None) == f"{2 * shared} at a time on the 2 GPUs of this machine"


def test_trial_bytes_counts_word_tables_of_both_towers():
    """Twice the words, twice the tables: values, two moments and a copy, float32."""
    text = "base: {encoder: {type: gru, hidden_size: 8, embedding: {dim: 100}}, objective: {type: context_prediction}}"
    space = parse_space(parse_yaml(text), name="toy")
    small, large = (
        space.config({}).model_copy(update={"vocabulary": VocabularyConfig(size=n)})
        for n in (1000, 2000)
    )
    assert trial_bytes(large) - trial_bytes(small) == 1000 * 100 * 2 * 4 * 4


def test_trial_bytes_of_a_decoder_do_not_grow_with_its_scores():
    """The scores are computed block by block, except by the plain formulas: three numbers a token and word."""
    text = "base: {{vocabulary: {{size: 20000}}, encoder: {{type: gru, hidden_size: 8}}, training: {{batch_size: {}}}, objective: {}}}"
    for kind, grown in (("auto", 0), ("torch", 100 * 30 * 3 * 20_000 * 3 * 4)):
        objective = f"{{type: sentence_decoding, implementation: {kind}}}"
        spaces = [
            parse_space(parse_yaml(text.format(size, objective)), name="toy") for size in (100, 200)
        ]
        small, large = (trial_bytes(space.config({})) for space in spaces)
        states = (8 + 300) * 100 * 30 * 3 * 12 * 4
        assert large - small - states == grown


def test_trial_bytes_of_an_encoder_grow_with_its_width(monkeypatch):
    """Parameters of an encoder of another package are counted as it is built."""
    module = SimpleNamespace(Config=Attention, Encoder=AttentionTower)
    monkeypatch.setattr(encoders, "ENCODERS", {"attention": module})
    run = config_of(QUICK_THOUGHTS)
    narrow, wide = (
        run.model_copy(update={"encoder": Attention(width=width)}) for width in (64, 4096)
    )
    # Four matrices of width x width and their biases in each tower: value, gradient and two moments, float32.
    parameters = sum(4 * (width * width + width) * sign for width, sign in ((4096, 1), (64, -1)))
    assert trial_bytes(wide) - trial_bytes(narrow) > 2 * parameters * 4 * 4
    assert trial_bytes(wide) > 4 * trial_bytes(narrow) > 4 * GIB


def test_trial_bytes_grow_with_activations_per_token(monkeypatch):
    """Every token of a step counts, in both towers."""
    monkeypatch.setattr(
        encoders,
        "ENCODERS",
        {"attention": SimpleNamespace(Config=Attention, Encoder=AttentionTower)},
    )
    run = config_of(QUICK_THOUGHTS).model_copy(update={"encoder": Attention()})
    before = trial_bytes(run)
    monkeypatch.setattr(Attention, "activations_per_token", 1000)
    tokens = run.training.batch_size * run.corpus.max_length
    assert trial_bytes(run) - before == 2 * tokens * (1000 - 300 - 64) * 12 * 4


def test_measured_use_of_a_gpu_takes_the_place_of_estimates(monkeypatch):
    """With a smaller margin, and only where every kind of run of the space has been measured."""
    gpu = SimpleNamespace(total_memory=3 * GIB, name="X1")
    for name, value in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    space = parse_space(parse_yaml(QUICK_THOUGHTS), name="toy")
    assert machines_at(None, space).trials_per_gpu == 1
    asked = []

    def ratio(config, name):
        asked.append(name)
        return 0.1

    monkeypatch.setattr("raysent.sweeps.machines.use_ratio", ratio)
    assert machines_at(None, space).trials_per_gpu == 2
    assert set(asked) == {"X1"}
