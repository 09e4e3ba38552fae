"""Drives the importers over files: picks formats, drops duplicates, numbers groups and samples, keeps the account."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libra.core.errors import TraceError
from libra.core.records import Trajectory
from libra.workloads.importers.base import Findings, ImporterSpec, Place, RowError, Sample, clean, digest, shown
from libra.workloads.importers.files import Document, find_files, load
from libra.workloads.importers.report import FileReport, ImportReport, Outcome, Unread, count_method, counted_of
from libra.workloads.trace_file import TraceHeader, problem_in

AUTO = "auto"
MAX_REASONS = 5
"""Reasons in the error when nothing could be read."""


@dataclass(frozen=True)
class ImportResult:
    """What `write_trace` needs, and the account of how it came about."""

    header: TraceHeader
    trajectories: tuple[Trajectory, ...]
    report: ImportReport


def read_dumps(specs: Mapping[str, ImporterSpec], format_name: str, paths: Sequence[Path]) -> ImportResult:
    """See `import_dump`; `format_name` is known to be allowed."""
    files, notes = find_files(paths)
    drive = _Drive(specs, format_name)
    for path in files:
        drive.read(load(path))
    if not drive.kept:
        reasons = [f"{each.where}: {each.reason}" for each in drive.unread] or ["no rows"]
        more = [f"... and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
        raise TraceError(
            "nothing could be read\n  " + "\n  ".join([*reasons[:MAX_REASONS], *more]),
            mend="check format and files; `libra list importer` shows the formats",
        )
    return drive.result(files, notes)


@dataclass
class _Repeats:
    """Tells copies from equal samples.

    A row with a name of its own is a copy when the same content came before. One without may be an equal sample: a file
    may hold it as often as any file before, and a file that is one list written twice holds each half the times.
    """

    named: dict[str, Place] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    here: Counter[str] = field(default_factory=Counter)
    first: dict[str, Place] = field(default_factory=dict)

    def start_file(self) -> None:
        for content, num in self.here.items():
            self.most[content] = max(self.most[content], num)
        self.here = Counter()

    def original_of(self, content: str, place: Place, *, has_name: bool) -> Place | None:
        """Place of the row that this one copies, or None."""
        known = self.first.setdefault(content, place)
        self.here[content] += 1
        if has_name:
            return None if known is place else known
        return known if self.here[content] <= self.most[content] else None


class _Drive:
    def __init__(self, specs: Mapping[str, ImporterSpec], format_name: str) -> None:
        self._specs, self._format = specs, format_name
        self.kept: list[Trajectory] = []
        self.unread: list[Unread] = []
        self._files: list[FileReport] = []
        self._duplicates: list[str] = []
        self._findings = Findings()
        self._repeats = _Repeats()
        self._groups: dict[tuple[str, str], int] = {}
        self._names: Counter[str] = Counter()
        self._samples: Counter[int] = Counter()
        self._uids: dict[tuple[str, str], Place] = {}
        self._estimates: Counter[str] = Counter()
        self._num_groups = self._num_exact = self._num_grouped = 0

    def read(self, document: Document) -> None:
        """Keep what a file holds, and account for the rest."""
        self.unread += [Unread(str(place), reason) for place, reason in document.problems]
        num_before = len(self.kept)
        spec = self._spec_of(document)
        if spec:
            self._repeats.start_file()
            for place, value in self._without_second_half(document, spec):
                self._read_row(spec, place, value)
        name = spec.name if spec else ""
        self._files.append(FileReport(shown(document.path), name, len(document.rows), len(self.kept) - num_before))

    def _spec_of(self, document: Document) -> ImporterSpec | None:
        """The format of most rows; None, said, where no row has an allowed one."""
        if not document.rows:
            return None
        guesses = Counter(guess for _, value in document.rows if (guess := self._guess(value)))
        if self._format != AUTO:
            spec = self._specs[self._format]
            if any(spec.sniff(value) for _, value in document.rows):
                return spec
        elif guesses:
            return self._specs[guesses.most_common(1)[0][0]]
        reason = self._alien(document.rows[0][1])
        self.unread.append(Unread(shown(document.path), f"{reason} ({len(document.rows):,} rows)"))
        return None

    def _guess(self, value: Any) -> str | None:
        best = max(self._specs.values(), key=lambda spec: spec.sniff(value))
        return best.name if best.sniff(value) else None

    def _alien(self, value: Any) -> str:
        guess = self._guess(value)
        if guess:
            return f"looks like format {guess}"
        if isinstance(value, dict) and ("schema_version" in value or "generated_tok" in str(value.get("turns"))[:400]):
            return "looks like a canonical trace: needs no import, give it to `--trace`"
        return "no known format"

    def _without_second_half(self, document: Document, spec: ImporterSpec) -> Iterator[tuple[Place, Any]]:
        """All rows, or the first half of a list of unnamed rows that was written twice."""
        rows = document.rows
        half = len(rows) // 2
        values = [value for _, value in rows]
        is_twice = len(rows) % 2 == 0 and half > 1 and values[:half] == values[half:]
        if is_twice and values[0] != values[1] and not any(spec.identify(value) for value in values):
            pairs = zip(rows[:half], rows[half:], strict=True)
            self._duplicates += [f"{place}: as {first}" for (first, _), (place, _) in pairs]
            rows = rows[:half]
        yield from rows

    def _read_row(self, spec: ImporterSpec, place: Place, value: Any) -> None:
        if not spec.sniff(value):
            self.unread.append(Unread(str(place), self._alien(value)))
            return
        try:
            name = spec.identify(value)
            content = f"{spec.name} {digest(json.dumps(value, sort_keys=True))}"
        except RecursionError:
            self.unread.append(Unread(str(place), "nested too deep"))
            return
        original = self._repeats.original_of(content, place, has_name=name is not None)
        if original:
            self._duplicates.append(f"{place}{f' ({clean(name)})' if name else ''}: as {original}")
            return
        findings = Findings()
        try:
            samples = list(spec.read(value, place, findings))
        except RowError as error:
            self.unread.append(Unread(str(place), str(error)))
            return
        except RecursionError:
            self.unread.append(Unread(str(place), "nested too deep"))
            return
        self._findings.add(findings)
        for sample in samples:
            if isinstance(sample, RowError):
                self.unread.append(Unread(str(place), str(sample)))
            else:
                self._keep(spec, place, sample)

    def _keep(self, spec: ImporterSpec, place: Place, sample: Sample) -> None:
        if sample.uid and (first := self._uids.setdefault((spec.name, sample.uid), place)) is not place:
            self._duplicates.append(f"{place} ({clean(sample.uid)}): as {first}")
            return
        key = (spec.name, sample.group or f"alone {self._num_groups}")
        group = self._groups.get(key, self._num_groups)
        row = Trajectory(
            self._prompt_id(sample),
            group,
            self._samples[group],
            sample.prompt_tok,
            sample.turns,
            sample.reward,
            sample.status,
        )
        if problem := problem_in(row):
            self.unread.append(Unread(str(place), problem))
            return
        if key not in self._groups:
            self._groups[key] = group
            self._num_groups += 1
        self._samples[group] += 1
        self._num_exact += sample.is_exact
        if not sample.is_exact:
            self._estimates[sample.estimate] += 1
        self._num_grouped += sample.group is not None
        self.kept.append(row)

    def _prompt_id(self, sample: Sample) -> str:
        """Ids of trajectories without groups are made unique: nobody may take them for samples of one prompt."""
        name = sample.prompt_id
        if sample.group is not None:
            return name
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}@{self._names[name]}"

    def result(self, files: Sequence[Path], notes: Sequence[str]) -> ImportResult:
        alone = len(self.kept) - self._num_grouped
        if alone:
            which = "" if alone == len(self.kept) else f" for {alone:,} trajectories"
            notes = [*notes, f"no groups in the dump{which}: each trajectory has a prompt and a group of its own"]
        formats = sorted({each.format for each in self._files if each.num_kept})
        report = ImportReport(
            files=tuple(self._files),
            unread=tuple(self.unread),
            duplicates=tuple(self._duplicates),
            token_counting=count_method(self._num_exact, self._estimates, self._findings.measured),
            outcome=Outcome.of(self.kept),
            counted=counted_of(self._findings),
            notes=(*self._findings.notes, *notes),
        )
        header = TraceHeader(
            source=" + ".join(formats),
            token_counting=report.token_counting,
            created_from=tuple(shown(path) for path in files),
            notes=tuple(report.facts()),
        )
        return ImportResult(header, tuple(self.kept), report)
