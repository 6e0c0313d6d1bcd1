"""One client's connection: a request must arrive in time, and its answer must be taken in time.

uvicorn itself waits for a request, and for a client to read its answer, as long as that client likes, and takes any
number of connections; `Connection` bounds all three.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from raysent.serving.config import ServerConfig

# A client that reads has as many seconds more as its answer has of these.
_BYTES_A_SECOND = 1 << 20
# Closed at once: what a client has not read is forgotten by the system too.
_WITHOUT_REST = struct.pack("ii", 1, 0)


class Connection(H11Protocol):
    """Closes itself if there are too many, or if a request has not arrived or an answer was not read in time.

    A request is its head and its body. An answer is unread as long as bytes of it wait in this process, which the
    transport says by `pause_writing` and `resume_writing`; until they are read, no further request of the client is
    answered. Of all connections together a number of bytes may wait;
    above it the client is ended that has not read for the longest time.
    """

    def __init__(self, *args: Any, limits: ServerConfig, **options: Any) -> None:
        """Prepare; uvicorn calls this."""
        super().__init__(*args, **options)
        self._limits = limits
        self._request_deadline: asyncio.TimerHandle | None = None
        self._answer_deadline: asyncio.TimerHandle | None = None
        self._unread_since = 0.0
        self._is_next_held = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take a connection; the first request has to follow."""
        super().connection_made(transport)
        # An answer is sent in parts, of which the second would wait 40 ms for the client's word that it has the first.
        # asyncio sees to that only where a socket names its protocol, which `socket.create_server` does not.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # By default up to 64 KiB may wait without a word, for ever where the client never reads.
        transport.set_write_buffer_limits(high=0)
        self._request_deadline = self.loop.call_later(self._limits.read_s, transport.abort)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read data; the first bytes of a request begin its time, the last ones end it."""
        if self._request_deadline is None:
            self._request_deadline = self.loop.call_later(self._limits.read_s, self.transport.abort)
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end_request_time()

    def pause_writing(self) -> None:
        """Begin the time in which the client has to read what was written."""
        super().pause_writing()
        self._unread_since = self.loop.time()
        seconds = self._limits.write_s + self._num_unread() / _BYTES_A_SECOND
        self._answer_deadline = self.loop.call_later(seconds, self._forget)
        self._bound_unread()

    def resume_writing(self) -> None:
        """End that time: the client has all."""
        self._end_answer_time()
        super().resume_writing()
        if self._is_next_held:
            self._is_next_held = False
            super().on_response_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request of the client, once it has read the answer."""
        if self._answer_deadline is None:
            super().on_response_complete()
        else:
            self._is_next_held = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the times."""
        self._end_request_time()
        self._end_answer_time()
        super().connection_lost(exc)

    def _num_unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def _bound_unread(self) -> None:
        connections = [
            connection for connection in self.connections if isinstance(connection, Connection)
        ]
        waiting = [
            connection for connection in connections if connection._answer_deadline is not None
        ]
        while (
            sum(connection._num_unread() for connection in waiting) > self._limits.max_unread_bytes
        ):
            slowest = min(waiting, key=lambda connection: connection._unread_since)
            slowest._forget()
            waiting.remove(slowest)

    def _forget(self) -> None:
        """End the connection, with what waits for the client here and in the system."""
        stream = self.transport.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _WITHOUT_REST)
        self.transport.abort()

    def _end_request_time(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _end_answer_time(self) -> None:
        if self._answer_deadline is not None:
            self._answer_deadline.cancel()
            self._answer_deadline = None
