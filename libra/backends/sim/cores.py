"""Which core carries the engines out: closed forms, their oracle, the compiled one, or processes that share cores."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from libra.backends.sim.clock import Clock
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.stepwise import StepwiseInstance
from libra.backends.sim.truth import StepModel
from libra.core.errors import ConfigError


def check_core(options: SimOptions) -> None:
    """Raises `ConfigError` when the core cannot be imported."""
    if options.engine == "compiled" and find_spec("numba") is None:
        raise ConfigError(
            "the compiled core needs numba",
            where="sim.engine",
            value="compiled",
            allowed=["fast", "stepwise"],
            mend="pip install 'libra-bench[fast]'",
        )
    if options.table and options.engine != "fast":
        raise ConfigError("a live machine's table has a core of its own", where="sim.engine", value=options.engine,
                          allowed=["fast"], mend="leave out sim.engine or sim.table")  # fmt: skip


def compiled_module(name: str) -> Any:
    """A module of the compiled core, imported where it is asked for only."""
    return import_module(f"libra.backends.sim.compiled.{name}")


def shared_module(name: str) -> Any:
    """A module of the core for machines that share their cores, imported where it is asked for only."""
    return import_module(f"libra.backends.sim.shared.{name}")


def make_clock(options: SimOptions) -> Clock:
    """The run's clock; the compiled core's owns its arrays. Raises `ConfigError` without numba."""
    check_core(options)
    if options.table:
        shared: Clock = shared_module("cores").SharedClock(shared_module("table").read_table(options.table).cores)
        return shared
    clock: Clock = compiled_module("twins").CompiledClock(options) if options.engine == "compiled" else Clock()
    return clock


def make_instance(
    instance_id: int,
    step_model: StepModel,
    options: SimOptions,
    clock: Clock,
    on_done: Callable[[Instance, Request], None],
) -> Instance:
    """An engine. The compiled one reports to its clock instead of `on_done`."""
    engine: Any
    if options.table:
        engine = shared_module("instance").SharedInstance(instance_id, step_model, options, clock, on_done)
    elif options.engine == "compiled":
        engine = compiled_module("twins").CompiledInstance(instance_id, step_model, clock)
    elif options.engine == "stepwise":
        engine = StepwiseInstance(instance_id, step_model, options, clock.now, clock.at, on_done)  # type: ignore[arg-type]
    else:
        engine = Instance(instance_id, step_model, options, clock.now, clock.at, on_done)
    made: Instance = engine
    return made
