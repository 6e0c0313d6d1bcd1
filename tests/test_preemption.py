"""The node agent: it asks the metadata service as AWS wants to be asked, and drains once for each notice."""

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
    """A metadata service that knows of no notice."""
    with metadata_service() as running:
        yield running


def _agent(service: Metadata, refusals: int = 0) -> tuple[NodeAgent, list[float]]:
    """Return an agent and the seconds left of each drain that was accepted, after so many that were not."""
    drained: list[float] = []
    left = [refusals]

    def drain(left_s: float, why: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise DrainError("the cluster is away")
        drained.append(left_s)

    return NodeAgent(InstanceMetadata(service.url), drain, poll_s=0.01), drained


def test_metadata_asks_with_a_token_and_renews_it(service: Metadata) -> None:
    """404 is no notice; a token that is not taken any more is replaced."""
    metadata = InstanceMetadata(service.url)
    assert metadata.notice() is None
    service.token = "second"
    service.arm(120)
    notice = metadata.notice()
    assert notice is not None
    assert notice.action == "terminate"
    assert notice.time_s == pytest.approx(time.time() + 120, abs=3)


def test_metadata_takes_its_address_from_the_environment(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that AWS's own libraries read."""
    assert InstanceMetadata().endpoint == "http://169.254.169.254"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url + "/")
    assert InstanceMetadata().notice() is None
    assert service.num_requests == 1


@pytest.mark.parametrize("text", ["", "[]", '{"action": "stop"}', '{"action": "stop", "time": "soon"}'])
def test_metadata_refuses_a_notice_that_cannot_be_read(service: Metadata, text: str) -> None:
    """What was given is told."""
    service.say(text)
    with pytest.raises(MetadataError, match="spot/instance-action: must hold an action and a time; given"):
        InstanceMetadata(service.url).notice()


def test_agent_drains_once_for_a_notice_and_again_for_another_deadline(service: Metadata) -> None:
    """Asked again and again, the same notice is one."""
    agent, drained = _agent(service)
    agent.look()
    assert drained == []
    service.arm(100)
    agent.look()
    agent.look()
    assert drained == [pytest.approx(100, abs=3)]
    service.arm(20)
    agent.look()
    assert drained[1:] == [pytest.approx(20, abs=3)]


def test_agent_asks_on_where_nothing_answers(service: Metadata, caplog: pytest.LogCaptureFixture) -> None:
    """A service that fails now and then, and a cluster that refuses, cost one line each and no notice."""
    agent, drained = _agent(service, refusals=1)
    service.is_failing = True
    agent.look()
    agent.look()
    assert [record.message for record in caplog.records] == [
        f"{service.url}: must give a token; it says 503; asked again every 0.01 s"
    ]
    service.is_failing = False
    service.arm(60)
    agent.look()
    assert drained == []
    agent.look()
    assert len(drained) == 1


def test_agent_tells_a_refusal_once(service: Metadata, caplog: pytest.LogCaptureFixture) -> None:
    """Told again and again until the cluster takes it, and said once for as long as the reason is the same."""
    agent, drained = _agent(service, refusals=5)
    service.arm(60)
    for _ in range(6):
        agent.look()
    assert len(drained) == 1
    told = [record.message.split(" in ")[0] for record in caplog.records]
    assert told == ["the cluster is away; told again every 0.01 s", "drained for terminate"]


def test_agent_takes_a_shutdown_as_a_notice(service: Metadata) -> None:
    """SIGTERM drains at once, for less time than a machine that shuts down has; after a notice nothing more."""
    agent, drained = _agent(service)
    agent.shut_down()
    agent.run()
    assert drained == [pytest.approx(25, abs=1)]
    agent, drained = _agent(service)
    service.arm(60)
    agent.look()
    agent.shut_down()
    agent.run()
    assert len(drained) == 1


def test_agent_process_ends_at_sigterm_without_a_cluster(service: Metadata) -> None:
    """The process says in one line that nothing could be drained, and ends well."""
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
        command, env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url}, stderr=subprocess.PIPE, text=True
    )
    while not service.num_requests:
        assert agent.poll() is None
        time.sleep(0.05)
    agent.send_signal(signal.SIGTERM)
    _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 0
    assert "127.0.0.1:1: must be a cluster whose nodes can be drained; Ray" in errors
    assert "Traceback" not in errors


def test_agent_starts_without_torch_and_ray() -> None:
    """It runs on every node for as long as that lives."""
    code = "import sys, raysent.preemption.__main__; print(sorted({'torch', 'ray'} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_drain_node_says_what_a_version_of_ray_lacks(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the call it is one line, and not the time of a notice."""
    import ray._raylet

    address = service.url.removeprefix("http://")
    monkeypatch.delattr(ray._raylet, "GcsClient")
    with pytest.raises(DrainError, match=rf"^{address}: must be a cluster whose nodes can be drained; Ray .*GcsClient"):
        drain_node(address, "ab", left_s=10, why="a test")


def test_deadline_without_a_time_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray tells 0 where no deadline was given; nothing where nobody drains."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    told: list[int | None] = [None, 0, 0, 1_030_000, None]
    deadline = _Deadline(lambda: told.pop(0))
    assert deadline() is None
    assert deadline() == USUAL_NOTICE_S
    now[0] += 10
    assert deadline() == USUAL_NOTICE_S - 10
    assert deadline() == 20
    assert deadline() is None


def test_drain_node_says_how_to_give_a_token(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray says of a token in a paragraph, and on the screen besides, is one line."""
    import ray._raylet
    from ray.exceptions import AuthenticationError

    def refuse(address: str) -> None:
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID: InvalidAuthToken")
        raise AuthenticationError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect.")

    monkeypatch.setattr(ray._raylet, "GcsClient", refuse)
    address = service.url.removeprefix("http://")
    with pytest.raises(
        DrainError, match=rf"^{address}: asks for its token, .* RAY_AUTH_TOKEN_PATH to the token's file$"
    ):
        drain_node(address, "ab", left_s=10, why="a test")
