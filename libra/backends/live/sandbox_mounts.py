"""Two ways to give a program a file system of its own: bubblewrap, or `mount` in a shell where that is missing.

Both show the same: system folders and Python read-only, a small private `/tmp`, `/proc` of the own PID namespace, a few
devices, and the call's folder as `/box`. Nothing else of the host exists in there, so nothing else can leak.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

WORK = "/box"
"""Where a call's folder is seen, whatever its name outside: outputs must not depend on the host's paths."""
TMP_BYTES = 16 << 20
ROOT_BYTES = 1 << 20
"""Holds mount points only."""
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
"""The loader's cache, and the links that Debian's `awk` and its kin go through."""
DEVICES = ("null", "zero", "urandom")

Mounts = Callable[[Path, Sequence[str]], list[str]]
"""From (folder, program) to the command line that runs the program in the new file system."""


def python_folder() -> Path | None:
    """The installation behind this interpreter (behind its virtual environment too), unless `/usr` holds it."""
    prefix = Path(sys.base_prefix).resolve()
    return None if prefix.is_relative_to("/usr") else prefix


def readable() -> list[Path]:
    """What is shown read-only besides `/usr` and the links into it."""
    python = python_folder()
    folders = [Path(name) for name in SYSTEM_FOLDERS if Path(name).is_dir() and not Path(name).is_symlink()]
    return folders + [Path(name) for name in SYSTEM_FILES if Path(name).exists()] + ([python] if python else [])


def parents() -> list[str]:
    """Folders to make for what is `readable`, outer ones first."""
    found = {str(parent) for path in readable() for parent in path.parents if len(parent.parts) > 1}
    return sorted(found)


def links() -> list[tuple[str, str]]:
    """(target, name) of system folders that are links into `/usr`."""
    return [(os.readlink(name), name) for name in SYSTEM_FOLDERS if Path(name).is_symlink()]


def bubblewrap(folder: Path, program: Sequence[str]) -> list[str]:
    """`bwrap`, used for its mounts; most namespaces are made outside of it, alike for both ways."""
    argv = ["bwrap", "--ro-bind", "/usr", "/usr"]
    for parent in parents():
        argv += ["--perms", "0755", "--dir", parent]
    for path in readable():
        argv += ["--ro-bind", str(path), str(path)]
    for target, name in links():
        argv += ["--symlink", target, name]
    # One more PID namespace, whose process 1 sees the new root: bwrap's outer process keeps the host's as its own, and
    # without root it would belong to the user inside, who could read it all below /proc/1/root.
    argv += ["--unshare-pid", "--proc", "/proc", "--dev", "/dev"]
    argv += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    argv += ["--bind", str(folder), WORK, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]
    return [*argv, "--", *program]


def shell(folder: Path, program: Sequence[str]) -> list[str]:
    """`mount` and `pivot_root` (util-linux, on every Linux) in a shell, which then stays as process 1.

    The root is assembled on `/mnt`, in a mount namespace that nobody else sees. A call of `mount` takes 2 ms.
    """
    quote = shlex.quote
    lines = [
        "set -e",
        f"exec 9<{quote(str(folder))}",  # held open: its path vanishes should it lie below /mnt
        f"mount -t tmpfs -o mode=755,size={ROOT_BYTES} tmpfs /mnt",
        "cd /mnt",
        f"mkdir -p usr proc dev tmp old .{WORK} " + " ".join("." + quote(parent) for parent in parents()),
        "mount --bind -o ro /usr usr",
    ]
    for path in readable():
        make = "mkdir -p" if path.is_dir() else ": >"
        lines += [f"{make} .{quote(str(path))}", f"mount --bind -o ro {quote(str(path))} .{quote(str(path))}"]
    lines += [f"ln -s {quote(target)} .{name}" for target, name in links()]
    lines.append(": >dev/" + " >dev/".join(DEVICES))
    lines += [f"mount --bind /dev/{name} dev/{name}" for name in DEVICES]
    lines += [
        f"mount -t tmpfs -o mode=1777,size={TMP_BYTES} tmpfs tmp",
        f"mount --bind /proc/self/fd/9 .{WORK}",
        "exec 9<&-",
        "mount -t proc proc proc",
        "pivot_root . old",
        "umount -l /old",
        "rmdir /old",
        "mount -o remount,bind,ro /",
        f"cd {WORK}",
        "set +e",
        shlex.join(program),  # no `exec`: process 1 must outlive it, reap, and pass its exit status on
        "exit $?",
    ]
    return ["sh", "-c", "\n".join(lines)]


WAYS: dict[str, Mounts] = {"bubblewrap": bubblewrap, "unshare": shell}
"""By name, the preferred one first."""
