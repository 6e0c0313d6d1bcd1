"""Which trial is best: one order everywhere that trials are ranked, whatever the direction of the metric."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.simulation import SimulatedSweep, Simulator
from benchmarks.simulation.workload import Scenario, SimulatedTrial
from raysent import live
from raysent.cli import sweep as sweep_commands
from raysent.config import parse_yaml
from raysent.cost import Budget, CostConfig
from raysent.pipeline import Sweep
from raysent.report import write as write_report
from raysent.screen import LOG_FILE, run_log
from raysent.storage import write_json_lines
from raysent.storage.layout import JOURNAL_FILE, TRIALS_FILE
from raysent.sweeps import SweepController, SweepRecord, Trial
from raysent.sweeps.ranking import (
    TrialResult,
    best_trial,
    median_value,
    median_values,
    rank,
    rank_trials,
    result_of,
    select_members,
)
from raysent.sweeps.record import save_record, write_trials_table
from raysent.sweeps.space import SearchSpace, parse_space

# Two seeds of three configurations: A has the luckiest seed, B the best median of those that finished, C was stopped.
VALUES = {"0000": 0.09, "0001": 0.03, "0002": 0.07, "0003": 0.072, "0004": 0.12, "0005": 0.11}
ORDER = ["0002", "0003", "0000", "0001", "0004", "0005"]
TEXT = """
metric: %s
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search: {training.learning_rate: {loguniform: [1e-4, 1e-2]}}
limits: {trials: 6, seeds: 2}
evaluation: {members: 3}
"""


@dataclass(frozen=True)
class Swept:
    """A sweep of the six trials in a run folder."""

    folder: Path
    space: SearchSpace
    sweep: SimulatedSweep
    controller: SweepController


@pytest.fixture(scope="module", params=["context_accuracy", "context_nll"])
def swept(request, tmp_path_factory) -> Swept:
    """The six trials, swept by one simulated machine; of the loss less is better, and its values are mirrored."""
    space = parse_space(parse_yaml(TEXT % request.param), name="six")
    sign = 1.0 if space.mode == "max" else -1.0

    def workload(trial: Trial) -> SimulatedTrial:
        # At the first rung each trial beats those before it, except C.
        early = VALUES[trial.name] if trial.name in ("0004", "0005") else 0.5 + 0.01 * trial.number
        return SimulatedTrial(
            60.0, lambda index: sign * (early if index == 1 else VALUES[trial.name])
        )

    world = Scenario(1.0, 1, "own", num_reports=3, trial_s=180.0, cost=CostConfig(), kill_share=0.0)
    sweep = Simulator(space, world, Budget(), seed=1, workload=workload).run()
    folder = tmp_path_factory.mktemp(space.metric)
    save_record(folder, SweepRecord(space, seed=1))
    write_json_lines(folder / JOURNAL_FILE, sweep.events)
    controller = SweepController(
        space, seed=1, write=lambda event, **values: None, past=sweep.events
    )
    write_trials_table(folder, space, controller.trials.values())
    return Swept(folder, space, sweep, controller)


def _table(swept: Swept) -> list[str]:
    with (swept.folder / TRIALS_FILE).open() as stream:
        return [row["trial"] for row in csv.DictReader(stream)]


def _log(swept: Swept) -> list[str]:
    log = swept.folder / LOG_FILE
    with run_log() as lines:
        lines.open(swept.folder)
        sweep_commands._note_leaderboard(Sweep(swept.folder))
    return re.findall(r"^\S+ \S+  (\d{4}) ", log.read_text(), re.MULTILINE)


def _live_view(swept: Swept) -> list[str]:
    stream = io.StringIO()
    view = live.SweepView(Console(file=stream, width=200), swept.space)
    view.restore([{**event, "trials": 6, "concurrent": 1} for event in swept.sweep.events])
    view._console.print(view._all_trials())
    assert f"(trial {int(ORDER[0])})" in view._text_line()
    return re.findall(r"^(\d{4}) ", stream.getvalue(), re.MULTILINE)


def _report(swept: Swept) -> list[str]:
    page = write_report(swept.folder).read_text()
    section = page[page.index('id="leaderboard"') :].partition("</section>")[0]
    assert re.findall(r'class="[^"]*best[^"]*"[^>]*>(\d{4})<', section) == ORDER[:1]
    return re.findall(r"<tr>.*?>(\d{4})</td>", section, re.DOTALL)


@pytest.mark.parametrize("place", [_table, _log, _live_view, _report])
def test_every_table_has_the_one_order(swept: Swept, place: Callable[[Swept], list[str]]):
    """What the scheduler stopped comes last, configurations are by their median, and within one by its first seed."""
    assert [trial.status for trial in swept.sweep.trials] == ["finished"] * 4 + ["stopped"] * 2
    assert place(swept) == ORDER


def test_controller_and_simulator_take_the_same_best(swept: Swept):
    """The best trial is the first of the order; the simulator keeps its value."""
    assert best_trial(swept.controller.space, swept.controller.trials.values()).name == ORDER[0]
    assert abs(swept.sweep.best) == VALUES[ORDER[0]]


def test_members_are_one_of_each_configuration_in_the_same_order(swept: Swept):
    """Two seeds of one configuration never join one ensemble."""
    assert [trial.name for trial in select_members(swept.space, swept.sweep.trials)] == [
        "0002",
        "0000",
        "0004",
    ]
    chosen = select_members(swept.space, swept.sweep.trials, num_members=2)
    assert [trial.name for trial in chosen] == ["0002", "0000"]


def test_trials_csv_gives_the_median_that_it_is_sorted_by(swept: Swept):
    """Each seed of a configuration has the same median beside its own value."""
    with (swept.folder / TRIALS_FILE).open() as stream:
        medians = [
            abs(float(row[f"median_{swept.space.metric}"])) for row in csv.DictReader(stream)
        ]
    assert medians == pytest.approx([0.071, 0.071, 0.06, 0.06, 0.115, 0.115])


def _result(
    number: int, value: float | None, status: str = "finished", *, seeds: int = 1
) -> TrialResult:
    """Return a result; the scheduler has stopped what is `stopped`, and a clock what is `timed`."""
    known = "stopped" if status == "timed" else status
    first = number - number % seeds
    return TrialResult(
        f"{number:04d}", number, known, value, first, is_outranked=status == "stopped"
    )


def _numbers(results: list[TrialResult], mode: str = "max") -> list[int]:
    return [result.number for result in rank(results, mode=mode)]


def test_rank_puts_what_broke_and_what_has_no_value_last():
    """A great value of a diverged trial, NaN and a missing value come after the least value of a stopped one."""
    results = [
        _result(0, None),
        _result(1, float("nan")),
        _result(2, 9.0, "nan"),
        _result(3, 8.0, "failed"),
        _result(4, 0.1, "stopped"),
        _result(5, 0.2, "running"),
        _result(6, 0.05),
        _result(7, float("inf")),
        _result(8, 0.3, "timed"),
    ]
    assert _numbers(results) == [8, 5, 6, 4, 2, 3, 0, 1, 7]
    assert _numbers(results, "min") == [6, 5, 8, 4, 3, 2, 0, 1, 7]


def test_rank_breaks_ties_by_trial_number():
    """Equal values keep the order in which trials were drawn, in both directions."""
    results = [_result(number, 0.5) for number in (3, 1, 2, 0)]
    assert _numbers(results) == _numbers(results, "min") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([0.9, 0.1, 0.5], [2, 0, 1]),
        ([0.1, 0.9, 0.5], [2, 0, 1]),
        ([0.7, 0.072, 0.1, 0.3], [2, 3, 0, 1]),
        ([0.3, 0.3, 0.3], [0, 1, 2]),
    ],
)
def test_rank_begins_a_configuration_with_its_median_trial(values, order):
    """Then come the next nearest in rank to the median; of two as near the lower number."""
    results = [_result(number, value, seeds=len(values)) for number, value in enumerate(values)]
    assert _numbers(results) == _numbers(results, "min") == order


@pytest.mark.parametrize(
    ("status", "best"),
    [
        ("stopped", 2),
        ("failed", 2),
        ("nan", 2),
        ("finished", 0),
        ("timed", 0),
        ("running", 0),
        ("waiting", 0),
    ],
)
def test_rank_puts_only_what_the_scheduler_stopped_or_what_broke_behind(status: str, best: int):
    """One such seed puts its configuration behind the others; a clock, which stops any trial, does not."""
    results = [
        _result(0, 0.9, seeds=2),
        _result(1, 0.9, status, seeds=2),
        *(_result(n, 0.1, seeds=2) for n in (2, 3)),
    ]
    assert _numbers(results)[0] == best


def test_rank_begins_a_configuration_with_trials_that_were_not_outranked():
    """A seed that the scheduler stopped says less than one that finished, whichever is nearer the median."""
    results = [
        _result(0, 0.3, "stopped", seeds=3),
        _result(1, 0.1, "stopped", seeds=3),
        _result(2, 0.9, seeds=3),
    ]
    assert _numbers(results) == [2, 0, 1]


def test_rank_leaves_broken_seeds_out_of_the_median():
    """A configuration is worth the median of the seeds that did not break; the broken seed itself comes last."""
    results = [
        _result(0, 0.3, "stopped", seeds=2),
        _result(1, 0.0, "nan", seeds=2),
        _result(2, 0.2, "stopped", seeds=2),
    ]
    assert _numbers(results) == [0, 2, 1]


def test_rank_leaves_broken_seeds_out_of_the_positions():
    """Of 0.1, 0.5 and 0.9 the middle one is 0.5, whatever value the seed that diverged has left."""
    values = [0.9, 0.5, 0.1]
    results = [_result(number, value, "stopped", seeds=4) for number, value in enumerate(values)]
    for mode in ("max", "min"):
        for broken in (0.0, 0.95):
            assert _numbers([*results, _result(3, broken, "nan", seeds=4)], mode) == [1, 0, 2, 3]


def test_rank_takes_zero_for_a_value():
    """A trial that scored 0 is between one that scored less and one that scored more; only None is no value."""
    results = [_result(0, 0.0), _result(1, -0.5), _result(2, 0.5), _result(3, None)]
    assert _numbers(results) == [2, 0, 1, 3]
    assert _numbers(results, "min") == [1, 0, 2, 3]
    of_seeds = [_result(number, value, seeds=3) for number, value in enumerate([0.0, 0.7, 0.2])]
    assert _numbers(of_seeds) == [2, 0, 1]


def test_rank_orders_unfinished_configurations_by_their_median():
    """Not by the trials' own values, and before all that broke."""
    results = [
        *(
            _result(number, value, "stopped", seeds=2)
            for number, value in enumerate([0.9, 0.1, 0.6, 0.6])
        ),
        *(_result(number, 0.95, "failed", seeds=2) for number in (4, 5)),
    ]
    assert _numbers(results) == [2, 3, 0, 1, 4, 5]
    assert _numbers(results, "min") == [0, 1, 2, 3, 4, 5]


