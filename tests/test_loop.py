"""The training loop: it learns, ends in every way it can end, and resumes bit for bit."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from machines import free_ports
from tiny_run import KilledError, check_weights, tiny_run

from raysent.errors import ArtifactError, TrainingError
from raysent.models import SentenceModel, load
from raysent.training import loop
from raysent.training.data import open_training_data
from raysent.training.loop import fit, seconds_of_steps
from raysent.training.optimization import (
    DenseAdam,
    Optimizer,
    clip_gradients,
    count_drops,
    learning_rate,
)
from raysent.training.outcome import Report, load_outcome, load_reports
from raysent.training.plan import build_model, count_steps, report_index
from raysent.training.run import RunConfig, TrainingConfig, load_run
from raysent.training.workers import Workers


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a run's saved model."""
    return SentenceModel.load(folder).tensors()


def die_after(index: int) -> Callable[[Report], bool]:
    """Return a function of reports that kills the run at the report `index`."""

    def report(now: Report) -> bool:
        if now.index == index:
            raise KilledError
        return True

    return report


def test_fit_learns_and_saves_a_loadable_model(tmp_path: Path) -> None:
    """Scores exceed chance clearly, and the folder has every file of a run."""
    config = tiny_run(tmp_path, training__epochs=8.0, training__num_reports=4)
    outcome = fit(config, tmp_path / "run")
    assert outcome.status == "finished"
    assert outcome.metrics["context_accuracy"] > 1.5 * outcome.pool["chance_accuracy"]
    assert outcome.metrics["context_nll"] < outcome.pool["chance_nll"]
    assert load(tmp_path / "run").encode(["w1 w2 .", ""]).shape == (2, 16)
    assert load_run(tmp_path / "run") == config
    assert [report.index for report in load_reports(tmp_path / "run")] == [1, 2, 3, 4]
    assert load_outcome(tmp_path / "run", key=config.key) == outcome


def test_fit_reports_after_equal_numbers_of_sentences(tmp_path: Path) -> None:
    """For any batch size, a report comes after about the same number of sentences."""
    sentences = []
    for batch_size in (12, 24):
        config = tiny_run(tmp_path, training__batch_size=batch_size)
        fit(config, tmp_path / str(batch_size))
        sentences.append([report.sentences for report in load_reports(tmp_path / str(batch_size))])
    assert len(sentences[0]) == len(sentences[1]) == 4
    assert max(abs(np.subtract(*sentences))) <= 24


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder__dropout": 0.3, "encoder__bidirectional": True},
        {"training__row_exact_adam": False},
        {
            "objective__candidates": "random",
            "training__schedule": "linear",
            "training__warmup_steps": 3,
        },
    ],
)
def test_fit_killed_and_resumed_gives_the_same_weights(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A kill after the second report does not change the result."""
    config = tiny_run(tmp_path, **changes)
    straight = fit(config, tmp_path / "straight")
    with pytest.raises(KilledError):
        fit(config, tmp_path / "killed", report=die_after(2))
    resumed = fit(config, tmp_path / "killed")
    check_weights(tmp_path / "straight", tmp_path / "killed")
    assert resumed.metrics == straight.metrics
    assert [report.index for report in load_reports(tmp_path / "killed")] == [1, 2, 3, 4]


def test_fit_stopped_by_a_report_keeps_the_model_of_that_step(tmp_path: Path) -> None:
    """An answer of False ends the run with a loadable model, and it can be resumed."""
    config = tiny_run(tmp_path)
    stopped = fit(config, tmp_path / "run", report=lambda report: report.index < 2)
    assert (stopped.status, stopped.step) == ("stopped", math.ceil(stopped.num_steps / 2))
    assert load(tmp_path / "run").encode(["w1"]).shape == (1, 16)
    assert fit(config, tmp_path / "run").status == "finished"
    fit(config, tmp_path / "straight")
    check_weights(tmp_path / "straight", tmp_path / "run")


def test_fit_does_not_train_a_finished_run_again(tmp_path: Path) -> None:
    """The second call returns the outcome of the first."""
    config = tiny_run(tmp_path)
    first = fit(config, tmp_path / "run")
    assert fit(config, tmp_path / "run", report=die_after(1)) == first
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_fit_ends_with_nan_and_keeps_the_last_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of NaN ends the run; the model is that of the previous report."""
    config = tiny_run(tmp_path)
    good = fit(config, tmp_path / "good", report=lambda report: report.index < 2)
    real = SentenceModel.loss
    calls = iter(range(1000))

    def loss(self: SentenceModel, *args: Any, **kwargs: Any) -> torch.Tensor:
        return real(self, *args, **kwargs) * (math.nan if next(calls) == good.step + 1 else 1.0)

    monkeypatch.setattr(SentenceModel, "loss", loss)
    outcome = fit(config, tmp_path / "run")
    assert (outcome.status, outcome.step, outcome.metrics) == ("nan", good.step, good.metrics)
    assert f"the model of step {good.step} is kept; lower training.learning_rate" in outcome.message
    check_weights(tmp_path / "run", tmp_path / "good")


def test_fit_ends_with_nan_if_the_weights_overflow(tmp_path: Path) -> None:
    """A huge learning rate is a status, not a crash."""
    config = tiny_run(tmp_path, training__learning_rate=1e30, encoder={"type": "bag"})
    outcome = fit(config, tmp_path / "run")
    assert (outcome.status, outcome.step, outcome.metrics) == ("nan", 0, {})
    assert "no model could be kept" in outcome.message


def test_fit_resumes_from_the_checkpoint_before_a_truncated_one(tmp_path: Path) -> None:
    """The result is the same."""
    config = tiny_run(tmp_path)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", report=die_after(3))
    last = sorted((tmp_path / "run" / "checkpoint").glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:100])
    fit(config, tmp_path / "run")
    fit(config, tmp_path / "straight")
    check_weights(tmp_path / "straight", tmp_path / "run")


