"""`libra figures|claims|report`: what the store says, as pictures, as verdicts and as one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.output import console, print_json, table
from libra.core.errors import unknown_name
from libra.results.store import Store

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

    from analysis.style import Plot
    from analysis.verdicts import Judged
    from paper_figures.sources import Sources


def figures(root: Path, out: Path, only: tuple[str, ...]) -> None:
    """Write figures (SVG, PNG) and tables (CSV) to `out`. Raises `ConfigError` for an unknown figure."""
    from analysis.style import save

    out_screen = console()
    for plot in _plots(_open(root), _names(only)):
        files = save(plot, out)
        out_screen.print(f"{plot.name}: {', '.join(map(str, files)) if files else plot.missing}")


def _names(only: Sequence[str]) -> Sequence[str]:
    from paper_figures import FIGURES

    for name in only:
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES, where="--only")
    return [name for name in FIGURES if name in only] if only else FIGURES


def _open(root: Path) -> Sources:
    from paper_figures.sources import Sources

    return Sources(Store(root, create=False))


def _plots(sources: Sources, names: Sequence[str]) -> list[Plot]:
    from analysis.style import use_style
    from paper_figures import builder

    use_style()
    return [_plot(name, builder(name), sources) for name in names]


def _plot(name: str, build: Callable[[Sources], Plot], sources: Sources) -> Plot:
    """One figure; what cannot be drawn from this store says so and takes no other figure with it."""
    from analysis.style import Plot

    try:
        return build(sources)
    except (ValueError, KeyError) as error:
        return Plot(name, name.replace("_", " "), "", missing=f"Cannot be drawn from this store: {error!r}")


def claims(root: Path, *, as_json: bool) -> None:
    """Print every claim with its verdict, grouped by section, and how many there are of each word."""
    from analysis.verdicts import count, judge_all, sections, value_text

    sources = _open(root)
    judged = judge_all(sources.table, tuple(sources.claims.values()))
    if as_json:
        return print_json({"counts": count(judged), "notes": sources.comparable.notes, "claims": _as_json(judged)})
    out = console()
    for name, rows in sections([each for each in judged if each[0].kind != "setup"]).items():
        lines = [(claim.id, claim.text, value_text(verdict), verdict.word, verdict.reason) for claim, verdict in rows]
        out.print(table(f"\n{name}", ("claim", "paper", "ours", "verdict", "why"), lines))
    for note in sources.comparable.notes:
        out.print(note)
    out.print("\n" + ", ".join(f"{number} {word}" for word, number in count(judged).items()))


def _as_json(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from analysis.verdicts import section_of

    return [
        {"section": section_of(claim), "paper": claim.text, "statement": claim.statement, **asdict(verdict)}
        for claim, verdict in judged
    ]


def report(root: Path, out: Path) -> None:
    """Write `out/report.html` with the figures as PNG beside it."""
    from analysis.report import write_report
    from paper_figures import FIGURES

    sources = _open(root)
    page = write_report(sources.store, _plots(sources, FIGURES), out)
    console().print(f"report: {page} (figures as PNG and CSV in {page.parent / 'figures'})")


def demo_tables(root: Path) -> list[Table]:
    """Throughput of every system on every workload of the demo, for the terminal; recordings apart."""
    from analysis.pairs import real_input, select
    from paper_figures.sources import WORKLOAD_TITLES, titled

    rows = _open(root).study("demo")
    workloads = {name: WORKLOAD_TITLES[name] for name in titled(select(rows)["workload"])}
    recorded = {name: name for name in dict.fromkeys(select(real_input(rows))["workload"])}
    asked = (
        (workloads, "token/s (simulated)"),
        (recorded, "\nrecordings of a tiny policy on CPU cores: token/s (simulated)"),
    )
    return [_throughputs(rows, columns, title) for columns, title in asked if columns]


def _throughputs(rows: DataFrame, workloads: dict[str, str], title: str) -> Table:
    from analysis.pairs import interval, mean_text, policies_in
    from paper_figures.sources import SYSTEM_ORDER

    lines = [
        [name, *(mean_text(interval(rows, policy=name, workload=workload, metric="trajectory_tok_per_s"), ",.0f")
                 for workload in workloads)]
        for name in policies_in(rows, SYSTEM_ORDER)
    ]  # fmt: skip
    return table(title, ("system", *workloads.values()), lines)
