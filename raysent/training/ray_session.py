"""A connection to Ray: start or join a cluster, ask what its nodes have, and run independent jobs on its cores."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import psutil

from raysent.errors import ConfigError, RaysentError, TrainingError, WorkerError
from raysent.kernels.device_choice import usable_gpus, use_device
from raysent.platforms import ENDS_WITH_ITS_PARENT, imports_from_working_folder, num_cores
from raysent.preemption import REFUSED_TOKEN, capture_stderr
from raysent.progress import VERBOSE_VARIABLE, messages, printable_message
from raysent.ray_private import starting_on_this_machine
from raysent.training.memory import ENVIRONMENT as ALLOCATOR
from raysent.training.ray_processes import (
    check_address,
    end_started,
    ended_while_starting,
    head_of,
    ray_folder,
    session_folder,
    shut_down,
    sigterm_interrupts,
    watching_ray,
    whose_folder,
)

Job = TypeVar("Job")
Result = TypeVar("Result")

_CONNECT_TIMEOUT_S = 10.0
_MAX_RETRIES = 3
_MAX_STARTS = 4
_WAIT_S = 1.0
_TOO_SLOW = "timed out during startup"

_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_ENVIRONMENT = {
    # Ray's controller checks for reports every 2 s by default, which is most of a short run.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    # It checks every 5 s by default whether a node is being reclaimed, which is all of a short notice.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Relative paths stay relative to the folder in which the command was started.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray starts an idle process for each core ahead, but trials need processes with an environment of their own.
    "RAY_prestart_worker_first_driver": "0",
    # A node of this machine that does not answer for 15 s is busy; Ray would call it dead and end what trains.
    "RAY_health_check_failure_threshold": "1000",
}


@contextlib.contextmanager
def ray_session(
    address: str | None,
    *,
    num_cpus: int | None = None,
    how_to_continue: str = "run the command again",
) -> Iterator[None]:
    """Connect to Ray inside the block; what is started for the block is stopped after it.

    Args:
        address: A running cluster; None starts Ray on this machine. An existing connection is used in any case.
        num_cpus: Cores of this machine to use if Ray is started; by default all that this process may use.
        how_to_continue: What the user can do when Ray ends inside the block.

    Raises:
        ConfigError: If no cluster answers at the address, or it requires another token.
        TrainingError: If Ray cannot start on this machine, or one of its own processes ends inside the block.
    """
    set_ray_environment()
    import ray  # noqa: PLC0415 - late, because it takes seconds that no other command should wait
    from ray.exceptions import AuthenticationError  # noqa: PLC0415

    if ray.is_initialized():
        yield
        return
    how_to_continue = printable_message(how_to_continue)
    verbose = VERBOSE_VARIABLE in os.environ
    options: dict[str, Any] = {
        "address": address or "local",
        "logging_level": logging.INFO if verbose else logging.ERROR,
        "log_to_driver": verbose,
    }
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": num_cpus or num_cores()}
    with os.fdopen(os.dup(2), "w") as stderr, capture_stderr() as captured:
        try:
            check_address(address, timeout_s=_CONNECT_TIMEOUT_S)
            if address is None:
                options["_temp_dir"] = ray_folder()
            with contextlib.ExitStack() as stack:
                if address is None:
                    stack.enter_context(_starting_here())
                _init(how_to_continue, stderr.fileno(), **options)
            _protect_token()
            session_folder()
        except (OSError, ValueError, AuthenticationError) as error:
            if isinstance(error, AuthenticationError) or REFUSED_TOKEN in captured():
                raise ConfigError(
                    f"address {address}: requires its token, and none or another was given; set RAY_AUTH_MODE=token, "
                    "and RAY_AUTH_TOKEN_PATH to the token's file unless that is ~/.ray/auth_token, with which Ray "
                    "requires tokens without being asked to"
                ) from None
            if address is None:
                raise _not_started(error) from None
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"address {address}: no Ray cluster answers there ({reason})"
            ) from None
    if address is not None:
        _say_whose(address)
    look = None if address is None else head_of(address)
    with watching_ray(how_to_continue, look) as end_watch:
        try:
            yield
        finally:
            end_watch()
            shut_down()


@lru_cache
def _say_whose(address: str) -> None:
    """Print once whose folder a cluster has on this machine: who may write there may act as the sweep."""
    session = session_folder()
    if session is None:
        return
    whose = whose_folder(session)
    if whose:
        messages.print(f"address {address}: {whose}")


def _init(how_to_continue: str = "run the command again", stderr: int = 2, **options: Any) -> None:
    """Call `ray.init`, again where a busy machine took longer than the 30 s that Ray waits, or what it started ended.

    Where the call does not return after that, this process ends with one line on the file descriptor `stderr`.
    """
    import ray  # noqa: PLC0415 - late, as above

    for _ in range(_MAX_STARTS):
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        try:
            with (
                sigterm_interrupts(),
                watching_ray(how_to_continue, ended_while_starting(before), stderr),
            ):
                ray.init(job_config=_job(), **options)
            return
        except TrainingError:
            shut_down()
            end_started(before)
        # Ray raises nothing more specific: Exception, in earlier versions RuntimeError.
        except Exception as error:
            if _TOO_SLOW in str(error):
                shut_down()
                end_started(before)
            elif type(error) in (Exception, RuntimeError):
                raise _not_started(error) from None
            else:
                raise
    raise TrainingError(
        f"Ray did not start in {_MAX_STARTS} attempts; the machine is too busy; try again later"
    )


def _job() -> Any:
    """Return a job whose processes import from the working folder only if this process does.

    Ray puts that folder before all others.
    """
    from ray.job_config import JobConfig  # noqa: PLC0415 - late, as above

    class Job(JobConfig):
        def _serialize(self) -> Any:
            if not imports_from_working_folder():
                working_folder = os.path.abspath(os.curdir)  # noqa: PTH100 - as Ray writes it
                self._py_driver_sys_path = [
                    path for path in self._py_driver_sys_path if path != working_folder
                ]
            return super()._serialize()

    return Job()


def _not_started(error: Exception) -> TrainingError:
    return TrainingError(f"Ray cannot start on this machine: {' '.join(str(error).split())}")


@contextlib.contextmanager
def _starting_here() -> Iterator[None]:
    """Let what Ray starts inside the block listen on 127.0.0.1 alone, in process groups of its own.

    The variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER has the last word on the first, if it is set. On Linux Ray's
    processes end with this one; elsewhere Ray ends them by their group, which they keep.
    """
    is_open = _LOOPBACK_VARIABLE in os.environ
    if not is_open:
        os.environ[_LOOPBACK_VARIABLE] = "0"  # for Ray's own processes
    try:
        with starting_on_this_machine(
            only_loopback=not is_open, in_own_groups=ENDS_WITH_ITS_PARENT
        ):
            yield
    finally:
        if not is_open:
            del os.environ[_LOOPBACK_VARIABLE]


def _protect_token() -> None:
    """Let no other user read the file of the token that Ray may have written."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError):
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def set_ray_environment() -> None:
    """Set the environment variables that reduce Ray's output, its polling intervals and the memory of its processes.

    Values that the user set are kept.
    """
    for name, setting in {**_ENVIRONMENT, **ALLOCATOR}.items():
        os.environ.setdefault(name, setting)


