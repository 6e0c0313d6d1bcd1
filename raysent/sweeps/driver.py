"""Start a sweep, or resume one that was interrupted or killed.

Before Ray starts, the text that trials share is prepared, and the whole space is checked against it.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raysent.config import Override
from raysent.cost import Prices, SpotUsd
from raysent.data.corpus import shared_cache
from raysent.errors import ArtifactError, ConfigError, DataError, RaysentError
from raysent.evaluation.task import VALIDATED
from raysent.evaluation.tasks import find_task
from raysent.kernels.device_choice import chosen_device
from raysent.parallel import Progress
from raysent.screen import LOG_FILE
from raysent.storage import (
    Lease,
    address_of,
    is_locked,
    refresh,
    remove,
    remove_folder,
    to_uri,
)
from raysent.storage.layout import (
    BEST_FOLDER,
    ENCODER_FOLDER,
    JOURNAL_FILE,
    LEDGER_FILE,
    LOCK_FILE,
    MODEL_FILE,
    MODEL_REPORT_FILE,
    PREPARED_FOLDER,
    RUN_FILE,
    SOUP_FOLDER,
    SWEEP_FILE,
    TRIALS_FILE,
    TRIALS_FOLDER,
)
from raysent.sweeps.controller import SweepController
from raysent.sweeps.cost_tracker import CostTracker, check_ledger, spent_usd
from raysent.sweeps.fleet import Fleet, MakeFleet, connect, list_of
from raysent.sweeps.journal import (
    Journal,
    Listener,
    has_completed,
    read_events,
    session_lengths,
)
from raysent.sweeps.layout import Layout
from raysent.sweeps.machines import alive_nodes, check_files, share
from raysent.sweeps.ray_tune import run_trials
from raysent.sweeps.record import (
    SweepRecord,
    check_journal,
    check_versions,
    load_record,
    save_record,
    trial_folder,
    write_trials_table,
)
from raysent.sweeps.space import SearchSpace, with_overrides
from raysent.sweeps.trial import Trial
from raysent.training.checkpoint import drop_checkpoints
from raysent.training.data import TrainingData, open_training_data, source_key
from raysent.training.memory import PROCESS_BYTES, check_memory, estimate_bytes, machine_bytes
from raysent.training.outcome import load_model_report
from raysent.training.plan import check_run
from raysent.training.ray_session import output_to_stderr, ray_session

# More than any machine has; where trials run on machines that are not known yet.
_LARGEST_BYTES = 64 << 40


@dataclass(frozen=True)
class Surroundings:
    """Who follows a session of a sweep, and where its machines and their prices come from.

    Attributes:
        listener: Called with every event of the journal as it is written.
        progress: Called with the progress of the corpus's preparation.
        spot: Source of current spot prices; None without one.
        make_fleet: Makes the machines of a cluster that grows.
        lease: The lease of the run folder, held by the caller for what follows too; None to hold it for the training.
    """

    listener: Listener = lambda _: None
    progress: Progress | None = None
    spot: SpotUsd | None = None
    make_fleet: MakeFleet = lambda *_: None
    lease: Lease | None = None


def start(
    record: SweepRecord,
    folder: Path,
    around: Surroundings = Surroundings(),
    *,
    on_prepared: Callable[[Mapping[str, Any]], object] = lambda _: None,
) -> None:
    """Sweep a space into a new run folder.

    Args:
        record: What is swept, and how.
        folder: The run folder; must not hold a sweep yet.
        around: Who follows the sweep, and its machines.
        on_prepared: Called before Ray starts with what `prepare_space` returned.

    Raises:
        RaysentError: For a folder that is taken, a corpus that cannot be used, or a cluster that is too small.
    """
    check_free(folder)
    record = replace(record, started=round(time.time(), 3))
    try:
        record = replace(record, facts=_prepared(record, folder, around.progress))
        save_record(folder, record)
        on_prepared(record.facts)
        _sweep(record, folder, around)
    except RaysentError:
        if around.lease is not None or not is_locked(folder):
            _remove_unbegun(folder)
        raise


def resume(
    folder: Path,
    around: Surroundings = Surroundings(),
    *,
    limits: Sequence[Override] = (),
    address: str | None = None,
    accept_versions: bool = False,
) -> None:
    """Resume the sweep of a run folder; a finished trial is never trained again.

    Args:
        folder: The run folder.
        around: As for `start`.
        limits: Another budget or deadline, kept from now on; what was spent stays spent.
        address: Another address of the sweep's cluster, kept from now on.
        accept_versions: Continue with versions of other numerics, which are recorded from now on.

    Raises:
        RaysentError: If the folder holds no sweep, another process is at work on it, or its files are damaged.
    """
    record = check_versions(folder, load_record(folder), is_accepted=accept_versions)
    record = replace(
        record, space=with_overrides(record.space, limits), device=chosen_device() or record.device
    )
    if address is not None and address != record.address:
        if record.address is None:
            raise ConfigError(
                f"address {address}: must be given for a sweep on a cluster; this one ran on a machine"
            )
        record = replace(record, address=address)
    _check_rows(record, _prepared(record, folder, around.progress), folder)
    _sweep(record, folder, around)


def _check_rows(record: SweepRecord, facts: Mapping[str, Any], folder: Path) -> None:
    """Refuse to continue with trials of another text, or ranked by other rows of tasks, than those before them."""
    known, text = (one.get("corpus", {}) for one in (record.facts or {}, facts))
    # Version 0.2.0, which recorded no kind of vocabulary, made other keys of the same text.
    if "vocabulary" in known and known["key"] != text["key"]:
        raise DataError(
            f"{address_of(folder)}: its text has changed since it began; restore it, or begin another sweep"
        )
    before, now = (one.get("pool", {}).get("hash") for one in (record.facts or {}, facts))
    if record.space.metric == "downstream" and None not in (before, now) and before != now:
        raise DataError(
            f"{address_of(folder)}: its trials are ranked by other rows than the tasks have now: a table changed, or "
            "an older version of raysent divided it otherwise; restore the table, or begin another sweep"
        )


def _prepared(record: SweepRecord, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Prepare the text of a space; the first machine of a cluster shares it with the others through the run folder."""
    if not record.space.limits.trials:  # no text is read
        return {}
    with shared_cache(_shared_text(record, folder), publishes_all=True):
        return prepare_space(record.space, progress=progress, is_local=record.address is None)


