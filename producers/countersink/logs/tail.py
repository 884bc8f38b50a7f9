"""``countersink tail``: reads a log to its end or follows it, decides when the position is stored
(``STORE_AFTER``), and goes on after rotation and truncation; flags are in
``cli/commands/tail.py``.

Each batch of lines is written to the position file before it is sent, with the place behind it
(``position.py``), so a run that was killed anywhere goes on where it stopped: no line is skipped
and none is counted twice. A second run over a log that has not grown adds nothing.

**Which log it is.** The position belongs to the counter, the kind of key and the absolute path; a
file is known again by its first bytes (``position.py``); where there were none, or it is gone, it
goes on with the oldest file that came after it. After a rotation, also one that happened
while nothing was running, the rotated file is finished first, then the files between, then the new
one. A server goes on writing to a renamed file for a moment: following waits until it has not grown
for some seconds, and a run that finds it younger ends there, for the next one to go on. When the
rotated file is gone, a notice says so and the new file is read from its beginning.

**A last line without a newline** waits for it in a file that may still grow: the log itself, plain.
In a rotated file, a compressed one or a pipe the end is the end: the last line is counted or
rejected like any other.

A pipe (:func:`tail_pipe`) has no position.
"""

import os
import time
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from countersink.logs.errors import LogError, TailError
from countersink.logs.file import LogFile, Pipe
from countersink.logs.lines import Cutter, Hits, Summary
from countersink.logs.position import (
    PREFIX_BYTES,
    LogMark,
    Position,
    PositionFile,
    head_of,
    known_head,
    prefix_of,
    shared_bytes,
)
from countersink.logs.rotation import (
    LogPath,
    after,
    bears,
    begins_as,
    find,
    find_below,
    has_newer,
    older,
    since,
)
from countersink.logs.sender import Begin, LogSender

POLL: Final = 0.25
"""Seconds between two looks at a file that does not grow."""
STORE_AFTER: Final = 1.0
"""Seconds after which what came is stored, however little."""


class _Replaced(Exception):
    """The open file was truncated: it holds other bytes than those that were read."""


