"""What was run: studies, cells, seeds, steps, versions and time, out of the store alone; and warnings to the reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from analysis.load import planned_steps, workload_name
from analysis.names import RECORDED, TRAINING_STEPS, WORKLOAD_TITLES
from libra.results.store import State, Store, StoredCell

CONSTANT = ("value", "unit", "kind", "source")
"""What a timing constant is told with."""

NOT_OVER: tuple[State, ...] = ("pending", "running")


@dataclass(frozen=True)
class Run:
    """`studies` has one row a study; `facts` are (name, value) pairs; `failures` one row a reason."""

    studies: pd.DataFrame
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    failures: pd.DataFrame


def describe(store: Store, notes: Sequence[str]) -> Run:
    """The store as it stands. `notes` say which cells are left out of the comparison."""
    cells = store.cells()
    unique = list({cell.id: cell for cell in cells}.values())
    studies = [_study_row(name, [cell for cell in cells if cell.cell.study == name]) for name in store.studies()]
    return Run(
        pd.DataFrame(studies), tuple(_facts(unique)), (*_warnings(unique), *notes), _failures(unique)
    )  # fmt: skip


def _failures(cells: Sequence[StoredCell]) -> pd.DataFrame:
    """One row a reason: forty cells that fail alike are one thing to mend."""
    groups: dict[tuple[str, str, str], list[StoredCell]] = {}
    for cell in cells:
        if cell.status.state not in ("done", *NOT_OVER):
            key = (cell.cell.study, cell.status.state, _first_line(cell.status.reason))
            groups.setdefault(key, []).append(cell)
    return pd.DataFrame(
        {
            "cells": str(len(alike)),
            "study": study,
            "state": state,
            "why": why,
            "the first of them": f"{alike[0].cell.label} (`libra show {alike[0].id}`)",
        }
        for (study, state, why), alike in groups.items()
    )


def _study_row(name: str, cells: Sequence[StoredCell]) -> dict[str, str]:
    states = Counter(cell.status.state for cell in cells)
    steps = sorted({planned_steps(cell) for cell in cells})
    drifts = [cell.cell.workload in WORKLOAD_TITLES for cell in cells if not cell.cell.workload.startswith(RECORDED)]
    failed = len(cells) - states["done"] - sum(states[state] for state in NOT_OVER)
    return {
        "study": name,
        "cells": str(len(cells)),
        "done": str(states["done"]),
        "failed": str(failed),
        "not finished": str(sum(states[state] for state in NOT_OVER)),
        "workloads": ", ".join(dict.fromkeys(workload_name(cell.cell.workload) for cell in cells)),
        "systems": str(len({cell.cell.policy for cell in cells})),
        "seeds": str(len({cell.cell.seed for cell in cells})),
        "steps per run": "; ".join(_steps_text(each, bool(drifts) and all(drifts)) for each in steps),
    }


def _steps_text(steps: int, drifts: bool) -> str:
    """What a simulated step stands for, where the workload (recordings aside) drifts over a whole training."""
    if steps == 0:
        return "the workload's own"
    if not drifts:
        return str(steps)
    each = TRAINING_STEPS / steps
    return f"{steps}, each standing for {each:.3g} of {TRAINING_STEPS} training steps"


def _facts(cells: Sequence[StoredCell]) -> list[tuple[str, str]]:
    kept = [_read(cell, "provenance.json") for cell in cells if cell.status.state == "done"]
    walls = [_read(cell, "timing.json").get("wall_s", 0.0) for cell in cells if cell.status.state == "done"]
    commits = [_commit(each.get("git")) for each in kept]
    packages = [f"{name} {version}" for each in kept for name, version in (each.get("packages") or {}).items()]
    hosts = [f"{each['host'].get('system')}, {each['host'].get('num_cpus')} CPUs" for each in kept if "host" in each]
    return [
        ("backend", _distinct(cell.cell.backend for cell in cells) or "none"),
        ("cluster", _distinct(f"{cell.cell.cluster} ({cell.facts['num_gpus']} GPUs)" for cell in cells if cell.facts)),
        ("model", _distinct(cell.cell.model for cell in cells)),
        ("sources (fingerprint)", _distinct(cell.sources for cell in cells)),
        ("commit", _distinct(commits)),
        ("Python", _distinct(str(each.get("python", "?")) for each in kept)),
        ("packages", _distinct(packages)),
        ("machine", _distinct(hosts)),
        ("wall time of all cells, summed", f"{sum(walls):,.0f} s"),
    ]  # fmt: skip


def _commit(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return "not run from a checkout"
    return f"{git['commit'][:12]}{' with uncommitted changes' if git['dirty'] else ''}"


def _distinct(values: Any) -> str:
    return ", ".join(dict.fromkeys(values))


def _warnings(cells: Sequence[StoredCell]) -> list[str]:
    found = []
    states = Counter(cell.status.state for cell in cells)
    bad = sum(number for state, number in states.items() if state not in ("done", *NOT_OVER))
    waiting = sum(states[state] for state in NOT_OVER)
    if not cells:
        found.append("The store is empty: no study has been run. `libra demo` makes a first one.")
    if bad:
        found.append(f"{bad} of {len(cells)} cells failed; they are listed below, and every number is without them.")
    if waiting:
        found.append(f"{waiting} of {len(cells)} cells are not finished; the same `libra run` goes on from there.")
    versions = {cell.sources for cell in cells if cell.status.state == "done"}
    if len(versions) > 1:
        found.append(
            f"Cells come from {len(versions)} versions of the code ({', '.join(sorted(versions))}), so differences "
            "between them may be differences of the code: run their studies again."
        )
    return found


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _read(cell: StoredCell, name: str) -> dict[str, Any]:
    """A JSON file of a cell; empty where it is missing or damaged (the report must not fail for it)."""
    try:
        found = msgspec.json.decode((cell.path / name).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class WorkloadFacts:
    """What a run stored of its workload: documented parameters, and what a user should know about the data."""

    parameters: pd.DataFrame
    warnings: tuple[str, ...]


def workload_facts(cells: Sequence[StoredCell]) -> dict[str, WorkloadFacts]:
    """By workload, from `workload.json` of its first finished cell; cells without overrides go first."""
    found: dict[str, WorkloadFacts] = {}
    for cell in sorted(cells, key=lambda each: bool(each.cell.section("workload").keys() - {"num_steps"})):
        name = workload_name(cell.cell.workload)
        if name in found or cell.status.state != "done":
            continue
        stored = _read(cell, "workload.json")
        rows = pd.DataFrame(stored.get("parameters", []), columns=["name", "value", "provenance", "source"])
        if stored:
            found[name] = WorkloadFacts(rows, tuple(stored.get("warnings", ())))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class TimingFacts:
    """The simulator's timing constants with their sources, how many of each kind, and what runs noted about them."""

    constants: pd.DataFrame
    kinds: str
    notes: tuple[str, ...]


def timing_facts(cells: Sequence[StoredCell]) -> TimingFacts:
    """From `timing_model.json`: constants of the first finished cell that stored them, warnings of all."""
    stored = [_read(cell, "timing_model.json") for cell in cells if cell.status.state == "done"]
    constants: dict[str, Any] = next((each["constants"] for each in stored if each.get("constants")), {})
    rows = pd.DataFrame(
        [{"constant": name, **{key: str(fact.get(key, "")) for key in CONSTANT}} for name, fact in constants.items()]
    )
    kinds = Counter(fact.get("kind", "") for fact in constants.values())
    notes = dict.fromkeys(text for each in stored for text in each.get("warnings", ()))
    return TimingFacts(rows, ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())), tuple(notes))
