"""`libra data prepare`: downloads public data sets and converts them into a `data_folder`, resuming where it stopped.

Search-R1 trains on NQ and HotpotQA in the form of FlashRAG, over Wikipedia of 2018 in pieces of 100 words;
DAPO-Math-17K is one table. The revision of each repository is pinned in the manifest on the first run, and files that
the manifest already lists, with the same checksum, are not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from libra.core.errors import ConfigError, unknown_name
from libra.workloads.environments.convert import corpus_rows, problem_rows, question_rows
from libra.workloads.environments.data_folder import (
    CORPUS,
    FILES,
    Manifest,
    SourceEntry,
    read_manifest,
    sha256_of,
    write_manifest,
    write_rows,
)


@dataclass(frozen=True)
class Output:
    """A file of the folder, made from files of one repository. `rows(paths)` reads them in the order of `files`."""

    name: str
    repo: str
    files: tuple[str, ...]
    rows: Callable[[Sequence[Path]], Iterable[msgspec.Struct]]


QUESTIONS, CORPUS_REPO = "PeterJinGo/nq_hotpotqa_train", "PeterJinGo/wiki-18-corpus"
PROBLEMS, PROBLEMS_FILE = "BytedTsinghua-SIA/DAPO-Math-17k", "data/dapo-math-17k.parquet"

OUTPUTS: dict[str, tuple[Output, ...]] = {
    "search-r1": (
        Output("train.jsonl", QUESTIONS, ("train.parquet",), lambda paths: question_rows(paths[0])),
        Output(
            "held_out.jsonl",
            QUESTIONS,
            ("test.parquet", "train.parquet"),
            lambda paths: question_rows(paths[0], without=paths[1]),
        ),
        Output(CORPUS, CORPUS_REPO, ("wiki-18.jsonl.gz",), lambda paths: corpus_rows(paths[0])),
    ),
    "dapo-math": (
        Output("train.jsonl", PROBLEMS, (PROBLEMS_FILE,), lambda paths: problem_rows(paths[0], "train")),
        Output("held_out.jsonl", PROBLEMS, (PROBLEMS_FILE,), lambda paths: problem_rows(paths[0], "held_out")),
    ),
}


class Hub(Protocol):
    """Where public files come from."""

    def revision(self, repo: str) -> str:
        """The newest one."""
        ...

    def download(self, repo: str, file: str, revision: str, folder: Path) -> Path:
        """Into `folder`; goes on where an earlier call was cut off."""
        ...


class HuggingFaceHub:
    """By the library huggingface_hub, which resumes downloads and checks their sizes."""

    def revision(self, repo: str) -> str:
        return str(self._ask(repo, lambda hub: hub.HfApi().dataset_info(repo).sha))

    def download(self, repo: str, file: str, revision: str, folder: Path) -> Path:
        target = {"revision": revision, "local_dir": folder / repo.replace("/", "--")}
        return Path(
            self._ask(f"{repo}/{file}", lambda hub: hub.hf_hub_download(repo, file, repo_type="dataset", **target))
        )

    @staticmethod
    def _ask(what: str, call: Callable[..., str]) -> str:
        try:
            import huggingface_hub
        except ImportError as error:
            raise ConfigError(
                "data sets are downloaded by the library huggingface_hub, which is not installed",
                where="libra data prepare",
                mend="pip install huggingface_hub",
            ) from error
        try:
            return call(huggingface_hub)
        except (OSError, huggingface_hub.errors.HTTPError) as error:
            raise ConfigError(
                f"the download failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                where=what,
                mend="it needs a network; run the same command again, it goes on where it stopped",
            ) from error


def outputs_of(workload: str) -> tuple[Output, ...]:
    """Raises `ConfigError` for a workload without a public data set."""
    if workload not in OUTPUTS:
        raise unknown_name("data set", workload, OUTPUTS, where="libra data prepare")
    return OUTPUTS[workload]


def prepare(workload: str, folder: Path, hub: Hub, tell: Callable[[str], None] = lambda line: None) -> Manifest:
    """Makes what is missing in `folder`. Downloads stay in `folder/source`, which may be deleted afterwards."""
    outputs = outputs_of(workload)
    manifest = _manifest(workload, folder)
    for output in outputs:
        entry, path = manifest.files.get(output.name), folder / output.name
        if entry is not None and path.is_file() and sha256_of(path) == entry.sha256:
            tell(f"{output.name}: already there, {entry.rows:,} rows")
            continue
        manifest, paths = _download(output, manifest, folder, hub)
        made = write_rows(path, output.rows(paths))
        if not made.rows:
            raise ConfigError("the data set has no usable row", where=f"{output.repo}: {', '.join(output.files)}")
        manifest = msgspec.structs.replace(manifest, files={**manifest.files, output.name: made})
        write_manifest(folder, manifest)
        tell(f"{output.name}: {made.rows:,} rows, SHA-256 {made.sha256}")
    assert set(manifest.files) == set(FILES[workload])
    return manifest


def _manifest(workload: str, folder: Path) -> Manifest:
    """That of an earlier run, else a new one. Raises `ConfigError` for a folder that something else is in."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"no folder can be made there: {error.strerror}", where=str(folder)) from error
    manifest = read_manifest(folder)
    if manifest is not None and manifest.workload != workload:
        raise ConfigError(
            "another workload is prepared there", where=str(folder), value=manifest.workload, mend="another --out"
        )
    return manifest or Manifest(workload)


def _download(output: Output, manifest: Manifest, folder: Path, hub: Hub) -> tuple[Manifest, list[Path]]:
    """A file that the manifest knows is taken at the same revision, and must have the same content."""
    paths = []
    for file in output.files:
        known = {(each.repo, each.file): each for each in manifest.sources}
        pinned = {each.repo: each.revision for each in manifest.sources}
        revision = pinned.get(output.repo) or hub.revision(output.repo)
        path = hub.download(output.repo, file, revision, folder / "source")
        found = SourceEntry(output.repo, file, revision, sha256_of(path))
        before = known.get((output.repo, file))
        if before is None:
            manifest = msgspec.structs.replace(manifest, sources=(*manifest.sources, found))
            write_manifest(folder, manifest)
        elif before.sha256 != found.sha256:
            raise ConfigError(
                f"the download changed: its SHA-256 was {before.sha256}",
                where=str(path),
                value=found.sha256,
                mend="delete the file and run the command again",
            )
        paths.append(path)
    return manifest, paths


def plan(workload: str) -> Iterator[str]:
    """What `prepare` would download and write, one line each."""
    for output in outputs_of(workload):
        yield f"{output.name} <- {output.repo}: {', '.join(output.files)}"
