"""What agents' code may try, tried: each attempt has to fail in its way, and nothing of it may be left over."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from libra.backends.live.sandbox import LinuxSandbox, open_sandbox
from libra.backends.live.sandbox_mounts import WAYS
from libra.core.errors import ConfigError
from libra.workloads.tools.sandbox import Limits, SandboxResult

SECRET = "the hidden tests"
IS_ROOT = os.geteuid() == 0
AMPLE = Limits(wall_s=30.0, cpu_s=20)
"""Attempts that end by themselves must not be ended by a slow machine."""
Run = Callable[..., SandboxResult]


@pytest.fixture(params=list(WAYS))
def sandbox(request: pytest.FixtureRequest) -> LinuxSandbox:
    answer = LinuxSandbox(request.param, WAYS[request.param]).probe()
    if answer is not None:
        pytest.skip(f"{request.param} does not work here: {answer}")
    return open_sandbox(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "episode"
    made.mkdir()
    (made / "mine.txt").write_text("mine")
    (tmp_path / "secret.txt").write_text(SECRET)
    return made


@pytest.fixture
def run(sandbox: LinuxSandbox, folder: Path) -> Iterator[Run]:
    """Run a program, or a line of bash; afterwards none of its processes may live."""

    def attempt(*argv: str, limits: Limits = AMPLE, stdin: bytes = b"") -> SandboxResult:
        program = argv if len(argv) > 1 else ("bash", "-c", argv[0])
        result = asyncio.run(sandbox.run(program, folder, limits, stdin))
        assert survivors(folder) == []
        return result

    yield attempt


def python(code: str) -> tuple[str, ...]:
    return ("python3", "-I", "-c", code)


def survivors(folder: Path) -> list[int]:
    """Processes of the folder's own user; without root, ours in another PID namespace."""
    owner, ours = folder.stat().st_uid, os.readlink("/proc/self/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if IS_ROOT:
                is_one = entry.stat().st_uid == owner
            else:
                is_one = entry.stat().st_uid == owner and os.readlink(entry / "ns/pid") != ours
            if is_one:
                found.append(int(entry.name))
    return found


# What works.


def test_some_way_works_here_and_bubblewrap_is_preferred() -> None:
    assert open_sandbox().way == next(n for n, mounts in WAYS.items() if LinuxSandbox(n, mounts).probe() is None)


def test_output_exit_status_and_stdin_come_through(run: Run) -> None:
    result = run("cat; echo out; echo err >&2; exit 3", stdin=b"in\n")
    assert (result.output, result.exit_status, result.status) == ("in\nout\nerr\n", 3, "error")
    assert run("true").status == "ok"
    assert run("no-such-program", "x").exit_status == 127


def test_a_program_that_reads_no_input_is_not_waited_for(run: Run) -> None:
    assert run("true", stdin=b"x" * (1 << 22)).status == "ok"


def test_the_folder_is_read_and_written_and_its_host_name_unseen(run: Run, folder: Path) -> None:
    result = run("pwd; cat mine.txt; echo new >made.txt; echo changed >mine.txt")
    assert result.output == "/box\nmine"
    assert (folder / "made.txt").read_text() == "new\n"
    assert (folder / "mine.txt").read_text() == "changed\n"


def test_tmp_is_private_and_forgotten(run: Run) -> None:
    assert run("echo a >/tmp/note && cat /tmp/note").output == "a\n"
    assert run("ls -A /tmp").output == ""
    assert not Path("/tmp/note").exists()


def test_python_runs_in_the_version_that_runs_us(run: Run) -> None:
    assert run(*python("import sys, json; print(sys.version)")).output == sys.version + "\n"


def test_a_signal_is_an_exit_status(run: Run) -> None:
    result = run("kill -SEGV $$")
    assert (result.exit_status, result.limit_hit) == (128 + signal.SIGSEGV, None)


def test_many_calls_at_once_do_not_share_a_process_limit(sandbox: LinuxSandbox, tmp_path: Path) -> None:
    async def all_of_them() -> list[SandboxResult]:
        folders = [tmp_path / str(number) for number in range(12)]
        for each in folders:
            each.mkdir()
        line = ["bash", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3 & done; wait; echo done"]
        return await asyncio.gather(*(sandbox.run(line, each, Limits(wall_s=60, processes=16)) for each in folders))

    assert {(result.output, result.status) for result in asyncio.run(all_of_them())} == {("done\n", "ok")}


def test_waiting_for_a_turn_does_not_count_against_the_time_limit(
    sandbox: LinuxSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_slots", asyncio.Semaphore(1))

    async def all_of_them() -> list[SandboxResult]:
        folders = [tmp_path / str(number) for number in range(3)]
        for each in folders:
            each.mkdir()
        return await asyncio.gather(*(sandbox.run(["sleep", "2"], each, Limits(wall_s=5)) for each in folders))

    results = asyncio.run(all_of_them())
    assert {result.status for result in results} == {"ok"}
    assert max(result.latency_s for result in results) > 5


# Reaching out.


def test_no_tcp_and_no_udp(run: Run) -> None:
    # The address is the host's loopback: from in there it does not exist.
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        tcp.setblocking(False)
        udp.setblocking(False)
        address = tcp.getsockname()
        result = run(*python(f"import socket; socket.create_connection({address!r}, 2)"))
        assert result.status == "error" and "Network is unreachable" in result.output
        with pytest.raises(BlockingIOError):
            tcp.accept()
        code = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {!r})"
        assert run(*python(code.format(udp.getsockname()))).status == "error"
        with pytest.raises(BlockingIOError):
            udp.recv(1)


def test_no_unix_socket_of_the_host(run: Run) -> None:
    # Not below pytest's folder: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory() as place:
        for name, error in ((f"{place}/socket", "FileNotFoundError"), (f"\0libra-{os.getpid()}", "ConnectionRefused")):
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(name)
                server.listen()
                server.setblocking(False)
                result = run(*python(f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"))
                assert result.status == "error" and error in result.output
                with pytest.raises(BlockingIOError):
                    server.accept()


@pytest.mark.parametrize(
    "line",
    ["cat {secret}", "ln -s {secret} link; cat link", "cat ../secret.txt", "cat /box/../../../../../..{secret}",
     "cat /proc/1/root{secret}", "cat /proc/1/cwd/../secret.txt", "ln {secret} hard; cat hard"],
)  # fmt: skip
def test_no_file_outside_is_read(run: Run, tmp_path: Path, line: str) -> None:
    result = run(line.format(secret=tmp_path / "secret.txt"))
    assert result.status == "error"
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "line",
    ["echo x >/etc/passwd", "echo x >>/usr/bin/env", "mkdir /made", "echo x >{outside}", "echo x >../outside.txt",
     "ln -s {outside} link; echo x >link", "echo x >/dev/shm/x && echo x >/proc/sys/kernel/core_pattern",
     "mount -t tmpfs tmpfs /usr", "mknod disk b 254 0"],
)  # fmt: skip
def test_nothing_outside_is_written(run: Run, tmp_path: Path, line: str) -> None:
    before = (os.stat("/usr/bin/env").st_mtime_ns, sorted(os.listdir("/")))
    outside = tmp_path / "outside.txt"
    assert run(line.format(outside=outside)).status == "error"
    assert not outside.exists()
    assert (os.stat("/usr/bin/env").st_mtime_ns, sorted(os.listdir("/"))) == before


def test_neither_our_environment_nor_our_processes_are_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRA_TEST_TOKEN", SECRET)
    result = run("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; echo; ls -d /proc/[0-9]* | wc -l")
    assert SECRET not in result.output
    assert int(result.output.split()[-1]) <= 8


def test_no_privilege_is_left(run: Run) -> None:
    seen = run("grep -E '^(Cap(Eff|Prm|Inh|Bnd)|NoNewPrivs)' /proc/self/status").output.split()
    assert [int(value, 16) for value in seen[1::2]] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("target", ["{parent}", "1", "-1"])
def test_nothing_outside_is_killed(run: Run, target: str) -> None:
    line = f"kill -9 {target.format(parent=os.getpid())}; sleep 0.1; echo alive"
    result = run(line)
    assert result.limit_hit is None
    # `kill -9 -1` spares the caller and process 1: the shell gets to its last words.
    assert "alive" in result.output


# Using up.


def test_a_fork_bomb_stays_small_and_dies(run: Run) -> None:
    code = """
import os, time
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except BlockingIOError:
    print(made)
"""
    result = run(*python(code), limits=Limits(wall_s=30, processes=24))
    assert result.status == "ok" and 10 <= int(result.output) <= 24
    bomb = run(":(){ :|:& };:; sleep 60", limits=Limits(wall_s=1.0, processes=24))
    assert bomb.status in ("timeout", "error")


def test_an_endless_loop_runs_into_the_time_limit(run: Run) -> None:
    result = run("echo begun; while :; do :; done", limits=Limits(wall_s=2))
    assert (result.status, result.exit_status, result.output) == ("timeout", None, "begun\n")


def test_cpu_time_is_summed_over_processes(run: Run) -> None:
    line = "for i in 1 2 3; do (while :; do :; done) & done; wait"
    assert run(line, limits=Limits(wall_s=60, cpu_s=1)).limit_hit == "cpu_s"


def test_a_hundred_megabytes_of_output_are_drained_and_cut(run: Run) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run("head -c 100000000 /dev/zero | tr '\\0' x", limits=Limits(wall_s=60, output_bytes=1000))
    assert (result.output, result.is_truncated, result.status) == ("x" * 1000, True, "ok")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


@pytest.mark.parametrize(
    "line",
    ["setsid sleep 300 & disown; echo gone",
     "(setsid sh -c 'trap \"\" TERM HUP; sleep 300' >/dev/null 2>&1 &); echo gone"],
)  # fmt: skip
def test_a_sleeper_in_its_own_session_does_not_outlive_the_call(run: Run, line: str) -> None:
    result = run(line)
    assert (result.output, result.status) == ("gone\n", "ok")
    assert result.latency_s < AMPLE.wall_s


def test_a_double_fork_that_closes_all_does_not_outlive_the_call(run: Run) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        time.sleep(300)
    os._exit(0)
os.wait()
print("gone")
"""
    assert run(*python(code)).output == "gone\n"


def test_orphaned_zombies_are_reaped(run: Run) -> None:
    # 40 orphans one after the other under a limit of 24: unreaped, they would use it up.
    line = "for n in {1..40}; do (sleep 0.01 &); sleep 0.02; done; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    result = run(line, limits=Limits(wall_s=30, cpu_s=20, processes=24))
    assert result.status == "ok" and int(result.output.split()[-1]) <= 2


def test_memory_is_limited_for_one_process(run: Run) -> None:
    result = run(*python("x = bytearray(3 << 30)"), limits=Limits(wall_s=30, memory_mb=128))
    assert result.status == "error" and "MemoryError" in result.output


def test_memory_is_summed_over_processes(run: Run) -> None:
    code = "import os, time; [os.fork() for _ in range(3)]; x = b'x' * (60 << 20); time.sleep(60)"
    assert run(*python(code), limits=Limits(wall_s=40, cpu_s=20, memory_mb=200)).limit_hit == "memory_mb"


def test_memory_that_no_process_maps_is_counted(run: Run) -> None:
    code = "import os, time\nfor n in range(30): os.write(os.memfd_create('m'), bytes(12 << 20))\ntime.sleep(60)"
    assert run(*python(code), limits=Limits(wall_s=40, cpu_s=20, memory_mb=200)).limit_hit == "memory_mb"


def test_no_user_namespace_in_which_to_mount_memory(run: Run) -> None:
    result = run("unshare --user --map-root-user --mount sh -c 'mount -t tmpfs tmpfs /tmp && sleep 60' || exit 9")
    assert result.limit_hit == "namespaces" or result.exit_status == 9


def test_a_file_and_tmp_are_limited(run: Run, folder: Path) -> None:
    result = run("head -c 50000000 /dev/zero >large", limits=Limits(wall_s=30, file_mb=4))
    assert result.exit_status == 128 + signal.SIGXFSZ
    assert (folder / "large").stat().st_size <= 4 << 20
    full = run("for n in 1 2 3 4; do head -c 8000000 /dev/zero >/tmp/$n || exit 9; done")
    assert full.exit_status == 9 and "No space left" in full.output


@pytest.mark.parametrize(
    "line",
    ["n=0; while :; do n=$((n+1)); head -c 2000000 /dev/zero >$n; done", "n=0; while :; do n=$((n+1)); : >$n; done",
     "mkdir hid; head -c 16000000 /dev/zero >hid/x; cp hid/x hid/y; chmod 0 hid; sleep 50"],
)  # fmt: skip
def test_the_folder_is_limited(run: Run, line: str) -> None:
    assert run(line, limits=Limits(wall_s=60, cpu_s=40, folder_mb=30)).limit_hit == "folder_mb"


# Ends from outside.


def test_a_cancelled_call_leaves_nothing(sandbox: LinuxSandbox, folder: Path) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(sandbox.run(["bash", "-c", "touch begun; sleep 300"], folder, Limits(wall_s=300)))
        while not (folder / "begun").exists():
            await asyncio.sleep(0.01)
        assert survivors(folder)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert survivors(folder) == []


def test_nothing_outlives_us(sandbox: LinuxSandbox, folder: Path, project_root: Path) -> None:
    code = f"""
import asyncio
from pathlib import Path
from libra.backends.live.sandbox import open_sandbox
from libra.workloads.tools.sandbox import Limits
asyncio.run(open_sandbox({sandbox.way!r}).run(
    ["bash", "-c", "touch begun; sleep 300"], Path({str(folder)!r}), Limits(wall_s=300)))
"""
    host = subprocess.Popen([sys.executable, "-c", code], cwd=project_root)
    try:
        wait_until((folder / "begun").exists)
        assert survivors(folder)
    finally:
        host.kill()
        host.wait()
    wait_until(lambda: not survivors(folder))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


# Refusals.


def test_the_second_way_is_taken_where_the_first_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "bubblewrap", lambda folder, program: ["false"])
    assert open_sandbox().way == "unshare"


def test_a_machine_without_any_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAYS:
        monkeypatch.setitem(WAYS, name, lambda folder, program: ["sh", "-c", "echo not permitted >&2; exit 1"])
    with pytest.raises(ConfigError, match=r"bubblewrap: not permitted; unshare: not permitted.*\n.*to mend: use Linux"):
        open_sandbox()


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bubblewrap'"):
        open_sandbox("bubblewarp")


class ForkingLoop(asyncio.SelectorEventLoop):
    """Stands for uvloop, whose way of starting a process may wait for ever in a process with many threads."""

    async def subprocess_exec(self, *args: object, **kwargs: object) -> tuple[asyncio.SubprocessTransport, object]:
        raise AssertionError("a process was started by the caller's loop")


class NoWatcher(asyncio.DefaultEventLoopPolicy):
    """As uvloop's policy, which Ray sets for the whole process."""

    def get_child_watcher(self) -> asyncio.AbstractChildWatcher:
        raise NotImplementedError


def test_no_process_is_started_by_the_callers_loop(
    sandbox: LinuxSandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.events, "_event_loop_policy", NoWatcher())
    with asyncio.Runner(loop_factory=ForkingLoop) as runner:
        result = runner.run(sandbox.run(["cat"], folder, Limits(), b"done\n"))
    assert (result.output, result.status) == ("done\n", "ok")


def test_a_busy_uvloop_lives_through_it(sandbox: LinuxSandbox, folder: Path) -> None:
    """Given the pipe of a program, uvloop closes it twice, and aborts when another file had got its number."""
    pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-c", BUSY, sandbox.way, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "300 of 300\n"), done.stderr


BUSY = """
import asyncio, os, sys, threading, time
from pathlib import Path
import uvloop
from libra.backends.live.sandbox import open_sandbox
from libra.workloads.tools.sandbox import Limits

def open_files():
    while True:
        number = os.open("/dev/null", os.O_RDONLY)
        time.sleep(0.0005)
        os.close(number)

async def connect(address):
    while True:
        _, writer = await asyncio.open_unix_connection(address)
        writer.close()
        await writer.wait_closed()

async def main():
    sandbox, folder = open_sandbox(sys.argv[1]), Path(sys.argv[2])
    address = str(folder.parent / "socket")
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), address)
    tasks = [asyncio.ensure_future(connect(address)) for _ in range(4)]
    calls = [sandbox.run(["cat"], folder, Limits(), b"%d" % each) for each in range(300)]
    outputs = [result.output for result in await asyncio.gather(*calls)]
    assert not any(task.done() for task in tasks), tasks
    print(sum(output == str(each) for each, output in enumerate(outputs)), "of 300")

for _ in range(4):
    threading.Thread(target=open_files, daemon=True).start()
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
asyncio.run(main())
"""
