"""The published claims as data, and one script per figure or table."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.style import Plot
    from paper_figures.sources import Sources

FIGURES = (
    "throughput",
    "ablation",
    "routing",
    "traces",
    "growth",
    "growth_settings",
    "drift",
    "tp_study",
    "reward",
    "learning",
    "throughput_bound",
    "asynchrony",
    "sensitivity",
    "worlds",
    "published_steps",
    "validation",
    "fidelity",
)
"""Scripts in the order of the report; each has `build(sources) -> Plot`."""


def builder(name: str) -> Callable[[Sources], Plot]:
    """The `build` function of a figure script."""
    build: Callable[[Sources], Plot] = import_module(f"paper_figures.{name}").build
    return build
