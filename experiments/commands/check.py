"""`libra validate`: the simulator's timing against measurements, kept in the store for the report."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from experiments.commands.output import console, constant, print_json, table
from libra.core.errors import ConfigError, unknown_name
from libra.core.hardware import Gpu
from libra.results.atomic import make_folder, write_bytes
from libra.results.store import VALIDATION_FILE

EXIT_GATE_MISSED = 3


def validate(root: Path, *, as_json: bool) -> None:
    """Print the error table and the gates, write both to the store; exit 3 when a gate is missed."""
    from libra.backends.sim.gates import validate as run

    found = run()
    make_folder(root)
    write_bytes(root / VALIDATION_FILE, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        out = console()
        rows = []
        for each in found.tables:
            shares = [f"{share:.1%}" for share in (each.mean, each.median, each.p90, each.largest)]
            rows.append((each.name, each.num_rows, each.use, *shares, each.interval, each.worst))
        columns = ("table", "rows", "use", "mean", "median", "P90", "largest", "mean over groups", "worst row")
        out.print(table("relative error of the predicted time", columns, rows))
        ranges = [
            (c.name, f"{c.value:.4g} {c.unit}", f"{c.low:.4g} to {c.high:.4g}", c.source) for c in found.constants
        ]
        out.print(table("\nfitted constants", ("constant", "value", "over fits without one group", "source"), ranges))
        gates = [
            (gate.name, f"{gate.limit:.0%}", f"{gate.found:.1%}", gate.verdict, gate.reason) for gate in found.gates
        ]
        out.print(table("\ngates", ("what", "at most", "found", "verdict", "why"), gates))
        out.print(f"\nwritten to {root / VALIDATION_FILE}; `libra report` shows it")
    if not found.passed:
        sys.exit(EXIT_GATE_MISSED)


def validate_gpu(name: str, *, as_json: bool) -> None:
    """Print the errors on one GPU's own table, and the constants fitted to it beside A100's. Raises `ConfigError`."""
    from libra.backends.sim.constants import provenance
    from libra.backends.sim.gpus import fit_of, provenance_of
    from libra.backends.sim.gpus.check import check
    from libra.backends.sim.range import CALIBRATED_GPUS

    if name in CALIBRATED_GPUS:
        raise ConfigError("its measurements calibrate all others", where="--gpu", value=name, mend="libra validate")
    gpu = _gpu(name)
    errors, origins = check(gpu), fit_of(gpu).origins
    constants, before = provenance_of(gpu), provenance()
    if as_json:
        fitted = {key: msgspec.to_builtins(constants[key]) for key in origins}
        return print_json({"errors": msgspec.to_builtins(errors), "constants": fitted})
    out = console()
    rows = [
        (each.kind, each.num_points, "fitted" if each.fitted else "check", f"{each.with_a100:.1%}", f"{each.mean:.1%}",
         f"{each.bias:+.1%}", "-" if each.held_out is None else f"{each.held_out:.1%}", each.worst)
        for each in errors
    ]  # fmt: skip
    columns = ("kind", "points", "use", "as A100", "mean", "bias", "held out", "worst point")
    out.print(table(f"{gpu.name}: relative error of the predicted time", columns, rows))
    shown = [
        (key, constant(before[key].value), constant(constants[key].value), constants[key].source) for key in origins
    ]
    out.print(table("\nfitted constants", ("constant", "A100", gpu.name, "from"), shown))
    out.print(f"\ntaken from A100: {', '.join(fit_of(gpu).kept) or 'nothing'}")


def _gpu(name: str) -> Gpu:
    """The GPU of a cluster file, or of a built-in cluster by the GPU's name. Raises `ConfigError` without a table."""
    from libra.backends.sim.gpus import table_of
    from libra.clusters import list_clusters, load_cluster

    if name.endswith(".toml"):
        gpu = load_cluster(name).gpu
        if table_of(gpu) is None:
            raise ConfigError("its GPU has no table of measured points", where=name, value=gpu.name,
                              mend='add `measured = "FILE.csv"` to [gpu]; `libra calibrate` makes one')  # fmt: skip
        return gpu
    known = {gpu.name: gpu for gpu in (load_cluster(each).gpu for each in list_clusters()) if table_of(gpu)}
    if name not in known:
        raise unknown_name("GPU with a table of measured points", name, known, where="--gpu",
                           mend="take one of these, or give the path of a cluster file")  # fmt: skip
    return known[name]
