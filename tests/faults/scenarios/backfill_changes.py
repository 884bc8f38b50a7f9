"""Logs that are rotated between runs, runs that are undone while they go on, processes that hang:
each line that is there in the end counts once.
"""

import threading
from concurrent.futures import Future
from pathlib import Path

from tests.faults.backfilling import DONE, ENDS_WITHIN, REJECTED, Backfills, compressed
from tests.faults.stage import Stage
from tests.support.logs import FIRST, Book, Writer
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.waiting import eventually

LINES = 150_000
_FIRST_HIT = FIRST.date(), b"/"
LAST = "SELECT MAX(id) FROM backfill_run"


def rotated_in_between(stage: Stage, steps: int = 25) -> None:
    """A directory of logs: they grow, are renamed, compressed, or copied and truncated."""
    play = _Rotation(stage)
    deeds = (play.grow, play.grow, play.rename, play.compress, play.copy_and_truncate, play.read)
    for _ in range(steps):
        deed = stage.random.choice(deeds)
        print(deed.__name__)
        deed()
    play.backfills.run(play.directory)
    play.backfills.check("rotated")
    play.backfills.known(play.directory)


def undone_while_it_goes_on(stage: Stage, rounds: int = 2, lines: int = LINES) -> None:
    """A run is taken back by others while its process still counts: it stops, and leaves nothing;
    another one counts it all.
    """
    backfills = Backfills(stage)
    writer = Writer(stage.seed)
    path = stage.directory / "access.log"
    for number in range(rounds):
        book = writer.write(path, lines, append=number > 0)
        backfills.enter(book)
        before = _last_run(stage)
        child = backfills.start(path, "--rate", "30000")
        eventually(lambda: _last_run(stage) > before or not child.running, ENDS_WITHIN)  # noqa: B023
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.0, 2.0))
        run = _last_run(stage)
        backfills.undo(run)
        status = child.wait(ENDS_WITHIN)
        print("undone, its process ended with", status)
        backfills.check_not_above(f"undone while it goes on, round {number}")
        assert backfills.chunks(run) == 0, f"chunks of run {run} are left"
        backfills.run(path)
        backfills.check(f"counted again, round {number}")


def one_hangs(stage: Stage, lines: int = LINES) -> None:
    """One hangs in the midst of a transaction, with what it has locked; another goes on when the
    server has given the first one up. When that wakes up, nothing counts twice.
    """
    backfills = Backfills(stage)
    book = backfills.write(lines)
    kind = stage.random.choice(("control", "slots", "ledger"))
    print("hangs after", kind)
    victim: Future[Child] = Future()
    rule = stage.when(
        kind,
        Phase.AFTER,
        Deed.PASS,
        call=lambda _request: victim.result(30).stop(),
        skip=stage.random.randrange(3),
        label="backfill hung",
    )
    hung = backfills.start(book.path, proxied=True)
    victim.set_result(hung)
    eventually(lambda: rule.done.is_set() or not hung.running, ENDS_WITHIN, message=hung.output)
    other = backfills.start(book.path)
    status = other.wait(ENDS_WITHIN)
    print("the other ended with", status, other.output()[-300:])
    assert status in (DONE, REJECTED), other.output()
    hung.go_on()
    backfills.end(hung)
    print("it ended with", hung.output()[-300:])
    stage.mysql_proxy.forget()
    backfills.check_not_above("one hung")
    backfills.run(book.path)
    backfills.check("one hung, in the end")
    backfills.check_rejects(book)


class _Rotation:
    """A directory with a log that is written to, and older ones."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.backfills = Backfills(stage)
        self.directory = stage.directory / "logs"
        self.directory.mkdir()
        self._log = self.directory / "access.log"
        self._numbers = iter(range(1, 1000))
        self._first()

    def grow(self) -> None:
        """More lines."""
        self._append(self.stage.random.choice((1, 30, 700)))

    def rename(self) -> None:
        """logrotate's usual way."""
        self._log.rename(self._older())
        self._first()

    def compress(self) -> None:
        """An older log is compressed."""
        plain = [path for path in self.directory.glob("access.log.*") if path.suffix != ".gz"]
        if plain:
            path = self.stage.random.choice(sorted(plain))
            compressed(path).rename(path.with_suffix(path.suffix + ".gz"))
            path.unlink()

    def copy_and_truncate(self) -> None:
        """For writers that do not open their log anew."""
        self._older().write_bytes(self._log.read_bytes())
        self._log.write_bytes(b"")
        self._first()

    def read(self) -> None:
        """Two processes at once, or one that is killed, or one that is not."""
        what = self.stage.random.choice(("two", "kill", "run"))
        if what == "two":
            for child in [self.backfills.start(self.directory) for _ in range(2)]:
                self.backfills.end(child)
        elif what == "kill":
            self.backfills.kill(self.directory)
        else:
            self.backfills.run(self.directory)
            self.backfills.check("read")
        self.backfills.check_not_above(what)

    def _older(self) -> Path:
        return self.directory / f"access.log.{next(self._numbers)}"

    def _first(self) -> None:
        """What a log begins with is in no other: in real ones it is a moment."""
        number = next(self._numbers)
        self._log.write_bytes(
            b'10.0.0.1 - - [17/May/2015:00:00:00 +0000] "GET /?first=%d HTTP/1.1" 200 7\n' % number
        )
        book = Book(self._log)
        book.hits[_FIRST_HIT] = 1
        self.backfills.enter(book)

    def _append(self, lines: int) -> None:
        """Lines that are in no other file but by copies: equal ones would be refused, rightly."""
        writer = Writer(self.stage.random.getrandbits(32))
        self.backfills.enter(writer.write(self._log, lines, append=True))


def _last_run(stage: Stage) -> int:
    with Oracle(stage.mysql_url) as oracle:
        return int(oracle.rows(LAST)[0][0] or 0)
