"""What engines tell of themselves: vLLM's own metrics, read in each server's process now and then.

vLLM keeps them for Prometheus, 23 us an engine step on a CPU; a look at the few that we take costs 0.15 ms. Without
`actor_rollout_ref.rollout.disable_log_stats=False` there are none, and nothing is recorded.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayError

from libra.results.schemas import EngineRow

SUMS = {
    "vllm:num_requests_running": "num_running",
    "vllm:num_requests_waiting": "num_waiting",
    "vllm:prefix_cache_queries_total": "prefix_query_tok",
    "vllm:prefix_cache_hits_total": "prefix_hit_tok",
    "vllm:num_preemptions_total": "num_preemptions",
    "vllm:request_queue_time_seconds_count": "num_queued",
    "vllm:request_queue_time_seconds_sum": "queue_s",
}
SHARES = {"vllm:kv_cache_usage_perc": "kv_cache_share"}
"""vLLM's names (v1/metrics/loggers.py) and ours. Its share counts to 1, whatever the name says."""
ANSWER_S = 30.0
"""A server whose event loop is busy for longer misses a sample."""


def read_engine(server: Any) -> dict[str, float] | None:
    """Runs inside the server's process. None where vLLM keeps no metrics, or not all of these."""
    from prometheus_client import REGISTRY

    names = SUMS | SHARES
    values: dict[str, list[float]] = defaultdict(list)
    for metric in REGISTRY.restricted_registry(names).collect():
        for sample in metric.samples:
            if sample.name in names:
                values[sample.name].append(sample.value)
    if values.keys() != names.keys():
        return None
    sums = {ours: sum(values[name]) for name, ours in SUMS.items()}
    counts = {name: value if name == "queue_s" else int(value) for name, value in sums.items()}
    return counts | {ours: max(values[name]) for name, ours in SHARES.items()}


class EngineWatch:
    """Samples all engines that `handles` names, each `every_s` seconds, on the loop that `begin` is called on."""

    def __init__(
        self,
        handles: Callable[[], Mapping[int, Any]],
        record: Callable[[EngineRow], None],
        now_s: Callable[[], float],
        every_s: float,
    ) -> None:
        self._handles, self._record, self._now_s, self._every_s = handles, record, now_s, every_s
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Safe to call again; with 0 seconds it does nothing."""
        if self._task is None and self._every_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await asyncio.gather(*(self._sample(number, each) for number, each in self._handles().items()))

    async def _sample(self, instance: int, handle: Any) -> None:
        """An engine that does not answer is left to whoever asks it for a turn."""
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await handle.__ray_call__.remote(read_engine)
        except (RayError, TimeoutError):
            return
        if found is not None:
            self._record(EngineRow(t_s=self._now_s(), instance=instance, **found))
