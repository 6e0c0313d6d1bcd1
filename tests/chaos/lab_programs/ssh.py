"""A fake of ssh: runs commands on a machine of the lab, and forwards ports to it, over the machine's Unix socket."""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

LAB = Path(os.environ["LAB_FOLDER"])
WITH_VALUE = ("-i", "-o", "-p", "-l")
# More than a question to the job interface has: the files of a job.
MANY_BYTES = 100_000


def read_arguments(words: list[str]) -> tuple[str, list[str], list[str]]:
    """Return the address, the forwarded ports, and the words of the command."""
    forwards: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-L":
            forwards.append(words.pop(0))
        elif word in WITH_VALUE:
            words.pop(0)
        elif not word.startswith("-"):
            return word.partition("@")[2] or word, forwards, words
    raise SystemExit("usage: ssh [-L PORT:HOST:PORT] USER@ADDRESS [COMMAND]")


def machine_at(address: str) -> str:
    """Return the id of the machine at an address; refuse as a host without SSH does."""
    known = {}
    if (LAB / "machines.json").exists():
        known = json.loads((LAB / "machines.json").read_text())
    for name, addresses in known.items():
        if address in addresses and (LAB / "machines" / name / "ready").exists():
            return str(name)
    sys.stderr.write(f"ssh: connect to host {address} port 22: Connection refused\r\n")
    raise SystemExit(255)


def connect(name: str, **request: object) -> socket.socket:
    """Return a connection to a machine after a request."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(LAB / "machines" / name / "ssh.sock"))
    link.sendall(json.dumps(request).encode() + b"\n")
    return link


def pump(
    source: socket.socket, target: socket.socket, seen: Callable[[bytes], object] = bool
) -> None:
    """Copy bytes until one side closes."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            seen(chunk)
            target.sendall(chunk)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Sent:
    """What went through a connection; a file says that much of it was answered."""

    def __init__(self, path: Path) -> None:
        self.num_bytes, self.path = 0, path

    def count(self, chunk: bytes) -> None:
        """Count bytes on their way to the machine."""
        self.num_bytes += len(chunk)

    def answered(self, _: bytes) -> None:
        """Note an answer of the machine."""
        if self.num_bytes > MANY_BYTES:
            self.path.touch()


def forward(name: str, local: int, remote: int) -> None:
    """Accept connections at a local port, and connect each to a port of the machine."""
    server = socket.create_server(("127.0.0.1", local))
    while True:
        here, _ = server.accept()
        try:
            there = connect(name, op="forward", port=remote)
        except OSError:
            here.close()
            continue
        sent = Sent(LAB / "machines" / name / "files_sent")
        for ends in ((here, there, sent.count), (there, here, sent.answered)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def main() -> int:
    """Run the command; returns its exit code."""
    address, forwards, words = read_arguments(sys.argv[1:])
    name = machine_at(address)
    for text in forwards:
        local, _, remote = text.split(":")
        arguments = (name, int(local), int(remote))
        threading.Thread(target=forward, args=arguments, daemon=True).start()
    link = connect(name, op="run", command=" ".join(words))
    for line in link.makefile("rb"):
        message = json.loads(line)
        if "code" in message:
            return int(message["code"]) if int(message["code"]) >= 0 else 255
        sys.stdout.write(message["output"])
        sys.stdout.flush()
    return 255


if __name__ == "__main__":
    sys.exit(main())
