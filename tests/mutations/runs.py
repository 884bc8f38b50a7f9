"""Runs of pytest in copies of the checkout, several at a time, and what each of them says."""

import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.mutations.copies import SourceCopy
from tests.mutations.mutation import Mutation
from tests.support.processes import Child

PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"),
    *("-m", "not long and not clusters"),  # what `make test` notices
)
TIME_OUT_S: Final = 180.0
"""Seconds after which the tests of a mutation are ended."""
POLL_S: Final = 0.05
LEAVE_S: Final = 10.0
"""Seconds in which tests that are to end may stop their servers and delete their files."""
_FAILED: Final = 1
"""Exit status of pytest: tests were run, and some failed."""
_SAID: Final = re.compile(r"^(FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_NOT_SET_UP: Final = re.compile(r"^_+ ERROR at setup of ", re.MULTILINE)
_TIMED_OUT: Final = re.compile(r"\+ Timeout \+|Failed: Timeout")

Fate = Literal["caught", "timed out", "not caught", "not told"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a mutation.

    Attributes:
        mutation: which one.
        fate: ``caught``: a test failed; ``timed out``: the tests did not end, which counts as
            caught; ``not caught``: all tests passed; ``not told``: the tests could not be run.
        detail: the test that failed, or why nothing is told.
        seconds: how long it took.
        output: what pytest printed.
    """

    mutation: Mutation
    fate: Fate
    detail: str
    seconds: float
    output: str

    @property
    def caught(self) -> bool:
        """Whether the tests notice the mutation."""
        return self.fate in ("caught", "timed out")

    def __str__(self) -> str:
        said = {
            "caught": f"caught by {self.detail}",
            "timed out": f"caught by a time-out: {self.detail}",
            "not caught": "NOT CAUGHT",
            "not told": f"NOT TOLD: {self.detail}",
        }[self.fate]
        return f"{self.mutation.name}: {said} ({self.seconds:.1f} s)"


def judge(mutation: Mutation, status: int | None, output: str, seconds: float) -> Outcome:
    """What the end of pytest says of a mutation.

    Args:
        mutation: the one that was made.
        status: exit status of pytest; None: it did not end in time.
        output: what it printed.
        seconds: how long it took.
    """
    failed = [test for kind, test in _SAID.findall(output) if kind == "FAILED"]
    errors = [test for kind, test in _SAID.findall(output) if kind == "ERROR"]
    fate: Fate
    if status is None:
        fate, detail = "timed out", f"no end within {seconds:.0f} s"
    elif status == 0:
        fate, detail = "not caught", ""
    elif status != _FAILED:
        fate, detail = "not told", f"pytest ended with {status}"
    elif _TIMED_OUT.search(output):
        fate, detail = "timed out", (failed or ["a test took longer than it may"])[0]
    elif _NOT_SET_UP.search(output):
        fate, detail = "not told", f"{(errors or ['a test'])[0]} could not be set up"
    elif failed or errors:
        fate, detail = "caught", (failed or errors)[0]
    else:
        fate, detail = "not told", "pytest names no test that failed"
    return Outcome(mutation, fate, detail, seconds, output)


def run_unmutated(copy: SourceCopy, tests: Iterable[str], jobs: int) -> tuple[int, str]:
    """Run tests on the code as it is; exit status and output of pytest."""
    command = [*PYTEST, "-n", str(jobs), "--dist", "worksteal", *tests]
    child = Child(command, environment=copy.environment, directory=copy.directory)
    try:
        while child.running:
            time.sleep(POLL_S)
        return child.wait(), child.output()
    finally:
        _end(child)


def run_mutated(
    copies: Sequence[SourceCopy],
    mutations: Iterable[Mutation],
    tell: Callable[[Outcome], object],
    *,
    time_out_s: float = TIME_OUT_S,
) -> list[Outcome]:
    """Make each mutation in one of the copies and run its tests; one at a time in each copy.

    Args:
        copies: where.
        mutations: in which order.
        tell: told of each as its tests end.
        time_out_s: how long the tests of a mutation may take.
    """
    waiting = deque(mutations)
    outcomes: list[Outcome] = []
    runs: list[_Run | None] = [None] * len(copies)
    with ExitStack() as stack:
        while waiting or any(runs):
            for at, copy in enumerate(copies):
                run = runs[at]
                if run is not None and (outcome := run.outcome(time_out_s)) is not None:
                    run.end()
                    runs[at] = None
                    outcomes.append(outcome)
                    tell(outcome)
                if runs[at] is None and waiting:
                    runs[at] = begun = _Run(copy, waiting.popleft())
                    stack.callback(begun.end)
            time.sleep(POLL_S)
    return outcomes


def without_repeats(tests: Iterable[str]) -> list[str]:
    """Tests in order, each once: node ids of files that are run as a whole are left out."""
    wanted = list(dict.fromkeys(tests))
    whole = {test for test in wanted if "::" not in test}
    return [test for test in wanted if test in whole or test.partition("::")[0] not in whole]


class _Run:
    """The tests of a mutation in a copy, which has it until :meth:`end`."""

    def __init__(self, copy: SourceCopy, mutation: Mutation) -> None:
        self._mutation = mutation
        self._stack = ExitStack()
        self._stack.enter_context(copy.mutated(mutation))
        self._begun = time.monotonic()
        self._child = Child(
            [*PYTEST, "-x", *without_repeats(mutation.tests)],
            environment=copy.environment,
            directory=Path(copy.directory),
            name=mutation.name,
        )
        self._stack.callback(_end, self._child)

    def outcome(self, time_out_s: float) -> Outcome | None:
        """What came of it; None: it is not over."""
        seconds = time.monotonic() - self._begun
        if not self._child.running:
            return judge(self._mutation, self._child.wait(), self._child.output(), seconds)
        if seconds > time_out_s:
            _stop(self._child)
            return judge(self._mutation, None, self._child.output(), seconds)
        return None

    def end(self) -> None:
        """End the tests by their process id, and take the mutation back. Idempotent."""
        self._stack.close()


def _stop(child: Child) -> None:
    """Ask tests to end, by their process id, and give them the time for it."""
    child.send(signal.SIGINT)
    with suppress(AssertionError):
        child.wait(LEAVE_S)


def _end(child: Child) -> None:
    """End tests, if need be by SIGKILL, with which their servers end, too."""
    _stop(child)
    child.reap()
