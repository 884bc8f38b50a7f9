"""Counting an access log into the queue: once, or for as long as it grows.

A log's position moves in Redis in the same step as its rows arrive there, so a run that was killed
anywhere goes on where it stopped: no line is skipped and none is counted twice. A second run over
a log that has not grown adds nothing.

**Which log it is.** The position belongs to the counter, the kind of key and the absolute path; a
file is known again by its first bytes (``log_files.py``). After a rotation, also one that happened
while nothing was running, the rotated file is finished first, then the files between, then the new
one. A server goes on writing to a renamed file for a moment: following waits until it has not grown
for some seconds, and a run that finds it younger ends there, for the next one to go on. When the
rotated file is gone, a notice says so and the new file is read from its beginning.

**A last line without a newline** may be a whole one or half of one. In a file that can still grow
(the log itself), following leaves it until its newline comes. A run that ends at the end of the
file counts it if it is a valid line, since what a key is made of stands before where such a line
can have been cut; the position remembers that, and the line is not counted again when it grows.
If it is not valid it is left for the next run, and reported. In a rotated file, a compressed one or
a pipe the end is the end: the last line is counted or rejected like any other.
"""

import os
import time
from typing import Final

from countersink.producers.access_log import Parser
from countersink.producers.log_files import LogError, LogFile
from countersink.producers.log_lines import Cutter
from countersink.producers.log_position import PREFIX_BYTES, Ledger, Position, prefix_of
from countersink.producers.log_rotation import after, begins_as, find
from countersink.producers.stop import Stop
from countersink.producers.tail_batch import Batch, Reporter, Summary
from countersink.producers.tail_sender import Sender, TailError

POLL: Final = 0.25
"""Seconds between two looks at a file that does not grow."""


class _Replaced(Exception):
    """The open file was truncated: it holds other bytes than those that were read."""