def _shared_text(record: SweepRecord, folder: Path) -> str | None:
    """Return where the machines of a sweep share prepared text; None for a sweep on this machine."""
    return None if record.address is None else to_uri(folder / PREPARED_FOLDER)


def prepare_space(
    space: SearchSpace, *, progress: Progress | None = None, is_local: bool = False
) -> dict[str, Any]:
    """Build or open the corpus, and check the run at every edge of the space against it.

    Args:
        space: The space.
        progress: Called with the progress of the corpus's preparation.
        is_local: Whether trials run on this machine, whose memory then is their limit.

    Returns:
        What is known of `corpus` and `pool`, and the memory of the largest trial in bytes, as plain values.

    Raises:
        RaysentError: With the place in the search space of the value at fault, where there is one.
    """
    opened: dict[str, TrainingData] = {}
    facts: dict[str, Any] = {}
    first, memory_bytes = "", 0
    for params in space.edges():
        config = space.config(params)
        if space.metric not in config.metrics:
            others = "none; set validation.documents, validation.sts or validation.similarity"
            reports = f"it reports {', '.join(config.metrics) or others}"
            raise space.document.error(
                ("metric",),
                f"objective {config.objective.type} does not report '{space.metric}' here; {reports}",
            )
        try:
            if space.limits.memory_bytes is not None:
                check_memory(config, space.limits.memory_bytes, source="limits.memory")
            check_memory(
                config,
                machine_bytes() if is_local else _LARGEST_BYTES,
                source="memory of the machine",
            )
            memory_bytes = max(memory_bytes, PROCESS_BYTES + estimate_bytes(config))
            key = source_key(config)
            if key not in opened:
                opened[key] = open_training_data(config, progress=progress)
            training_data = opened[key]
            validator = check_run(config, training_data, num_workers=space.limits.workers_per_trial)
        except RaysentError as error:
            raise space.located(error, params) from None
        text = {"path": config.source.path, **training_data.facts()}
        facts = facts or {"corpus": text, "pool": validator.as_json()}
        found = validator.hash_of(space.metric)
        first = first or found
        if found != first:
            names = [
                name for name in params if name.split(".")[0] in ("corpus", "pairs", "validation")
            ]
            raise space.document.error(
                ("search", *(names[:1] or list(params)[:1])),
                "gives trials different validation pools, so that none could be compared; set it in base",
            )
    return {**facts, "memory_bytes": memory_bytes}


