"""Checkpoints between reports: when they are due, and that a run resumed from one is bit-identical."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import KilledError, check_weights, tiny_run, write_corpus

from raysent.errors import ArtifactError, ConfigError
from raysent.storage import load_tensors, mirror, read_json, write_json
from raysent.training.checkpoint import (
    Heartbeat,
    Progress,
    load_checkpoint,
    save_checkpoint,
    steps_lost,
)
from raysent.training.interruptions import (
    _FIRST_BYTES_PER_S,
    CHECK_INTERVAL_S,
    Interruptions,
    ModelsAtReports,
    SaveTimer,
    best_interval_s,
)
from raysent.training.loop import fit
from raysent.training.outcome import Report, load_model_report, load_outcome, load_reports
from raysent.training.workers import Workers


def test_best_interval_is_youngs() -> None:
    """Two seconds to save and one interruption in a hundred hours: every twenty minutes; no interruptions: never."""
    assert best_interval_s(2.0, per_hour=0.01) == pytest.approx(math.sqrt(2 * 2.0 * 360_000))
    assert best_interval_s(2.0, per_hour=0.0) == math.inf


def test_best_interval_loses_least() -> None:
    """Against the expected loss of saving and repeating, over a grid of intervals."""
    save_s, per_hour = 3.0, 0.5
    grid = torch.linspace(10, 1000, 9901)
    lost = save_s / grid + grid / 2 * per_hour / 3600
    assert best_interval_s(save_s, per_hour=per_hour) == pytest.approx(
        float(grid[lost.argmin()]), abs=0.2
    )


class _Timer(SaveTimer):
    """A timer whose seconds and notice are set by the test, and whose first guess of a save is `save_s` seconds."""

    def __init__(self, *, per_hour: float = 0.0, save_s: float = 1.0) -> None:
        self.now_s, self.left_s = 0.0, None
        interruptions = Interruptions(notice=lambda: self.left_s, per_hour=per_hour)
        save_bytes = round(save_s * _FIRST_BYTES_PER_S)
        super().__init__(interruptions, save_bytes=save_bytes, clock=lambda: self.now_s)

    def at(self, now_s: float, left_s: float | None = None) -> SaveTimer:
        """Set the time and the notice."""
        self.now_s, self.left_s = now_s, left_s
        return self


def _saves(timer: _Timer, *, until_s: int, left_s: Callable[[int], float | None]) -> list[int]:
    """Return the seconds at which a run saves that checks every second, and saves in half a second."""
    saves = []
    for now_s in range(1, until_s + 1):
        if timer.at(now_s, left_s(now_s)).is_due():
            timer.record_save(took_s=0.5)
            saves.append(now_s)
    return saves


def test_timer_saves_after_a_notice_and_before_its_deadline() -> None:
    """Two saves keep the training in between."""
    saves = _saves(
        _Timer(), until_s=140, left_s=lambda now_s: 130.0 - now_s if now_s >= 10 else None
    )
    assert saves == [10, 130 - int(2 * 0.5 + 2 * CHECK_INTERVAL_S)]


def test_timer_follows_a_second_notice_and_a_cancelled_one() -> None:
    """An earlier deadline is a notice of its own; a cancelled drain needs no save."""
    deadlines = {range(10, 30): 130.0, range(30, 61): 60.0, range(80, 90): 200.0}

    def left_s(now_s: int) -> float | None:
        return next((at - now_s for times, at in deadlines.items() if now_s in times), None)

    assert _saves(_Timer(), until_s=150, left_s=left_s) == [10, 30, 57, 80]


def test_timer_saves_once_for_a_notice_that_leaves_no_time() -> None:
    """If the time left is shorter than a save, the first save is the last."""
    assert _saves(_Timer(), until_s=10, left_s=lambda now_s: 2.0 - now_s) == [1]


def test_timer_saves_at_the_best_interval() -> None:
    """The interval follows the measured duration of a save."""
    first, second = (
        math.ceil(best_interval_s(1.0, per_hour=36.0)),
        math.ceil(best_interval_s(0.5, per_hour=36.0)),
    )
    saves = _saves(_Timer(per_hour=36.0), until_s=40, left_s=lambda _: None)
    assert saves == [first, first + second, first + 2 * second]


def test_timer_saves_at_reports_for_a_twenty_fifth_of_the_time() -> None:
    """And a quarter of a second more, so that the first saves of a small model are made at once."""
    timer = _Timer(save_s=0.65)
    assert not timer.at(9.9).is_due_at_report()
    assert timer.at(10.1).is_due_at_report()
    timer.record_save(took_s=0.4)
    assert not timer.at(13.7).is_due_at_report()
    assert timer.at(13.8).is_due_at_report()
    timer = _Timer(save_s=0.2)
    assert timer.is_due_at_report()
    timer.record_save(took_s=0.2)
    assert not timer.at(0.1).is_due_at_report()


def test_timer_saves_at_every_report_after_a_notice() -> None:
    """However long a save takes, until the notice is cancelled."""
    timer = _Timer()
    timer.at(1.0).record_save(took_s=5.0)
    timer.at(2.0, 120.0).is_due()
    assert timer.is_due_at_report()
    timer.at(3.0, None).is_due()
    assert not timer.is_due_at_report()


@pytest.fixture
def _expensive_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every save but the first of a session too expensive for a report."""
    monkeypatch.setattr("raysent.training.interruptions._ADVANCE_S", 1e-9)
    monkeypatch.setattr("raysent.training.interruptions._FIRST_BYTES_PER_S", math.inf)
    monkeypatch.setattr("raysent.training.interruptions._MAX_PART", 0.0)