def test_median_value_is_of_the_trials_that_count():
    """Two of four: the others broke or have no number; None where none is left."""
    broken = [_result(0, 9.0, "failed"), _result(1, None)]
    assert median_value([*broken, _result(2, 0.25, "stopped"), _result(3, 0.75)]) == 0.5
    assert median_value(broken) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["finished", "stopped", "nan"]), st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_rank_does_not_depend_on_the_order_of_its_input(trials, seeds, chance):
    """The same trials in any order give one ranking, which has each of them once."""
    results = [
        _result(number, value, status, seeds=seeds) for number, (status, value) in enumerate(trials)
    ]
    shuffled = chance.sample(results, len(results))
    assert rank(shuffled, mode="max") == rank(results, mode="max")
    assert sorted(_numbers(shuffled)) == list(range(len(trials)))


def _space(text: str = "", *, seeds: int = 1) -> SearchSpace:
    base = "base: {encoder: {type: bag}, objective: {type: context_prediction}}\n"
    search = f"search: {{encoder.pooling: {{choice: [sum, mean]}}}}\nlimits: {{seeds: {seeds}}}\n"
    return parse_space(parse_yaml(base + search + text), name="toy")


def _trial(number: int, kind: str, score: float | None, status: str = "finished") -> Trial:
    metrics = {"context_accuracy": score, "context_nll": score}
    params = {"encoder.pooling": kind}
    return Trial(
        f"{number:04d}",
        number,
        params,
        0,
        status=status,
        metrics=metrics,
        is_outranked=status == "stopped",
    )


