"""The first services of a machine of the lab: its SSH, a way to the cloud at 127.0.0.1:5555, its metadata at :5556.

python lab_host.py FOLDER MACHINE
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

FOLDER, MACHINE = Path(sys.argv[1]), sys.argv[2]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _cloud(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    answers, requests = await asyncio.open_unix_connection(FOLDER / "cloud.sock")
    await asyncio.gather(_pump(reader, requests), _pump(answers, writer))


async def _ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        request = json.loads(await reader.readline())
        if request["op"] == "forward":
            there, here = await asyncio.open_connection("127.0.0.1", request["port"])
            await asyncio.gather(_pump(reader, here), _pump(there, writer))
            return
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            request["command"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/home/ubuntu",
            env=dict(os.environ),
            start_new_session=True,
        )

        async def show() -> None:
            assert process.stdout is not None
            while data := await process.stdout.read(65536):
                line = json.dumps({"output": data.decode("utf-8", "replace")})
                writer.write(line.encode() + b"\n")
                await writer.drain()

        shown = asyncio.create_task(show())
        code = await process.wait()
        with contextlib.suppress(TimeoutError):  # what it started may hold its output
            await asyncio.wait_for(shown, 1.0)
        writer.write(json.dumps({"code": code}).encode() + b"\n")
        await writer.drain()
    writer.close()


async def _metadata(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = request.split("\r\n")[0].split(" ")
    status, body = 404, b""
    if method == "PUT" and path.endswith("/api/token"):
        status, body = 200, b"token"
    elif path.endswith("/instance-id"):
        status, body = 200, MACHINE.encode()
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def _main() -> None:
    folder = FOLDER / "machines" / MACHINE
    servers = [
        await asyncio.start_server(_cloud, "127.0.0.1", 5555),
        await asyncio.start_server(_metadata, "127.0.0.1", 5556),
        await asyncio.start_unix_server(_ssh, folder / "ssh.sock"),
    ]
    (folder / "ready").touch()
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(_main())
