"""In how many worlds does A beat B? Worlds differ in the simulator's constants and in the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib import pyplot as plt

from analysis.names import HOMOGENEOUS, RATE, UNIFORM, WORKLOAD_TITLES
from analysis.pairs import by_seed, select
from analysis.style import WIDTH_IN, Plot, colour
from paper_figures.sources import Sources, titled
from paper_figures.variants import overrides

COMPARISONS = (
    ("libra", UNIFORM),
    ("libra", HOMOGENEOUS),
    (HOMOGENEOUS, UNIFORM),
    ("pattern-cmlfq", "pattern-blind"),
)
NETWORK = "cluster.network"
MARKS = {"nic15": "v", "nic22": "o", "nic176": "^"}
EVEN = 0.01
"""Ratios within 1 % of each other count as equal, neither a win nor a loss."""
CAPTION = (
    "Each mark is one world: the simulator's constants as fitted, fitted without one group of measured rows, or with "
    "one assumed constant at another value, on one of three networks (down 15, round 22, up 176 GB/s a node). All "
    "worlds see the same trajectories, of one seed. A ratio above 1.01 is a win of the first system, one below 0.99 "
    "a loss."
)


@dataclass(frozen=True)
class Compared:
    """Ratios of one comparison on one workload, by world (variant)."""

    workload: str
    ours: str
    theirs: str
    by_world: dict[str, float]

    @property
    def wins(self) -> int:
        return sum(ratio > 1 + EVEN for ratio in self.by_world.values())

    @property
    def losses(self) -> int:
        return sum(ratio < 1 - EVEN for ratio in self.by_world.values())


def build(sources: Sources) -> Plot:
    """A strip of worlds per comparison, and the counts."""
    title = "In how many worlds a comparison holds"
    missing = sources.missing("worlds")
    if missing:
        return Plot("worlds", title, CAPTION, missing=missing)
    found = _compare(select(sources.study("worlds"), metric=RATE))
    return Plot("worlds", title, CAPTION, _figure(found), pd.DataFrame([_row(each) for each in found]))


def holds(sources: Sources, ours: str, theirs: str) -> tuple[str, ...]:
    """A sentence on the worlds in which a comparison holds, for the notes of other figures; none without the study."""
    if sources.missing("worlds"):
        return ()
    found = _compare(select(sources.study("worlds"), metric=RATE), ((ours, theirs),))
    parts = [f"{each.wins} of {len(each.by_world)} on {WORKLOAD_TITLES[each.workload]}" for each in found]
    return (f"Worlds (constants and networks) in which {ours} beats {theirs} by over 1 %: {', '.join(parts)}.",)


def _compare(table: pd.DataFrame, comparisons: Sequence[tuple[str, str]] = COMPARISONS) -> list[Compared]:
    found = []
    for workload in titled(table["workload"]):
        for ours, theirs in comparisons:
            ratios = {}
            for variant in sorted(set(table["variant"])):
                where = {"workload": workload, "variant": variant}
                above, below = (by_seed(table, **where, policy=policy) for policy in (ours, theirs))
                shared = sorted(above.keys() & below.keys())
                if shared:
                    logs = [math.log(above[seed] / below[seed]) for seed in shared]
                    ratios[variant] = math.exp(sum(logs) / len(logs))
            if ratios:
                found.append(Compared(workload, ours, theirs, ratios))
    return found


def _row(each: Compared) -> dict[str, str]:
    low, high = (pick(each.by_world, key=each.by_world.__getitem__) for pick in (min, max))
    return {
        "workload": WORKLOAD_TITLES[each.workload],
        "comparison": f"{each.ours} over {each.theirs}",
        "worlds": str(len(each.by_world)),
        "wins": str(each.wins),
        "equal within 1 %": str(len(each.by_world) - each.wins - each.losses),
        "losses": str(each.losses),
        "ratio, least (x)": f"{each.by_world[low]:.3f}",
        "in world": low,
        "ratio, largest (x)": f"{each.by_world[high]:.3f}",
        "in that world": high,
    }


def _figure(found: list[Compared]) -> plt.Figure:
    workloads = list(dict.fromkeys(each.workload for each in found))
    figure, axes = plt.subplots(1, len(workloads), figsize=(WIDTH_IN, 2.6), squeeze=False, sharey=True, sharex=True)
    for panel, workload in zip(axes[0], workloads, strict=True):
        members = [each for each in found if each.workload == workload]
        for place, each in enumerate(members):
            for variant, ratio in each.by_world.items():
                network = overrides(variant).get(NETWORK, "nic22")
                lift = {"nic15": -0.18, "nic22": 0.0, "nic176": 0.18}[network]
                panel.plot(ratio, place + lift, MARKS[network], color=colour(each.ours), ms=4, mfc="none", mew=0.8)
            text = f"{each.wins} won, {each.losses} lost of {len(each.by_world)}"
            across = panel.get_yaxis_transform()
            panel.text(1.0, place + 0.42, text, fontsize=7, va="center", ha="right", transform=across)
        panel.axvline(1.0, color="#555", lw=0.8)
        panel.set(title=WORKLOAD_TITLES[workload], xlabel="throughput ratio (x)", ylim=(len(members) - 0.4, -0.6))
        panel.set_yticks(range(len(members)), [f"{each.ours}\nover {each.theirs}" for each in members], fontsize=7)
    figure.tight_layout()
    return figure