def output_to_stderr() -> contextlib.AbstractContextManager[object]:
    """Redirect Ray's messages about lost nodes to standard error; standard output is for results."""
    return contextlib.redirect_stdout(sys.stderr)


def node_name(node_id: str | None = None) -> str:
    """Return the name of a Ray node, for ledgers and messages; by default of the node of this process."""
    import ray  # noqa: PLC0415 - late, as above

    return str(node_id or ray.get_runtime_context().get_node_id())[:12]


def has_cores() -> bool:
    """Return whether a node of the cluster has cores for jobs."""
    return any(resources.get("CPU", 0) >= 1 for resources in _of_nodes())


def cpus_of_largest_node() -> int:
    """Return the cores of the largest node, the most that one worker can use."""
    return max([1, *(int(resources.get("CPU", 0)) for resources in _of_nodes())])


def has_gpus() -> bool:
    """Return whether a node of the cluster has a GPU that may be used."""
    return any(usable_gpus(resources.get("GPU", 0)) >= 1 for resources in _of_nodes())


def use_reserved_device() -> None:
    """Let this process of Ray compute on what is reserved for it; Ray does not hide the GPUs of a job without any."""
    import ray  # noqa: PLC0415 - late, as above

    if ray.is_initialized():
        use_device(None if ray.get_gpu_ids() else "cpu")


