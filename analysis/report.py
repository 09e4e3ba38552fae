"""The report: one HTML page without scripts, links to files or network, figures inline, PNG twins beside it.

Equal stores give equal bytes: nothing on the page depends on the clock or on where the store lies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.claim_model import Claim, load_claims, load_sources
from analysis.claims import Verdict
from analysis.load import comparable_cells
from analysis.report_run import describe, timing_facts, workload_facts
from analysis.report_short import sentences
from analysis.statistics import RESOLVED_HALF_WIDTH
from analysis.style import Plot, save, svg
from analysis.verdicts import Judged, count, judge_all, sections, value_text
from libra.results.atomic import make_folder, write_bytes
from libra.results.glossary import METRICS, STEADY_STATE
from libra.results.store import VALIDATION_FILE, Store

PAGE, PICTURES = "report.html", "figures"

PUBLISHED, TRACES, ERRORS = "published_steps", "traces", ("validation", "fidelity")
"""Plots with sections of their own."""

MAX_NUMBER, MAX_WORD, MAX_WIDE = 31, 28, 120
"""Characters: a number with its interval; a name that stays on one line; a sentence. More is a paragraph."""


def write_report(store: Store, plots: Sequence[Plot], out: Path) -> Path:
    """Write the page and its pictures into `out`; returns the page. Raises `StoreError` when it cannot be written."""
    page = render(store, plots).encode()
    make_folder(out)
    for plot in plots:
        save(plot, out / PICTURES, ("png",))
    write_bytes(out / PAGE, page)
    return out / PAGE


def render(store: Store, plots: Sequence[Plot]) -> str:
    """The page as text. `plots` in the order of the page."""
    comparable = comparable_cells(store)
    table = comparable.table
    judged = judge_all(table, load_claims())
    environment = Environment(
        loader=PackageLoader("analysis", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(prose=prose, rows=html_table, picture=picture)
    by_section = sections(judged)
    return environment.get_template(PAGE).render(
        run=describe(store, comparable.notes),
        short=sentences(table, judged, store.root / VALIDATION_FILE),
        figures=[plot for plot in plots if plot.name not in (PUBLISHED, TRACES, *ERRORS)],
        traces=[plot for plot in plots if plot.name == TRACES],
        published=[plot for plot in plots if plot.name == PUBLISHED],
        validation=[plot for plot in plots if plot.name in ERRORS],
        counts=count(judged),
        claims={name: _split(rows) for name, rows in by_section.items() if name != "Setup"},
        settings=[claim for claim, _ in by_section.get("Setup", [])],
        contradictions=[claim for claim, _ in judged if claim.contradicts],
        sources=load_sources(),
        metrics=list(METRICS.values()),
        steady_state=STEADY_STATE,
        resolved=f"{100 * RESOLVED_HALF_WIDTH:g} %",
        workloads=workload_facts(comparable.cells),
        timing=timing_facts(comparable.cells),
    )


def _split(rows: Sequence[Judged]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Claims that somebody may judge, and those that nobody may."""
    judged = [_claim(*each) for each in rows if each[0].judged_by != ("none",)]
    return judged, [_claim(*each) for each in rows if each[0].judged_by == ("none",)]


def _claim(claim: Claim, verdict: Verdict) -> dict[str, str]:
    """A row of the claims table, all of it text."""
    found = verdict.measurement
    return {
        "id": claim.id,
        "statement": claim.statement,
        "quote": claim.quote_en or claim.quote or claim.arithmetic,
        "source": ", ".join(claim.source),
        "paper": claim.text,
        "ours": value_text(verdict),
        "n": str(found.n) if found else "",
        "judge": verdict.judge or "",
        "word": verdict.word,
        "tone": verdict.word.replace(" ", "-"),
        "why": "; ".join(text for text in (verdict.reason, found.note if found else "") if text),
        "note": claim.note,
        "tolerance": claim.tolerance_reason,
        "reading_of": claim.reading_of,
    }


def prose(text: str) -> Markup:
    """Plain text with `code` and **stress** as HTML; everything else is escaped."""
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


def html_table(table: pd.DataFrame) -> Markup:
    """A table in a box that scrolls sideways; cells that begin with a digit or sign stand right."""
    head = "".join(f"<th scope='col'>{escape(str(name))}</th>" for name in table.columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in table.itertuples(index=False))
    return Markup(f"<div class='box'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")


def _cell(value: object) -> str:
    text = "" if value is None or value != value else str(value)
    if re.match(r"[-+−]?[\d.]", text) and len(text) <= MAX_NUMBER:
        kind = "num"
    else:
        kind = "word" if len(text) <= MAX_WORD else "wide" if len(text) <= MAX_WIDE else "long"
    return f"<td class='{kind}'>{prose(text)}</td>"


def picture(plot: Plot) -> Markup:
    """The figure as SVG inside the page: no namespaces, no metadata, and ids that no other figure has."""
    assert plot.figure is not None, "only plots with a figure have a picture"
    text = re.sub(r"<metadata>.*?</metadata>", "", svg(plot.figure), flags=re.S)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    text = re.sub(r'\bid="', f'id="{plot.name}-', text)
    text = re.sub(r"url\(#", f"url(#{plot.name}-", text)
    text = re.sub(r'href="#', f'href="#{plot.name}-', text)
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(plot.title)}" ', 1))
