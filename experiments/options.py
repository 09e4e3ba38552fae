"""Options that many verbs of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[Path, typer.Option("--store", help="Folder of results.", envvar=None)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PluginOption = Annotated[
    list[Path] | None, typer.Option("--plugin", help="A .py file or a folder with your own policies or workloads.")
]
CellArgument = Annotated[str, typer.Argument(help="Cell id, or the first digits of it (see `libra status`).")]
STORE = Path("runs")
