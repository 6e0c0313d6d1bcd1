"""The moving average of weights: its formula, what is validated and saved, and a resumed run."""

from __future__ import annotations

import numpy as np
import torch
from tiny_run import check_resumed, tiny_run

from raysent.models import SentenceModel
from raysent.training.data import open_training_data
from raysent.training.loop import _Training, fit
from raysent.training.memory import estimate_bytes
from raysent.training.optimization import MovingAverage
from raysent.training.run import RunConfig
from raysent.training.workers import Workers


def averaged(values, decay):
    """The average after each of some values of one number, by the formula."""
    average = values[0]
    for step, value in enumerate(values[1:], start=1):
        kept = min(decay, (1 + step) / (10 + step))
        average = kept * average + (1 - kept) * value
    return average


def test_average_equals_its_restatement_and_gives_the_weights_back():
    """Both sides of the rising decay; inside the block the parameter is the average, after it the same bits."""
    draws = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(draws[0].copy()))
    average = MovingAverage([parameter], decay=0.5)
    for step, value in enumerate(draws[1:], start=1):
        parameter.data.copy_(torch.from_numpy(value))
        average.update(step)
    with average.in_use():
        np.testing.assert_allclose(parameter.detach().numpy(), averaged(draws, 0.5), rtol=1e-5)
    assert np.array_equal(parameter.detach().numpy(), draws[-1])


def test_average_of_all_weights_is_validated_and_saved(tmp_path):
    """Training itself is that of dense Adam without an average."""
    config = tiny_run(tmp_path, training__ema=0.6, postprocessing={"remove_component": True})
    plain = tiny_run(
        tmp_path, training__row_exact_adam=False, postprocessing={"remove_component": True}
    )
    data = open_training_data(config)
    one, other = (
        _Training(each, data, device=torch.device("cpu"), workers=Workers())
        for each in (config, plain)
    )
    history = [{name: value.clone() for name, value in other._model.tensors().items()}]
    for _ in range(8):
        one._step()
        other._step()
        history.append({name: value.clone() for name, value in other._model.tensors().items()})
    reported = one._metrics()
    expected = {name: averaged([each[name] for each in history], 0.6) for name in history[0]}
    for name, value in one._model.tensors().items():
        if not name.startswith("postprocessing."):
            assert torch.equal(value, history[-1][name])
    one._save_model(tmp_path / "saved")
    saved = SentenceModel.load(tmp_path / "saved")
    for name, value in saved.tensors().items():
        if not name.startswith("postprocessing."):
            torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        again = one._validator.metrics_of(saved)
    assert again == {name: reported[name] for name in again}


def test_resumed_run_has_the_same_bits(tmp_path):
    """The checkpoint has the weights and their average."""
    check_resumed(tiny_run(tmp_path, training__ema=0.9), tmp_path)


def test_run_without_an_average_has_its_key_and_one_with_needs_more_memory(tmp_path):
    """Records of earlier versions are found again."""
    plain = tiny_run(tmp_path)
    values = plain.model_dump()
    assert values["training"].pop("ema") is None
    assert RunConfig.model_validate(values).key == plain.key
    with_average = tiny_run(tmp_path, training__ema=0.9)
    assert with_average.key != plain.key
    assert estimate_bytes(with_average) > estimate_bytes(plain)


def test_average_changes_what_is_kept(tmp_path):
    """Of two runs that differ in it alone, the models differ."""
    fit(tiny_run(tmp_path), tmp_path / "one")
    fit(tiny_run(tmp_path, training__ema=0.9), tmp_path / "other")
    one, other = (SentenceModel.load(tmp_path / name).tensors() for name in ("one", "other"))
    assert not torch.equal(one["f.words.weight"], other["f.words.weight"])