def test_fit_on_a_full_disk_raises_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous checkpoint stays complete."""
    config = tiny_run(tmp_path)

    def full(tensors: object, path: Path, metadata: object = None) -> None:
        raise OSError(28, "No space left on device")

    def fill_disk(report: Report) -> bool:
        monkeypatch.setattr("safetensors.torch.save_file", full)
        return True

    with pytest.raises(ArtifactError, match=r"safetensors: the disk is full; free some space"):
        fit(config, tmp_path / "run", report=fill_disk)
    monkeypatch.undo()
    assert fit(config, tmp_path / "run").status == "finished"


def test_row_exact_adam_equals_dense_adam(tmp_path: Path) -> None:
    """Both optimizers give the same weights."""
    for exact in (True, False):
        fit(tiny_run(tmp_path, training__row_exact_adam=exact), tmp_path / str(exact))
    check_weights(tmp_path / "True", tmp_path / "False", atol=1e-4)


def test_bfloat16_training_reaches_similar_scores(tmp_path: Path) -> None:
    """Mixed precision changes the speed, not the result."""
    outcomes = [
        fit(tiny_run(tmp_path, training__precision=word, training__epochs=4.0), tmp_path / word)
        for word in ("float32", "bfloat16")
    ]
    assert outcomes[1].metrics["context_nll"] == pytest.approx(
        outcomes[0].metrics["context_nll"], rel=0.05
    )


def test_clip_gradients_per_tensor_and_global() -> None:
    """Each tensor by its norm, or all by their common norm; a small gradient is unchanged."""
    for per, expected in (
        ("tensor", [1.0, 0.5]),
        ("global", [10 / math.sqrt(100.25), 0.5 / math.sqrt(100.25)]),
    ):
        parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
        parameters[0].grad = torch.full((4,), 5.0)
        parameters[1].grad = torch.full((4,), 0.25)
        clip_gradients(parameters, limit=1.0, per=per)
        assert [float(p.grad.norm()) for p in parameters] == pytest.approx(expected)


def test_clip_gradients_sums_repeated_rows_first() -> None:
    """The norm of a table's gradient is that of the summed rows."""
    table = torch.nn.Parameter(torch.zeros(5, 2))
    table.grad = torch.sparse_coo_tensor(
        [[3, 1, 3]], torch.ones(3, 2), (5, 2), check_invariants=True
    )
    clip_gradients([table], limit=1.0, per="tensor")
    assert float(table.grad.to_dense().norm()) == pytest.approx(1.0)
    assert float(table.grad.to_dense()[3, 0] / table.grad.to_dense()[1, 0]) == pytest.approx(2.0)


