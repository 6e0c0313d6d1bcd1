"""The controller on Ray Tune: thin adapters that carry its decisions to Tune's search, scheduler and stopper.

Tune starts the actors, moves the messages and notices the dead; every decision is the controller's. Tune's own state
and pickles are never read back.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from raysent.errors import ArtifactError
from raysent.platforms import signals_handled
from raysent.storage import storage_errors
from raysent.sweeps.controller import SweepController
from raysent.sweeps.cost_tracker import CostTracker
from raysent.sweeps.layout import Layout
from raysent.sweeps.machines import DRIVER_RESOURCE, HEAD_RESOURCE
from raysent.sweeps.trainables import DecisionStore, ReusedActor, nested_train
from raysent.sweeps.trial import Trial
from raysent.training.ray_processes import why_died

# What a trial's process needs to know; whether time is over.
Describe = Callable[[Trial], dict[str, Any]]
IsOver = Callable[[], bool]

# How often a trial whose process died is started again, from its last checkpoint; an announced end does not count.
MAX_RESTARTS = 3

_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass
class Session:
    """What the adapters of a session share.

    Attributes:
        controller: Decides everything.
        cost_tracker: Knows what has been spent.
        describe: Trial -> what its process needs: the run, its folder.
        is_over: Whether time is over: no new trial is started, running ones stop at their next report.
        decisions: Where workers of trials read decisions; None if trials train inside Tune's actors.
        failures: Trial -> its failure of disk or object store since the last report, which is none of the trial's.
        deaths: Trial -> why its last process died.
        ending: What ends the session: a trial's failure that came again, or one of the driver's own; it can be resumed.
        is_interrupted: Whether the user asked to stop.
    """

    controller: SweepController
    cost_tracker: CostTracker
    describe: Describe
    is_over: IsOver = lambda: False
    decisions: Any = None
    failures: dict[str, str] = field(default_factory=dict)
    deaths: dict[str, str] = field(default_factory=dict)
    ending: Exception | None = None
    is_interrupted: bool = False


class _Adapter:
    """A part of Tune that passes everything on, and of which Tune saves nothing: the journal has it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _kept(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a call of Tune's raises, which Tune would take for the trial's, and ignore all calls after it."""

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if self._session.ending is None:
            try:
                return method(self, *arguments, **options)
            except Exception as error:  # raised again once Tune has stopped
                self._session.ending = error
        return str(TrialScheduler.CONTINUE)

    return call


class _Search(_Adapter, Searcher):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._names: dict[str, str] = {}

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        session = self._session
        # What an earlier session left goes on also then: it stops at its next report, and saves its model.
        is_over = session.is_over() and all(
            one.status != "waiting" for one in session.controller.trials.values()
        )
        trial = None if is_over else session.controller.suggest(session.cost_tracker.funds())
        if trial is None:
            return Searcher.FINISHED
        self._names[trial_id] = trial.name
        return session.describe(trial)

    @_kept
    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        # The scheduler receives every normal end; only this method is called for a trial that Tune gives up.
        name = self._names[trial_id]
        if error and name in self._session.failures:
            self._session.ending = ArtifactError(self._session.failures[name])
        elif error:
            why = self._session.deaths.get(name, "")
            self._session.controller.end(
                name, status="failed", error=f"its process died {MAX_RESTARTS + 1} times{why}"
            )

    def save_to_dir(self, *_: Any, **__: Any) -> None:
        """Save nothing."""


class _Scheduler(_Adapter, FIFOScheduler):
    @_kept
    def on_trial_result(self, _: Any, trial: Any, result: dict[str, Any]) -> str:
        session, name = self._session, trial.config["trial"]
        if "storage_failure" in result:
            session.failures[name] = result["storage_failure"]
        else:
            session.failures.pop(name, None)
            if "status" in result:
                self._record_end(name, result)
            else:
                self._report(trial, result)
        return str(TrialScheduler.CONTINUE)

    def _report(self, trial: Any, result: dict[str, Any]) -> None:
        session, name = self._session, trial.config["trial"]
        metrics = {
            key.removeprefix("metrics/"): value
            for key, value in result.items()
            if key.startswith("metrics/")
        }
        known = session.controller.trials[name]
        usd = session.cost_tracker.trial_usd(known, result["seconds"])
        if result["index"] > known.index:
            session.cost_tracker.note_share(known, result)
        should_continue = session.controller.report(
            name,
            index=result["index"],
            num_reports=result["num_reports"],
            metrics=metrics,
            seconds=result["seconds"],
            usd=usd,
            funds=session.cost_tracker.funds(),
            memory_bytes=result.get("memory_bytes"),
        )
        should_continue = should_continue and (
            result["index"] >= result["num_reports"] or not session.is_over()
        )
        if session.decisions is not None:
            session.decisions.put.remote(name, result["index"], should_continue)
        elif not should_continue:
            # Its end is recorded once it says that its model is saved.
            trial.temporary_state.ray_actor.stop_trial.remote()

    @_kept
    def on_trial_complete(self, _: Any, trial: Any, result: dict[str, Any]) -> None:
        if "status" in result:
            self._record_end(trial.config["trial"], result)

    def on_trial_error(self, _: Any, trial: Any) -> None:
        """Note why a process died; Tune calls this for trials that it starts again, too."""
        self._session.deaths[trial.config["trial"]] = why_died(trial.get_pickled_error())

    def _record_end(self, name: str, result: dict[str, Any]) -> None:
        controller, seconds = self._session.controller, result.get("seconds")
        usd = (
            None
            if seconds is None
            else self._session.cost_tracker.trial_usd(controller.trials[name], seconds)
        )
        controller.end(
            name,
            status=result["status"],
            seconds=seconds,
            usd=usd,
            error=result.get("error") or None,
        )


class _Interrupt(_Adapter, Stopper):
    """Ends the experiment, trials included, when the user asks, or when there is no money, time or storage for any."""

    def __call__(self, *_: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        session = self._session
        is_ended = session.is_interrupted or session.ending is not None
        return is_ended or session.controller.is_halted(session.cost_tracker.funds())


def run_trials(
    controller: SweepController,
    plan: Layout,
    *,
    describe: Describe,
    is_over: IsOver,
    cost_tracker: CostTracker,
) -> bool:
    """Train until the controller has no more trials, time or money is over, or the user interrupts.

    Args:
        controller: Decides everything.
        plan: How trials share the cluster.
        describe: Trial -> what its process needs: the run, its folder.
        is_over: Whether time is over: no new trial is started, running ones stop at their next report.
        cost_tracker: Knows what has been spent.

    Returns:
        Whether the user interrupted.

    Raises:
        ArtifactError: If the disk or the object store refuses, a trial again and again.
    """
    os.environ.update(_QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    cost_tracker.num_slots = plan.concurrent
    decisions: Any = None
    if plan.is_nested:
        # Decisions where the driver is, so that no node that goes takes them along.
        place = _driver_place(ray.cluster_resources())
        decisions = DecisionStore.options(resources=place).remote()  # type: ignore[attr-defined]
        driver = nested_train(
            decisions, num_workers=plan.workers_per_trial, gpus_per_worker=plan.gpus_per_worker
        )
        trainable = tune.with_resources(driver, {"CPU": 0, **place})
    else:
        trainable = tune.with_resources(
            ReusedActor, {"CPU": plan.cpus_per_worker, "GPU": plan.gpus_per_worker}
        )
    here = {"num_threads": plan.cpus_per_worker, "working_folder": str(Path.cwd())}
    session = Session(
        controller, cost_tracker, lambda trial: {**describe(trial), **here}, is_over, decisions
    )
    with (
        storage_errors(tempfile.gettempdir()),
        tempfile.TemporaryDirectory(prefix="raysent-tune-") as scratch,
        _signals_caught(session),
    ):
        tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=_Search(session),
                scheduler=_Scheduler(session),
                num_samples=-1,
                max_concurrent_trials=plan.concurrent,
                reuse_actors=not plan.is_nested,
            ),
            run_config=tune.RunConfig(
                storage_path=str(Path(scratch).resolve()),
                name="sweep",
                verbose=0,
                stop=_Interrupt(session),
                failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
                # A trial's own checkpoints are the truth; Tune's are neither made nor read.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    if session.ending is not None:
        raise session.ending
    return session.is_interrupted


def _driver_place(resources: Mapping[str, float]) -> dict[str, float]:
    """Return what keeps drivers off the machines that their own workers need: those meant for them, else the head."""
    for name, share in ((DRIVER_RESOURCE, 1.0), (HEAD_RESOURCE, 0.001)):
        if name in resources:
            return {name: share}
    return {}


def _signals_caught(session: Session) -> AbstractContextManager[None]:
    """Stop cleanly on the first Ctrl-C, SIGTERM or closed terminal, at once on the second."""

    def handle(*_: Any) -> None:
        if session.is_interrupted:
            raise KeyboardInterrupt
        session.is_interrupted = True

    return signals_handled(dict.fromkeys(("SIGINT", "SIGTERM", "SIGHUP"), handle))
