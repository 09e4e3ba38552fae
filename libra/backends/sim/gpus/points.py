"""A GPU's table of measured points: CSV rows of a kind, its sizes, a time and where it comes from.

A row is `gemm,m=16 n=5120 k=5120,2.9e-05,SOURCE`. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from libra.core.errors import ConfigError, unknown_name

HEADER = ("kind", "sizes", "time_s", "source")

SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "decode_attention": ("batch", "context_tok", "heads", "kv_heads", "head_dim"),
    "prefill_attention": ("batch", "length_tok", "heads", "head_dim"),
    "elementwise": ("num_bytes",),
    "moe": ("tok", "tp", "hidden", "ffn", "experts", "experts_per_tok"),
    "engine_all_reduce": ("gpus", "num_bytes"),
    "nccl_all_reduce": ("gpus", "num_bytes"),
    "decode_step": ("model", "tp", "seqs", "context_tok"),
    "train_step": ("model", "tp", "dp", "seqs", "length_tok", "micro_batch_tok", "recompute"),
}
"""Kinds of points and their sizes. All are whole numbers but `model`: a name, or the path of a model file.

`elementwise` streams bytes (read and written together), `engine_all_reduce` is the serving engine's own kernel,
`decode_step` one engine step that gives each of `seqs` sequences a token, `train_step` forward, backward and optimizer.
"""


class GpuPoint(msgspec.Struct, frozen=True):
    """One measured time. `sizes` are in the order of the kind's names."""

    kind: str
    sizes: tuple[int | str, ...]
    time_s: float
    source: str = ""

    def __getitem__(self, name: str) -> int:
        value = self.sizes[SIZES[self.kind].index(name)]
        assert isinstance(value, int), f"{name} is a number"
        return value

    @property
    def model(self) -> str:
        return str(self.sizes[SIZES[self.kind].index("model")])

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in zip(SIZES[self.kind], self.sizes, strict=True))

    @property
    def key(self) -> tuple[str, str]:
        """What makes two rows measurements of the same thing."""
        return self.kind, self.label


def read_points(path: Path) -> tuple[GpuPoint, ...]:
    """All rows of a table. Raises `ConfigError` with file and line for what is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the table of measured points: {getattr(error, 'strerror', 'it is no UTF-8 text')}",
            where=str(path),
            mend="correct `measured` in the cluster file, or make the table with `libra calibrate`",
        ) from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered or tuple(next(csv.reader([numbered[0][1]]))) != HEADER:
        raise ConfigError("the first line is no header", where=str(path), mend=f"begin with `{','.join(HEADER)}`")
    return tuple(parse_point(line, f"{path}:{number}") for number, line in numbered[1:])


def parse_point(line: str, where: str) -> GpuPoint:
    """One row. Raises `ConfigError`."""
    cells = next(csv.reader([line]))
    if len(cells) != len(HEADER):
        raise ConfigError(f"{len(cells)} columns", where=where, value=line, mend=f"write {', '.join(HEADER)}")
    kind, sizes, time_s, source = (cell.strip() for cell in cells)
    if kind not in SIZES:
        raise unknown_name("kind", kind, SIZES, where=where)
    try:
        seconds = float(time_s)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise ConfigError("time_s is no positive number", where=where, value=time_s, mend="write seconds, e.g. 2.9e-05")
    return GpuPoint(kind, _sizes(kind, sizes, where), seconds, source)


def _sizes(kind: str, text: str, where: str) -> tuple[int | str, ...]:
    names = SIZES[kind]
    found = dict(part.partition("=")[::2] for part in text.split())
    if set(found) != set(names):
        wrong = [f"no {name}" for name in names if name not in found] + [
            f"unknown {name}" for name in found if name not in names
        ]
        raise ConfigError(
            f"sizes of {kind}: {', '.join(wrong)}", where=where, value=text, mend=" ".join(f"{n}=..." for n in names)
        )
    values: list[int | str] = []
    for name in names:
        number = found[name].isdecimal() and (int(found[name]) > 0 or name == "recompute")
        if name != "model" and not number:
            raise ConfigError(f"{name} is no positive whole number", where=where, value=found[name])
        values.append(found[name] if name == "model" else int(found[name]))
    return tuple(values)


def write_row(point: GpuPoint) -> str:
    """A row as it stands in a table, without the end of the line."""
    return f"{point.kind},{point.label},{point.time_s:.4g},{point.source}"
