"""What a GPU runs in a training step, on the CPU: its operators, its feed, and that its weights are those of the CPU."""

from __future__ import annotations

import math
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from every_part import run_of
from test_encoders import WORDS, batch_of, random_rows, tables
from tiny_run import tiny_run, write_corpus
from torch.profiler import ProfilerActivity, profile, record_function

from raysent.errors import DataError, TrainingError
from raysent.kernels import row_adam
from raysent.kernels.devices import acting_as_gpu
from raysent.kernels.packing import pack
from raysent.kernels.padding import NUM_CUTS
from raysent.kernels.triton_rows import TritonRows
from raysent.models import SentenceModel
from raysent.models.encoders import build_encoder
from raysent.models.encoders.gru import Config as Gru
from raysent.training.data import open_training_data
from raysent.training.feed import PreparedStep, StepFeed
from raysent.training.gpu_use import keep_use, use_ratio
from raysent.training.late_loss import LateLoss
from raysent.training.loop import _Training, fit
from raysent.training.memory import estimate_bytes
from raysent.training.workers import SharedLoss, Workers

CPU = torch.device("cpu")
# Operators without a parent in a step of Quick-Thoughts: forward, backward and optimizer.
MOST_OPERATORS = 60


class LaunchesOfRows(TritonRows):
    """Triton's launches on word tables, each one record here, whose formulas are torch's operations."""

    def catch_up(self, table, rows, drift, num_steps, numbers):
        """One launch."""
        with record_function("launch: catch_up"):
            last = table.last[rows]
            size, size_of_eps = drift[:, last]
            eps = (numbers.eps * size_of_eps / size.clamp(min=numbers.tiny)).clamp(min=numbers.tiny)
            root = table.square[rows].sqrt() + eps.float()[:, None]
            lag = (num_steps - last).double()
            table.weight[rows] -= table.mean[rows] / root * size.float()[:, None]
            table.mean[rows] *= (numbers.betas[0] ** lag).float()[:, None]
            table.square[rows] *= (numbers.betas[1] ** lag).float()[:, None]
            table.last[rows] = num_steps

    def step(self, table, rows, gradient, num_steps, rate, correction, numbers):
        """One launch."""
        with record_function("launch: step"):
            mean = table.mean[rows].lerp(gradient, 1 - numbers.betas[0])
            square = table.square[rows] * numbers.betas[1]
            square += (1 - numbers.betas[1]) * gradient.square()
            table.mean[rows], table.square[rows] = mean, square
            table.weight[rows] -= rate * mean / (square.sqrt() / correction + numbers.eps)
            table.last[rows] = num_steps

    def extend_drift(self, drift, decay, num_steps, size, size_of_eps):
        """One launch."""
        with record_function("launch: extend_drift"):
            count = min(num_steps, decay.shape[1])
            added = decay[:, decay.shape[1] - count :]
            drift[:, num_steps - count : num_steps] += added * torch.tensor([[size], [size_of_eps]])


@pytest.fixture
def as_gpu(monkeypatch):
    """Take a GPU's path on the CPU."""
    monkeypatch.setattr(row_adam, "triton_rows", lambda _: LaunchesOfRows())
    with acting_as_gpu():
        yield


@pytest.mark.usefixtures("as_gpu")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_step_has_few_operators(tmp_path, precision):
    """Quick-Thoughts at size M: two towers of 600 states, words of 300, 400 sentences; at most four groups."""
    write_corpus(tmp_path, num_documents=40)
    config = tiny_run(
        tmp_path,
        encoder={"type": "gru", "hidden_size": 600, "embedding": {"dim": 300}},
        training={"batch_size": 400, "precision": precision, "epochs": 20.0},
    )
    training = _Training(config, open_training_data(config), device=CPU, workers=Workers())
    training._step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        training._step()
    training.close()
    top = [event.name for event in profiled.events() if event.cpu_parent is None]
    listed = "\n".join(f"{count} {name}" for name, count in Counter(top).most_common())
    assert len(top) <= MOST_OPERATORS, listed
    assert top.count("_PaddedStates") == 2, listed
    packed = training._loss.prepared(0).packed.find
    batch = training._stream.batch(0)
    assert packed(batch.sentences) is None
    [recurrence] = training._model.f._padded_layers
    assert 1 <= len(recurrence.kept) <= NUM_CUTS