def test_learning_rate_warms_up_and_decreases() -> None:
    """It increases over the warm-up, then decreases linearly; by default it is constant."""
    config = TrainingConfig(learning_rate=1.0, schedule="linear", warmup_steps=2)
    assert [learning_rate(config, step, num_steps=6) for step in range(6)] == [
        0.5,
        1.0,
        1.0,
        0.75,
        0.5,
        0.25,
    ]
    assert learning_rate(TrainingConfig(learning_rate=1.0), 5, num_steps=6) == 1.0


def test_count_steps_is_at_least_one() -> None:
    """A fraction of an epoch, its rounding and its limit."""
    assert count_steps(TrainingConfig(epochs=0.001), steps_per_epoch=10) == 1
    assert count_steps(TrainingConfig(epochs=1.5), steps_per_epoch=10) == 15
    assert count_steps(TrainingConfig(epochs=1.5, max_steps=4), steps_per_epoch=10) == 4


def test_report_index_skips_reports_without_a_step() -> None:
    """Three steps and ten reports: three reports."""
    assert [report_index(step, num_steps=3, num_reports=10) for step in (1, 2, 3)] == [3, 6, 10]


def _worker(rank: int, ports: dict[int, int], runs: list[tuple[int, str, str]]) -> None:
    """Run every run in one process of a gloo group: first those of all three processes, then those of two."""
    torch.set_num_threads(1)
    for size, port in ports.items():
        if rank >= size:
            continue
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
        )
        for world_size, config_json, folder in runs:
            if world_size == size:
                _fit_on_rank(rank, RunConfig.model_validate_json(config_json), Path(folder))
        dist.destroy_process_group()


def _fit_on_rank(rank: int, config: RunConfig, folder: Path) -> None:
    """Train a run; its second worker's weights change by themselves where the folder says so."""
    step = Optimizer.step

    def disturbed(self: Optimizer, number: int) -> None:
        step(self, number)
        self.parameters[0].data.view(-1)[0] += 1e-6

    if folder.name == "disturbed" and rank == 1:
        Optimizer.step = disturbed  # type: ignore[method-assign]
    try:
        said = dataclasses.asdict(fit(config, folder, workers=Workers.of_group()))
    except TrainingError as error:
        said = {"error": str(error)}
    Optimizer.step = step  # type: ignore[method-assign]
    Path(f"{folder}-outcome-{rank}.json").write_text(json.dumps(said))


