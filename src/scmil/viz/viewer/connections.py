"""Limit the connections that have not sent the token, in number and in time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from scmil.core.extras import import_extra

BACKLOG = 64  # connections that are accepted at a time
# Maximum number of connections without the token; for one more, the oldest is closed. That must
# not happen before it was read, and asyncio accepts up to three times before it reads.
MOST_WAITING = 3 * BACKLOG
# Time within which the headers of the first request, with the token, must arrive.
SECONDS = 10.0
CONNECTION = "scmil.connection"  # key of the connection in the state of a request


def protocol(most_waiting: int = MOST_WAITING, seconds: float = SECONDS) -> type[asyncio.Protocol]:
    """A protocol for one uvicorn server that limits connections without the token."""
    base = import_extra("uvicorn.protocols.http.h11_impl", "viewer").H11Protocol
    waiting: OrderedDict[Connection, asyncio.TimerHandle] = OrderedDict()

    class Connection(base):  # type: ignore[misc, valid-type]
        """A connection that is limited until `admit` is called."""

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
            """Remove the limits, after a request with the token."""
            if timer := waiting.pop(self, None):
                timer.cancel()

        def _drop(self) -> None:
            self.admit()
            self.transport.abort()

    return Connection


def admit(scope: Any) -> None:
    """Remove the limits from the connection of a request that had the token."""
    connection = scope.get("state", {}).get(CONNECTION)
    if connection is not None:
        connection.admit()
