"""What holds for all tests: how they are divided among processes that run them side by side."""

from __future__ import annotations

import contextlib
import os
import signal
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from caches import share_cache
from filelock import FileLock
from hypothesis import settings
from installed import build, install, install_with

if TYPE_CHECKING:
    from command import CommandLine

# Processes side by side, each with a thread a core, would wait for each other's threads most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives its workers what the rest of the machine leaves over: beside other tests, next to nothing.
os.environ.setdefault("RAY_worker_niceness", "0")
# No test asks the hub, and what a machine has beside the checkout takes no part; tests of encoders name theirs.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAYSENT_WITH", "none")
# No test compares clocks: on a busy machine an example may take any time.
settings.register_profile("raysent", deadline=None)
settings.load_profile("raysent")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make release-check` name the interpreters for which the wheel is installed."""
    about = "Install the wheel for this interpreter, from an index, in place of links to what is installed here. Repeatable."
    parser.addoption("--install-with", action="append", default=[], metavar="PYTHON", help=about)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs the installed wheel once with each interpreter that is named."""
    pythons = metafunc.config.option.install_with
    if pythons and "environment" in metafunc.fixturenames:
        metafunc.parametrize("environment", pythons, indirect=True, scope="session")


def pytest_configure() -> None:
    """Refuse to run where wings would be missed: an editable install has the entry points of the time it was made."""
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    groups = tomllib.loads(pyproject.read_text("utf-8"))["project"]["entry-points"]
    listed = {(group, *point) for group, points in groups.items() for point in points.items()}
    installed = {
        (point.group, point.name, point.value) for point in distribution("raysent").entry_points
    }
    if not listed <= installed:
        raise pytest.UsageError(
            "raysent's installed entry points are not those of pyproject.toml; run 'make setup'"
        )


def _of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the processes of a run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give all tests of a run a cache of their own: what earlier code left in the user's cache is not found."""
    share_cache(_of_all_processes(tmp_path_factory) / "cache")


@pytest.fixture(autouse=True)
def working_folder() -> Iterator[None]:
    """Come back to the folder of before: code of Ray's workers, called in this process, works in that of its sweep."""
    with contextlib.chdir(Path.cwd()):
        yield


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return an sdist of this checkout, and the wheel that is built from that sdist; built once a run."""
    folder = _of_all_processes(tmp_path_factory) / "dist"
    folder.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        made = sorted(folder.iterdir())
        return (made[1], made[0]) if len(made) == 2 else build(folder)


@pytest.fixture(scope="session")
def environment(
    request: pytest.FixtureRequest,
    archives: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Return a virtual environment with the wheel and the dependencies that it declares, and nothing else."""
    python = getattr(request, "param", None)
    if python is not None:
        return install_with(python, archives[1], tmp_path_factory.mktemp("installed") / "venv")
    folder = _of_all_processes(tmp_path_factory) / "environment"
    with FileLock(folder.with_suffix(".lock")):
        return folder if folder.exists() else install(archives[1], folder)


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """Run a local object store, and return its URL."""
    from object_store import moto_server  # two seconds that only tests of buckets need

    with moto_server() as url:
        yield url


@pytest.fixture
def bucket(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client of an empty bucket, which `s3://` addresses name."""
    from object_store import CREDENTIALS, empty_bucket  # late, as above

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": object_store}.items():
        monkeypatch.setenv(name, value)
    with empty_bucket(object_store) as client:
        yield client


def _scripted(service: str) -> Any:
    """Return a fixture that yields a client of a service of AWS, and the stubber by which a test scripts its answers."""

    @pytest.fixture
    def client() -> Iterator[tuple[Any, Any]]:
        import boto3  # late, as above
        from botocore.stub import Stubber

        found = boto3.client(
            service, region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
        )
        with Stubber(found) as stubber:
            yield found, stubber

    return client


ec2, pricing = _scripted("ec2"), _scripted("pricing")


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let a closed terminal and Ctrl-C end what a test starts, also where the tests run under `nohup` or in background."""
    defaults = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, default) for number, default in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


_RAY = contextlib.ExitStack()


@pytest.fixture(scope="module")
def running_ray() -> None:
    """Have Ray of two cores in this process, as a notebook does: the files that use it follow each other, and share it."""
    import ray

    from raysent.training.ray_session import ray_session  # late, as above

    def check_end() -> None:
        assert not ray.is_initialized()

    if not ray.is_initialized():
        _RAY.callback(check_end)
        _RAY.enter_context(ray_session(None, num_cpus=2))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End Ray before the first file that does not use it."""
    if item.path not in item.config.stash[_WITH_RAY]:
        _RAY.close()


def pytest_sessionfinish() -> None:
    """End Ray."""
    _RAY.close()


_WITH_RAY = pytest.StashKey[set[Path]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that start Ray, which take the longest; of what takes minutes, run the quick cells alone.

    A file's tests stay together (`--dist loadfile`). `-m chaos` and `-m journey` run what takes longer.
    """
    slow = []
    for item in items:
        takes = [marker for marker in ("chaos", "journey") if item.get_closest_marker(marker)]
        is_asked = item.get_closest_marker("quick") or any(
            marker in config.option.markexpr for marker in takes
        )
        if item.get_closest_marker("release"):
            takes, is_asked = ["release"], bool(config.option.install_with)
        if takes and not is_asked:
            slow.append(item)
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)
    shared = {item.path for item in items if "running_ray" in getattr(item, "fixturenames", ())}
    with_ray = {item.path for item in items if item.get_closest_marker("cluster")} - shared
    items.sort(key=lambda item: (item.path not in with_ray, item.path not in shared))
    config.stash[_WITH_RAY] = shared


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Let this process handle Ctrl-C, which a background process ignores; returns what presses it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield partial(signal.raise_signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def raysent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """Return the command line, which runs in this process, in a folder of the test's own."""
    from command import (
        CommandLine,
    )  # imports numpy, which reads the environment that this file sets

    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield a client of EC2 of an empty account in memory, with keys that must not leak and a bucket."""
    import boto3  # late, as above
    from moto import mock_aws
    from submissions import CANARY

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY + "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("raysent.cluster.account.PROFILE_S", 0.0)
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="my-bucket")
        yield boto3.client("ec2", region_name="us-east-1")
