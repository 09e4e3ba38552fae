"""Opens a workload's environment inside a framework's worker: the sandbox comes from here, the rest from the settings.

`Settings.environment` names `open_environment`; the package of the agent loop lies below this one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from libra.backends.live.sandbox import open_sandbox
from libra.core.errors import ConfigError
from libra.core.registry import Registry, WorkloadSpec
from libra.workloads.environments.base import Environment, EnvironmentContext

OPENER = "libra.backends.live.environment:open_environment"


class EnvironmentOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """`Settings.environment_options`; `data` and `search_url` as in `EnvironmentContext`."""

    workload: str
    seed: int = 0
    data: str = ""
    search_url: str = ""
    plugins: tuple[str, ...] = ()


def environment_spec(workload: str, plugins: tuple[Path, ...] = ()) -> WorkloadSpec:
    """Raises `ConfigError` for a workload that is unknown or can only be simulated."""
    spec: WorkloadSpec = Registry(plugins).get("workload", workload)
    if spec.environment is None:
        live = [name for name, each in Registry(plugins).all("workload").items() if each.environment]
        raise ConfigError("this workload can only be simulated", where="workload", value=workload, allowed=live)
    return spec


def open_environment(options: dict[str, Any]) -> Environment:
    """One environment for a whole process; its folder goes with the machine's temporary files."""
    found = msgspec.convert(options, EnvironmentOptions)
    spec = environment_spec(found.workload, tuple(Path(each) for each in found.plugins))
    assert spec.environment is not None, "checked above"
    context = EnvironmentContext(
        Path(tempfile.mkdtemp(prefix="libra-episodes-")),
        open_sandbox(),
        found.search_url,
        Path(found.data) if found.data else None,
        found.seed,
    )
    return spec.environment(context)
