"""A folder with a warmed-up policy that transformers, vLLM and verl load; made once for the same inputs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from libra.backends.live.tiny.model import new_model
from libra.backends.live.tiny.tokenizer import load_tokenizer, train_tokenizer
from libra.backends.live.tiny.warmup import WarmupOptions, warm_up
from libra.core.errors import ConfigError
from libra.workloads.environments.base import Environment

RECORD = "policy.json"

SOURCES = ("model.py", "tokenizer.py", "warmup.py")

LIBRARIES = ("tokenizers", "torch", "transformers")

NUM_PROBED = 64
"""Demonstrations per environment in the fingerprint: any change of an environment's texts or noise shows in them."""


class PolicyRecord(msgspec.Struct, frozen=True):
    """What `policy.json` holds: where the weights beside it come from. `loss` is that of the last warm-up steps."""

    fingerprint: str
    environments: tuple[str, ...]
    seed: int
    steps: int
    loss: float


def fingerprint(environments: Sequence[Environment], seed: int, options: WarmupOptions) -> str:
    """16 hex digits over all that the weights depend on but the processor: sources, libraries, demonstrations."""
    digest = hashlib.blake2b(digest_size=8)
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library}={importlib.metadata.version(library)}".encode())
    digest.update(repr((seed, options)).encode())
    for environment in environments:
        digest.update(repr((environment.name, environment.stop)).encode())
        for demonstration in islice(environment.demonstrations(seed), NUM_PROBED):
            digest.update(msgspec.json.encode(demonstration))
    return digest.hexdigest()


def make_policy(
    folder: Path,
    environments: Sequence[Environment],
    seed: int,
    steps: int,
    progress: Callable[[str], None] = lambda line: None,
) -> PolicyRecord:
    """Train tokenizer and model into `folder`, or find there what the same inputs made before.

    The folder appears at once and whole. Raises `ConfigError` where it holds anything else, or `steps` is no count.
    """
    if not environments:
        raise ConfigError("a policy needs an environment to learn from", where="environments")
    if steps < 1:
        raise ConfigError("a warm-up needs at least one step", where="steps", value=steps)
    options = WarmupOptions(steps=steps)
    wanted = fingerprint(environments, seed, options)
    if found := _found(folder, wanted):
        progress(f"policy {wanted} is there already: {folder}")
        return found
    tokenizer = train_tokenizer(environments, seed)
    model = new_model(tokenizer, seed)
    loss = warm_up(model, tokenizer, environments, seed, options, progress)
    record = PolicyRecord(wanted, tuple(one.name for one in environments), seed, steps, loss)
    _write(folder, model, tokenizer, record)
    return record


def load_policy(folder: Path) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Model (float32, ready to sample) and tokenizer of a folder that `make_policy` made."""
    if not (folder / RECORD).is_file():
        raise ConfigError("no tiny policy in this folder", where=str(folder), mend="make one with make_policy")
    return Qwen3ForCausalLM.from_pretrained(folder, dtype="float32").eval(), load_tokenizer(folder)


def _found(folder: Path, wanted: str) -> PolicyRecord | None:
    """The record of the same inputs; None where the folder is new or empty."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    mend = "name another folder, or remove this one"
    record_file = folder / RECORD
    if not record_file.is_file():
        raise ConfigError("holds something that is no tiny policy", where=str(folder), mend=mend)
    try:
        record = msgspec.json.decode(record_file.read_bytes(), type=PolicyRecord)
    except msgspec.DecodeError as error:
        raise ConfigError(f"cannot be read: {error}", where=str(record_file), mend=mend) from error
    if record.fingerprint != wanted:
        made = f"environments {', '.join(record.environments)}, seed {record.seed}, {record.steps} steps"
        raise ConfigError(
            f"holds a tiny policy of other inputs ({made}, fingerprint {record.fingerprint}; wanted {wanted})",
            where=str(folder),
            mend=mend,
        )
    return record


def _write(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, record: PolicyRecord) -> None:
    """By way of a sibling folder: whoever finds `folder` finds all of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        draft.chmod(0o755)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
