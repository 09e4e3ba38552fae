"""`libra validate`: the simulator's timing against measurements, kept in the store for the report."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from experiments.commands.output import console, print_json, table
from libra.results.atomic import make_folder, write_bytes

EXIT_GATE_MISSED = 3
FILE_NAME = "validation.json"


def validate(root: Path, *, as_json: bool) -> None:
    """Print the error table and the gates, write both to the store; exit 3 when a gate is missed."""
    from libra.backends.sim.gates import validate as run

    found = run()
    make_folder(root)
    write_bytes(root / FILE_NAME, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        out = console()
        rows = []
        for each in found.tables:
            shares = [f"{share:.1%}" for share in (each.mean, each.median, each.p90, each.largest)]
            interval = "" if each.low is None else f"{each.low:.1%} to {each.high:.1%}"
            rows.append((each.name, each.num_rows, each.use, *shares, interval, each.worst))
        columns = ("table", "rows", "use", "mean", "median", "P90", "largest", "95 % of the mean", "worst row")
        out.print(table("relative error of the predicted time", columns, rows))
        ranges = [(c.name, f"{c.value:.4g}", f"{c.low:.4g} to {c.high:.4g}") for c in found.constants]
        out.print(table("\nfitted constants", ("constant", "value", "over fits without one group"), ranges))
        gates = [
            (gate.name, f"{gate.limit:.0%}", f"{gate.found:.1%}", "met" if gate.met else "MISSED", gate.reason)
            for gate in found.gates
        ]
        out.print(table("\ngates", ("what", "at most", "found", "verdict", "why"), gates))
        out.print(f"\nwritten to {root / FILE_NAME}; `libra report` shows it")
    if not found.passed:
        sys.exit(EXIT_GATE_MISSED)