def check_task_names(space: SearchSpace) -> None:
    """Check that the tasks that a space names are known; their files may be missing.

    Raises:
        ConfigError: With the line of the name that is not.
    """
    for name in space.evaluation.tasks or []:
        try:
            find_task(name, scorings=VALIDATED, option="")
        except RaysentError as error:
            raise space.document.error(("evaluation", "tasks"), str(error)) from None


def check_free(folder: Path) -> None:
    """Refuse a folder that is in use, before anything takes time.

    Raises:
        ArtifactError: If a sweep, a training or a file stands there.
    """
    where = address_of(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(
            f"{where}: a file stands where the run folder is needed; name another run folder"
        )
    if (folder / SWEEP_FILE).exists() or (folder / JOURNAL_FILE).exists():
        raise ArtifactError(
            f"{where}: holds a sweep already; continue with 'raysent resume {where}' or name another run folder"
        )
    if (folder / RUN_FILE).exists():
        raise ArtifactError(f"{where}: holds a training; name another run folder")
    for name in (BEST_FOLDER, ENCODER_FOLDER, SOUP_FOLDER, TRIALS_FOLDER):
        # A sweep replaces these folders: one that is there before it is someone else's.
        if (folder / name).exists():
            raise ArtifactError(
                f"{where}: holds '{name}' of no sweep, which a sweep here would replace; "
                "name another run folder"
            )


def _remove_unbegun(folder: Path) -> None:
    """Remove what a sweep left that came to no trial and no cost, so that its folder can be named again."""
    with contextlib.suppress(RaysentError, OSError):
        if any(event["event"] == "suggested" for event in read_events(folder)):
            return
        if spent_usd(folder):  # it counts, whatever follows
            return
        for name in (SWEEP_FILE, JOURNAL_FILE, LEDGER_FILE, TRIALS_FILE, LOG_FILE, LOCK_FILE):
            remove(folder / name)
        remove_folder(folder / PREPARED_FOLDER, below=folder)
        folder.rmdir()  # refuses where anything else is in it


def _sweep(record: SweepRecord, folder: Path, around: Surroundings) -> None:
    workers = contextlib.ExitStack()
    journal = Journal(folder, listeners=[around.listener], lease=around.lease)
    try:
        check_journal(folder, journal.past)
        check_ledger(folder, journal.past)
        controller = SweepController(
            record.space, seed=record.seed, write=journal.write, past=journal.past, budget=record.budget,
            one_line=journal.one_line,
        )  # fmt: skip
        if (
            record.values() != load_record(folder).values()
        ):  # changed by a resume, which may go on with it from here
            save_record(folder, record)
        interrupted = False
        if not controller.is_complete:
            prices = Prices(record.space.cost, spot=around.spot)
            session = _Session(record, folder, around, journal, controller, prices)
            interrupted = session.train(workers)
        elif not has_completed(journal.past):
            # A driver was killed between the end of the last trial and this line.
            journal.write("completed", reason=controller.why_ended)
        if record.address is not None and not interrupted:
            remove_folder(folder / PREPARED_FOLDER, below=folder)
        trials = list(controller.trials.values())
        for trial in trials:
            if trial.status == "stopped":
                # It is never resumed; its checkpoints are most of its folder.
                drop_checkpoints(trial_folder(folder, trial.number))
        write_trials_table(folder, record.space, trials)
        if not interrupted:
            workers.pop_all()  # they stay for the evaluation, which ends them
    finally:
        workers.close()
        journal.close()


@dataclass(frozen=True)
class _Session:
    """The training of one session, connected to Ray and billed."""

    record: SweepRecord
    folder: Path
    around: Surroundings
    journal: Journal
    controller: SweepController
    prices: Prices

    def train(self, workers: contextlib.ExitStack) -> bool:
        """Train until nothing is left; return whether the user interrupted. `workers` closes what grows."""
        record, folder, controller = self.record, self.folder, self.controller
        again = f"raysent resume {shlex.quote(address_of(folder))}"
        with output_to_stderr(), ray_session(record.address, how_to_continue=again):
            if record.address is not None:
                check_files(record.space, folder)
            num_begun = sum(trial.status != "waiting" for trial in controller.trials.values())
            num_left = max(1, record.space.limits.trials - num_begun)
            plan = share(
                record.space, address=record.address, num_trials=num_left, prices=self.prices
            )
            fleet = None
            if record.address is not None:
                fleet = self.around.make_fleet(
                    record.space.cost, record.budget, self.prices, plan, record.started
                )
            if fleet is not None:
                workers.callback(
                    fleet.close
                )  # whatever happens, unless the evaluation takes them over
            with self._cost_tracker(fleet) as cost_tracker:
                if fleet is not None:
                    connect(fleet, cost_tracker, controller, record.budget, self.around.listener)
                interrupted = self._search(cost_tracker, plan)
                if fleet is not None:
                    fleet.hand_over()  # nothing is polled meanwhile
                refresh(folder)  # with what other machines trained; they stand there meanwhile
                if controller.closed and not interrupted:
                    controller.abandon(partial(_metrics_of_model, folder))
            self.journal.write(
                "interrupted" if interrupted else "completed", reason=controller.why_ended
            )
        return interrupted

    def _cost_tracker(self, fleet: Fleet | None) -> CostTracker:
        return CostTracker(
            self.folder,
            self.record.space.cost,
            nodes=alive_nodes,
            prices=self.prices,
            machines=list_of(fleet),
            elapsed_s=max(0.0, time.time() - self.record.started),
        )

    def _search(self, cost_tracker: CostTracker, plan: Layout) -> bool:
        budget = self.record.budget
        most_expensive = self.prices.most_expensive
        earlier_s = sum(session_lengths(read_events(self.folder)))
        self.journal.write(
            "session",
            trials=self.record.space.limits.trials,
            concurrent=plan.concurrent,
            earlier_s=round(earlier_s, 1),
            spent_usd=round(cost_tracker.ledger.spent_usd, 6),
            usd_per_hour=most_expensive.usd_per_hour,
            price=most_expensive.source,
            budget=budget.values(),
        )
        begun_s = time.monotonic() - earlier_s  # time between sessions does not count
        return run_trials(
            self.controller,
            plan,
            describe=self._describe,
            is_over=lambda: budget.is_over(time.monotonic() - begun_s),
            cost_tracker=cost_tracker,
        )

    def _describe(self, trial: Trial) -> dict[str, Any]:
        space = self.record.space
        place = trial_folder(self.folder, trial.number)
        config = space.config(trial.params)
        if "seed" not in trial.params and "seed" not in space.base:
            config = config.model_copy(update={"seed": trial.seed})
        return {
            "trial": place.name,
            "run": config.model_dump(mode="json"),
            "interruptions_per_hour": space.cost.interruptions_per_hour,
            "folder": to_uri(place),
            "prepared": _shared_text(self.record, self.folder),
            # Where the money may end between two reports, the model of one has to be there.
            "models_at_reports": "some" if self.record.budget.may_halt else "none",
            "memory_bytes": space.limits.memory_bytes,
        }


def _metrics_of_model(folder: Path, trial: Trial) -> Mapping[str, float | None] | None:
    place = trial_folder(folder, trial.number)
    if (place / MODEL_FILE).is_file() and not (place / MODEL_REPORT_FILE).exists():
        return trial.metrics  # of a version that saved the model of every report
    report = load_model_report(place)
    return None if report is None else report.metrics