def _saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "checkpoint").glob("0*.json"))


@pytest.mark.usefixtures("_expensive_saves")
def test_fit_killed_without_a_checkpoint_of_the_last_report_repeats_it(tmp_path: Path) -> None:
    """Resumed, it has every report once and the same weights."""
    config = tiny_run(tmp_path)
    fit(config, tmp_path / "straight")
    told: list[int] = []

    def die(now: Report) -> bool:
        told.append(now.index)
        if told == [1, 2, 3]:
            raise KilledError
        return True

    with pytest.raises(KilledError):
        fit(config, tmp_path / "killed", report=die)
    straight = load_reports(tmp_path / "straight")
    assert _saved_steps(tmp_path / "killed") == [straight[0].step]
    assert len(load_reports(tmp_path / "killed")) == 3
    fit(config, tmp_path / "killed", report=die)
    assert told == [1, 2, 3, 1, 2, 3, 4]
    assert [one.metrics for one in load_reports(tmp_path / "killed")] == [
        one.metrics for one in straight
    ]
    check_weights(tmp_path / "straight", tmp_path / "killed")


@pytest.mark.usefixtures("_expensive_saves")
def test_fit_stopped_by_a_report_without_a_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    """It repeats the steps since the last checkpoint."""
    config = tiny_run(tmp_path)
    fit(config, tmp_path / "straight")
    outcome = fit(config, tmp_path / "run", report=lambda now: now.index < 3)
    saved = _saved_steps(tmp_path / "run")[-1]
    assert saved < outcome.step
    told: list[int] = []
    fit(config, tmp_path / "run", report=lambda now: not told.append(now.index))  # type: ignore[func-returns-value]
    assert told == [1, 2, 3, 4]
    check_weights(tmp_path / "straight", tmp_path / "run")