_RUNS: dict[str, dict[str, Any]] = {
    "gru": {"training__max_steps": 5},
    "bi": {"training__max_steps": 5, "encoder__bidirectional": True},
    "bag": {"training__max_steps": 5, "encoder": {"type": "bag", "embedding": {"dim": 6}}},
    "concat": {
        "training__max_steps": 5,
        "encoder": {
            "type": "concat",
            "members": {
                "uni": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
                "bi": {
                    "type": "gru",
                    "bidirectional": True,
                    "hidden_size": 8,
                    "embedding": {"dim": 6},
                },
            },
        },
    },
    "skip": {
        "training__max_steps": 5,
        "objective": {"type": "sentence_decoding"},
        "encoder": {
            "type": "gru",
            "bidirectional": True,
            "hidden_size": 8,
            "embedding": {"dim": 6},
        },
    },
    "views": {
        "training__max_steps": 5,
        "training__clip": 0.05,
        "training__clip_per": "global",
        "objective": {"type": "view_agreement", "temperature": 0.2},
    },
    "margin": {
        "training__max_steps": 5,
        "training__clip": None,
        "objective": {"type": "paraphrase_margin", "lambda_w": 0.01, "lambda_c": 0.01},
        "encoder": {"type": "cnn", "num_filters": 4, "embedding": {"dim": 6}},
    },
    "local": {"training__max_steps": 2, "training__gather_candidates": False},
    "ragged": {"training__max_steps": 5, "training__batch_size": 25},
    "self": {"training__max_steps": 5, "objective": {"type": "self_agreement", "context_size": 1}},
    "contrast": {
        "training__max_steps": 5,
        "objective": {"type": "contrast", "context_size": 2, "cached": True, "micro_batch": 5},
    },
    # Workers draw their own dropout, so that it has to be nearly none.
    "readings": {
        "training__max_steps": 5,
        "objective": {"type": "contrast", "positives": "self"},
        "encoder": {"type": "gru", "hidden_size": 8, "dropout": 1e-9, "embedding": {"dim": 6}},
    },
    "partners": {
        "training__max_steps": 5,
        "objective": {"type": "contrast", "positives": "pairs", "symmetric": True},
    },
    "classes": {"training__max_steps": 5, "objective": {"type": "contrast", "positives": "labels"}},
    "classes_end_to_end": {
        "training__max_steps": 5,
        "objective": {"type": "task", "label_smoothing": 0.1},
    },
    "in_parts": {"training__max_steps": 5, "training__accumulate": 4},
    "classes_in_parts": {
        "training__max_steps": 5,
        "training__accumulate": 4,
        "objective": {"type": "task"},
    },
    "masked": {"training__max_steps": 5, "objective": {"type": "masked_words", "fraction": 0.4}},
    "rebuilt": {"training__max_steps": 5, "objective": {"type": "denoising"}},
    "disturbed": {"training__max_steps": 2},
}
_BY_THREE = ("ragged", "skip", "margin")


def named_run(folder: Path, name: str) -> RunConfig:
    """Return one of the runs; that on pairs reads a file of its own."""
    changes = {"training__num_reports": 1, **_RUNS[name]}
    if name.startswith("classes"):
        rows = [
            f"w{place % 40} w{3 * place % 40},c{place % 3},{('train', 'validation', 'test')[place // 3 % 3]}"
            for place in range(90)
        ]
        path = folder / "rows.csv"
        path.write_text("\n".join(["text,label,split", *rows]))
        changes["labels"] = {"task": str(path)}
    if name in ("margin", "partners"):
        path = folder / "pairs.tsv"
        generator = np.random.default_rng(0)
        rows = [
            [" ".join(f"w{n}" for n in generator.integers(0, 40, 4)) for _ in range(2)]
            for _ in range(120)
        ]
        path.write_text("\n".join("\t".join(row) for row in rows))
        changes["pairs"] = {"path": str(path)}
        scored = folder / "scored.tsv"
        scored.write_text(
            "\n".join(f"{one}\t{two}\t{number % 5}" for number, (one, two) in enumerate(rows))
        )
        changes["validation"] = {"similarity": {"path": str(scored), "score": 2}}
    return tiny_run(folder, **changes)


