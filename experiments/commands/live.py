"""`libra train`: one live cell, with a table that follows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.commands.output import console
from experiments.commands.runs import changed
from experiments.live_view import LiveView
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store

STUDY = "train"


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    workload: str
    cluster: str
    model: str
    policy: str
    seed: int
    steps: int | None
    changes: tuple[str, ...]
    store: Path
    plugins: tuple[Path, ...]

    def cell(self) -> Cell:
        """Raises `ConfigError` for a key that no part of a cell takes."""
        overrides = {} if self.steps is None else {"live.num_steps": self.steps}
        cell = Cell.make(
            STUDY, self.workload, self.cluster, self.model, self.policy, backend="live", seed=self.seed,
            overrides=overrides,
        )  # fmt: skip
        return changed(cell, self.changes)


def train(request: Request, *, dry_run: bool, retry_failed: bool) -> None:
    """Run the cell unless it is done; exit 1 when it failed, 130 when interrupted."""
    from experiments.launch import launch
    from experiments.resolve import Resolver
    from libra.backends.live.environment import environment_spec
    from libra.clusters.live import load_live

    registry, screen = Registry(request.plugins), console()
    cell = request.cell()
    resolver = Resolver(registry)
    setup = resolver.setup(cell)
    environment_spec(cell.workload, request.plugins)
    load_live(cell.cluster)
    path = Store(request.store).path(cell.identity(resolver.code(cell)))
    if dry_run:
        screen.print(f"{cell.label}: {setup.live_options.num_steps} steps, pipeline {setup.pipeline.kind} -> {path}")
        return
    with LiveView(screen, path, setup.live_options.num_steps) as view:
        summary = launch(
            [cell], Store(request.store), registry, launcher="inline", workers=1, retry_failed=retry_failed,
            on_progress=view,
        )  # fmt: skip
    for outcome, reason in zip(summary.outcomes.values(), list(summary.reasons.values()) or [""], strict=False):
        screen.print(f"{outcome}{': ' + reason if reason else ''}; {path}", markup=False, highlight=False)
    sys.exit(summary.exit_code)
