"""`python -m raysent.preemption --address HOST:PORT`: the node agent, started with `ray start` on a worker node."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
from ipaddress import ip_address

import psutil

from raysent.preemption.agent import POLL_S, InstanceMetadata, NodeAgent, Watch, shut_down_machine
from raysent.preemption.ray_nodes import DrainError, drain_node, find_node, permits_of


def main() -> None:
    """Run the agent until SIGTERM."""
    options = _options()
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")

    def drain(left_s: float, why: str) -> None:
        ips = _own_ips(options.address)
        node_id = options.node_id or find_node(options.address, ips)
        if node_id is None:
            raise DrainError(
                f"{options.address}: must have a node at {' or '.join(ips)}; set --node-id"
            )
        drain_node(options.address, node_id, left_s=left_s, why=why)

    metadata, ids = InstanceMetadata(), list[str]()

    def permits() -> dict[str, tuple[str, float]]:
        if not ids:
            ids.append(metadata.instance_id())
        return permits_of(options.address, ids[0])

    watch = Watch(permits, shut_down_machine) if options.end_without_permit else None
    agent = NodeAgent(metadata, drain, poll_s=options.poll_s, watch=watch)
    signal.signal(signal.SIGTERM, lambda *_: agent.shut_down())
    signal.signal(signal.SIGINT, lambda *_: agent.shut_down())
    agent.run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m raysent.preemption", description=__doc__)
    parser.add_argument("--address", required=True, help="address of the cluster, host:port")
    parser.add_argument(
        "--node-id", help="id of the Ray node to drain; default: the node at this machine's address"
    )
    parser.add_argument(
        "--poll-s", type=float, default=POLL_S, help="polling interval in seconds (%(default)g)"
    )
    parser.add_argument(
        "--end-without-permit",
        action="store_true",
        help="shut this machine down once no sweep renews its permit",
    )
    return parser.parse_args()


def _own_ips(address: str) -> list[str]:
    """Return the IP addresses of this machine, first the one used to reach the cluster; nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, int(port)))
        first = str(route.getsockname()[0])
    kinds = (socket.AF_INET, socket.AF_INET6)
    others = [
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family in kinds
    ]
    # Loopback addresses do not identify a machine.
    return [
        first,
        *(ip for ip in others if ip != first and not ip_address(ip.partition("%")[0]).is_loopback),
    ]


if __name__ == "__main__":
    main()
