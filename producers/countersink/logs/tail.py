"""``countersink tail``: counts a log up to its end or follows it, stores the position, and goes on
after rotation and truncation. Hits of a pipe are stored within ``STORE_AFTER`` seconds.

Before entries are sent to Redis, they are written to the position file, together with the position
after their lines (``position.py``). If a run was killed, the next run goes on from there: no line
is skipped, and none is counted twice. A second run over an unchanged log adds nothing.

**Which file.** A position belongs to a counter, a kind of key and an absolute path. Its file is
recognized by the first bytes (``position.py``). If the file was empty or does not exist any more,
``tail`` reads the oldest file that is newer. After a rotation, also one between two runs, ``tail``
finishes the rotated file first, then the files between, then the new log. A server may write to a
renamed file for some more seconds. So ``--follow`` leaves that file only when it has not grown for
``rotate_wait`` seconds. Without ``--follow``, a run ends at the end of a renamed file that has
grown in these last seconds, and the next run goes on there. A notice says where the file of
the position was not found any more, so that lines written to it later are not counted.

**A last line without a newline** is not counted in the log itself, which may grow. At the end of a
rotated file, a compressed file or a pipe, it is counted or rejected like any other line. A pipe
(:func:`tail_pipe`) has no position.
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
"""Most seconds until the hits of a pipe are stored, even a single one."""


class _Replaced(Exception):
    """The open file was truncated: bytes of it are gone, perhaps before they were read."""


@dataclass
class FileTail:
    """One run of ``tail`` over a log that is a file.

    Attributes:
        sender, file, mark: the sender to Redis; position file and mark, see ``position.py``.
        hits: collects counted lines; its reporter also receives notices of rotations and waits.
        path: the absolute path of the log.
        follow: whether to wait for more lines at the end of the log.
        rotate_wait: seconds without growth after which a rotated file is finished.
        rotated_in: a directory of rotated files besides that of the log; '' for none.
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
        """Count lines from the stored position, or from the log's start or end by ``begin``. Return
        the numbers of the run. With ``follow``, the run ends when a stop is requested.

        Raises:
            LogError: the log cannot be read.
            UnknownFormat: the format is unknown or unusable; the position stays before its lines.
            TailError: another tail reads the log; lines have visitors, but the counter does not
                count these; a stop came while Redis was away or the stream full; the log became
                shorter; or it is compressed, but ``follow`` is set.
            PositionError: the position was lost, is damaged, or cannot be written.
            StreamError: Redis answered with an error that does not pass by itself."""
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
        """Skip all complete lines of the file without counting them, for ``--begin end``."""
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
        """Count the lines up to the end of the file and store them, then wait or go on to another
        file. Return False if the run ends."""
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
        """Raise ``_Replaced`` if the log was copied and truncated before any line was read: it
        has its name still, and the copy is a new rotated file."""
        changed = self._file.changed_ns()
        if changed != self._changed:
            self._changed = changed
            if is_name_of(self.path, self._file) and (
                copy := open_newer(self._paths, self._position)
            ):
                copy.close()
                raise _Replaced

    def _reopen(self) -> bool:
        """Go on after a truncation: in the copy that was made before it, else at the file's start.
        Return False if a stop came while waiting for the log."""
        self._store()
        self._file.close()
        return self._go_on()

    def _leave(self) -> bool:
        """Go on from the open file, which was rotated, to the next one. While it may grow, or the
        next does not exist yet, wait with ``follow``, or else return False to end the run."""
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
        """Count a last line without a newline if the log is compressed; else leave it to the next
        run and report that."""
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
        """Go on in the file of the position (for a new one, the log). If it is not found, go on in
        the oldest rotated file newer than ``position.older``, else in the log. Return False if a
        stop came while waiting for the log."""
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
        """Open the file of the position; return None where it was not found. If the file is in a
        subdirectory of the log's directory, later files are looked for there, too."""
        file = find(self._paths, self._position)
        if file is None and (below := find_below(self._paths, self._position)):
            self._paths, file = below
        return file

    def _begin_anew(self) -> LogFile | None:
        """Open a file in place of that of the position, which was not found: the oldest rotated
        file newer than ``position.older``, or else the log, to be read from its start. A notice
        says if lines of the missing file may stay uncounted. Return None if stopped while waiting.

        Raises:
            TailError: the log is the file of the position, but has become shorter."""
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
        """Open the oldest rotated file newer than ``position.older``, else the log. With
        ``follow``, wait for the log; return None if a stop came meanwhile. If the log is missing
        and was never read, store its position now: all later files are new then.

        Raises:
            LogError: the log does not exist and is not followed, or it cannot be read."""
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
    """Count the lines of the pipe ``fd`` (``name`` in reports) until it ends or the sender's stop
    is requested; return the numbers of the run. A pipe has no position: lines that are piped into
    another run are counted again.

    Raises:
        LogError: the data is compressed, or UTF-16 or UTF-32.
        UnknownFormat: the format of the lines is not recognized, or not usable.
        TailError: the counter does not count the lines' visitors; or a stop came while Redis was
            away or the stream full.
        StreamError: Redis answered with an error that does not pass by itself."""
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
