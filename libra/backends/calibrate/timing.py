"""A clock for one device: blocks of calls, the median block; CUDA events on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from libra.backends.calibrate.grid import FEWEST_CALLS, SECONDS, Device
from libra.core.errors import ConfigError

BLOCK_S = 2e-3
"""A block of calls is at least this long: a hundred times a launch, a thousand times the clock's resolution."""
WARM_UP_CALLS = 2


def import_torch() -> Any:
    """Raises `ConfigError` where torch is not installed."""
    try:
        import torch
    except ImportError:
        raise ConfigError(
            "torch is not installed",
            mend="install the extra `gpu` or `live` into an environment of its own, or torch alone (on a GPU decode "
            "steps need vLLM too); `--dry-run` lists what would be timed",
        ) from None
    return torch


class Bench:
    """torch on one device. On the CPU a device is one core, and numbers are FP32: no engine computes BF16 there."""

    def __init__(self, device: Device) -> None:
        self.torch = import_torch()
        self.device = device
        if device == "cuda" and not self.torch.cuda.is_available():
            raise ConfigError("torch sees no GPU", where="--device", value=device, allowed=("cpu",))
        self.dtype = self.torch.bfloat16 if device == "cuda" else self.torch.float32
        self.torch.manual_seed(0)
        if device == "cpu":
            self.torch.set_num_threads(1)

    @property
    def num_devices(self) -> int:
        """Visible GPUs; two processes stand for two devices on a CPU."""
        return self.torch.cuda.device_count() if self.device == "cuda" else 2

    @property
    def source(self) -> str:
        """What timed: version, device and type of number."""
        name = self.torch.cuda.get_device_name() if self.device == "cuda" else "one core"
        return f"libra calibrate torch {self.torch.__version__} {name} {str(self.dtype).removeprefix('torch.')}"

    def tensor(self, *shape: int) -> Any:
        return self.torch.randn(shape, device=self.device, dtype=self.dtype)

    def median_s(self, call: Callable[[], object]) -> float:
        """Seconds of one call: the median over blocks of them, after a warm-up."""
        for _ in range(WARM_UP_CALLS):
            call()
        once_s = self._block_s(call, 1)
        calls = max(1, round(BLOCK_S / once_s))
        blocks = max(FEWEST_CALLS - WARM_UP_CALLS - 1, min(50, int(SECONDS / (calls * once_s))))
        return statistics.median(self._block_s(call, calls) / calls for _ in range(blocks))

    def _block_s(self, call: Callable[[], object], calls: int) -> float:
        if self.device == "cpu":
            started_s = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - started_s
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