@pytest.fixture(scope="module")
def by_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the runs in three and in two processes, which are started once; a folder for each number and run."""
    folder = tmp_path_factory.mktemp("workers")
    plan = [(3, name) for name in _BY_THREE] + [(2, name) for name in _RUNS if name != "ragged"]
    for size in (2, 3):
        (folder / str(size)).mkdir()
    runs = [
        (size, named_run(folder, name).model_dump_json(), str(folder / str(size) / name))
        for size, name in plan
    ]
    ports = dict(zip((3, 2), free_ports(2), strict=True))
    torch.multiprocessing.spawn(_worker, args=(ports, runs), nprocs=3)
    return folder


@pytest.mark.parametrize(
    ("size", "name"),
    [
        *(
            (2, name)
            for name in (
                "gru",
                "bi",
                "bag",
                "concat",
                "skip",
                "views",
                "margin",
                "self",
                "contrast",
                "readings",
            )
        ),
        (2, "partners"),
        (2, "classes"),
        (2, "classes_end_to_end"),
        (2, "in_parts"),
        (2, "classes_in_parts"),
        (2, "masked"),
        (2, "rebuilt"),
        *((3, name) for name in _BY_THREE),
    ],
)
def test_several_workers_equal_one_on_the_same_sentences(
    tmp_path: Path, by_workers: Path, size: int, name: str
) -> None:
    """The number of processes does not change the result, also where the batch does not divide among them."""
    fit(named_run(tmp_path, name), tmp_path / "one")
    one, several = weights(tmp_path / "one"), weights(by_workers / str(size) / name)
    for name_of_value, value in one.items():
        # Adam divides what rounding leaves of a gradient of zero by itself.
        torch.testing.assert_close(several[name_of_value], value, atol=3e-6, rtol=0)
    outcomes = [
        json.loads((by_workers / str(size) / f"{name}-outcome-{rank}.json").read_text())
        for rank in range(size)
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_different_weights_end_the_run_with_one_clear_error(by_workers: Path) -> None:
    """Every worker raises it at the next report."""
    for rank in (0, 1):
        error = json.loads((by_workers / "2" / f"disturbed-outcome-{rank}.json").read_text())[
            "error"
        ]
        assert error.startswith(
            "workers: must have the same weights as worker 0 after step 2; given others on worker 1"
        )


def test_second_encoder_of_another_kind_trains_and_encodes(tmp_path: Path) -> None:
    """F is a GRU and g a bag of words, with vectors of one size; a killed and resumed run gives the same model."""
    config = tiny_run(
        tmp_path, second_encoder={"type": "bag", "embedding": {"dim": 8}}, training__max_steps=6
    )
    assert fit(config, tmp_path / "run").status == "finished"
    model = SentenceModel.load(tmp_path / "run")
    assert [tower.type for tower in model.config.towers] == ["gru", "bag"]
    assert model.encode(["w1 w2"]).shape == (1, 16)
    assert model.encode(["w1 w2"], towers="f").shape == (1, 8)
    with pytest.raises(
        ValueError,
        match=r"second_encoder must give vectors of the same blocks as encoder, \[8\]; given",
    ):
        tiny_run(tmp_path, second_encoder={"type": "bag", "embedding": {"dim": 5}})
    with pytest.raises(
        ValueError, match="second_encoder must be left out with objective sentence_decoding"
    ):
        tiny_run(tmp_path, second_encoder={"type": "bag"}, objective={"type": "sentence_decoding"})


def test_pairs_with_scores_add_a_correlation(tmp_path: Path) -> None:
    """The mean over the sets of a folder and a file; the saved model gives the same value."""
    generator = np.random.default_rng(0)
    words = [f"w{number}" for number in range(40)]
    pairs = [
        " ".join(generator.choice(words, 3)) + "\t" + " ".join(generator.choice(words, 3))
        for _ in range(20)
    ]
    gold = generator.uniform(0, 5, size=20)
    (tmp_path / "STS.input.a.txt").write_text("\n".join(pairs) + "\n")
    (tmp_path / "STS.gs.a.txt").write_text("\n".join(map(str, gold)) + "\n")
    (tmp_path / "b.tsv").write_text(
        "\n".join(f"{pair}\t{score}" for pair, score in zip(pairs, gold, strict=True))
    )
    validation = {"num_candidates": 20, "num_sentences": 40, "sts": str(tmp_path)}
    validation["similarity"] = {"path": str(tmp_path / "b.tsv"), "score": 2}
    outcome = fit(tiny_run(tmp_path, validation=validation), tmp_path / "run")
    model = load(tmp_path / "run")
    sides = [
        model.encode([pair.split("\t")[side] for pair in pairs], normalize_embeddings=True)
        for side in (0, 1)
    ]
    expected = np.corrcoef((sides[0] * sides[1]).sum(axis=1), gold)[0, 1]
    assert set(outcome.metrics) == {"context_accuracy", "context_nll", "pearson", "loss"}
    assert outcome.metrics["pearson"] == pytest.approx(expected, abs=1e-5)


def test_two_workers_without_gathering_average_their_gradients(by_workers: Path) -> None:
    """Local candidates train too, with twice the sentences of one worker."""
    outcome = json.loads((by_workers / "2" / "local-outcome-1.json").read_text())
    assert (outcome["status"], outcome["sentences"]) == ("finished", 2 * 2 * 24)


def test_dense_adam_equals_torchs() -> None:
    """The same weights after every step, also if a gradient is missing once."""
    generator = torch.Generator().manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(2)]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    dense, oracle = DenseAdam(ours, [1.0, 1.0]), torch.optim.Adam(theirs, lr=0.1, fused=True)
    for step in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(4, 3, generator=generator)
            other.grad = one.grad.clone()
        if step == 2:
            ours[1].grad = theirs[1].grad = None
        dense.step(0.1)
        oracle.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_count_drops_counts_reports_that_are_not_the_best_so_far():
    """Higher or lower is better; NaN and ties are drops."""
    assert count_drops([50.0, 60.0, 55.0, 60.0, 61.0, float("nan")], mode="max") == 3
    assert count_drops([3.0, 2.0, 2.5], mode="min") == 1
    assert count_drops([], mode="max") == 0


def test_gradient_descent_equals_its_restatement(tmp_path):
    """InferSent's recipe: w - rate g, with the factors of epochs and of reports without progress."""
    config = tiny_run(
        tmp_path,
        training__optimizer="sgd",
        training__learning_rate=0.1,
        training__epoch_decay=0.9,
        training__drop_decay=0.5,
        training__clip=None,
    )
    model = build_model(config, open_training_data(config))
    optimizer = Optimizer(model, config.training, num_steps=10, steps_per_epoch=2)
    before = [parameter.detach().clone() for parameter in optimizer.parameters]
    for parameter in optimizer.parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.num_drops = 2
    optimizer.step(5)
    for old, parameter in zip(before, optimizer.parameters, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.1 * 0.9**2 * 0.5**2 * 2.0)