@dataclass
class FileTail:
    """One run over a log that is a file.

    Attributes:
        sender, file, mark: where rows and position go.
        hits: what is read is added to them; their reporter is also told of rotations and waits.
        path: the log, absolute.
        follow: go on when the end is reached.
        rotate_wait: seconds for which a rotated file must not have grown until it is left.
        rotated_in: a directory for rotated files beside its own; '': none.
    """

    sender: LogSender
    file: PositionFile
    mark: LogMark
    hits: Hits
    _: KW_ONLY
    path: str
    follow: bool
    rotate_wait: float
    rotated_in: str = ""
    _unsaved: bool = False

    def __post_init__(self) -> None:
        self._paths = LogPath(self.path, self.rotated_in)

    def run(self, *, begin: Begin | None = None) -> Summary:
        """Count what is new, from the stored position on, or from where ``begin`` says.

        Raises:
            LogError: the log cannot be read.
            UnknownFormat: it cannot be told what its lines are; the position stays before them.
            TailError: another run is at work on it, or a stop came while Redis was away.
            PositionError: the position was lost, or is damaged, or cannot be written.
            StreamError: Redis refuses for good.
        """
        self._position = self.sender.resume(self.file, self.mark, begin)
        if not self._go_on():
            return self.hits.summary
        try:
            if begin == "end":
                self._pass_over()
            while self._step():
                pass
            self._store()
        finally:
            self._file.close()
        return self.hits.summary

    def _pass_over(self) -> None:
        """Go to behind the last whole line."""
        file, cutter = self._file, Cutter()
        while data := file.read(cutter.wanted, cutter.reach):
            cutter.feed(data)
        self._cutter = Cutter(cutter.offset, cutter.line)
        self.hits.parser.begin(file, cutter.offset)
        self._head = head_of(file)[: cutter.offset]

    def _enter(self, file: LogFile) -> None:
        if not self._position.older:
            newest, changed = older(self._paths, file)
            self._position = replace(self._position, older=newest, older_at=changed)
        position = self._position
        if file.path != self.path:
            self.hits.reporter.notice(
                f"reading {file.path}, which was rotated, from line {position.line + 1}"
            )
        if file.compressed and self.follow and file.path == self.path:
            file.close()
            raise TailError(f"{file.path} is compressed and will not grow: leave out --follow")
        self._file = file
        self.hits.parser.begin(file, position.offset)
        self._cutter = Cutter(position.offset, position.line)
        self.hits.held.clear()  # read again, from the position on
        self._head = head_of(file)[: position.offset]
        self._changed = 0
        self._grown_at = time.monotonic()

    def _step(self) -> bool:
        """Read to the end of the file and decide what then; False when the run is over."""
        try:
            self._read_to_end()
            self._check_head()
        except _Replaced:
            return self._reopen()
        except LogError:
            self._store()  # what stands before it
            raise
        self._store()
        if self.sender.stop.requested:
            return False
        if bears(self.path, self._file):
            if self.follow:
                self.sender.stop.wait(POLL)
                return True
            self._take_rest()
            return False
        return self._leave()

    def _read_to_end(self) -> None:
        file, cutter = self._file, self._cutter
        while not self.sender.stop.requested:
            start = cutter.reach
            data = file.read(cutter.wanted, start)
            if not data:
                return
            # After reading: had the file been truncated before, its head would tell now.
            self._check_head()
            if start == len(self._head):
                self._head = known_head(self._head + data)
            self._grown_at = time.monotonic()
            self.hits.count(file.path, cutter.feed(data))
            if self.hits.full:
                self._store()

    def _check_head(self) -> None:
        file, head = self._file, self._head
        nothing = len(head) <= shared_bytes(head)
        if self._position.prefix_bytes == 0 and nothing and file.path == self.path:
            self._check_copies()
        if not file.compressed and not (
            file.holds(self._cutter.reach) and file.read(len(head), 0) == head
        ):
            raise _Replaced

    def _check_copies(self) -> None:
        """Before the first bytes of the log: what came before may have been copied and cut off."""
        changed = self._file.changed_ns()
        if changed != self._changed:
            self._changed = changed
            copy = since(self._paths, self._position) if bears(self.path, self._file) else None
            if copy is not None:
                copy.close()
                raise _Replaced

    def _reopen(self) -> bool:
        """Go on after a truncation: in the copy that was made before it, else from the start."""
        self._store()
        self._file.close()
        return self._go_on()

    def _leave(self) -> bool:
        """Go on from a rotated file, once nobody writes to it any more, to the next."""
        file = self._file
        if self.follow and time.monotonic() - self._grown_at < self.rotate_wait:
            self.sender.stop.wait(POLL)
            return True
        if not file.compressed:
            # Either way round: a file server's clock may be ahead.
            if not self.follow and abs(time.time() - file.changed_ns() / 1e9) < self.rotate_wait:
                self.hits.reporter.notice(
                    f"{file.path} was rotated and may still be written to: "
                    "the next run goes on there"
                )
                return False
            if file.holds(self._cutter.reach + 1):
                return True  # it grew while what was read before was being stored
        following = after(self._paths, self._file, self._position)
        if following is None:
            self.sender.stop.wait(POLL)
            return self.follow
        self._finish()
        self._file.close()
        self._position = self._position.next_file()
        self._enter(following)
        return True

    def _finish(self) -> None:
        self.hits.held.append((self._file.path, self._cutter.finish()))
        self.hits.end()
        self._store()

    def _take_rest(self) -> None:
        """The last line, at the end of a run: see the module's docstring."""
        cutter = self._cutter
        if self._file.compressed:
            self._finish()
            return
        self.hits.end()
        if cutter.reach > cutter.offset:
            self.hits.summary.left = 1
            self.hits.reporter.notice(
                f"line {cutter.line + 1} of {self._file.path} has no newline yet: the next run"
                " counts it"
            )

    def _go_on(self) -> bool:
        """Enter the file of the position, or what came after it, or the log; False when stopped
        while waiting for it.
        """
        if not self._position.older:
            # Also before the first line: the log may be rotated before there is one.
            self._unsaved = True
            file = self._open()
        else:
            file = self._find() or self._begin_anew()
        if file is not None:
            self._enter(file)
        return file is not None

    def _find(self) -> LogFile | None:
        """The file of the position; where it lies in a directory below, so do those after it."""
        file = find(self._paths, self._position)
        if file is None and (below := find_below(self._paths, self._position)):
            self._paths, file = below
        return file

    def _begin_anew(self) -> LogFile | None:
        """The file that came after the one that was read before, or else the log, from its start;
        None when stopped while waiting for it.

        Raises:
            TailError: it is the file of the position, but shorter.
        """
        position = self._position
        file = self._open()
        if file is None:
            return None
        log, is_log = self._paths, file.path == self.path
        if is_log and position.prefix_bytes >= PREFIX_BYTES and begins_as(file, position):
            file.close()
            raise TailError(
                f"{self.path} is shorter than when its line {position.line} was counted: "
                "if it was put back from a copy, wait until it has grown, "
                "or use --begin start to count it all again"
            )
        if position.prefix_bytes or (
            is_log and position.inode not in (0, file.inode) and not has_newer(log, position)
        ):
            self.hits.reporter.notice(
                f"{file.path} is another file than the one counted up to line {position.line}, "
                "and that one was not found; lines written to it later cannot be counted "
                "(--rotated-in names the directory that rotated files are moved to)"
            )
            self._unsaved = True
            self.hits.summary.lost += 1
        self._position = position.next_file()
        return file

    def _open(self) -> LogFile | None:
        """The file that came after that of the position, else the log itself; waits for it when
        following. That there is no log yet is a position, too: all files that come later are new.

        Raises:
            LogError: it is not there, and not followed; or it cannot be read.
        """
        waiting = False
        while True:
            position = self._position
            newer = since(self._paths, position) if position.older else None
            if newer is not None:
                return newer
            try:
                return LogFile(self.path)
            except LogError:
                if not os.path.lexists(self.path) and not position.older:
                    newest, changed = older(self._paths, None)
                    self._move_to(replace(position, older=newest, older_at=changed))
                if not self.follow or os.path.exists(self.path):
                    raise
            if not waiting:
                self.hits.reporter.notice(f"waiting for {self.path} to appear")
                waiting = True
            if self.sender.stop.wait(POLL):
                return None

    def _store(self) -> None:
        offset, line = self._cutter.offset, self._cutter.line
        if self.hits.held:  # all since the position: it cannot be told yet what it is
            offset, line = self._position.offset, self._position.line
        if offset == self._position.offset and not self._unsaved:
            return
        known = self._head[:offset]
        if len(known) <= shared_bytes(known):
            known = b""
        self._move_to(
            replace(
                self._position,
                device=self._file.device,
                inode=self._file.inode,
                prefix_bytes=len(known),
                prefix=prefix_of(known),
                offset=offset,
                line=line,
            )
        )
        self._unsaved = False
        self.hits.stored()

    def _move_to(self, position: Position) -> None:
        self.sender.store(self.file, self.mark, position, self.hits.counts)
        self._position = position


def tail_pipe(sender: LogSender, fd: int, hits: Hits, *, name: str) -> Summary:
    """Count what comes through a pipe until it ends or the sender's stop is requested.

    A pipe has no place to go back to: what another run reads is counted again.

    Raises:
        LogError: it is compressed, or encoded in a way that is not read.
        UnknownFormat: it cannot be told what its lines are.
        TailError: a stop came while Redis was away.
        StreamError: Redis refuses for good.
    """
    stop = sender.stop
    pipe, cutter = Pipe(fd), Cutter()
    stored_at = time.monotonic()

    def store() -> None:
        nonlocal stored_at
        if hits.counts:
            sender.add(hits.counts)
        hits.stored()
        stored_at = time.monotonic()

    while not stop.requested:
        data = pipe.take(cutter.wanted)
        if data == b"":
            hits.count(name, cutter.finish())
            break
        if data is not None:
            hits.count(name, cutter.feed(data))
        if hits.full or data is None or time.monotonic() - stored_at >= STORE_AFTER:
            store()
    hits.end()
    store()
    return hits.summary
