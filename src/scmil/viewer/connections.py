"""Connections to the viewer: one that does not show the secret is closed soon, and many of them keep nobody out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from scmil.core.extras import need

BACKLOG = 64  # connections that are accepted at a time
# Connections that have not shown the secret; for one more, the oldest is closed. That must not happen before it was read,
# and asyncio accepts up to three times before it reads.
MOST_WAITING = 3 * BACKLOG
SECONDS = 10.0  # until the headers of the first request must have come, and must have had the secret
CONNECTION = "scmil.connection"  # where a request has its connection


def protocol(most_waiting: int = MOST_WAITING, seconds: float = SECONDS) -> type[asyncio.Protocol]:
    """A protocol for one server of uvicorn that limits the connections without the secret, by number and by time."""
    base = need("uvicorn.protocols.http.h11_impl", "viewer").H11Protocol
    waiting: OrderedDict[Connection, asyncio.TimerHandle] = OrderedDict()

    class Connection(base):  # type: ignore[misc, valid-type]
        """A connection that waits until `admit` is called."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state: dict[str, Any] = {CONNECTION: self}
            waiting[self] = self.loop.call_later(seconds, self._drop)
            if len(waiting) > most_waiting:
                next(iter(waiting))._drop()

        def connection_lost(self, exc: Exception | None) -> None:
            self.admit()
            super().connection_lost(exc)

        def admit(self) -> None:
            """A request with the secret has come: the limits are not for this connection."""
            if timer := waiting.pop(self, None):
                timer.cancel()

        def _drop(self) -> None:
            self.admit()
            self.transport.abort()

    return Connection


def admit(scope: Any) -> None:
    """Take a connection out of the limits, because a request on it had the secret."""
    connection = scope.get("state", {}).get(CONNECTION)
    if connection is not None:
        connection.admit()