def test_run_of_gradient_descent_resumes_with_its_learning_rate(tmp_path):
    """The reports before the stop determine the rate after it."""
    changes = {
        "training__optimizer": "sgd",
        "training__learning_rate": 0.5,
        "training__drop_decay": 0.1,
        "training__max_steps": 8,
        "training__num_reports": 4,
    }
    fit(tiny_run(tmp_path, **changes), tmp_path / "whole")
    fit(tiny_run(tmp_path, **changes), tmp_path / "halves", report=lambda report: report.index != 2)
    fit(tiny_run(tmp_path, **changes), tmp_path / "halves")
    one, two = (
        SentenceModel.load(tmp_path / folder).encode(["w1 w2"]) for folder in ("whole", "halves")
    )
    np.testing.assert_array_equal(one, two)


def test_key_of_a_run_does_not_depend_on_settings_that_it_does_not_use(tmp_path):
    """A setting of a later version changes the key only where it is not the default."""
    plain = tiny_run(tmp_path)
    assert tiny_run(tmp_path, training__optimizer="adam").key == plain.key
    assert tiny_run(tmp_path, training__optimizer="sgd").key != plain.key


def test_steps_are_timed_without_counting_word_vectors(tmp_path, monkeypatch):
    """A plan does not wait for them; a training counts them, as before."""
    for name in ("_TIMED_S", "_TIMED_MOST_S"):
        monkeypatch.setattr(loop, name, 0.01)
    run = tiny_run(tmp_path, encoder__embedding={"dim": 6, "vectors": "ppmi"})
    data = open_training_data(run)
    step_s, _ = seconds_of_steps(run, data)
    assert step_s > 0
    assert not list(data.corpus.folder.glob("ppmi-*"))
    fit(run, tmp_path / "run")
    assert list(data.corpus.folder.glob("ppmi-*.npz"))
