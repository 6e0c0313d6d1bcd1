"""AWS in the lab: moto's server with faults in front of it, on 127.0.0.1 and on a Unix socket for the machines.

    python lab_cloud.py FOLDER PORT

FOLDER/faults.json is a list of faults: {"action": "RunInstances", "code": "RequestLimitExceeded", "who": "head-lab",
"types": [...], "delay_s": 60, "younger_than_s": 30}. `action` may end with `*`; without a code the request is only
delayed, or its list lacks the machines that were launched just before. `who` is the start of the key of the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import json
import re
import sys
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

FOLDER = Path(sys.argv[1])
_FORMS = {
    "ec2": "<Response><Errors><Error><Code>{0}</Code><Message>lab</Message></Error></Errors><RequestID>x</RequestID></Response>",
    "iam": "<ErrorResponse><Error><Type>Sender</Type><Code>{0}</Code><Message>lab</Message></Error><RequestId>x</RequestId></ErrorResponse>",
    "": "<Error><Code>{0}</Code><Message>lab</Message></Error>",
}


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Log nothing."""


class Cloud:
    """moto as a WSGI application with faults."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._calls = (FOLDER / "calls.log").open("a", buffering=1)
        # Answers that are the same for everybody; moto takes seconds for each.
        self._turn = threading.Lock()
        self._kept: dict[bytes, tuple[Any, bytes]] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        signed = re.search(
            r"Credential=([^/]+)/\d+/[^/]+/([^/]+)/", environ.get("HTTP_AUTHORIZATION", "")
        )
        key, service = signed.groups() if signed else ("", "")
        values = urllib.parse.parse_qs(body.decode("utf-8", "replace"))
        action = values.get("Action", [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"])[0]
        if values.get("DryRun") == ["true"]:  # asks for a permission alone
            action = f"dry run: {action}"
        instance_type = values.get("InstanceType", [""])[0]
        for fault in self._faults():
            if not _matches(fault, action=action, who=key.lower(), instance_type=instance_type):
                continue
            if fault.get("delay_s"):
                self._note(key, action, instance_type, "waits")
                time.sleep(fault["delay_s"])
            if "younger_than_s" in fault:
                self._note(key, action, instance_type, "stale")
                return self._stale(environ, start, fault["younger_than_s"])
            if fault.get("code"):
                self._note(key, action, instance_type, fault["code"])
                text = _FORMS.get(service, _FORMS["iam" if service == "sts" else ""])
                answer = text.format(fault["code"]).encode()
                headers = [("Content-Type", "text/xml"), ("Content-Length", str(len(answer)))]
                start(f"{fault.get('status', 400)} refused", headers)
                return [answer]
        if values.get("Action") and key != "MACHINES":
            self._note(key, action, instance_type, "")
        if action == "DescribeInstanceTypes":
            return self._answer_once(environ, start, body)
        answered: Iterable[bytes] = self._moto(environ, start)
        return answered

    def _answer_once(
        self, environ: dict[str, Any], start: Callable[..., Any], request: bytes
    ) -> Iterable[bytes]:
        with self._turn:
            if request not in self._kept:
                head: list[Any] = []
                body = b"".join(self._moto(environ, lambda *parts: head.extend(parts)))
                self._kept[request] = head, body
        head, body = self._kept[request]
        start(*head)
        return [body]

    def _stale(
        self, environ: dict[str, Any], start: Callable[..., Any], younger_than_s: float
    ) -> Iterable[bytes]:
        """Answer a request for a list as it was a while ago."""
        answered: list[Any] = []
        body = b"".join(self._moto(environ, lambda *head: answered.extend(head)))
        body = without_young(body, younger_than_s)
        headers = [pair for pair in answered[1] if pair[0].lower() != "content-length"]
        start(answered[0], [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def _faults(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            found: list[dict[str, Any]] = json.loads((FOLDER / "faults.json").read_text())
            return found
        return []

    def _note(self, *values: str) -> None:
        self._calls.write(json.dumps([round(time.time(), 2), *values]) + "\n")


def without_young(body: bytes, younger_than_s: float) -> bytes:
    """Return a list of EC2's machines without those that were launched in the last seconds."""
    now = datetime.datetime.now(datetime.UTC)
    root = ET.fromstring(body)
    for reservations in root.iterfind("{*}reservationSet"):
        for reservation in list(reservations):
            launched = reservation.findtext("{*}instancesSet/{*}item/{*}launchTime") or ""
            age_s = (now - datetime.datetime.fromisoformat(launched)).total_seconds()
            if age_s < younger_than_s:
                reservations.remove(reservation)
    return ET.tostring(root)


def _matches(fault: dict[str, Any], *, action: str, who: str, instance_type: str) -> bool:
    wanted = fault["action"]
    is_same = action.startswith(wanted[:-1]) if wanted.endswith("*") else action == wanted
    return (
        is_same
        and fault.get("who", who) == who
        and who != "machines"
        and instance_type in fault.get("types", [instance_type])
    )


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve_socket(port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, requests), _pump(answers, writer))

    server = await asyncio.start_unix_server(connect, FOLDER / "cloud.sock")
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until the process ends."""
    port = int(sys.argv[2])
    server = make_server("127.0.0.1", port, Cloud(), threaded=True, request_handler=_Quiet)
    threading.Thread(target=lambda: asyncio.run(_serve_socket(port)), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
