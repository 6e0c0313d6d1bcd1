"""The controller without Ray: trials, decisions, budget, journal, and rebuilding from the journal."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysent.config import Document, parse_yaml
from raysent.cost import Budget, Funds
from raysent.errors import ArtifactError, ConfigError
from raysent.storage.layout import JOURNAL_FILE
from raysent.sweeps.controller import SweepController
from raysent.sweeps.journal import Journal, read_events
from raysent.sweeps.ranking import best_trial
from raysent.sweeps.samplers import RandomSampler
from raysent.sweeps.space import parse_space
from raysent.sweeps.trial import derived_seed, trials_of

NUM_REPORTS = 9


def _space(
    *,
    trials: int = 8,
    sampler: str = "tpe",
    scheduler: str = "asha",
    search: str = "",
    seeds: int = 1,
):
    text = f"""
base:
  encoder: {{type: gru, hidden_size: 8}}
  objective: {{type: context_prediction}}
search:
  encoder.bidirectional: {{choice: [false, true]}}
  training.batch_size: {{choice: [10, 20, 40]}}
{search or "  training.learning_rate: {loguniform: [1e-4, 1e-2]}"}
limits: {{trials: {trials}, seeds: {seeds}, sampler: {sampler}, scheduler: {{type: {scheduler}}}}}
"""
    return parse_space(parse_yaml(text), name="toy")


def _train(
    controller: SweepController, *, stop_after: int | None = None, log: list | None = None
) -> None:
    """Drive every trial to its end in turn; give up after `stop_after` calls, as a killed driver does."""
    calls = 0

    def called() -> bool:
        nonlocal calls
        calls += 1
        return stop_after is not None and calls > stop_after

    while (trial := controller.suggest()) is not None:
        if called():
            return
        rate = trial.params["training.learning_rate"]
        for index in range(max(1, trial.index), NUM_REPORTS + 1):
            score = random.Random(f"{trial.name}{index}").random() * rate
            should_continue = controller.report(
                trial.name,
                index=index,
                num_reports=NUM_REPORTS,
                metrics={"context_accuracy": score},
                seconds=index,
            )
            if log is not None:
                log.append((trial.name, index, should_continue))
            if called():
                return
            if not should_continue:
                controller.end(trial.name, status="stopped")
                break
        else:
            controller.end(trial.name, status="finished")
        if called():
            return


def _state(controller: SweepController) -> list:
    return [
        (t.name, t.params, t.seed, t.status, t.index, t.metrics, t.decisions)
        for t in controller.trials.values()
    ]


def test_controller_ends_with_every_trial_and_stops_the_poor():
    """A sweep ends with the trials asked for, some of them stopped early."""
    controller = SweepController(_space(), seed=1, write=lambda event, **values: None)
    _train(controller)
    statuses = [trial.status for trial in controller.trials.values()]
    assert len(statuses) == 8
    assert set(statuses) == {"finished", "stopped"}
    assert controller.is_complete
    assert best_trial(controller.space, controller.trials.values()).status == "finished"
    assert not controller.why_ended


def test_controller_names_the_end_of_a_small_space():
    """Two times three configurations are fewer than the eight trials asked for."""
    space = _space(search="  training.learning_rate: {choice: [0.001]}")
    controller = SweepController(space, seed=1, write=lambda event, **values: None)
    _train(controller)
    assert controller.is_complete
    assert controller.why_ended == "the space has no other trial than these 6"


def test_controller_says_that_the_time_was_over_before_all_trials():
    """The clock closes nothing, so that a resumed sweep with more time continues."""
    values = {**_space(trials=3).document.values}
    space = parse_space(
        Document({**values, "limits": {**values["limits"], "time": "5m"}}), name="toy"
    )
    controller = SweepController(space, seed=1, write=lambda event, **values: None)
    for number in range(3):
        assert controller.why_ended == "the time of 5m was over"
        assert controller.suggest().number == number
    assert (controller.why_ended, controller.closed) == ("", "")


@settings(max_examples=15, deadline=None)
@given(
    kill=st.integers(0, 60),
    sampler=st.sampled_from(["tpe", "random"]),
    seeds=st.sampled_from([1, 3]),
)
def test_controller_killed_at_any_event_goes_on_as_if_it_had_not(
    tmp_path_factory, kill, sampler, seeds
):
    """Whatever call the driver is killed after, resuming gives the trials and decisions of an unbroken sweep."""
    space = _space(sampler=sampler, seeds=seeds)
    whole = SweepController(space, seed=5, write=lambda event, **values: None)
    _train(whole)

    folder = tmp_path_factory.mktemp("run")
    journal = Journal(folder)
    _train(
        SweepController(space, seed=5, write=journal.write, one_line=journal.one_line),
        stop_after=kill,
    )
    journal.close()
    journal = Journal(folder)
    resumed = SweepController(
        space, seed=5, write=journal.write, past=journal.past, one_line=journal.one_line
    )
    _train(resumed)
    journal.close()
    assert _state(resumed) == _state(whole)


def test_controller_knows_what_its_journal_says():
    """The state of a controller is a function of the events that it wrote, reports included."""
    events = []
    write = lambda event, **values: events.append({"event": event, **values})  # noqa: E731 - one line says it
    controller = SweepController(_space(seeds=2), seed=5, write=write)
    _train(controller)
    assert trials_of(events) == controller.trials
    best = best_trial(controller.space, controller.trials.values())
    assert [report.index for report in best.reports] == list(range(1, NUM_REPORTS + 1))


class _Proposing(RandomSampler):
    """A sampler of another package, which proposes what it is given."""

    def __init__(self, params: dict) -> None:
        self._params = params

    def ask(self, number: int) -> tuple[dict, int]:
        """Return them, whatever the space is."""
        return self._params, 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"encoder.foo": 3},
            r"limits.sampler: must propose .*; tpe proposed \{.*\}: 'encoder.foo'",
        ),
        ({"training.batch_size": 30}, r"limits.sampler: must propose .*; tpe proposed \{.*\}: 30"),
        (
            {"training.batch_size": [10]},
            r"limits.sampler: must propose .*; tpe proposed \{.*\}: unhashable type: 'list'",
        ),
        (
            {"training.learning_rate": "fast"},
            r".*training.learning_rate: must be a valid number; given 'fast'",
        ),
    ],
)
def test_a_proposal_that_describes_no_run_is_refused_before_the_journal_has_it(change, reason):
    """In a line that names the sampler, or the value: a journal with it could not be resumed."""
    written = []
    sampler = _Proposing({**_space().first_params(), **change})
    controller = SweepController(
        _space(), seed=0, write=lambda *event, **_: written.append(event), sampler=sampler
    )
    with pytest.raises(ConfigError, match=f"^{reason}$"):
        controller.suggest()
    assert not written
    assert not controller.trials


def test_numbers_of_numpy_that_a_sampler_proposes_are_plain_in_the_journal():
    """As `generator.choice` returns them."""
    params = {
        **_space().first_params(),
        "training.batch_size": np.int64(20),
        "encoder.bidirectional": np.True_,
    }
    trial = SweepController(
        _space(), seed=0, write=lambda *_, **__: None, sampler=_Proposing(params)
    ).suggest()
    assert json.dumps(trial.params) == json.dumps(
        {**params, "training.batch_size": 20, "encoder.bidirectional": True}
    )


def test_values_are_worth_the_median_of_their_seeds():
    """Three seeds of each, the same values; the sampler gets the median, and the best is the median one."""
    controller = SweepController(
        _space(trials=9, seeds=3, scheduler="none"), seed=1, write=lambda event, **values: None
    )
    _train(controller)
    trials = list(controller.trials.values())
    for first in (0, 3, 6):
        same = trials[first : first + 3]
        assert len({repr(trial.params) for trial in same}) == 1
        assert len({trial.seed for trial in same}) == 3
        middle = sorted(controller.score(trial) for trial in same)[1]
        assert {controller.median(trial) for trial in same} == {middle}
    told = [trial.value for trial in controller._sampler._study.trials if trial.value is not None]
    assert told == [controller.median(trial) for trial in trials[::3]]
    best = best_trial(controller.space, controller.trials.values())
    assert (
        controller.score(best)
        == controller.median(best)
        == max(controller.median(trial) for trial in trials)
    )


def test_controller_starts_nothing_that_the_budget_does_not_cover():
    """A refusal is written once with the funds it was made upon, and ends the sweep when what runs has ended."""
    events = []
    write = lambda event, **values: events.append((event, values))  # noqa: E731 - one line says it
    controller = SweepController(_space(), seed=1, write=write, budget=Budget(limit_usd=10.0))
    trial = controller.suggest(Funds(spent_usd=9.0, commitment_usd=0.4))
    assert controller.suggest(Funds(spent_usd=9.2, commitment_usd=0.4)) is None
    assert controller.suggest(Funds(spent_usd=9.2, commitment_usd=0.4)) is None
    assert [event for event, _ in events] == ["suggested", "started", "refused"]
    assert events[-1][1]["funds"] == {
        "spent_usd": 9.2,
        "commitment_usd": 0.4,
        "hourly_usd": 0.0,
        "elapsed_s": 0.0,
    }
    assert not controller.is_complete
    controller.end(trial.name, status="finished")
    assert controller.is_complete


def test_controller_halts_training_when_the_money_is_gone():
    """What runs is stopped in the middle, said once; the trials that cannot go on are over."""
    events = []
    write = lambda event, **values: events.append(event)  # noqa: E731 - one line says it
    controller = SweepController(_space(), seed=1, write=write, budget=Budget(limit_usd=10.0))
    controller.suggest(Funds())
    assert not controller.is_halted(Funds(spent_usd=9.4))
    assert controller.is_halted(Funds(spent_usd=9.6))
    assert controller.is_halted(Funds(spent_usd=9.7))
    controller.abandon()
    assert events == ["suggested", "started", "halted", "ended"]
    assert controller.is_complete


def test_controller_halts_training_when_no_machine_will_ever_come():
    """Said once, with what kept it from coming; a later session tries again."""
    events = []
    write = lambda event, **values: events.append((event, values))  # noqa: E731 - one line says it
    controller = SweepController(_space(), seed=1, write=write, budget=Budget(limit_usd=10.0))
    controller.suggest(Funds())
    controller.halt("AWS will launch no machine: g6: UnauthorizedOperation", Funds())
    controller.halt("AWS will launch no machine: g6: UnauthorizedOperation", Funds())
    assert controller.is_halted(Funds())
    assert controller.suggest(Funds()) is None
    assert [event for event, _ in events] == ["suggested", "started", "halted"]
    assert events[-1][1]["by"] == "machines"
    assert controller.closed.startswith("halted: AWS will launch no machine")


def test_controller_abandons_a_trial_without_the_model_of_its_report_as_failed():
    """One that has reported is stopped only if its model is there; one that has not needs none."""
    controller = SweepController(_space(), seed=1, write=lambda *_, **__: None)
    names = [controller.suggest().name for _ in range(3)]
    for name in names[:2]:
        controller.report(
            name, index=1, num_reports=4, metrics={"context_accuracy": 0.5}, seconds=1.0
        )
    controller.abandon(lambda trial: {"context_accuracy": 0.25} if trial.name == names[0] else None)
    assert [controller.trials[name].status for name in names] == ["stopped", "failed", "stopped"]
    assert controller.trials[names[1]].error == "the budget ended before its model was saved"
    # The metrics are those of its model, which is of an earlier report.
    assert controller.score(controller.trials[names[0]]) == 0.25


def test_controller_pays_ways_to_rungs_ahead_when_told_to():
    """Under finish-rung a trial at a rung goes on only if its next rung, and those of others, still fit."""
    budget = Budget(limit_usd=10.0, reserve=0.0, on_budget="finish-rung")
    for spent_usd, should_continue in ((7.4, True), (7.6, False)):
        events = []
        write = lambda event, **values: events.append({"event": event, **values})  # noqa: B023, E731 - used at once
        controller = SweepController(_space(), seed=1, write=write, budget=budget)
        trial = controller.suggest(Funds())
        # At one dollar a report, the way from rung 1 to rung 3 needs 2 * 1.25 dollars.
        told = {
            "index": 1,
            "num_reports": 9,
            "metrics": {"context_accuracy": 0.5},
            "seconds": 1.0,
            "usd": 1.0,
        }
        assert (
            controller.report(trial.name, **told, funds=Funds(spent_usd=spent_usd))
            is should_continue
        )
        # The journal says that it was the money: the trial is none the worse.
        assert (events[-1].get("by") == "budget", trial.is_outranked) == (
            not should_continue,
            False,
        )
        assert (controller.suggest(Funds(spent_usd=9.5)) is None) is True


def test_controller_asks_anew_for_money_when_it_is_taken_up_again():
    """A raised budget lets a sweep go on that an old one had closed."""
    events = []
    write = lambda event, **values: events.append({"event": event, **values})  # noqa: E731 - one line says it
    controller = SweepController(_space(), seed=1, write=write, budget=Budget(limit_usd=10.0))
    assert controller.suggest(Funds(spent_usd=9.9)) is None
    again = SweepController(
        _space(), seed=1, write=write, past=events, budget=Budget(limit_usd=20.0)
    )
    assert again.suggest(Funds(spent_usd=9.9)) is not None


def test_controller_answers_a_repeated_report_as_before():
    """A resumed trial tells its last report again and is not judged twice."""
    events = []
    controller = SweepController(
        _space(), seed=1, write=lambda event, **values: events.append((event, values))
    )
    trial = controller.suggest()
    told = {"index": 1, "num_reports": 9, "metrics": {"context_accuracy": 0.5}, "seconds": 1.0}
    assert controller.report(trial.name, **told) is controller.report(trial.name, **told)
    assert [event for event, _ in events] == ["suggested", "started", "report", "decision"]


def test_controller_records_a_failure_and_goes_on():
    """One trial's failure neither ends the sweep nor counts as a score."""
    controller = SweepController(
        _space(trials=2, scheduler="none"), seed=1, write=lambda event, **values: None
    )
    failed = controller.suggest()
    controller.end(failed.name, status="failed", error="MemoryError")
    _train(controller)
    assert [trial.status for trial in controller.trials.values()] == ["failed", "finished"]