class FileTail:
    """One run over a log that is a file.

    Args:
        sender, ledger: where rows and position go.
        path: the log, absolute.
        source: the text that ``ledger`` was made for.
        parser: of the kind of key wanted.
        reporter: told of rejected lines, rotations and waits.
        follow: go on when the end is reached.
        rotate_wait: seconds for which a rotated file must not have grown until it is left.
        stop: ends the run, with everything read stored.
        summary: what is added to as it goes on, for whoever watches; default: a new one.
    """

    def __init__(
        self,
        sender: Sender,
        ledger: Ledger,
        *,
        path: str,
        source: str,
        parser: Parser,
        reporter: Reporter,
        follow: bool,
        rotate_wait: float,
        stop: Stop,
        summary: Summary | None = None,
    ) -> None:
        self._sender = sender
        self._ledger = ledger
        self._path = path
        self._source = source
        self._reporter = reporter
        self._follow = follow
        self._rotate_wait = rotate_wait
        self._stop = stop
        self._batch = Batch(parser, reporter, summary or Summary())
        self._unsaved = False

    def run(self, *, from_start: bool) -> Summary:
        """Count what is new, from the stored position on, or from the start of the log.

        Raises:
            LogError: the log cannot be read.
            TailError: another run is at work on it, or a stop came while Redis was away.
            PositionError, StreamError: the position cannot be read or written.
        """
        known = self._sender.patiently(self._ledger.read)
        self._position = known or Position.first()
        if known is None or from_start:
            self._position = Position.first(known.token if known else "")
            # Also before the first line: the log may be rotated before there is one.
            self._unsaved = True
            file = self._open_log()
        else:
            file = find(self._path, known) or self._begin_anew()
        if file is None:
            return self._batch.summary
        self._enter(file)
        try:
            while self._step():
                pass
            self._store()
        finally:
            self._file.close()
        return self._batch.summary

    def _enter(self, file: LogFile) -> None:
        position = self._position
        if file.path != self._path:
            self._reporter.notice(
                f"reading {file.path}, which was rotated, from line {position.line + 1}"
            )
        if file.compressed and self._follow and file.path == self._path:
            file.close()
            raise TailError(f"{file.path} is compressed and will not grow: leave out --follow")
        self._file = file
        self._cutter = Cutter(position.offset, position.line, counted=position.unterminated)
        self._head = file.head(min(PREFIX_BYTES, position.offset))
        self._grown_at = time.monotonic()

    def _step(self) -> bool:
        """Read to the end of the file and decide what then; False when the run is over."""
        try:
            self._read_to_end()
            self._check_head()
        except _Replaced:
            return self._reopen()
        self._store()
        if self._stop.is_set():
            return False
        if self._is_the_log():
            if self._follow:
                self._stop.wait(POLL)
                return True
            self._take_rest()
            return False
        return self._leave()

    def _read_to_end(self) -> None:
        file, cutter = self._file, self._cutter
        while not self._stop.is_set():
            start = cutter.reach
            data = file.read(cutter.wanted, start)
            if not data:
                return
            # After reading: had the file been truncated before, its head would tell now.
            self._check_head()
            if start == len(self._head):
                self._head += data[: PREFIX_BYTES - start]
            self._grown_at = time.monotonic()
            self._batch.count(file.path, cutter.feed(data))
            if self._batch.full:
                self._store()

    def _check_head(self) -> None:
        file, head = self._file, self._head
        if not file.compressed and not (
            file.holds(self._cutter.reach) and file.head(len(head)) == head
        ):
            raise _Replaced

    def _reopen(self) -> bool:
        """Go on after a truncation: in the copy that was made before it, else from the start."""
        self._store()
        self._file.close()
        file = find(self._path, self._position) or self._begin_anew()
        if file is None:
            return False
        self._enter(file)
        return True

    def _leave(self) -> bool:
        """Go on from a rotated file, once nobody writes to it any more, to the next."""
        file = self._file
        if self._follow and time.monotonic() - self._grown_at < self._rotate_wait:
            self._stop.wait(POLL)
            return True
        if not file.compressed:
            # Either way round: a file server's clock may be ahead.
            if not self._follow and abs(time.time() - file.changed_at()) < self._rotate_wait:
                self._reporter.notice(
                    f"{file.path} was rotated and may still be written to: "
                    "the next run goes on there"
                )
                return False
            if file.holds(self._cutter.reach + 1):
                return True  # it grew while what was read before was being stored
        following = after(self._path, self._file)
        if following is None:
            self._stop.wait(POLL)
            return self._follow
        self._finish()
        self._file.close()
        self._position = self._position.next_file()
        self._enter(following)
        return True

    def _finish(self) -> None:
        self._batch.count(self._file.path, self._cutter.finish())
        self._store()

    def _take_rest(self) -> None:
        """The last line, at the end of a run: see the module's docstring."""
        cutter = self._cutter
        if self._file.compressed:
            self._finish()
        elif self._batch.count_unterminated(self._file.path, cutter.rest, cutter.line + 1):
            cutter.counted = True

    def _begin_anew(self) -> LogFile | None:
        """The log from its start, since the file that was read before is gone."""
        file = self._open_log()
        if file is None:
            return None
        position = self._position
        if position.prefix_bytes == PREFIX_BYTES and begins_as(file, position):
            file.close()
            raise TailError(
                f"{self._path} is shorter than when its line {position.line} was counted: "
                "if it was put back from a copy, wait until it has grown, "
                "or use --from-start to count it all again"
            )
        self._reporter.notice(
            f"{self._path} is another file than the one counted up to line {position.line}, "
            "and that one is gone; lines written to it later cannot be counted"
        )
        self._position = position.next_file()
        return file

    def _open_log(self) -> LogFile | None:
        """The log itself; waits for it when following. None when stopped while waiting."""
        waiting = False
        while True:
            try:
                return LogFile(self._path)
            except LogError:
                if not self._follow or os.path.exists(self._path):
                    raise
            if not waiting:
                self._reporter.notice(f"waiting for {self._path} to appear")
                waiting = True
            if self._stop.wait(POLL):
                return None

    def _is_the_log(self) -> bool:
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (self._file.device, self._file.inode)

    def _store(self) -> None:
        old, cutter = self._position, self._cutter
        if (cutter.offset, cutter.counted) == (old.offset, old.unterminated) and not self._unsaved:
            return
        known = self._head[: cutter.reach if cutter.counted else cutter.offset]
        new = old.moved(
            device=self._file.device,
            inode=self._file.inode,
            prefix_bytes=len(known),
            prefix=prefix_of(known),
            offset=cutter.offset,
            line=cutter.line,
            unterminated=cutter.counted,
        )
        self._sender.move(self._ledger, self._source, old, new, self._batch.counts)
        self._position = new
        self._unsaved = False
        self._batch.stored()
