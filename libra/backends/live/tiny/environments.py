"""A workload's environment with all that its episodes need: a folder, a sandbox, a search server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from libra.backends.live.sandbox import open_sandbox
from libra.core.errors import ConfigError
from libra.core.registry import Registry
from libra.workloads.environments.base import Environment, EnvironmentContext


@contextmanager
def opened(workload: str) -> Iterator[Environment]:
    """The environment on generated tasks; what serves it ends with the block.

    Raises `ConfigError` for a workload that is unknown or can only be simulated.
    """
    spec = Registry().get("workload", workload)
    if spec.environment is None:
        raise ConfigError("can only be simulated", where="workload", value=workload)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="libra-tiny-")))
        context = EnvironmentContext(work, sandbox=open_sandbox())
        if spec.serving is not None:
            context = stack.enter_context(spec.serving(context))
        yield spec.environment(context)