RUNS = {
    "quick thoughts": {},
    "two directions and dropout": {
        "encoder": {
            "type": "gru", "hidden_size": 8, "bidirectional": True, "embedding": {"dim": 6}, "dropout": 0.2,
        }
    },
    "the paper's cell": {
        "encoder": {"type": "gru", "hidden_size": 8, "variant": "authors", "embedding": {"dim": 6}}
    },
    "lstm": {"encoder": {"type": "lstm", "hidden_size": 8, "embedding": {"dim": 6}}},
    "two members": {
        "encoder": {
            "type": "concat",
            "members": {
                "uni": {"type": "gru", "hidden_size": 4, "embedding": {"dim": 5}},
                "bag": {"type": "bag", "embedding": {"dim": 5}},
            },
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_path_of_a_gpu_gives_the_weights_of_the_cpu(tmp_path, monkeypatch, changes):
    """Whole runs with reports: groups, loops, feed, late losses and launches on rows against the kernels of a CPU."""
    models, metrics = {}, {}
    for name, mode in (("cpu", nullcontext()), ("gpu", acting_as_gpu())):
        if name == "gpu":
            monkeypatch.setattr(row_adam, "triton_rows", lambda _: LaunchesOfRows())
        with mode:
            config = tiny_run(tmp_path, corpus__max_length=12, **changes)
            metrics[name] = fit(config, tmp_path / name, device=CPU).metrics
        models[name] = SentenceModel.load(tmp_path / name).tensors()
    for tensor, value in models["cpu"].items():
        torch.testing.assert_close(models["gpu"][tensor], value, rtol=0, atol=2e-4, msg=tensor)
    assert metrics["gpu"]["loss"] == pytest.approx(metrics["cpu"]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    "objective", ["sentence_decoding", "contrast", "denoising", "paraphrase_margin"]
)
def test_objectives_train_alike_on_the_path_of_a_gpu(tmp_path, monkeypatch, objective):
    """Triplets, pairs, changed sentences, and one that changes in the course of a run, which has no thread."""
    losses = {}
    for name, mode in (("cpu", nullcontext()), ("gpu", acting_as_gpu())):
        if name == "gpu":
            monkeypatch.setattr(row_adam, "triton_rows", lambda _: LaunchesOfRows())
        with mode:
            losses[name] = fit(run_of(tmp_path, objective), tmp_path / name, device=CPU).metrics
    assert losses["gpu"]["loss"] == pytest.approx(losses["cpu"]["loss"], rel=1e-3)


def feed_of(prepare, *, is_ahead=True):
    """A feed of steps that only have a number."""
    return StepFeed(prepare, device=CPU, is_ahead=is_ahead, mode=nullcontext)


def prepared(number):
    """The step of a number, which its generator has as its seed."""
    return PreparedStep(None, torch.Generator().manual_seed(number))


def test_feed_is_two_steps_ahead_in_a_thread():
    """Each step is prepared once, in order; a step out of order is prepared too."""
    made, threads, ahead = [], set(), threading.Event()

    def prepare(number):
        made.append(number)
        threads.add(threading.current_thread())
        if number == 2:
            ahead.set()
        return prepared(number)

    feed = feed_of(prepare)
    assert feed.step(0).generator.initial_seed() == 0
    assert ahead.wait(10)
    assert [feed.step(number).generator.initial_seed() for number in (1, 2, 3)] == [1, 2, 3]
    assert made[:4] == [0, 1, 2, 3]
    assert feed.step(1).generator.initial_seed() == 1
    assert threading.current_thread() not in threads
    feed.close()
    assert feed.step(9).generator.initial_seed() == 9
    assert threading.current_thread() in threads


def test_feed_passes_errors_on():
    """In the step that they belong to."""

    def prepare(number):
        if number == 1:
            raise DataError("corpus: is gone")
        return prepared(number)

    feed = feed_of(prepare)
    feed.step(0)
    with pytest.raises(DataError, match="is gone"):
        feed.step(1)
    feed.close()


def test_late_loss_is_that_of_the_call_before():
    """On a GPU; a CPU has it at once."""
    early = LateLoss(CPU)
    with acting_as_gpu():
        late = LateLoss(CPU)
    totals = [torch.tensor(value, dtype=torch.float64) for value in (1.0, 2.0, math.nan, 4.0)]
    assert [early.seen(total, 1)[0] for total in totals[:2]] == [1.0, 2.0]
    seen = [late.seen(total, number) for number, total in enumerate(totals, start=1)]
    assert seen[:3] == [(0.0, 0), (1.0, 1), (2.0, 2)]
    assert math.isnan(seen[3][0])


def test_loss_that_is_not_finite_ends_a_run_on_the_path_of_a_gpu(tmp_path, as_gpu):
    """At the next report at the latest."""
    training = {"learning_rate": 1e30, "batch_size": 24, "clip": None}
    bag = {"type": "bag", "embedding": {"dim": 6}}
    config = tiny_run(tmp_path, encoder=bag, training=training)
    assert fit(config, tmp_path / "run", device=CPU).status == "nan"


@pytest.mark.parametrize("num_failures", [1, 2])
def test_full_memory_takes_smaller_groups_once_and_then_ends_in_one_line(
    tmp_path, as_gpu, monkeypatch, num_failures
):
    """A step that failed is repeated with its own batch; the weights are those of a run without the failure."""
    config = tiny_run(tmp_path)
    expected = fit(config, tmp_path / "whole", device=CPU).metrics
    compute, failures = SharedLoss.gradients, []

    def gradients(self, step):
        if step == 3 and len(failures) < num_failures:
            failures.append([tower.has_small_groups for tower in self._model.towers])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return compute(self, step)

    monkeypatch.setattr(SharedLoss, "gradients", gradients)
    if num_failures == 1:
        found = fit(config, tmp_path / "run", device=CPU).metrics
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    else:
        with pytest.raises(TrainingError, match="^training.batch_size: a step must fit") as raised:
            fit(config, tmp_path / "run", device=CPU)
        assert "given 24" in str(raised.value)
        assert "\n" not in str(raised.value)
    assert failures == [[False, False], [True, True]][:num_failures]


def test_small_groups_have_less_padding():
    """Groups of a batch of mixed lengths, and the buffers of larger ones are freed."""
    tower = build_encoder(Gru(embedding=WORDS, hidden_size=6, implementation="cudnn"), tables())
    packed = pack(batch_of(*random_rows(60, 30)))
    tower(packed).sum().backward()
    assert tower.use_small_groups()
    assert len(tower._padded_layers[0].kept) == 0
    tower(packed).sum().backward()
    large, small = (
        sum(group.num_places for group in layout.groups) for layout in packed._padded.values()
    )
    assert small < large
    assert not tower.use_small_groups()


def test_use_of_a_gpu_is_kept_by_kind(tmp_path, monkeypatch):
    """The largest of several, as part of the estimate; a damaged file is none."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    config = tiny_run(tmp_path)
    other = tiny_run(tmp_path, encoder={"type": "bag", "embedding": {"dim": 6}})
    assert use_ratio(config, "H200") is None
    estimate = estimate_bytes(config)
    for part, expected in ((0.5, 0.5), (0.25, 0.5), (2.0, 2.0)):
        keep_use(config, "H200", int(part * estimate))
        assert use_ratio(config, "H200") == pytest.approx(expected, abs=1e-3)
    wider = tiny_run(tmp_path, encoder__hidden_size=32)
    assert use_ratio(wider, "H200") == use_ratio(config, "H200")
    assert use_ratio(config, "T4") is use_ratio(other, "H200") is None
    [file] = (tmp_path / "cache/gpu_use").iterdir()
    file.write_text("{}")
    assert use_ratio(config, "H200") is None
