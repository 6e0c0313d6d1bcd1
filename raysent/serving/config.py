"""Limits of a server."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServerConfig:
    """Limits of a server.

    Attributes:
        token: What clients must send as `Authorization: Bearer TOKEN`; None for no token.
        hosts: Names that clients may call a server without a token by, so that no web page can use it.
        normalize: Whether vectors get unit length; those of codes stay bits.
        max_characters: Characters of one text; None for 64 for each token that the model reads, at least 8,192, and
            32,768 where it reads all.
        max_texts: Texts of one request.
        max_body_bytes: Size of a request.
        max_batch: Texts encoded together; each 256 characters of a text count as one more.
        max_waiting: Texts that may wait, half of them of requests of more than one batch; a request that does not fit
            gets status 429.
        max_connections: Open connections; more are closed at once.
        wait_s: Seconds to wait for more texts before a batch is encoded, if the batch before was of several requests.
        batch_s: Seconds that a batch may take; a batch that took more makes the next ones smaller. A part of a
            long request takes a few milliseconds where others ask too.
        read_s: Seconds in which a client must have sent its request, else its connection is closed.
        write_s: Seconds in which a client must have read its answer, and one more for each MiB of it, else its
            connection is closed.
        max_unread_bytes: Bytes of answers that may wait for their clients; above it the connection is closed that has
            not read for the longest time.
        timeout_s: Seconds after which a request gets status 503.
        shutdown_s: Seconds that requests have to end after a signal to stop.
        model: The model that encoded the index that is served, if it is elsewhere by now.
    """

    token: str | None = None
    hosts: tuple[str, ...] = LOOPBACK
    normalize: bool = True
    max_characters: int | None = None
    max_texts: int = 2048
    max_body_bytes: int = 4 << 20
    max_batch: int = 512
    max_waiting: int = 8192
    max_connections: int = 512
    wait_s: float = 0.002
    batch_s: float = 0.05
    read_s: float = 30.0
    write_s: float = 30.0
    max_unread_bytes: int = 256 << 20
    timeout_s: float = 30.0
    shutdown_s: float = 30.0
    model: str | None = None
