"""An event loop of Python's own, in a thread of its own, for what starts processes.

Ray runs actors on uvloop, which is no place for it. Its own way of starting a process forks and runs Python in the
child: a lock that another thread held at that moment is held there for ever, and parent and child wait for each other
(once in some thousand starts). And a pipe that it is given is closed twice, by libuv and by Python: the second close
hits whatever got the number meanwhile, and libuv aborts (within seconds in a busy process).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    threading.Thread(target=loop.run_forever, name="libra-processes", daemon=True).start()
    return loop


async def on_own_loop(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await `call()` there. Cancelled here, it is cancelled there, and this returns when it has ended."""
    loop, tasks = _loop(), list[asyncio.Task[T]]()

    async def inside() -> T:
        tasks.append(asyncio.ensure_future(call()))
        return await tasks[0]

    ended = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(inside(), loop))
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        await asyncio.wait([ended])
        raise
