"""`libra list|status|show`: what there is, how far it is, what came out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from experiments.commands.output import console, figure, print_json, table, warnings_of
from libra.core.errors import ConfigError, unknown_name
from libra.core.registry import Options, Registry
from libra.results.store import STATES, Store, StoredCell

KINDS = ("policy", "workload", "study", "cluster", "model", "importer", "metric", "option")


def list_(kind: str | None, name: str | None, plugins: tuple[Path, ...], *, as_json: bool) -> None:
    """Print names and one-line summaries of a kind, or of all kinds; with a policy's or workload's name its options."""
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    kinds = [kind] if kind else KINDS
    registry = Registry(plugins)
    if name is not None:
        if kind not in ("policy", "workload"):
            raise ConfigError("only a policy or a workload has options", where="libra list", value=f"{kind} {name}")
        found = {f"options of {kind} {name}": _options(kind, registry.get(kind, name).options)}
    else:
        found = {each: _entries(each, registry) for each in kinds}
    if as_json:
        return print_json(found)
    out = console()
    for each, entries in found.items():
        out.print(table(f"{each} ({len(entries)})", ("name", "what"), [(e["name"], e["summary"]) for e in entries]))
        out.print()


def _entries(kind: str, registry: Registry) -> list[dict[str, str]]:
    if kind in ("policy", "workload", "study"):
        specs = registry.all(kind).values()
        return [
            {"name": spec.name, "summary": spec.summary, "from": registry.origin(kind, spec.name)} for spec in specs
        ]
    if kind == "metric":
        from libra.results.glossary import METRICS

        return [{"name": metric.name, "summary": f"{metric.definition} ({metric.unit})"} for metric in METRICS.values()]
    if kind == "option":
        from libra.backends.live.options import LiveOptions
        from libra.backends.sim.options import SimOptions
        from libra.core.events import PipelineSpec

        common = [f"pipeline.{field}" for field in PipelineSpec.__struct_fields__]
        defaults = dict(zip(common, PipelineSpec.__struct_defaults__, strict=True))
        return [
            *({"name": key, "summary": _default(value)} for key, value in defaults.items()),
            {"name": "cluster.network", "summary": "default: the cluster's own (see its TOML file)"},
            *_options("sim", SimOptions),
            *_options("live", LiveOptions),
        ]
    if kind == "importer":
        from libra.workloads.importers import importers

        return [{"name": spec.name, "summary": spec.summary} for spec in importers().values()]
    return _hardware(kind)


def _options(head: str, fields: type[Options]) -> list[dict[str, str]]:
    """Keys for `--set`, with their meaning and defaults."""
    found = []
    for name, field in fields.model_fields.items():
        default = _default(field.get_default(call_default_factory=True))
        meaning = " ".join((field.description or "").split())
        found.append({"name": f"{head}.{name}", "summary": f"{meaning} ({default})" if meaning else default})
    return found


def _default(value: object) -> str:
    return f"default: {'empty' if value == '' else value}"


def _hardware(kind: str) -> list[dict[str, str]]:
    if kind == "cluster":
        from libra.clusters import list_clusters, load_cluster

        clusters = [load_cluster(name) for name in list_clusters()]
        return [
            {
                "name": each.name,
                "summary": f"{each.num_nodes} x {each.gpus_per_node} {each.gpu.name}, "
                f"network {each.network} {each.network_gb_s:g} GB/s per node",
            }
            for each in clusters
        ]
    from libra.models import list_models, load_model

    return [
        {
            "name": each.name,
            "summary": f"{each.num_params / 1e9:.1f}B parameters, {each.num_active_params / 1e9:.1f}B active, "
            f"{each.kv_bytes_per_tok / 1024:.0f} KiB KV per token",
        }
        for each in (load_model(name) for name in list_models())
    ]


def status(study: str | None, root: Path, *, as_json: bool) -> None:
    """Print a line per study, and every cell that is neither done nor pending with its reason."""
    store = Store(root, create=False)
    cells = store.cells(study)
    if as_json:
        return print_json([_status_row(cell) for cell in cells])
    out = console()
    names = sorted({cell.cell.study for cell in cells})
    rows = []
    for name in names:
        counts = Counter(cell.status.state for cell in cells if cell.cell.study == name)
        rows.append((name, sum(counts.values()), *(counts[state] or "" for state in STATES)))
    out.print(table(f"store {root}", ("study", "cells", *STATES), rows))
    odd = [cell for cell in cells if cell.status.state not in ("done", "pending")]
    if odd:
        out.print(table("\nnot done", ("id", "state", "cell", "note"), [_odd_row(cell) for cell in odd]))
    if study:
        done = [cell for cell in cells if cell.metrics]
        out.print(table("\ndone", ("id", "cell", "steps", "trajectory_tok_per_s"), [_done_row(cell) for cell in done]))


def _odd_row(cell: StoredCell) -> tuple[str, str, str, str]:
    status = cell.status
    progress = f"step {status.step}/{status.num_steps}" if status.state == "running" and status.num_steps else ""
    note = status.reason.splitlines()[0] if status.reason else progress
    return cell.id, status.state, cell.cell.label, note


def _layouts(log: Path) -> list[tuple[str, str, str, str]]:
    """Every plan and switch of a run: training GPUs, engines by size, and what was refused."""
    from libra.core.events import AllocationChanged
    from libra.runtime.event_log import read_log

    rows = []
    for event in read_log(log):
        if isinstance(event, AllocationChanged) and event.cause in ("plan", "switch", "rejected"):
            now, layout = event.allocation, event.allocation.train
            assert layout is not None, "a run starts with a plan"
            sizes = Counter(engine.tp for engine in now.instances if engine.state != "training")
            engines = " + ".join(f"{num} x TP-{tp}" for tp, num in sorted(sizes.items()))
            training = f"TP-{layout.tp} PP-{layout.pp} DP-{now.train_dp}"
            rows.append((figure(event.t_s), training, engines, f"{event.cause} {event.reason}".strip()))
    return rows


def _done_row(cell: StoredCell) -> tuple[str, str, str, str]:
    assert cell.metrics is not None, "only done cells"
    steps = figure(cell.metrics.get("steps", 0.0))
    return cell.id, cell.cell.label, steps, figure(cell.metrics.get("trajectory_tok_per_s", 0.0))


def _status_row(cell: StoredCell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "study": cell.cell.study,
        "label": cell.cell.label,
        "state": cell.status.state,
        "reason": cell.status.reason,
        "attempts": cell.status.attempts,
        "metrics": cell.metrics,
    }


def show(cell_id: str, root: Path, *, as_json: bool) -> None:
    """Print one cell with each metric's unit and definition."""
    import msgspec

    from libra.results.glossary import METRICS
    from libra.runtime.event_log import LOG_NAME

    cell = Store(root, create=False).find(cell_id)
    provenance = cell.path / "provenance.json"
    known = msgspec.json.decode(provenance.read_bytes()) if provenance.exists() else {}
    if as_json:
        found = {"absent": cell.absent, "facts": cell.facts, "provenance": known, "notes": warnings_of(cell.path)}
        return print_json({**_status_row(cell), **found})
    out = console()
    out.print(f"[bold]{cell.cell.label}[/bold]\n{cell.id}  {cell.status.state}  {cell.status.reason}\n{cell.path}")
    for warning in warnings_of(cell.path):
        out.print(f"note: {warning}")
    rows = [
        (name, figure(value), METRICS[name].unit, METRICS[name].definition)
        for name, value in (cell.metrics or {}).items()
        if name in METRICS
    ]
    if rows:
        out.print(table("\nmetrics", ("metric", "value", "unit", "definition"), rows))
    traceback = cell.path / "logs" / f"attempt_{cell.status.attempts}" / "traceback.txt"
    if traceback.exists():
        out.print(f"\n{traceback}\n{traceback.read_text(errors='replace')}", markup=False)
    if cell.absent:
        out.print(table("\nnot defined for this run", ("metric", "why"), sorted(cell.absent.items())))
    if (cell.path / LOG_NAME).exists():
        out.print(table("\nlayouts", ("from (s)", "training", "rollout", "why"), _layouts(cell.path / LOG_NAME)))
    if cell.facts:
        out.print(table("\nfacts", ("what", "value"), sorted(cell.facts.items())))
    out.print(table("\nprovenance", ("what", "value"), sorted(known.items())))
