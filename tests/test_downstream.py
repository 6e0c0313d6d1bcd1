"""The downstream metric: samples of tasks, no test row, and the same for every family."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_run import tiny_run, write_corpus

from raysent.evaluation import division
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task
from raysent.models import load
from raysent.training.loop import fit
from raysent.training.validation.config import DownstreamConfig
from raysent.training.validation.metrics import Downstream, sample_rows

DOWNSTREAM = {"tasks": ["docs-library"], "max_rows": 200}


def divided(num_train: int, num_validation: int, num_test: int) -> TaskData:
    """A task with three given parts."""
    rows = np.arange(num_train + num_validation + num_test)
    return TaskData(
        task="made",
        kind="sentence",
        split="train-validation-test" if num_validation else "train-test",
        label_names=("a", "b"),
        sentences=([f"s{row}" for row in rows],),
        labels=rows % 2,
        train=rows[:num_train],
        validation=rows[num_train : num_train + num_validation],
        test=rows[num_train + num_validation :],
    )


@pytest.mark.parametrize(("validation", "kept"), [(30, 40), (0, 20)])
def test_sample_rows_keeps_no_test_row_and_a_limited_number(validation, kept):
    """A fixed sample of the others, in order."""
    data = divided(50, validation, 70)
    small = sample_rows(data, max_rows=20)
    assert len(small.labels) == len(small.sentences[0]) == kept
    numbers = [int(sentence[1:]) for sentence in small.sentences[0]]
    assert max(numbers) < 50 + validation
    assert small.labels.tolist() == [number % 2 for number in numbers]
    assert (len(small.train), len(small.validation)) == (20, min(20, validation))
    assert sample_rows(data, max_rows=20).row_hash == small.row_hash


def test_sampled_task_without_splits_has_no_row_that_an_evaluation_tests_on():
    """It is divided first; each training row is predicted by a fit without it, with one choice of C for all."""
    data = replace(divided(600, 0, 0), split="nested")
    tested = {data.sentences[0][row] for row in division.divided(data).test}
    small = sample_rows(data, max_rows=500)
    assert (len(tested), small.split, len(small.train), len(small.validation)) == (
        120,
        "train-test",
        480,
        0,
    )
    assert not tested & set(small.sentences[0])
    features = np.random.default_rng(0).standard_normal((480, 4)).astype(np.float32)
    features[:, 0] += 3 * small.labels
    [fold] = fit_probe(features, small).folds
    assert sorted(fold.validation_rows.tolist()) == list(range(480))


def test_downstream_is_the_mean_validation_score_of_probes(tmp_path: Path):
    """A run reports it; the saved model gives the same value; other tasks have another hash."""
    config = tiny_run(
        tmp_path, validation={"downstream": DOWNSTREAM, "num_candidates": 20}, training__max_steps=2
    )
    outcome = fit(config, tmp_path / "run")
    data = sample_rows(load_task("docs-library"), max_rows=200)
    by_hand = fit_probe(task_features(load(tmp_path / "run"), data), data).validation
    assert outcome.metrics["downstream"] == pytest.approx(by_hand, abs=1e-6)
    hashes = {
        Downstream(DownstreamConfig(tasks=[name], max_rows=200)).hash
        for name in ("docs-library", "docs-neighbours")
    }
    assert len(hashes) == 2


def test_downstream_reads_a_task_once_for_all_trials_of_a_process():
    """The same rows for the same size; another size is another sample."""
    [first], [again], [other] = (
        Downstream(DownstreamConfig(tasks=["docs-library"], max_rows=size)).tasks
        for size in (200, 200, 100)
    )
    assert first is again
    assert len(other.train) == 100


@pytest.mark.cluster
def test_sweep_is_ranked_by_a_downstream_score_across_families(running_ray, tmp_path, raysent):
    """Encoders of two objectives in one ranking."""
    write_corpus(tmp_path)
    space = tmp_path / "space.yaml"
    space.write_text(
        f"""metric: downstream
base:
  corpus: {{path: {tmp_path / "text.txt"}, format: sentences, validation_fraction: 0.2, cache_dir: {tmp_path}/cache}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, num_reports: 1}}
  validation: {{num_candidates: 20, downstream: {{tasks: [docs-library], max_rows: 100}}}}
search:
  objective: {{choice: {{quick: {{type: context_prediction}}, skip: {{type: sentence_decoding}}}}}}
limits: {{trials: 2, concurrent: 1, scheduler: {{type: none}}}}
evaluation: {{tasks: [], stratify_by: objective}}
"""
    )
    ran = raysent("sweep", space, "--run", tmp_path / "run", "--json", "--yes")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["status"] == "completed"
    rows = (tmp_path / "run" / "trials.csv").read_text().splitlines()
    assert "downstream" in rows[0]
    assert len(rows) == 3
