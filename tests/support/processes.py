"""Processes of the product, started by tests: signalled by their own pid, always reaped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("producers", "worker", "schedules", "interfaces")
COUNTERSINK = (
    sys.executable,
    "-c",
    "import sys; from countersink.cli.entry import main; sys.exit(main())",
)
"""The `countersink` command, without the console script: works in a bare checkout too."""
MAIN = (
    "import json, sys; from tests.support.{} import main; sys.exit(main(**json.loads(sys.argv[1])))"
)
"""Runs ``main`` of a module of this package with a plan in JSON."""


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # gone before it was opened, or since
        return False


class Child:
    """One subprocess with its output in a file; to be started from the main thread."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        name: str = "child",
        directory: Path = PROJECT,
        lines_in: bool = False,
        stderr: int | None = None,
    ) -> None:
        """``stderr`` is a descriptor; it goes with stdout by default."""
        self.name = name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        wrapper: list[str] = []
        if setpriv := shutil.which("setpriv"):  # it ends with the test run, however that ends
            wrapper = [setpriv, "--pdeathsig", "KILL", "--"]
        self._process = subprocess.Popen(
            [*wrapper, *arguments],
            stdin=subprocess.PIPE if lines_in else subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT if stderr is None else stderr,
            cwd=directory,
            env={**child_environment(), **(environment or {})},
            start_new_session=True,  # a Ctrl-C at the terminal is for the test run alone
        )

    @property
    def pid(self) -> int:
        """The process id; ours until reaped."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def children(self) -> list[int]:
        """The processes that it has started, as far as they have not ended."""
        try:
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in found.split()]

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def say(self, line: str) -> None:
        """Write a line to its standard input (for children started with `lines_in`)."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit status (negative: the signal's number).

        Raises:
            AssertionError: it still runs after `timeout` seconds; its output is in the message.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {timeout} s\n{self.output()}"
            ) from None

    def output(self) -> str:
        """What it has written to stdout and stderr so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode("utf-8", "replace")

    def reap(self) -> None:
        """Make sure that it is gone, and close its files."""
        if self.running:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._output.close()


class Children:
    """All processes of one test; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for child in self._children:
            if kind is not None:
                print(f"--- output of {child.name}:\n{child.output()[-4000:]}")
            child.reap()

    def running(self) -> list[Child]:
        """Those that have not ended."""
        return [child for child in self._children if child.running]

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def start(self, arguments: Sequence[str], **options: Any) -> Child:
        """Start a process; ``options`` are those of :class:`Child`."""
        self._children.append(Child(arguments, **options))
        return self._children[-1]

    def forget(self, child: Child) -> None:
        """Reap one of them: tests that start very many close their files."""
        if child in self._children:
            self._children.remove(child)
            child.reap()

    def countersink(self, *arguments: str, **options: Any) -> Child:
        """Start the `countersink` command."""
        name = f"countersink {' '.join(arguments[:1])}"
        return self.start([*COUNTERSINK, *arguments], name=name, **options)

    def module(self, module: str, plan: Mapping[str, object], **options: Any) -> Child:
        """Start ``main`` of a module of this package, which takes what is in the plan."""
        arguments = [sys.executable, "-c", MAIN.format(module), json.dumps(plan)]
        return self.start(arguments, **options)

    def worker(self, redis_url: str, mysql_url: str, **options: object) -> Child:
        """Start a worker process; `options` are fields of WorkerOptions."""
        fields = {"redis_url": redis_url, "mysql_url": mysql_url, **options}
        return self.module("run_worker", fields, name="worker")

    def mover(self, what: str, mysql_url: str, rows: int) -> Child:
        """Start compaction or retention in a process (`tests.support.run_moves`)."""
        return self.module(
            "run_moves", {"what": what, "mysql_url": mysql_url, "rows": rows}, name=what
        )

    def app(self, redis_url: str, **plan: object) -> Child:
        """Start an app that counts (`tests.support.run_app`); `plan` are fields of its Plan."""
        return self.module("run_app", {"redis_url": redis_url, **plan}, name="app", lines_in=True)


def countersink(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """Run the `countersink` command to its end; stdout, stderr and exit status apart."""
    return subprocess.run(
        [*COUNTERSINK, *arguments],
        env={**child_environment(), **(environment or {})},
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def child_environment() -> dict[str, str]:
    """This process's environment with the source roots on the path and no settings of ours."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COUNTERSINK_")
    }
    roots = [str(PROJECT / root) for root in SOURCE_ROOTS]
    known = os.environ.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([*roots, str(PROJECT), *known.split(os.pathsep)])
    environment["PYTHONFAULTHANDLER"] = "1"
    return environment
