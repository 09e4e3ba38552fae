"""In how many worlds does A beat B? Worlds differ in the simulator's constants and in the network."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from analysis.names import WORKLOAD_TITLES
from analysis.style import WIDTH_IN, Plot, colour
from analysis.worlds import Compared, compare, sentence
from paper_figures.sources import Sources
from paper_figures.variants import overrides

NETWORK = "cluster.network"
MARKS = {"nic15": "v", "nic22": "o", "nic176": "^"}
CAPTION = (
    "Each mark is one world with one seed: the simulator's constants as fitted, fitted without one group of measured "
    "rows, or with one constant at another value, on one of three networks (down 15, round 22, up 176 GB/s a node). "
    "All worlds see the same trajectories under a seed. A ratio above 1.01 is a win of the first system, one below "
    "0.99 a loss."
)


def build(sources: Sources) -> Plot:
    """A strip of worlds per comparison, and the counts."""
    title = "In how many worlds a comparison holds"
    missing = sources.missing("worlds")
    if missing:
        return Plot("worlds", title, CAPTION, missing=missing)
    found = compare(sources.study("worlds"))
    if not found:
        return Plot("worlds", title, CAPTION, missing="Study worlds has no finished pair of systems that are compared.")
    return Plot("worlds", title, CAPTION, _figure(found), pd.DataFrame([_row(each) for each in found]))


def holds(sources: Sources, ours: str, theirs: str) -> tuple[str, ...]:
    """A sentence on the worlds in which a comparison holds, for the notes of other figures; none without the study."""
    found = sentence(sources.study("worlds"), ours, theirs)
    return (f"Worlds (constants and networks), by over 1 %: {found}.",) if found else ()


def _row(each: Compared) -> dict[str, str]:
    low, high = (pick(each.ratios, key=each.ratios.__getitem__) for pick in (min, max))
    return {
        "workload": WORKLOAD_TITLES[each.workload],
        "comparison": f"{each.ours} over {each.theirs}",
        "worlds": str(each.num_worlds),
        "seeds": str(each.num_seeds),
        "wins": str(each.wins),
        "equal within 1 %": str(len(each.ratios) - each.wins - each.losses),
        "losses": str(each.losses),
        "ratio, least (x)": f"{each.ratios[low]:.3f}",
        "there": f"seed {low[1]}, {low[0] or 'as shipped'}",
        "ratio, largest (x)": f"{each.ratios[high]:.3f}",
        "and there": f"seed {high[1]}, {high[0] or 'as shipped'}",
    }


def _figure(found: list[Compared]) -> plt.Figure:
    workloads = list(dict.fromkeys(each.workload for each in found))
    figure, axes = plt.subplots(1, len(workloads), figsize=(WIDTH_IN, 2.6), squeeze=False, sharey=True, sharex=True)
    for panel, workload in zip(axes[0], workloads, strict=True):
        members = [each for each in found if each.workload == workload]
        for place, each in enumerate(members):
            for (variant, _), ratio in each.ratios.items():
                network = overrides(variant).get(NETWORK, "nic22")
                lift = {"nic15": -0.18, "nic22": 0.0, "nic176": 0.18}[network]
                panel.plot(ratio, place + lift, MARKS[network], color=colour(each.ours), ms=4, mfc="none", mew=0.8)
            text = f"{each.wins} won, {each.losses} lost of {len(each.ratios)}"
            across = panel.get_yaxis_transform()
            panel.text(1.0, place + 0.42, text, fontsize=7, va="center", ha="right", transform=across)
        panel.axvline(1.0, color="#555", lw=0.8)
        panel.set(title=WORKLOAD_TITLES[workload], xlabel="throughput ratio (x)", ylim=(len(members) - 0.4, -0.6))
        panel.xaxis.set_major_locator(MaxNLocator(4, prune="both"))
        panel.set_yticks(range(len(members)), [f"{each.ours}\nover {each.theirs}" for each in members], fontsize=7)
    figure.tight_layout()
    return figure
