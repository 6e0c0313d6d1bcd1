"""Evaluations on this machine: how many processes, how many threads each, and from where they are started."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from loky.backend.reduction import dumps, loads

import raysent
from raysent.evaluation.members import Member
from raysent.parallel import map_in_processes
from raysent.pipeline import evaluation, map_jobs

ROWS = pd.DataFrame(
    {
        "text": [
            f"a {('red tall', 'blue short')[row % 2]} thing number {row % 97} of {row % 89}"
            for row in range(400)
        ],
        "label": [f"c{row % 2}" for row in range(400)],
    }
)


@dataclass(frozen=True)
class ThreadsJob:
    """Returns where it runs, and with how many threads of each library."""

    data: range = field(default=range(4000))
    member: Member = field(default=Member("hash:3", "hash:3", "hash:3"))

    def run(self, *, load: Callable[[str], Any]) -> tuple[int, dict[str, int]]:
        """Read the number of threads back from the libraries themselves."""
        import sklearn.linear_model
        from threadpoolctl import threadpool_info

        assert sklearn.linear_model is not None
        assert load("hash:3").get_sentence_embedding_dimension() == 3
        pools = {
            f"{pool['internal_api']} {pool['filepath']}": pool["num_threads"]
            for pool in threadpool_info()
        }
        return os.getpid(), {**pools, "torch": torch.get_num_threads()}


def test_every_process_has_one_thread_of_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS, OpenMP and torch, whatever the caller's environment says; results are in the jobs' order."""
    monkeypatch.setattr(evaluation, "num_processes_for", lambda *_, **__: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    found = list(map_jobs()([ThreadsJob()] * 4))
    assert [place for place, _ in found] == [0, 1, 2, 3]
    assert os.getpid() not in {process for _, (process, _) in found}
    for _, (_, threads) in found:
        assert len(threads) >= 3  # BLAS of NumPy, OpenMP of scikit-learn, torch
        assert set(threads.values()) == {1}, threads


@pytest.mark.parametrize("cores", [1, 2])
def test_evaluations_from_python_use_as_many_processes_as_cores(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate`, `ensemble` and the scores by number of labels; the figures do not depend on how many."""
    used: list[int] = []

    def counted(function: Any, items: Any, *, num_processes: int) -> Any:
        used.append(num_processes)
        if len(used) == 1:
            return map_in_processes(function, items, num_processes=num_processes)
        # What would be sent, read again here: processes take seconds to start.
        return map(loads(dumps(function)), (loads(dumps(item)) for item in items))

    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(evaluation, "num_processes_for", lambda *_, **__: cores)
    monkeypatch.setattr(evaluation, "_LEAST_ROWS", 500)
    monkeypatch.setattr(evaluation, "map_in_processes", counted)
    task = raysent.Task(ROWS, name="own", split={"validation": 0.2, "test": 0.3})
    models, labels = ["hash:20", "hash:30"], [32]
    scores = raysent.evaluate(models, tasks=[task], output=tmp_path / "scores", progress=False)
    both = raysent.ensemble(
        ["hash:40", "hash:50"],
        tasks=[task],
        output=tmp_path / "both",
        baselines=False,
        progress=False,
    )
    [curve] = evaluation.label_curves(
        models, labels=labels, tasks=[task], output=tmp_path, progress=False
    )
    assert used == ([2, 2, 2] if cores == 2 else [])
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "other"))  # where no record is found
    monkeypatch.setattr(evaluation, "map_jobs", lambda *_: evaluation.run_in_turn)
    options = evaluation.EvaluationOptions([task], output=tmp_path / "turn", progress=False)
    expected = evaluation.evaluate_models(models, options)
    np.testing.assert_allclose(scores["test"], [one.test for one in expected], atol=1e-6)
    assert both.predict("own", "a red tall thing") == ["c0"]
    assert set(curve.curves) > set(models)


def test_few_rows_and_encoders_in_memory_stay_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other processes would be ready too late, and an encoder may not be sent."""
    monkeypatch.setattr(evaluation, "num_processes_for", lambda *_, **__: 2)
    small = ThreadsJob(data=range(100))
    in_memory = ThreadsJob(member=Member("m", "m", "m", raysent.load("hash:3")))
    for job in (small, in_memory):
        assert {process for _, (process, _) in map_jobs()([job] * 2)} == {os.getpid()}
    used: list[int] = []
    monkeypatch.setattr(
        evaluation, "map_in_processes", lambda *_, num_processes: used.append(num_processes) or []
    )
    assert list(map_jobs(2)([small] * 3)) == []
    assert used == [2]