def test_result_of_has_what_the_ranking_reads():
    """Name, number, status, the value of the space's metric, and the first trial of its configuration."""
    trial = _trial(5, "mean", 0.5, "stopped")
    assert result_of(_space(seeds=3), trial) == TrialResult(
        "0005", 5, "stopped", 0.5, first=3, is_outranked=True
    )
    trial.metrics = {"loss": 0.5}
    assert result_of(_space(), trial).value is None


@pytest.mark.parametrize(
    ("metric", "order"), [("context_accuracy", [1, 0, 2]), ("context_nll", [0, 1, 2])]
)
def test_rank_trials_and_best_trial_follow_the_direction_of_the_metric(metric, order):
    """More accuracy is better and less loss is; a trial without a value is last."""
    space = _space(f"metric: {metric}\n")
    trials = [_trial(0, "a", 0.1), _trial(1, "a", 0.3), _trial(2, "a", None)]
    assert [trial.number for trial in rank_trials(space, trials)] == order
    assert best_trial(space, trials) is trials[order[0]]


def _events(second: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a journal in which the first trial finished with 0.3, and the second ended as `second` says."""
    events: list[dict[str, object]] = []
    for number, score in enumerate((0.3, 0.4)):
        trial = f"{number:04d}"
        events += [
            {
                "event": "suggested",
                "trial": trial,
                "number": number,
                "params": {"encoder.pooling": "sum"},
                "seed": 1,
            },
            {"event": "started", "trial": trial},
            {
                "event": "report",
                "trial": trial,
                "index": 2 - number,
                "num_reports": 2,
                "seconds": 1.0,
            }
            | {"metrics": {"context_accuracy": score}},
        ]
        events += (
            second
            if number
            else [{"event": "ended", "trial": trial, "status": "finished", "seconds": 1.0}]
        )
    return [{"error": None, **event} if event["event"] == "ended" else event for event in events]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        (
            {"decision": "stop", "reason": "place 2 of 2 after report 1; the best 1 continue"},
            "0000",
        ),
        ({"decision": "stop", "reason": "1.00 usd spent", "by": "budget"}, "0001"),
        ({"decision": "continue", "reason": ""}, "0001"),
    ],
)
def test_best_trial_is_the_better_one_unless_the_scheduler_stopped_it(
    values: dict[str, str], best: str, tmp_path: Path
):
    """The journal says who stopped a trial; in the folder of a sweep, a clock or a budget makes no trial worse."""
    ended = {"event": "ended", "trial": "0001", "status": "stopped", "seconds": 1.0}
    events = _events([{"event": "decision", "trial": "0001", "index": 1, **values}, ended])
    save_record(tmp_path, SweepRecord(_space(), seed=1))
    write_json_lines(tmp_path / JOURNAL_FILE, events)
    sweep = Sweep(tmp_path)
    assert sweep.recorded.best.name == sweep.trials.index[0] == best
    assert sweep.study().best_trial.user_attrs["trial"] == best
    assert select_members(sweep.space, sweep.recorded.trials)[0].name == best


def test_best_trial_is_none_where_no_trial_has_a_value():
    """Of no trials, and of trials that failed or have not reported."""
    assert best_trial(_space(), []) is None
    assert (
        best_trial(_space(), [_trial(0, "a", None, "running"), _trial(1, "a", 0.9, "failed")])
        is None
    )


def test_median_values_are_by_trial():
    """Each trial has its configuration's median, one without a value has None."""
    trials = [_trial(0, "a", 0.1), _trial(1, "a", 0.3), _trial(2, "b", None)]
    assert median_values(_space(seeds=2), trials) == {"0000": 0.2, "0001": 0.2, "0002": None}


def test_select_members_takes_the_best_of_each_stratum_first():
    """Every kind is there, the rest is filled by the metric, failures are left out."""
    space = _space("evaluation: {members: 3, stratify_by: encoder.pooling}\n")
    trials = [
        _trial(0, "a", 0.7),
        _trial(1, "a", 0.8),
        _trial(2, "a", 0.9),
        _trial(3, "b", 0.1, "stopped"),
    ]
    chosen = select_members(
        space, [*trials, _trial(4, "c", None, "failed"), _trial(5, "c", 0.99, "failed")]
    )
    assert [trial.number for trial in chosen] == [2, 1, 3]


def test_select_members_has_room_for_every_stratum():
    """Fewer members than kinds: one of each kind, best first."""
    space = _space("evaluation: {members: 1, stratify_by: encoder.pooling}\n")
    chosen = select_members(space, [_trial(0, "a", 0.1), _trial(1, "a", 0.2), _trial(2, "b", 0.9)])
    assert [trial.number for trial in chosen] == [2, 1]


def test_select_members_takes_a_diverged_trial_only_after_all_others():
    """It has left its best model; one that still runs or has no value has left none."""
    trials = [
        _trial(0, "a", 0.9, "nan"),
        _trial(1, "a", 0.1),
        _trial(2, "a", 0.8, "running"),
        _trial(3, "a", None),
    ]
    assert [trial.number for trial in select_members(_space(), trials)] == [1, 0]


def test_select_members_fills_the_places_that_strata_leave():
    """Asked for four, it takes the best of both kinds and the next two of all; `num_members` is stronger."""
    space = _space("evaluation: {members: 4, stratify_by: encoder.pooling}\n")
    scores = [0.9, 0.8, 0.7, 0.6, 0.5]
    trials = [
        *(_trial(number, "a", score) for number, score in enumerate(scores)),
        _trial(5, "b", 0.1),
    ]
    assert [trial.number for trial in select_members(space, trials)] == [0, 1, 2, 5]
    assert [trial.number for trial in select_members(space, trials, num_members=3)] == [0, 1, 5]
    assert [trial.number for trial in select_members(space, trials, num_members=0)] == [0, 5]


def test_select_members_takes_trials_without_the_parameter_for_one_stratum():
    """Where it did not apply to a trial, such as a pooling to a recurrent encoder."""
    space = _space("evaluation: {members: 2, stratify_by: encoder.pooling}\n")
    trials = [_trial(0, "a", 0.9), _trial(1, "a", 0.8), _trial(2, "b", 0.2), _trial(3, "b", 0.1)]
    for trial in trials[2:]:
        trial.params = {}
    assert [trial.number for trial in select_members(space, trials)] == [0, 2]
