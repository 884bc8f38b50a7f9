"""``countersink tail``: reads a log to its end or follows it, stores the position (after
``STORE_AFTER`` seconds at a pipe), and goes on after rotation and truncation.

Each batch of lines is written to the position file before it is sent, with the place behind it
(``position.py``). A run that was killed continues from there: no line is skipped and none is
counted twice. A second run over an unchanged log adds nothing.

**Which file.** The position belongs to the counter, the kind of key and the absolute path. The
file is recognized by its first bytes (``position.py``). If it had none, or does not exist any more,
the oldest newer file is read. After a rotation, also during a pause of ``tail``, the rotated
file is finished first, then the files between, then the new one. A server goes on writing to
a renamed file for a moment: ``--follow`` waits until the file has not grown for some seconds; a run
without it ends at a younger file, and the next run continues there. If the rotated file does not
exist any more, a notice says so and the new file is read from its beginning.

**A last line without a newline** waits for the newline in a file that may still grow: the log
itself, uncompressed. The last line of a rotated file, a compressed file or a pipe is counted or
rejected like any other.

A pipe (:func:`tail_pipe`) has no position. See ``cli/commands/tail.py`` for the flags.
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
    begins_as,
    find,
    find_below,
    has_newer,
    is_name_of,
    older_fields,
    open_following,
    open_newer,
)
from countersink.logs.sender import Begin, LogSender

POLL: Final = 0.25
"""Seconds between two reads of a file that does not grow."""
STORE_AFTER: Final = 1.0
"""Seconds after which the hits of a pipe are stored, however few."""


class _Replaced(Exception):
    """The open file was truncated: its bytes are not those that were read."""


@dataclass
class FileTail:
    """One run over a log that is a file.

    Attributes:
        sender, file, mark: store rows and position.
        hits: collect the counts; their reporter also gets notices of rotations and waits.
        path: the log, absolute.
        follow: go on at the end of the log.
        rotate_wait: seconds without growth after which a rotated file is finished.
        rotated_in: another directory of rotated files, besides the log's; '': none.
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
        """Count the new lines, from the stored position on, or from where ``begin`` says.

        Raises:
            LogError: the log cannot be read.
            UnknownFormat: the format is not recognized; the position stays before these lines.
            TailError: another run reads this log, or a stop came while Redis was away.
            PositionError: the position was lost, is damaged, or cannot be written.
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
        """Skip to the end of the last complete line."""
        file, cutter = self._file, Cutter()
        while data := file.read(cutter.read_size, cutter.read_offset):
            cutter.feed(data)
        self._cutter = Cutter(cutter.offset, cutter.line)
        self.hits.parser.begin(file, cutter.offset)
        self._head = head_of(file)[: cutter.offset]

    def _enter(self, file: LogFile) -> None:
        if not self._position.older:
            newest, changed = older_fields(self._paths, file)
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
        """Read to the end of the file, then wait, change the file or end; False: the end of the
        run.
        """
        try:
            self._read_to_end()
            self._check_head()
        except _Replaced:
            return self._reopen()
        except LogError:
            self._store()  # the lines before the error
            raise
        self._store()
        if self.sender.stop.requested:
            return False
        if is_name_of(self.path, self._file):
            if self.follow:
                self.sender.stop.wait(POLL)
                return True
            self._take_rest()
            return False
        return self._leave()

    def _read_to_end(self) -> None:
        file, cutter = self._file, self._cutter
        while not self.sender.stop.requested:
            start = cutter.read_offset
            data = file.read(cutter.read_size, start)
            if not data:
                return
            # After reading: a truncation before it shows in the head now.
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
            file.holds(self._cutter.read_offset) and file.read(len(head), 0) == head
        ):
            raise _Replaced

    def _check_copies(self) -> None:
        """Raise ``_Replaced`` if an empty log was copied and truncated before it was read."""
        changed = self._file.changed_ns()
        if changed != self._changed:
            self._changed = changed
            if is_name_of(self.path, self._file) and (
                copy := open_newer(self._paths, self._position)
            ):
                copy.close()
                raise _Replaced

    def _reopen(self) -> bool:
        """Go on after a truncation: in the copy that was made before it, else from the start."""
        self._store()
        self._file.close()
        return self._go_on()

    def _leave(self) -> bool:
        """Go on from a rotated file to the next, once the rotated file does not grow any more."""
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
            if file.holds(self._cutter.read_offset + 1):
                return True  # it grew while the lines before were being stored
        following = open_following(self._paths, self._file, self._position)
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
        """Count or report the last line, at the end of a run: see the module's docstring."""
        cutter = self._cutter
        if self._file.compressed:
            self._finish()
            return
        self.hits.end()
        if cutter.read_offset > cutter.offset:
            self.hits.summary.left = 1
            self.hits.reporter.notice(
                f"line {cutter.line + 1} of {self._file.path} has no newline yet: the next run"
                " counts it"
            )

    def _go_on(self) -> bool:
        """Enter the file of the position, or the file after it, or the log; False: stopped while
        waiting for it.
        """
        if not self._position.older:
            # Also before the first line: the log may be rotated while it is empty.
            self._unsaved = True
            file = self._open()
        else:
            file = self._find() or self._begin_anew()
        if file is not None:
            self._enter(file)
        return file is not None

    def _find(self) -> LogFile | None:
        """The file of the position; later files are found in its directory, too, if that is a
        subdirectory.
        """
        file = find(self._paths, self._position)
        if file is None and (below := find_below(self._paths, self._position)):
            self._paths, file = below
        return file

    def _begin_anew(self) -> LogFile | None:
        """The oldest file after the lost file of the position, else the log, to be read from its
        start; None: stopped while waiting for it.

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
                f"the file that was counted up to line {position.line} was not found, so that lines"
                f" written to it later are not counted; {file.path} is read from its beginning"
                " (--rotated-in names the directory of rotated files)"
            )
            self._unsaved = True
            self.hits.summary.lost += 1
        self._position = position.next_file()
        return file

    def _open(self) -> LogFile | None:
        """The oldest rotated file after the position's, else the log; ``follow`` waits for it.

        A missing log has a position, too: all files that come later are new.

        Raises:
            LogError: the log does not exist and is not followed, or it cannot be read.
        """
        waiting = False
        while True:
            position = self._position
            newer = open_newer(self._paths, position) if position.older else None
            if newer is not None:
                return newer
            try:
                return LogFile(self.path)
            except LogError:
                if not os.path.lexists(self.path) and not position.older:
                    newest, changed = older_fields(self._paths, None)
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
        if self.hits.held:  # all lines since the position: their format is not known yet
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
    """Count the lines of a pipe until it ends or the sender's stop is requested.

    A pipe has no position: lines that another run reads are counted again.

    Raises:
        LogError: its data is compressed, or UTF-16 or UTF-32.
        UnknownFormat: the format of its lines is not recognized.
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
        data = pipe.take(cutter.read_size)
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
