"""The position of ``tail`` in Redis: fields of its hash, what identifies a file (device, inode,
SHA-256 of the first bytes), the move together with the rows, errors for a damaged one; the copy on
disk: ``position_file.py``.

==================  ==============================================================================
field               meaning
==================  ==============================================================================
``v``               version of this record, ``1``
``source``          counter, kind of key and path of the log, for people
``token``           new with each move; a move is made only from the token that its maker has read
``series``          random, new when a log is begun anew; goes into the entries' ids
``file``            how many files of this log came before, by rotation
``device``          of the file
``inode``           of the file
``prefix_bytes``    how many bytes of the file's beginning ``prefix`` stands for, up to 1,024 behind
                    the directives of a W3C log, which other files begin with, too
``prefix``          their SHA-256 in hex; empty for none
``offset``          uncompressed bytes that have been counted
``line``            lines that have been counted, or rejected, in this file
``unterminated``    1: the line at ``offset`` had no newline yet and has been counted all the same
``older``           the newest of the rotated files that are older than this one, as
                    ``rotation.py`` writes it; ``-`` if there was none
``older_at``        when it or this file was written to last, on its disk's clock; Unix ns
``at``              Unix ms on Redis's clock, the entries' own
``previous``        the token before
==================  ==============================================================================

A file is known again by its prefix: unlike an inode that survives copying and compressing, and is
not given to the next file. Of a file in which nothing was there to read, or which is gone, what is
newer than ``older`` is counted.

``move.lua`` writes the rows and the position in one step. Should its reply be lost, the same call
finds its own token there and adds nothing; after a failover that lost the step, it makes it again
with the same entry ids.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, Literal, Self

import redis

from countersink.logs.errors import LogError, PositionError
from countersink.logs.file import LogFile
from countersink.stream.connection import mapped
from countersink.stream.entry import Sealed
from countersink.stream.names import (
    note_use,
    partitions,
    stream_key,
    tail_key,
    used_partitions,
)

VERSION: Final = 1
PREFIX_BYTES: Final = 1024
_HEAD: Final = 64 * 1024
_DIRECTIVES: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?>(?:#[^\n]*+\n)*)")
NONE: Final = "-"
"""As ``older``: there was no older file."""
UNKNOWN: Final = "?"
"""As ``older``: it was not noted."""
_MOVE: Final = (files("countersink.producers") / "scripts" / "move.lua").read_text("utf-8")

Outcome = Literal["stored", "full", "moved"]
_OUTCOMES: Final[dict[str, Outcome]] = {"stored": "stored", "full": "full", "moved": "moved"}
"""Stored (also: by an earlier call); the stream is full; somebody else moved the position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A place in a log; the fields are those of the module's table."""

    token: str = ""
    series: str = ""
    file: int = 0
    device: int = 0
    inode: int = 0
    prefix_bytes: int = 0
    prefix: str = ""
    offset: int = 0
    line: int = 0
    unterminated: bool = False
    older: str = ""
    older_at: int = 0
    at: int = 0
    previous: str = ""

    @classmethod
    def first(cls, token: str = "") -> Self:
        """The beginning of a log that was never read, or is to be read anew."""
        return cls(token=token, series=_random())

    def moved(self, **changes: object) -> "Position":
        """This position with ``changes`` and a token of its own."""
        return replace(self, token=_random(), previous=self.token, **changes)  # type: ignore[arg-type]

    def next_file(self) -> "Position":
        """The beginning of the file after this one; not yet a move."""
        return Position(token=self.token, series=self.series, file=self.file + 1)


class Ledger:
    """The position of one source in Redis, and the stream that its rows go to.

    Args:
        client: from :func:`countersink.stream.connection.connect`.
        source: any text that names the log and how it is counted.

    Raises:
        StreamError: Redis did not answer.
    """

    def __init__(self, client: redis.Redis, source: str) -> None:
        self._client = client
        self.source = source
        self._move = client.register_script(_MOVE)
        # A source stays with the partition where its position lies, also when their number changes.
        known = used_partitions(client)
        with mapped():
            pipe = client.pipeline(transaction=False)
            for partition in known:
                pipe.exists(tail_key(partition, source))
            there = pipe.execute()
        # Wherever partitions lie: two readers must choose the same one while hash slots move.
        home = int(tail_key(0, source)[-8:], 16) * partitions(client) >> 32
        self.partition: int = known[there.index(1)] if 1 in there else home
        note_use(client, self.partition)
        self.key = tail_key(self.partition, source)
        self.stream = stream_key(self.partition)

    def read(self) -> Position | None:
        """The position; None if the source was never read.

        Raises:
            StreamError: Redis did not answer.
            PositionError: a newer version wrote it, or it is damaged.
        """
        with mapped():
            raw = self._client.hgetall(self.key)
        if not raw:
            return None
        known = {_text(name): _text(value) for name, value in raw.items()}
        if known.get("v") != str(VERSION):
            raise PositionError(
                f"the position at {self.key} was written by another version of countersink "
                f"({known.get('v')!r}): use that one, or --from-start"
            )
        try:
            # Versions before 1.0 did not note these.
            known = {"older": UNKNOWN, "at": "0", "previous": "", **known}
            known.setdefault("older_at", str(1_000_000 * int(known["at"])))
            values: dict[str, Any] = {
                each.name: known[each.name] if each.type is str else int(known[each.name])
                for each in fields(Position)
            }
            values["unterminated"] = values["unterminated"] == 1
            return Position(**values)
        except (KeyError, ValueError) as error:
            raise PositionError(
                f"the position at {self.key} is damaged ({error}): use --from-start"
            ) from error

    def move(self, old: str, new: Position, entries: Sequence[Sealed], full: int) -> Outcome:
        """Add the entries and set the position, both or neither; the same call may be repeated.

        Args:
            old: the token the position must still have; empty where there is none.
            new: the position afterwards.
            entries: what was read between the two.
            full: entries in the stream from which on it is full.

        Raises:
            StreamError: Redis did not answer; the outcome is unknown.
        """
        position = asdict(new) | {
            "v": VERSION,
            "source": self.source,
            "unterminated": int(new.unterminated),
        }
        arguments: list[str | bytes | int] = [old, new.token, full, 2 * len(position)]
        for name, value in position.items():
            arguments += name, value
        for entry in entries:
            arguments.append(2 * len(entry.fields()))
            for name, value in entry.fields().items():
                arguments += name, value
        with mapped():
            reply = self._move(keys=[self.key, self.stream], args=arguments)
        return _OUTCOMES[_text(reply)]


def shared_bytes(head: bytes) -> int:
    """How many of a file's first bytes are directives of a W3C log: other files have the same."""
    found = _DIRECTIVES.match(head)
    return found.end() if found else 0


def known_head(data: bytes) -> bytes:
    """The bytes by which a file is known, of its first ones."""
    return data[: shared_bytes(data) + PREFIX_BYTES]


def head_of(file: LogFile) -> bytes:
    """The bytes by which a file is known.

    Raises:
        LogError: it cannot be read, or too many directives stand before.
    """
    data = file.read(_HEAD, 0)
    if shared_bytes(data) + PREFIX_BYTES > len(data) >= _HEAD:
        raise LogError(
            f"{file.path} begins with 64 KiB of lines with #, and is not known again by them: leave"
            " them out"
        )
    return known_head(data)


def prefix_of(head: bytes) -> str:
    """What a position keeps of a file's first bytes: their SHA-256 in hex; empty for none."""
    return sha256(head).hexdigest() if head else ""


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _random() -> str:
    return os.urandom(16).hex()
