"""From the names in a cell to the things they stand for, and to the files that decide its outcome.

Everything that a user may have mistyped is found here, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from libra.clusters import list_clusters, load_cluster
from libra.core.errors import ConfigError, unknown_name
from libra.core.events import PipelineSpec
from libra.core.hardware import Cluster, Model
from libra.core.policy import Policy
from libra.core.registry import PolicyContext, PolicySpec, Registry, WorkloadSpec, parse_options
from libra.models import list_models, load_model
from libra.results.cell import TRACE_PREFIX, Cell
from libra.results.provenance import OUTCOME_PACKAGES, code_fingerprint
from libra.workloads.base import Workload
from libra.workloads.recordings import PREFIX, trace_path

BACKENDS = ("sim", "live")


@dataclass(frozen=True)
class Setup:
    """A cell's parts. Workload and policy are built when needed: the one may read a file, the other has a memory."""

    cluster: Cluster
    model: Model
    pipeline: PipelineSpec
    policy: PolicySpec
    sim_options: Any
    live_options: Any
    build_workload: Callable[[], Workload]
    build_policy: Callable[[], Policy]


@dataclass
class Resolver:
    """Looks up cells in a registry; what many cells share is read once."""

    registry: Registry
    _clusters: dict[tuple[str, str | None], Cluster] = field(default_factory=dict)
    _models: dict[str, Model] = field(default_factory=dict)
    _codes: dict[tuple[Path, ...], str] = field(default_factory=dict)

    def setup(self, cell: Cell) -> Setup:
        """Raises `ConfigError` for any unknown name, key or value; the error names the cell's field."""
        from libra.backends.live.options import LiveOptions
        from libra.backends.sim.cores import check_core
        from libra.backends.sim.options import SimOptions

        if cell.backend not in BACKENDS:
            raise unknown_name("backend", cell.backend, BACKENDS)
        cluster, model = self._cluster(cell), self._model(cell.model)
        policy = self.registry.get("policy", cell.policy)
        workload, values = self._workload(cell)
        workload_options = parse_options(workload.options, values, f"workload {workload.name}")
        policy_options = parse_options(policy.options, cell.section("policy"), f"policy {policy.name}")
        context = PolicyContext(cluster, model, policy_options)
        sim_options = parse_options(SimOptions, cell.section("sim"), "sim")
        check_core(sim_options)
        live_options = parse_options(LiveOptions, cell.section("live"), "live")
        return Setup(
            cluster,
            model,
            pipeline_of(cell, policy),
            policy,
            sim_options,
            live_options,
            lambda: workload.build(workload_options, cell.seed, model.max_context_tok),
            lambda: policy.build(context),
        )

    def code(self, cell: Cell) -> str:
        """Fingerprint of sources and input files, for `Cell.identity`."""
        files = self.inputs(cell)
        if files not in self._codes:
            self._codes[files] = code_fingerprint(files)
        return self._codes[files]

    def inputs(self, cell: Cell) -> tuple[Path, ...]:
        """Files beside the product that decide the outcome: plug-ins, trace, cluster, measured GPU, model, table."""
        workload, _ = self._workload(cell)
        self.registry.get("policy", cell.policy)  # an unknown name is an error with its nearest match
        origins = [self.registry.origin("policy", cell.policy), self.registry.origin("workload", workload.name)]
        files = [self._plugin(Path(origin)) for origin in origins if not _is_product(Path(origin))]
        if cell.workload.startswith(TRACE_PREFIX):
            files.append(Path(cell.workload.removeprefix(TRACE_PREFIX)))
        files += [trace_path(cell.workload)] if cell.workload.startswith(PREFIX) else []
        files += [Path(cell.cluster)] if cell.cluster not in list_clusters() else []
        measured = self._cluster(cell).gpu.measured
        files += [Path(measured)] if measured else []
        table = str(cell.override("sim.table") or "")
        files += [Path(table)] if table and not table.startswith("{") else []
        files += [Path(cell.model)] if cell.model not in list_models() else []
        return tuple(dict.fromkeys(files))

    def _plugin(self, origin: Path) -> Path:
        """A plug-in given as a folder counts as a whole: its files may use one another."""
        folders = (path for path in self.registry.plugins if path.is_dir() and origin.is_relative_to(path.resolve()))
        return next(folders, origin)

    def _workload(self, cell: Cell) -> tuple[WorkloadSpec, dict[str, Any]]:
        values: dict[str, Any] = cell.section("workload")
        if not cell.workload.startswith(TRACE_PREFIX):
            return self.registry.get("workload", cell.workload), values
        spec = self.registry.get("workload", TRACE_PREFIX.rstrip(":"))
        return spec, {**values, "file": cell.workload.removeprefix(TRACE_PREFIX)}

    def _cluster(self, cell: Cell) -> Cluster:
        network = cell.override("cluster.network")
        key = (cell.cluster, None if network is None else str(network))
        if key not in self._clusters:
            from libra.backends.sim.gpus import fit_of

            self._clusters[key] = load_cluster(key[0], network=key[1])
            fit_of(self._clusters[key].gpu)  # a table of measured points that cannot be read is found here
        return self._clusters[key]

    def _model(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = load_model(name)
        return self._models[name]


def pipeline_of(cell: Cell, policy: PolicySpec) -> PipelineSpec:
    """The cell's pipeline, unless the policy pins a kind. Raises `ConfigError`.

    A pinned kind leaves the scenario's staleness and cap, which belong to another kind, aside.
    """
    values = cell.section("pipeline")
    try:
        spec = msgspec.convert(values, PipelineSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"pipeline: {error}", where=cell.label, value=values) from None
    if spec.staleness < 0 or spec.in_flight_cap < 0:
        raise ConfigError("staleness and in_flight_cap are not negative", where="pipeline", value=values)
    if policy.pipeline is not None and policy.pipeline != spec.kind:
        spec = PipelineSpec(kind=policy.pipeline)
    return msgspec.structs.replace(spec, staleness=0, in_flight_cap=0) if spec.kind == "colocated" else spec


def _is_product(origin: Path) -> bool:
    """Whether a file's bytes are in the fingerprint of the sources anyway."""
    root = Path(__file__).resolve().parent.parent
    return any(origin.resolve().is_relative_to(root / package) for package in OUTCOME_PACKAGES)
