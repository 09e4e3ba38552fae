"""Stand-ins for Ray actors, in the test's own process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any


class Remote:
    """Stands for a method of an actor."""

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer

    async def _later(self, **asked: Any) -> Any:
        return self._answer(**asked) if callable(self._answer) else self._answer

    def remote(self, *given: Any, **asked: Any) -> Any:
        done = asyncio.get_running_loop().create_task(self._later(**asked))
        return done


def balancer(server: Any) -> SimpleNamespace:
    """What a client asks of the router's actor; every turn goes to `server`."""
    return SimpleNamespace(
        require_acquire_fields=Remote([]), require_release_fields=Remote([]), turn_done=Remote(), turn_lost=Remote(),
        acquire_server=Remote(("e", server)), release_server=Remote(),
    )  # fmt: skip
