"""The real sandbox: a program in namespaces of its own, with limits, and nothing of it left when a call returns.

`unshare` makes the PID, network, IPC and host-name namespaces and stays outside as the one that waits: the kernel lets
it reap process 1 only after every process of the namespace is dead. What mounts the file system is `sandbox_mounts`.
Under root each folder gets a user of its own, since root is bound by no process limit and one shared user would share
the limit; else a user namespace serves.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from libra.backends.live.own_loop import on_own_loop
from libra.backends.live.program import Program
from libra.backends.live.sandbox_mounts import WAYS, WORK, Mounts, python_folder
from libra.backends.live.sandbox_watch import children, limit_hit
from libra.core.errors import ConfigError, unknown_name
from libra.workloads.tools.sandbox import LimitName, Limits, SandboxResult

TOOLS = ("unshare", "setpriv", "prlimit", "mount")
FIRST_UID, NUM_UIDS = 1 << 30, 1 << 30
"""Users of folders are drawn from a range that no machine gives to people: two equal ones among a thousand: 0.0005."""
MERGED = ("sh", "-c", 'exec "$@" 2>&1', "sh")
WATCH_S = 0.05
"""Between two looks at memory, CPU time and disk: a writer of 2 GB/s gets 100 MB too far, and a look takes 0.2 ms."""
CHUNK_BYTES = 1 << 16
MAX_FILES_OPEN = 64
MAX_RUNNING = 4 * (os.cpu_count() or 1)
"""At once; others wait, which counts as latency but not against their time limit: a step of 128 samples calls its
tools together, and none may fail for the others' sake."""
ADDRESS_SPACE_FACTOR = 2
"""Address space is not memory: allocators reserve more than they use. What is used is watched."""


def open_sandbox(way: str | None = None) -> LinuxSandbox:
    """The first of `WAYS` that runs `true` here, or the one named. Raises `ConfigError` with what each answered."""
    if way is not None and way not in WAYS:
        raise unknown_name("way to make a sandbox", way, WAYS)
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_environment()["PATH"]) is None]
    answers = [f"{tool} is missing" for tool in missing]
    for name in [] if missing else [way] if way else WAYS:
        sandbox = LinuxSandbox(name, WAYS[name])
        answer = sandbox.probe()
        if answer is None:
            return sandbox
        answers.append(f"{name}: {answer}")
    raise ConfigError(
        "agents' code cannot be locked in on this machine: " + "; ".join(answers),
        where="sandbox",
        mend="use Linux with util-linux and bubblewrap, as root or with user namespaces for users "
        "(sysctl user.max_user_namespaces; in a container: allow `unshare` and `mount`)",
    )


