"""verl's platform for CPU cores: every logical GPU of Ray is a core (verl 0.9.1, verl/plugin/platform).

verl asks torch for the backend "cpu:gloo,cpu:gloo" (the CPU's and the device's), which torch refuses as a duplicate
and for which verl has no hook: `init_process_group` is wrapped for that one value.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

DUPLICATE_BACKEND = "cpu:gloo,cpu:gloo"


class _CpuModule(types.ModuleType):
    """`torch.cpu` with the queries of `torch.cuda` that verl makes for its metrics; memory reads as 0."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _device_module() -> types.ModuleType:
    module: Any = _CpuModule("libra_verl_cpu")
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, lambda *_, **__: 0)
    for name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect", "set_device", "manual_seed_all"):
        setattr(module, name, lambda *_, **__: None)
    module.manual_seed = torch.manual_seed
    module.get_device_name = lambda *_: "cpu"
    module.mem_get_info = lambda *_: (os.sysconf("SC_AVPHYS_PAGES") * 4096, os.sysconf("SC_PHYS_PAGES") * 4096)
    module.is_available = lambda: True
    module.current_device = lambda: "cpu"
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    return module


class PlatformCpu(PlatformBase):
    """Cores as devices; gloo between them."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def register() -> None:
    PlatformRegistry.register(platform="cpu")(PlatformCpu)
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")  # verl registers its engine classes for cuda and npu only
    inner = torch.distributed.init_process_group

    @wraps(inner)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return inner("gloo" if backend == DUPLICATE_BACKEND else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group
