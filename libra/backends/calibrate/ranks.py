"""All-reduce over the devices of one machine: a process a device, NCCL on GPUs and gloo on the loopback device."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from libra.backends.calibrate.grid import FEWEST_CALLS, SECONDS, Device
from libra.backends.calibrate.timing import Bench
from libra.backends.sim.gpus.points import GpuPoint

TIMEOUT_S = 120
"""A rank that waits this long for another gives up."""


def all_reduce_s(bench: Bench, points: Sequence[GpuPoint]) -> list[float]:
    """Seconds of each all-reduce; all points have the same number of GPUs."""
    num_ranks = points[0]["gpus"]
    with tempfile.TemporaryDirectory() as folder:
        sizes = [point["num_bytes"] for point in points]
        arguments = num_ranks, bench.device, sizes, folder
        ranks = bench.torch.multiprocessing.spawn(_rank, arguments, nprocs=num_ranks, join=False)
        try:
            while not ranks.join():
                pass
        finally:
            for process in ranks.processes:
                process.kill()
        found: list[float] = json.loads((Path(folder) / "times.json").read_text())
    return found


def _rank(rank: int, num_ranks: int, device: Device, sizes: Sequence[int], folder: str) -> None:
    """One process: meets the others by a file, and rank 0 writes down the medians."""
    from datetime import timedelta

    import torch.distributed as dist

    bench = Bench(device)
    if device == "cuda":
        bench.torch.cuda.set_device(rank)
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    times = [_median_s(bench, size) for size in sizes]
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def _median_s(bench: Bench, num_bytes: int) -> float:
    """Every rank makes the same number of calls: rank 0's first look decides it."""
    import torch.distributed as dist

    message = bench.torch.ones(max(1, num_bytes // bench.dtype.itemsize), device=bench.device, dtype=bench.dtype)

    def block_s(calls: int) -> float:
        dist.barrier()
        _wait(bench)
        started_s = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(message)
        _wait(bench)
        return (time.perf_counter() - started_s) / calls

    block_s(2)
    calls = bench.torch.tensor([max(1, int(SECONDS / FEWEST_CALLS / block_s(2)))], device=bench.device)
    dist.broadcast(calls, 0)
    return sorted(block_s(min(200, int(calls))) for _ in range(FEWEST_CALLS - 1))[FEWEST_CALLS // 2 - 1]


def _wait(bench: Bench) -> None:
    if bench.device == "cuda":
        bench.torch.cuda.synchronize()