class LinuxSandbox:
    """See `Sandbox`. Many calls may run at once, each in another folder."""

    def __init__(self, way: str, mounts: Mounts) -> None:
        self.way = way
        self._mounts = mounts
        self._is_root = os.geteuid() == 0
        self._slots = asyncio.Semaphore(MAX_RUNNING)

    def probe(self) -> str | None:
        """Why this way does not work here; None when it does."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            argv = self._command(["true"], folder, Limits(), self._owner(folder))
            try:
                done = subprocess.run(argv, env=_environment(), capture_output=True, text=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
        return None if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"

    async def run(self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes = b"") -> SandboxResult:
        called_s = time.monotonic()
        return await on_own_loop(lambda: self._when_free(argv, folder, limits, stdin, called_s))

    async def _when_free(
        self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes, called_s: float
    ) -> SandboxResult:
        async with self._slots:
            return await self._run(argv, folder, limits, stdin, called_s)

    async def _run(
        self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes, called_s: float
    ) -> SandboxResult:
        owner = self._owner(folder)
        started_s = time.monotonic()
        process = Program(self._command(argv, folder, limits, owner), stdin, _environment())
        drain = asyncio.create_task(_drain(process, limits.output_bytes))
        hit: LimitName | None = None
        try:
            hit = await _watch(process, folder.resolve(), limits, started_s)
        finally:
            await asyncio.shield(asyncio.create_task(_end(process)))
            kept, is_truncated = await drain
        status = process.returncode
        return SandboxResult(
            exit_status=None if hit or status is None or status < 0 else status,
            output=kept.decode(errors="replace"),
            latency_s=time.monotonic() - called_s,
            limit_hit=hit,
            is_truncated=is_truncated,
        )

    def _owner(self, folder: Path) -> int | None:
        """The user that the folder belongs to, given to it on first use; None when we are not root."""
        if not self._is_root:
            return None
        uid = folder.stat().st_uid
        if FIRST_UID <= uid < FIRST_UID + NUM_UIDS:
            return uid
        uid = FIRST_UID + secrets.randbelow(NUM_UIDS)
        for parent, folders, files in os.walk(folder, topdown=False):
            for name in folders + files:
                os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)
        os.chown(folder, uid, uid)
        return uid

    def _command(self, argv: Sequence[str], folder: Path, limits: Limits, owner: int | None) -> list[str]:
        """From outside to inside: namespaces (dead when we die), mounts, privileges, limits, program."""
        # First: becoming another user clears the wish to die with us.
        user = [] if self._is_root else ["unshare", "--user", "--map-root-user"]
        outside = [*user, "setpriv", "--pdeathsig", "KILL", "unshare"]
        outside += ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
        inside = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        if owner is not None:
            inside += [f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]
        return outside + self._mounts(folder.resolve(), [*inside, *_limited(limits), *MERGED, *argv])


def _limited(limits: Limits) -> list[str]:
    """What the kernel holds each process to, `nproc` excepted: that is the user's."""
    return [
        "prlimit",
        f"--nproc={limits.processes}",
        f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}",
        f"--as={ADDRESS_SPACE_FACTOR * limits.memory_mb << 20}",
        f"--fsize={limits.file_mb << 20}",
        f"--nofile={MAX_FILES_OPEN}",
        "--core=0",
        "--",
    ]


def _environment() -> dict[str, str]:
    """All that programs see of ours: nothing."""
    python = python_folder()
    path = ([f"{python}/bin"] if python else []) + ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    return {
        "PATH": ":".join(path),
        "HOME": WORK,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


async def _watch(process: Program, folder: Path, limits: Limits, started_s: float) -> LimitName | None:
    """Wait for the end or for a limit, which is named."""
    ended = asyncio.ensure_future(process.wait())
    try:
        while True:
            left_s = started_s + limits.wall_s - time.monotonic()
            if left_s <= 0:
                return "wall_s"
            done, _ = await asyncio.wait([ended], timeout=min(WATCH_S, left_s))
            if done:
                return None
            for init in children(process.pid):
                if hit := limit_hit(init, folder, limits):
                    return hit
    finally:
        ended.cancel()


async def _end(process: Program) -> None:
    """Kill what still runs, and return when all of it is dead.

    Process 1 is killed rather than `unshare`, so that there is somebody who waits until the namespace is empty.
    """
    while process.returncode is None:
        found = children(process.pid)
        for init in found:
            try:
                os.kill(init, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not found and not Path(f"/proc/{process.pid}").exists():
            break
        try:
            await asyncio.wait_for(process.wait(), WATCH_S)
        except TimeoutError:
            if not found:
                process.kill()  # it had not come as far as its first child
    await process.wait()


async def _drain(process: Program, keep_bytes: int) -> tuple[bytes, bool]:
    """Read to the end, whatever its size; the first bytes, and whether any were dropped."""
    output, kept, is_truncated = await process.output(), bytearray(), False
    while chunk := await output.read(CHUNK_BYTES):
        room = keep_bytes - len(kept)
        kept += chunk[:room]
        is_truncated |= len(chunk) > room
    return bytes(kept), is_truncated