def test_journal_drops_a_torn_line_and_refuses_a_second_driver(tmp_path):
    """A killed writer's half line is cut off; two drivers cannot write one journal."""
    journal = Journal(tmp_path)
    journal.write("session", value=float("nan"))
    with pytest.raises(ArtifactError, match="another process is working"):
        Journal(tmp_path)
    journal.close()
    with (tmp_path / JOURNAL_FILE).open("a") as stream:
        stream.write('{"event": "sugg')
    journal = Journal(tmp_path)
    journal.write("completed")
    journal.close()
    events = [
        line.split('"event": ')[1].split(",")[0]
        for line in (tmp_path / JOURNAL_FILE).read_text().splitlines()
    ]
    assert events == ['"session"', '"completed"']


def _num_lines(journal: Journal) -> int:
    return journal.path.read_bytes().count(b"\n")


def test_a_call_of_the_controller_writes_one_line_before_it_returns(tmp_path):
    """In a bucket each line is an object; a reader takes the lines apart, and listeners hear of what is written."""
    heard = []
    journal = Journal(tmp_path, listeners=[heard.append])
    controller = SweepController(_space(), seed=5, write=journal.write, one_line=journal.one_line)
    trial = controller.suggest()
    assert _num_lines(journal) == 1
    controller.report(
        trial.name, index=1, num_reports=2, metrics={"context_accuracy": 0.5}, seconds=1.0
    )
    assert _num_lines(journal) == 2
    events = list(read_events(tmp_path))
    assert [event["event"] for event in events] == ["suggested", "started", "report", "decision"]
    assert heard == events
    journal.close()


def test_derived_seed_depends_on_every_part():
    """Seeds of two trials, or of two sweeps, differ; the same parts give the same seed."""
    assert derived_seed(1, 2) == derived_seed(1, 2)
    assert (
        len(
            {
                derived_seed(0, "run", 1),
                derived_seed(0, "run", 2),
                derived_seed(1, "run", 1),
                derived_seed(0, 1),
            }
        )
        == 4
    )
