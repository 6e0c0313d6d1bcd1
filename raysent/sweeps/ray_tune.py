"""The controller on Ray Tune: thin adapters that carry its decisions to Tune's search, scheduler and stopper.

Tune starts the actors, moves the messages and notices the dead; every decision is the controller's. Tune's own state
and pickles are never read back.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from raysent.errors import ArtifactError, ConfigError
from raysent.storage import storage_errors
from raysent.sweeps.controller import SweepController
from raysent.sweeps.cost_tracker import CostTracker
from raysent.sweeps.journal import finite
from raysent.sweeps.layout import Layout
from raysent.sweeps.machines import DRIVER_RESOURCE, HEAD_RESOURCE
from raysent.sweeps.retraining import Retraining
from raysent.sweeps.trainables import DecisionStore, ReusedActor, nested_train, retrain
from raysent.sweeps.trial import Trial

# What a trial's process needs to know; whether time is over.
Describe = Callable[[Trial], dict[str, Any]]
IsOver = Callable[[], bool]

# How often a trial whose process died is started again, from its last checkpoint; an announced end does not count.
MAX_RESTARTS = 3
_GIVEN_UP = (
    f"its process died {MAX_RESTARTS + 1} times, perhaps for lack of memory; see limits.memory and limits.concurrent"
)

# Seconds between two looks at what is trained on.
_POLL_S = 0.5

_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


class StorageFailures:
    """Failures of disk and object store, which are not failures of the trials.

    Attributes:
        by_trial: Trial -> its failure since the last report, in one line.
        ending: The failure that ends the session: it came again when the trial was retried; the trial can be resumed.
    """

    def __init__(self) -> None:
        self.by_trial: dict[str, str] = {}
        self.ending = ""


class _Search(Searcher):
    def __init__(
        self,
        controller: SweepController,
        describe: Describe,
        is_over: IsOver,
        cost_tracker: CostTracker,
        failures: StorageFailures,
    ) -> None:
        super().__init__()
        self._controller, self._cost_tracker = controller, cost_tracker
        self._describe, self._is_over = describe, is_over
        self._failures = failures
        self._names: dict[str, str] = {}

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        trial = None if self._is_over() else self._controller.suggest(self._cost_tracker.funds())
        if trial is None:
            return Searcher.FINISHED
        self._names[trial_id] = trial.name
        return self._describe(trial)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        # The scheduler receives every normal end; only this method is called for a trial that Tune gives up.
        name = self._names[trial_id]
        if error and name in self._failures.by_trial:
            self._failures.ending = self._failures.by_trial[name]
        elif error:
            self._controller.end(name, status="failed", error=_GIVEN_UP)

    def save_to_dir(self, *_: Any, **__: Any) -> None:
        """Save nothing: the journal has it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Scheduler(FIFOScheduler):
    def __init__(
        self,
        controller: SweepController,
        is_over: IsOver,
        decisions: Any,
        cost_tracker: CostTracker,
        failures: StorageFailures,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._controller, self._cost_tracker = controller, cost_tracker
        self._is_over, self._decisions = is_over, decisions
        self._failures = failures

    def on_trial_result(self, _: Any, trial: Any, result: dict[str, Any]) -> str:
        name = trial.config["trial"]
        if "storage_failure" in result:
            self._failures.by_trial[name] = result["storage_failure"]
            return str(TrialScheduler.CONTINUE)
        self._failures.by_trial.pop(name, None)
        if "status" in result:
            self._record_end(name, result)
            return str(TrialScheduler.CONTINUE)
        metrics = {key.removeprefix("metrics/"): value for key, value in result.items() if key.startswith("metrics/")}
        known = self._controller.trials[name]
        usd = self._cost_tracker.trial_usd(known, result["seconds"])
        if result["index"] > known.index:
            self._cost_tracker.note_share(known, result)
        should_continue = self._controller.report(
            name,
            index=result["index"],
            num_reports=result["num_reports"],
            metrics=metrics,
            seconds=result["seconds"],
            usd=usd,
            funds=self._cost_tracker.funds(),
            memory_bytes=result.get("memory_bytes"),
        )
        should_continue = should_continue and (result["index"] >= result["num_reports"] or not self._is_over())
        if self._decisions is not None:
            self._decisions.put.remote(name, result["index"], should_continue)
            return str(TrialScheduler.CONTINUE)
        if not should_continue:
            # Its end is recorded once it says that its model is saved.
            trial.temporary_state.ray_actor.stop_trial.remote()
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, _: Any, trial: Any, result: dict[str, Any]) -> None:
        if "status" in result:
            self._record_end(trial.config["trial"], result)

    def on_trial_error(self, *_: Any) -> None:
        """Do nothing: Tune calls this for trials that it starts again, too."""

    def _record_end(self, name: str, result: dict[str, Any]) -> None:
        seconds = result.get("seconds")
        usd = None if seconds is None else self._cost_tracker.trial_usd(self._controller.trials[name], seconds)
        self._controller.end(name, status=result["status"], seconds=seconds, usd=usd, error=result.get("error") or None)

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Interrupt(Stopper):
    """Ends the experiment, trials included, when the user asks, or when there is no money, time or storage for any."""

    def __init__(self, controller: SweepController, cost_tracker: CostTracker, failures: StorageFailures) -> None:
        self.requested = False
        self._controller, self._cost_tracker, self._failures = controller, cost_tracker, failures

    def __call__(self, *_: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        is_in_trouble = bool(self._failures.ending)
        return self.requested or is_in_trouble or self._controller.is_halted(self._cost_tracker.funds())

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Guarded(tune.Callback):
    """A user's callback; one that raises is reported in a warning and is not called again."""

    def __init__(self, callback: tune.Callback) -> None:
        self._callback: tune.Callback | None = callback
        for name in (name for name in vars(tune.Callback) if name == "setup" or name.startswith("on_")):
            setattr(self, name, partial(self._call, name))

    def _call(self, method: str, *arguments: Any, **options: Any) -> None:
        if self._callback is None:
            return
        try:
            getattr(self._callback, method)(*arguments, **options)
        except Exception as error:  # a broken callback must not end a sweep
            name, text = type(self._callback).__name__, " ".join(str(error).split())
            self._callback = None
            warnings.warn(f"callback {name}: {type(error).__name__}: {text}; it is not called again", stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        return {}


def check_callbacks(callbacks: Sequence[Any]) -> list[tune.Callback]:
    """Return a user's callbacks as Tune may call them.

    Raises:
        ConfigError: If one is no callback of Tune.
    """
    for place, callback in enumerate(callbacks):
        if not isinstance(callback, tune.Callback):
            raise ConfigError(f"callbacks[{place}]: must be a ray.tune.Callback; given {type(callback).__name__}")
    return [_Guarded(callback) for callback in callbacks]


def run_trials(
    controller: SweepController,
    plan: Layout,
    *,
    describe: Describe,
    is_over: IsOver,
    cost_tracker: CostTracker,
    callbacks: Sequence[tune.Callback] = (),
) -> bool:
    """Train until the controller has no more trials, time or money is over, or the user interrupts.

    Args:
        controller: Decides everything.
        plan: How trials share the cluster.
        describe: Trial -> what its process needs: the run, its folder.
        is_over: Whether time is over: no trial is started, running ones stop at their next report.
        cost_tracker: Knows what has been spent.
        callbacks: Called by Tune, as `check_callbacks` returned them.

    Returns:
        Whether the user interrupted.

    Raises:
        ArtifactError: If the disk or the object store refuses, again and again.
    """
    os.environ.update(_QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    failures = StorageFailures()
    interrupt = _Interrupt(controller, cost_tracker, failures)
    cost_tracker.num_slots = plan.concurrent
    # Where the driver is, so that no node that goes takes it along.
    decisions: Any = DecisionStore.options(resources=_lasting_place()).remote() if plan.is_nested else None  # type: ignore[attr-defined]
    with (
        storage_errors(tempfile.gettempdir()),
        tempfile.TemporaryDirectory(prefix="raysent-tune-") as scratch,
        _signals_caught(interrupt),
    ):
        tune.Tuner(
            _trainable(plan, decisions),
            tune_config=tune.TuneConfig(
                search_alg=_Search(
                    controller,
                    lambda trial: {**describe(trial), "num_threads": plan.cpus_per_worker},
                    is_over,
                    cost_tracker,
                    failures,
                ),
                scheduler=_Scheduler(controller, is_over, decisions, cost_tracker, failures),
                num_samples=-1,
                max_concurrent_trials=plan.concurrent,
                reuse_actors=not plan.is_nested,
            ),
            run_config=tune.RunConfig(
                storage_path=str(Path(scratch).resolve()),
                name="sweep",
                verbose=0,
                stop=interrupt,
                callbacks=list(callbacks),
                failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
                # A trial's own checkpoints are the truth; Tune's are neither made nor read.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    if failures.ending:
        raise ArtifactError(failures.ending)
    return interrupt.requested


def retrain_trials(controller: SweepController, plan: Layout, *, describe: Describe, cost_tracker: CostTracker) -> bool:
    """Train the best trials on until none is left that the budget admits, or the user interrupts.

    Args:
        controller: Decides which, and records it.
        plan: How they share the cluster.
        describe: Trial -> what the process of its training on needs: the run, its folder.
        cost_tracker: Knows what has been spent.

    Returns:
        Whether the user interrupted.
    """
    interrupt = _Interrupt(controller, cost_tracker, StorageFailures())
    retraining, task = controller.retraining, _retraining_task(plan)
    cost_tracker.num_slots = plan.concurrent
    running: dict[Any, Trial] = {}
    with _signals_caught(interrupt):
        while not interrupt.requested:
            while len(running) < plan.concurrent:
                trial = retraining.next(controller.trials, cost_tracker.funds())
                if trial is None:
                    break
                running[task.remote({**describe(trial), "num_threads": plan.cpus_per_worker})] = trial
            if not running:
                break
            done, _ = ray.wait(list(running), timeout=_POLL_S)
            for reference in done:
                _record_retrained(retraining, running.pop(reference).name, reference, cost_tracker)
            reason = retraining.refuses_all(cost_tracker.funds())
            if reason:
                _cancel(running)
                for trial in running.values():
                    retraining.complete(trial.name, status="stopped", error=reason)
                running.clear()
        _cancel(running)
    return interrupt.requested


def _retraining_task(plan: Layout) -> Any:
    options: dict[str, Any] = {"num_cpus": plan.cpus_per_worker, "num_gpus": plan.gpus_per_worker}
    if plan.workers_per_trial > 1:
        # As for `nested_train`: it reserves nothing that its own workers need.
        options = {"num_cpus": 0, "resources": _lasting_place()}
    function = partial(retrain, num_workers=plan.workers_per_trial, gpus_per_worker=plan.gpus_per_worker)

    def run(config: dict[str, Any]) -> dict[str, Any]:
        return function(config)

    return ray.remote(max_retries=MAX_RESTARTS, **options)(run)


def _record_retrained(retraining: Retraining, name: str, reference: Any, cost_tracker: CostTracker) -> None:
    """Record how the training of a trial ended; one that the disk or its machines broke is repeated on resuming."""
    try:
        message = ray.get(reference)
    except ray.exceptions.RayError as error:
        line = " ".join(str(error.cause if isinstance(error, ray.exceptions.RayTaskError) else error).split())[:500]
        retraining.complete(name, status="stopped", error=line)
        return
    seconds = float(message.get("seconds") or 0.0)
    usd = seconds / 3600 * cost_tracker.ledger.usd_per_hour / cost_tracker.num_slots
    retraining.complete(
        name, status=message["status"], metrics=finite(message["metrics"]), seconds=round(seconds, 3),
        usd=round(usd, 6), error=message.get("error") or None,
    )  # fmt: skip


def _cancel(running: Mapping[Any, Trial]) -> None:
    """Stop trainings at once; their checkpoints stay."""
    for reference in running:
        ray.cancel(reference, force=True)


def _trainable(plan: Layout, decisions: Any) -> Any:
    if plan.is_nested:
        driver = nested_train(decisions, num_workers=plan.workers_per_trial, gpus_per_worker=plan.gpus_per_worker)
        return tune.with_resources(driver, {"CPU": 0, **_lasting_place()})
    return tune.with_resources(ReusedActor, {"CPU": plan.cpus_per_worker, "GPU": plan.gpus_per_worker})


def _lasting_place() -> dict[str, float]:
    return _driver_place(ray.cluster_resources())


def _driver_place(resources: Mapping[str, float]) -> dict[str, float]:
    """Return what keeps drivers off the machines that their own workers need: those meant for them, else the head."""
    for name, share in ((DRIVER_RESOURCE, 1.0), (HEAD_RESOURCE, 0.001)):
        if name in resources:
            return {name: share}
    return {}


@contextmanager
def _signals_caught(interrupt: _Interrupt) -> Iterator[None]:
    """Stop cleanly on the first Ctrl-C, SIGTERM or closed terminal, at once on the second; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: Any) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