def work_in(folder: Path | str) -> None:
    """Work in the folder of the caller, if this node has it, so that relative paths mean the same.

    A process of Ray has the folder in which Ray was started: in a notebook, another one.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _of_nodes() -> list[dict[str, float]]:
    """Return the resources of each node that is there, by their names."""
    import ray  # noqa: PLC0415 - late, as above

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def num_jobs_at_once(gpus_each: float = 0.0) -> int:
    """Return how many jobs of one core, and so many GPUs, the nodes that are there can run at once; at least 1."""
    num_jobs = 0
    for resources in _of_nodes():
        num_fitting = resources.get("CPU", 0)
        if gpus_each:
            num_fitting = min(num_fitting, resources.get("GPU", 0) / gpus_each)
        num_jobs += int(num_fitting)
    return max(1, num_jobs)


def resources_per_worker(num_workers: int, gpus_per_worker: float | None) -> tuple[int, float]:
    """Return cores and GPUs of each worker.

    Raises:
        ConfigError: If the cluster does not have that many.
    """
    import ray  # noqa: PLC0415 - late, as above

    resources: dict[str, float] = ray.cluster_resources()
    num_cpus = int(resources.get("CPU", 0))
    num_gpus = usable_gpus(resources.get("GPU", 0.0))
    if num_workers > num_cpus:
        raise ConfigError(f"workers {num_workers}: must be at most {num_cpus}, the cluster's CPUs")
    gpus = gpus_per_worker
    if gpus is None:
        # One each, if there are enough.
        gpus = float(num_gpus >= num_workers)
    if gpus * num_workers > num_gpus:
        raise ConfigError(
            f"gpus_per_worker {gpus:g}: {num_workers} workers need {gpus * num_workers:g} GPUs; "
            f"the cluster has {num_gpus:g}"
        )
    return min(num_cpus // num_workers, cpus_of_largest_node()), gpus


def map_on_ray(
    function: Callable[..., Result],
    jobs: Iterable[Job],
    *,
    shared: Sequence[object] | None = None,
    common: object | None = None,
    gpus_each: float | Callable[[], float] = 0.0,
    address: str | None = None,
    max_running: int | None = None,
    on_wait: Callable[[], object] = lambda: None,
) -> Generator[tuple[int, Result]]:
    """Run independent jobs on a cluster, one core each; a job whose process or node is lost is run again.

    Paths in jobs must be reachable from every node.

    Args:
        function: Runs one job; importable on the nodes.
        jobs: The jobs; they and their results are sent over the network. With `max_running`, a job is taken only when
            it can be started.
        shared: One value per job, such as rows that many jobs read: the second argument of the function. An object that
            several jobs have is sent to each node once.
        common: One value for all jobs, such as a model, in place of `shared`.
        gpus_each: GPUs of each job, beside its core; or a function that returns them once there is a cluster.
        address: A cluster, instead of this machine.
        max_running: Jobs at the same time; by default as many as there are cores.
        on_wait: Called at least every second while jobs run; what it raises ends all of them.

    Yields:
        The index of a job and its result, in the order in which jobs finish.

    Raises:
        ConfigError: If no cluster answers at the address.
        WorkerError: If a job has ended several processes.
        RaysentError: The error of a job.
    """
    import ray  # noqa: PLC0415 - late, as above

    with ray_session(address):
        num_gpus = gpus_each() if callable(gpus_each) else gpus_each
        remote = ray.remote(num_cpus=1, num_gpus=num_gpus, max_retries=_MAX_RETRIES)(_run_job)
        to_start = iter(enumerate(jobs))
        # By their identities, as equal objects may be costly to compare.
        sent: dict[int, Any] = {}
        for shared_object in shared or ():
            if id(shared_object) not in sent:
                sent[id(shared_object)] = ray.put(shared_object)
        sent_to_all = () if common is None else (ray.put(common),)
        running: dict[Any, int] = {}

        def start(count: int | None) -> None:
            for index, job in islice(to_start, count):
                second_arguments = sent_to_all
                if shared is not None:
                    second_arguments = (sent[id(shared[index])],)
                reference = remote.remote(function, Path.cwd(), job, *second_arguments)
                running[reference] = index

        start(max_running)
        try:
            while running:
                finished, _ = ray.wait(list(running), num_returns=1, timeout=_WAIT_S)
                on_wait()
                for reference in finished:
                    index = running.pop(reference)
                    start(1)
                    yield index, _result_of(reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _result_of(job: Any) -> Any:
    """Return the result of a job, or raise what it raised."""
    import ray  # noqa: PLC0415 - late, as above

    try:
        return ray.get(job)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RaysentError):
            raise error.cause from None
        raise
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    ):
        raise WorkerError(
            f"address: a job has ended {_MAX_RETRIES + 1} processes, perhaps for lack of memory; run fewer at a time"
        ) from None


def _run_job(function: Callable[..., Any], folder: Path, job: Any, *shared: Any) -> Any:
    work_in(folder)
    use_reserved_device()
    return function(job, *shared)
