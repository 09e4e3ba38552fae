"""One file = one policy, workload or study: finds them in packages and plug-in files without any central list.

A module offers what it has as module-level specs (`PolicySpec`, `WorkloadSpec`, `StudySpec`), in any variable. Which
packages are scanned is itself data: the entry-point group `libra.plugins` (the product's own packages are listed there
like anybody else's). A plug-in file or folder given by the user is scanned too.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from libra.core.errors import ConfigError, unknown_name
from libra.core.events import PipelineKind
from libra.core.hardware import Cluster, Model
from libra.core.policy import Policy
from libra.core.rng import seed_of

GROUP = "libra.plugins"


class Options(BaseModel):
    """Base of every option table: frozen, and an unknown key is an error. A field's docstring says what it means."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True)
class PolicyContext:
    """What a policy is built from. `options` is an instance of the spec's own option table."""

    cluster: Cluster
    model: Model
    options: Any


@dataclass(frozen=True)
class PolicySpec:
    """A system under test. `pipeline` pins the pipeline kind (verl-colocated); None follows the scenario."""

    name: str
    summary: str
    build: Callable[[PolicyContext], Policy]
    options: type[Options] = Options
    uses_oracle: bool = False
    pipeline: PipelineKind | None = None


@dataclass(frozen=True)
class WorkloadSpec:
    """A source of trajectories. `build(options, seed, max_context_tok)` returns a `libra.workloads.base.Workload`.

    `environment(context)` returns the real tasks behind it for live runs, a `libra.workloads.environments.base`
    `Environment` from an `EnvironmentContext`; None: the workload can only be simulated. `serving(context)` is a
    context manager that runs what episodes need beside them (a search server) and yields the context to use.
    """

    name: str
    summary: str
    build: Callable[[Any, int, int], Any]
    options: type[Options] = Options
    environment: Callable[[Any], Any] | None = None
    serving: Callable[[Any], AbstractContextManager[Any]] | None = None


@dataclass(frozen=True)
class StudyArgs:
    """What the caller of a study chooses: paired seeds 0..num_seeds-1, steps a run, canonical trace files."""

    num_seeds: int
    num_steps: int
    traces: tuple[Path, ...] = ()


@dataclass(frozen=True)
class StudySpec:
    """A set of cells and the figures, tables and claims that they feed; seeds and steps are the study's defaults."""

    name: str
    summary: str
    cells: Callable[[StudyArgs], Iterable[Any]]
    feeds: tuple[str, ...] = ()
    num_seeds: int = 3
    num_steps: int = 50
    takes_traces: bool = False
    """Whether `StudyArgs.traces` mean anything to it."""


Spec = PolicySpec | WorkloadSpec | StudySpec
KINDS: Mapping[str, type[Any]] = {"policy": PolicySpec, "workload": WorkloadSpec, "study": StudySpec}


@dataclass
class Registry:
    """Specs by kind and name. `plugins` are files or folders of the user's own."""

    plugins: tuple[Path, ...] = ()
    _specs: dict[str, dict[str, tuple[Any, str]]] = field(default_factory=dict)

    def all(self, kind: str) -> dict[str, Any]:
        """Specs of a kind by name, sorted."""
        return {name: spec for name, (spec, _) in sorted(self._load()[kind].items())}

    def get(self, kind: str, name: str) -> Any:
        """One spec. Raises `ConfigError` with the nearest match."""
        specs = self._load()[kind]
        if name not in specs:
            raise unknown_name(kind, name, specs, mend=f"`libra list {kind}` shows what there is")
        return specs[name][0]

    def origin(self, kind: str, name: str) -> str:
        """File that defines a spec."""
        return self._load()[kind][name][1]

    def _load(self) -> dict[str, dict[str, tuple[Any, str]]]:
        if not self._specs:
            self._specs = {kind: {} for kind in KINDS}
            for module in _installed_modules():
                self._take(module)
            for path in self.plugins:
                if not sum(self._take(module) for module in plugin_modules(path)):
                    raise ConfigError(
                        "no policy, workload or study defined there",
                        where=str(path),
                        mend="bind a PolicySpec, WorkloadSpec or StudySpec, or a list of them, to a name of the module",
                    )
        return self._specs

    def _take(self, module: ModuleType) -> int:
        """Number of specs that a module holds."""
        origin = getattr(module, "__file__", None) or module.__name__
        number = 0
        for value in list(vars(module).values()):
            found = value if isinstance(value, (tuple, list)) else (value,)
            for spec in found:
                for kind, spec_type in KINDS.items():
                    if isinstance(spec, spec_type):
                        self._add(kind, spec, origin)
                        number += 1
        return number

    def _add(self, kind: str, spec: Any, origin: str) -> None:
        known = self._specs[kind].get(spec.name)
        if known and known[0] is not spec:
            raise ConfigError(
                f"two definitions of {kind} {spec.name!r}",
                where=origin,
                mend=f"rename one of them; the other stands in {known[1]}",
            )
        self._specs[kind].setdefault(spec.name, (spec, origin))


def _installed_modules() -> Iterator[ModuleType]:
    for package_name in sorted({point.value for point in entry_points(group=GROUP)}):
        package = importlib.import_module(package_name)
        yield package
        for info in pkgutil.iter_modules(getattr(package, "__path__", ())):
            if not info.ispkg:
                yield importlib.import_module(f"{package_name}.{info.name}")


def plugin_modules(path: Path) -> Iterator[ModuleType]:
    """Import a plug-in file, or every `*.py` in a folder. Raises `ConfigError` when there is none."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not path.exists() or not files or files[0].suffix != ".py":
        raise ConfigError("no plug-in there", where=str(path), mend="name a .py file or a folder that holds some")
    for file in files:
        name = f"libra_plugin_{file.stem}_{seed_of(file.resolve()):x}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, f"{file} is no Python file"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(f"plug-in fails to import: {error!r}", where=str(file), mend="mend the file") from error
        yield module


def parse_options(table: type[Options], values: Mapping[str, Any], where: str) -> Any:
    """Validate overrides against an option table. Raises `ConfigError` with key, allowed set and nearest match."""
    names = list(table.model_fields)
    for key in values:
        if key not in names:
            raise unknown_name("key", key, names, where=where)
    try:
        return table(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise ConfigError(f"key {key!r} is missing", where=where, mend="add it") from None
        raise ConfigError(
            f"option {key!r}: {first['msg'].removeprefix('Value error, ')}", where=where, value=first.get("input")
        ) from None