def test_run_is_not_continued_by_workers_that_make_other_steps(tmp_path: Path) -> None:
    """Without candidates of other workers, two take batches twice as large: half of the steps, and a third was lost."""
    config = tiny_run(tmp_path, training__gather_candidates=False)
    fit(config, tmp_path / "run", report=lambda now: now.index < 3)
    with pytest.raises(
        ConfigError,
        match="workers 2: must be as many as .* began with, .* 11 steps, and 5 with these",
    ):
        fit(config, tmp_path / "run", workers=Workers(world_size=2))
    fit(config, tmp_path / "run")
    fit(config, tmp_path / "straight")
    check_weights(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize("models_at_reports", ["none", "all"])
def test_fit_saves_its_model_at_reports_only_if_asked_to(
    tmp_path: Path, models_at_reports: ModelsAtReports
) -> None:
    """Else only in the end; the model at each report is that of a run that was stopped there."""
    config = tiny_run(tmp_path)
    fit(config, tmp_path / "stopped", report=lambda now: now.index < 2)
    models: list[dict[str, torch.Tensor]] = []

    def look(now: Report) -> bool:
        if (tmp_path / "run" / "model.json").exists():
            models.append(_weights(tmp_path / "run"))
        return True

    fit(
        config, tmp_path / "run", report=look, interruptions=Interruptions(models=models_at_reports)
    )
    assert len(models) == (4 if models_at_reports == "all" else 0)
    for name, value in _weights(tmp_path / "stopped").items():
        assert not models or torch.equal(models[1][name], value)


def test_fit_stopped_past_its_last_report_makes_the_model_of_that_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that saved after a notice, between two reports, and that is told to stop when it repeats the earlier one."""
    monkeypatch.setattr("raysent.training.interruptions.CHECK_INTERVAL_S", 0.0)  # at every step
    config = tiny_run(tmp_path, training__num_reports=2)
    stopped = fit(config, tmp_path / "stopped", report=lambda now: now.index < 1)

    notice = _die_at_check(stopped.step + 3, notice_at=stopped.step + 1)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", interruptions=Interruptions(notice))
    assert stopped.step < _saved_steps(tmp_path / "run")[-1]
    outcome = fit(config, tmp_path / "run", report=lambda _: False)
    assert (outcome.status, outcome.step, outcome.metrics) == (
        "stopped",
        stopped.step,
        stopped.metrics,
    )
    assert load_outcome(tmp_path / "run", key=config.key) == outcome
    check_weights(tmp_path / "stopped", tmp_path / "run")
    assert [now.index for now in load_reports(tmp_path / "run")] == [1]


def test_checkpoints_keep_the_last_one_up_to_the_last_report(tmp_path: Path) -> None:
    """Besides the last two, as the model of that report can be made from it alone."""
    for step, last in [(1, 1), (2, 2), (4, 3), (5, 3), (6, 3)]:
        save_checkpoint(tmp_path, {}, Progress(step=step, reports=({"step": last},)), key="k")
    assert _saved_steps(tmp_path) == [2, 5, 6]
    found = load_checkpoint(tmp_path, key="k", max_step=3)
    assert found is not None
    assert found[1].step == 2


def test_run_is_not_resumed_on_another_text(tmp_path: Path) -> None:
    """Its word vectors would go to other words; a checkpoint without a key of its text, as earlier ones, goes on."""
    config = tiny_run(tmp_path)
    fit(config, tmp_path / "run", report=lambda now: now.index < 2)
    write_corpus(tmp_path, seed=1)
    with pytest.raises(
        ArtifactError,
        match="its text has changed since; restore it, name another folder, or remove",
    ):
        fit(config, tmp_path / "run")
    record = tmp_path / "run" / "checkpoint" / f"{_saved_steps(tmp_path / 'run')[-1]:09d}.json"
    write_json(record, {**read_json(record), "text": None}, sealed=True)
    assert fit(config, tmp_path / "run").status == "finished"


def _die_at_check(number: int, *, notice_at: int) -> Callable[[], float | None]:
    """Return a notice from one check on, of a machine that dies at a later check."""
    looks = [0]

    def notice() -> float | None:
        looks[0] += 1
        if looks[0] == number:
            raise KilledError
        return 100.0 if looks[0] >= notice_at else None

    return notice


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")


@pytest.mark.parametrize(
    "changes", [{}, {"objective__type": "sentence_decoding"}, {"training__schedule": "linear"}]
)
def test_fit_killed_between_reports_resumes_from_the_save_after_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """The weights and losses are those without an interruption, and the steps since the save are counted as lost."""
    monkeypatch.setattr("raysent.training.interruptions.CHECK_INTERVAL_S", 0.0)  # at every step
    config = tiny_run(tmp_path, training__num_reports=2, **changes)
    fit(config, tmp_path / "straight")
    with pytest.raises(KilledError):
        fit(config, tmp_path / "killed", interruptions=Interruptions(_die_at_check(5, notice_at=2)))
    saved = read_json(tmp_path / "killed" / "checkpoint" / "000000002.json")
    assert (saved["step"], saved["reports"], saved["num_losses"]) == (2, [], 2)
    fit(config, tmp_path / "killed")
    check_weights(tmp_path / "straight", tmp_path / "killed")
    straight, resumed = load_reports(tmp_path / "straight"), load_reports(tmp_path / "killed")
    assert [report.metrics for report in straight] == [report.metrics for report in resumed]
    assert [report.steps_lost for report in straight] == [0, 0]
    assert [report.steps_lost for report in resumed] == [2, 2]


def test_fit_counts_the_steps_that_two_kills_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost steps add up, also if the second machine dies before its first checkpoint."""
    monkeypatch.setattr("raysent.training.interruptions.CHECK_INTERVAL_S", 0.0)
    config = tiny_run(tmp_path, training__num_reports=1)
    for number in (4, 3):
        with pytest.raises(KilledError):
            fit(
                config,
                tmp_path / "run",
                interruptions=Interruptions(_die_at_check(number, notice_at=99)),
            )
    fit(config, tmp_path / "run")
    assert load_reports(tmp_path / "run")[-1].steps_lost == 3 + 2


def test_fit_saves_between_reports_if_interruptions_are_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an interruption a millisecond every check saves; a finished run keeps no checkpoint."""
    monkeypatch.setattr("raysent.training.interruptions.CHECK_INTERVAL_S", 0.0)
    saved: list[int] = []
    monkeypatch.setattr(
        "raysent.training.loop.save_checkpoint",
        lambda folder, tensors, progress, **_: saved.append(progress.step),
    )
    config = tiny_run(tmp_path, training__num_reports=1)
    outcome = fit(config, tmp_path / "run", interruptions=Interruptions(per_hour=1e12))
    assert len(saved) == outcome.num_steps


def test_heartbeat_of_a_local_run_is_one_file(tmp_path: Path) -> None:
    """Without a bucket there is no second file."""
    pulse = Heartbeat(tmp_path, clock=iter(range(1000)).__next__)
    for step in range(200):
        pulse.write(Progress(step=step))
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [".pulse.json"]
    assert steps_lost(tmp_path, Progress(step=150)) == 49


def test_heartbeat_writes_to_a_bucket_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests in two minutes; a new machine knows the steps lost up to the last of them."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path))
    folder = tmp_path / "s3" / "127.0.0.1" / "bucket" / "run"
    sent: list[str] = []
    monkeypatch.setattr(mirror, "put_file", lambda address, file: sent.append(address))
    now_s = [0.0]
    pulse = Heartbeat(folder, clock=lambda: now_s[0])
    for second in range(130):
        now_s[0] = float(second)
        pulse.write(Progress(step=10 * second, steps_lost=3))
    assert sent == ["s3://bucket/run/checkpoint/pulse.json"] * 3
    (folder / "checkpoint" / ".pulse.json").unlink()
    assert steps_lost(folder, Progress(step=1000)) == 3 + 200


def test_heartbeat_ignores_errors_of_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only counts lost steps."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path))
    folder = tmp_path / "s3" / "127.0.0.1" / "bucket" / "run"

    def refuse(address: str, file: Path) -> None:
        raise ArtifactError(f"{address}: no")

    monkeypatch.setattr(mirror, "put_file", refuse)
    Heartbeat(folder).write(Progress(step=5))
    assert steps_lost(folder, Progress()) == 5


# Models before the end


def test_timer_counts_models_among_its_saves() -> None:
    """Checkpoints and models share a twenty-fifth of the time, and the model of the end is one of them."""
    timer = _Timer(save_s=0.1)
    timer.record_model(took_s=0.2)
    assert not timer.at(14.9).is_model_due()  # 0.2 + 0.4 seconds
    assert timer.at(15.1).is_model_due()
    timer.record_save(took_s=0.3)
    assert not timer.at(22.4).is_model_due()  # 0.5 + 0.4
    assert timer.at(22.6).is_model_due()


def _seen_models(
    folder: Path, **options: Any
) -> tuple[Callable[[Report], bool], list[tuple[int, int | None]]]:
    """Return a function of reports that notes each with the step of the model that is there, and its notes."""
    seen: list[tuple[int, int | None]] = []

    def look(now: Report) -> bool:
        kept = load_model_report(folder)
        seen.append((now.step, None if kept is None else kept.step))
        if now.index == options.get("dies_at"):
            raise KilledError
        return bool(now.index != options.get("ends_at"))

    return look, seen


def test_fit_keeps_some_models_with_their_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first report has a model, later ones where saves are cheap; each is the model of the report it names."""
    config = tiny_run(tmp_path)
    monkeypatch.setattr(SaveTimer, "is_model_due", lambda *_, **__: len(seen) == 2)
    look, seen = _seen_models(tmp_path / "run", dies_at=4)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", report=look, interruptions=Interruptions(models="some"))
    steps = [step for step, _ in seen]
    assert [kept for _, kept in seen] == [steps[0], steps[0], steps[2], steps[2]]
    fit(config, tmp_path / "stopped", report=lambda now: now.index < 3)
    check_weights(tmp_path / "stopped", tmp_path / "run")
    kept = load_model_report(tmp_path / "run")
    assert kept is not None
    assert kept.metrics == load_reports(tmp_path / "stopped")[2].metrics


@pytest.mark.usefixtures("_expensive_saves")
def test_fit_resumed_keeps_the_model_of_a_later_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats steps without another model, and ends with that of its last report alone."""
    config = tiny_run(tmp_path)
    fit(config, tmp_path / "straight")
    monkeypatch.setattr(SaveTimer, "is_model_due", lambda *_, **__: True)
    look, seen = _seen_models(tmp_path / "run", dies_at=3)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", report=look, interruptions=Interruptions(models="some"))
    assert _saved_steps(tmp_path / "run")[-1] < seen[-1][0]
    later = seen[-1][0]
    look, seen = _seen_models(tmp_path / "run")
    outcome = fit(config, tmp_path / "run", report=look, interruptions=Interruptions(models="some"))
    assert [kept for step, kept in seen if step <= later] == [later] * sum(
        step <= later for step, _ in seen
    )
    assert seen[-1] == (outcome.step, outcome.step)
    assert load_model_report(tmp_path / "run") is None
    check_weights(tmp_path / "straight", tmp_path / "run")


def test_a_model_of_another_report_is_none_of_its_report(tmp_path: Path) -> None:
    """A process that was killed between the two files leaves no metrics for the wrong model; no file is no model."""
    config = tiny_run(tmp_path)
    look, _ = _seen_models(tmp_path / "run", dies_at=2)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", report=look, interruptions=Interruptions(models="some"))
    assert load_model_report(tmp_path / "run") is not None
    record = tmp_path / "run" / "model.json"
    record.write_text(record.read_text() + "\n")
    assert load_model_report(tmp_path / "run") is None
