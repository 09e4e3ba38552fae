"""Real traces through all systems: throughput, makespan, tails and bubbles."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

from analysis.names import RATE, REAL_STUDIES, RECORDED, UNIFORM
from analysis.pairs import interval, mean_text, policies_in, ratio, real_input, select, text
from analysis.style import INK, WIDTH_IN, Plot, colour, names_legend
from paper_figures.sources import SYSTEM_ORDER, Sources

ROUTED = ("pattern-blind", "pattern-prompt-history", "pattern-cmlfq", "pattern-oracle")
OWN = (
    "`recorded:` names a recording of a live run that ships with the product: a tiny policy, trained by GRPO with real "
    "engines and real tools **on CPU cores**. Its token counts and tool times are real, and they are not those of the "
    "model whose cluster is simulated here: trajectories are short, and the time of most is tool time."
)
METRICS = {
    "makespan_s": ("makespan (s)", ",.0f"),
    "tail_share_top10": ("longest 10 %: share of rollout time (0-1)", ".2f"),
    "tail_share_makespan": ("tail share of makespan (0-1)", ".2f"),
    "bubble_share": ("bubble share (0-1)", ".2f"),
    "routing_accuracy": ("one-shot accuracy (0-1)", ".2f"),
}
CAPTION = (
    "Agent traces replayed in groups. A dot is the paired throughput ratio of one seed (a seed shuffles "
    f"the trace) to `{UNIFORM}`. Traces without groups are put into groups of unrelated trajectories, so prompt "
    "history has nothing to learn from there; small traces are replayed many times, so accuracy on them says little."
)


def build(sources: Sources) -> Plot:
    """A row of dots a trace, and one table."""
    title = "Real traces"
    study = sources.first_of(REAL_STUDIES)
    table = real_input(sources.study(study))
    if select(table).empty:
        return Plot("traces", title, CAPTION, missing=sources.missing("traces"))
    names = policies_in(table, (*SYSTEM_ORDER, *ROUTED))
    workloads = sorted(set(select(table)["workload"]))
    ratios = _ratios(table, workloads, names)
    figure, panel = plt.subplots(figsize=(WIDTH_IN, 0.8 + 0.55 * len(workloads)))
    sns.stripplot(
        data=ratios, x="ratio", y="trace", hue="policy", hue_order=names, dodge=True, jitter=False, size=5,
        palette={name: colour(name) for name in names}, legend=False, edgecolor=INK, linewidth=0.4, ax=panel,
    )  # fmt: skip
    panel.axvline(1.0, color=INK, linewidth=0.8)
    for place in range(len(workloads) - 1):
        panel.axhline(place + 0.5, color="#e4e4e4", linewidth=0.8)
    panel.set(xlabel=f"throughput, {UNIFORM} = 1", ylabel="")
    panel.grid(axis="y", visible=False)
    figure.tight_layout()
    names_legend(figure, {name: name for name in names})
    rows = [_row(table, workload, policy) for workload in workloads for policy in names]
    notes = (OWN,) * any(name.startswith(RECORDED) for name in workloads)
    notes += ("From the short study `demo`; `libra run traces` adds routers and imported traces.",) * (study == "demo")
    return Plot("traces", title, CAPTION, figure, pd.DataFrame(rows), notes)


def trace_title(workload: str) -> str:
    """`trace:tau-bench.jsonl.gz` -> `tau-bench`."""
    return workload.removeprefix("trace:").removesuffix(".gz").removesuffix(".jsonl").removesuffix(".parquet")


def _ratios(table: pd.DataFrame, workloads: list[str], names: list[str]) -> pd.DataFrame:
    rows = []
    for workload in workloads:
        for policy in names:
            rate: dict[str, object] = {"workload": workload, "metric": RATE, "policy": policy}
            found = ratio(table, rate, {**rate, "policy": UNIFORM})
            rows += [
                {"trace": trace_title(workload), "policy": policy, "ratio": value}
                for value in (found.per_seed if found else ())
            ]
    return pd.DataFrame(rows, columns=["trace", "policy", "ratio"])


def _row(table: pd.DataFrame, workload: str, policy: str) -> dict[str, str]:
    rate: dict[str, object] = {"workload": workload, "metric": RATE, "policy": policy}
    found, to_uniform = interval(table, **rate), ratio(table, rate, {**rate, "policy": UNIFORM})
    row = {
        "trace": trace_title(workload),
        "system": policy,
        "seeds": str(found.n) if found else "0",
        "throughput (token/s)": mean_text(found, ",.0f"),
        f"ratio to {UNIFORM} (x)": "1" if policy == UNIFORM else text(to_uniform, ".3f"),
    }
    for metric, (name, digits) in METRICS.items():
        row[name] = mean_text(interval(table, workload=workload, policy=policy, metric=metric), digits)
    return row
