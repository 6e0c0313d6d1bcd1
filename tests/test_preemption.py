"""The node agent: it polls the metadata service by AWS's protocol, and drains once per notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from machines import Metadata, metadata_service

from raysent.preemption import InstanceMetadata, MetadataError, NodeAgent, drain_node
from raysent.preemption.ray_nodes import USUAL_NOTICE_S, DrainError, _Deadline


@pytest.fixture
def service() -> Iterator[Metadata]:
    """A metadata service without a notice."""
    with metadata_service() as running:
        yield running


def _agent(service: Metadata, refusals: int = 0) -> tuple[NodeAgent, list[float]]:
    """Return an agent and the seconds left of each accepted drain; the first `refusals` drains fail."""
    drained: list[float] = []
    num_refusals = [refusals]

    def drain(left_s: float, why: str) -> None:
        num_refusals[0] -= 1
        if num_refusals[0] >= 0:
            raise DrainError("no cluster")
        drained.append(left_s)

    return NodeAgent(InstanceMetadata(service.url), drain, poll_s=0.01), drained


def test_metadata_uses_a_token_and_renews_it(service: Metadata) -> None:
    """Status 404 means no notice; an expired token is replaced."""
    metadata = InstanceMetadata(service.url)
    assert metadata.notice() is None
    service.token = "second"
    before_s = time.time()
    service.arm(120)
    after_s = time.time()
    notice = metadata.notice()
    assert notice is not None
    assert notice.action == "terminate"
    assert before_s + 119 <= notice.time_s <= after_s + 120  # whole seconds


def test_metadata_endpoint_of_the_environment(
    service: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is read from the variable that AWS's libraries use."""
    assert InstanceMetadata().endpoint == "http://169.254.169.254"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url + "/")
    assert InstanceMetadata().notice() is None
    assert service.num_requests == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 60_000, '{"action": "stop"}', '{"action": "stop", "time": "soon"}']
)
def test_metadata_refuses_an_invalid_notice(service: Metadata, text: str) -> None:
    """The error shows the text."""
    service.say(text)
    with pytest.raises(
        MetadataError, match="spot/instance-action: must hold an action and a time; given"
    ):
        InstanceMetadata(service.url).notice()


def test_agent_drains_once_for_a_notice_and_again_for_another_deadline(service: Metadata) -> None:
    """Polling the same notice repeatedly drains once."""
    agent, drained = _agent(service)
    agent.poll()
    assert drained == []
    for number, seconds in enumerate((10_000, 2000)):
        armed_s = time.time()
        service.arm(seconds)
        agent.poll()
        agent.poll()
        assert len(drained) == number + 1
        assert seconds - 1 - (time.time() - armed_s) <= drained[-1] <= seconds


def test_agent_continues_after_failures(
    service: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing service and a refusing cluster are logged once each, and no notice is lost."""
    agent, drained = _agent(service, refusals=1)
    service.is_failing = True
    agent.poll()
    agent.poll()
    assert [record.message for record in caplog.records] == [
        f"{service.url}: must return a token; status 503; retried every 0.01 s"
    ]
    service.is_failing = False
    service.arm(60)
    agent.poll()
    assert drained == []
    agent.poll()
    assert len(drained) == 1


def test_agent_logs_a_repeated_refusal_once(
    service: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain is retried until the cluster accepts it; the same reason is logged once."""
    agent, drained = _agent(service, refusals=5)
    service.arm(60)
    for _ in range(6):
        agent.poll()
    assert len(drained) == 1
    logged = [record.message.split(" in ")[0] for record in caplog.records]
    assert logged == ["no cluster; retried every 0.01 s", "drained for terminate"]


def test_agent_treats_a_shutdown_as_a_notice(service: Metadata) -> None:
    """A shutdown drains at once with a short deadline, unless a notice has drained already."""
    agent, drained = _agent(service)
    agent.shut_down()
    before_s = time.time()
    agent.run()
    assert len(drained) == 1
    assert 25 - (time.time() - before_s) <= drained[0] <= 25
    agent, drained = _agent(service)
    service.arm(3600)
    agent.poll()
    agent.shut_down()
    agent.run()
    assert len(drained) == 1


def test_agent_process_stops_at_sigterm_without_a_cluster(service: Metadata) -> None:
    """The process logs one line that the drain failed, and exits with status 0."""
    command = [
        sys.executable,
        "-m",
        "raysent.preemption",
        "--address",
        "127.0.0.1:1",
        "--node-id",
        "ab",
        "--poll-s",
        "60",
    ]
    agent = subprocess.Popen(
        command,
        env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not service.num_requests:
        assert agent.poll() is None
        time.sleep(0.05)
    agent.send_signal(signal.SIGTERM)
    _, errors = agent.communicate(timeout=600)
    assert agent.returncode == 0
    assert "127.0.0.1:1: must be a cluster whose nodes can be drained; Ray" in errors
    assert "Traceback" not in errors


def test_agent_starts_without_torch_and_ray() -> None:
    """The agent runs on every node, so it must be small."""
    code = "import sys, raysent.preemption.__main__; print(sorted({'torch', 'ray'} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_drain_node_reports_a_missing_call_of_ray(
    service: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of Ray without the call raises one clear error at once."""
    import ray._raylet

    address = service.url.removeprefix("http://")
    monkeypatch.delattr(ray._raylet, "GcsClient")
    with pytest.raises(
        DrainError,
        match=rf"^{address}: must be a cluster whose nodes can be drained; Ray .*GcsClient",
    ):
        drain_node(address, "ab", left_s=10, why="a test")


def test_deadline_of_a_drain_without_a_time_is_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray returns 0 for a drain without deadline, and None without a drain."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    deadlines_ms: list[int | None] = [None, 0, 0, 1_030_000, None]
    deadline = _Deadline(lambda: deadlines_ms.pop(0))
    assert deadline() is None
    assert deadline() == USUAL_NOTICE_S
    now[0] += 10
    assert deadline() == USUAL_NOTICE_S - 10
    assert deadline() == 20
    assert deadline() is None


def test_drain_node_reports_a_missing_token(
    service: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's long message about the token becomes one line that says how to set it."""
    import ray._raylet
    from ray.exceptions import AuthenticationError

    def refuse(address: str) -> None:
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID: InvalidAuthToken")
        raise AuthenticationError(
            "RPC error: InvalidAuthToken: Authentication token is missing or incorrect."
        )

    monkeypatch.setattr(ray._raylet, "GcsClient", refuse)
    address = service.url.removeprefix("http://")
    with pytest.raises(
        DrainError,
        match=rf"^{address}: requires its token, .* RAY_AUTH_TOKEN_PATH to the token's file$",
    ):
        drain_node(address, "ab", left_s=10, why="a test")
