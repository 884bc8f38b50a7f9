"""``Producer``, what an application calls: ``increment``, ``increment_many``, ``increment_batch``,
``flush``, ``close``; checks of names and amounts with their errors are in ``runtime/limits.py``,
settings in ``options.py``."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Final, Self, Unpack

from countersink.producers import lifecycle
from countersink.producers.batch import Asked, Increment, check_batch, check_id
from countersink.producers.buffer.events import Mode
from countersink.producers.buffer.sightings import ASK_AGAIN_SECONDS, LARGE_MEMBER
from countersink.producers.engine import Engine
from countersink.producers.lifecycle import wait_for_end
from countersink.producers.options import Options, ProducerOptions, from_environment
from countersink.runtime.limits import (
    MAX_AMOUNT,
    MAX_KEY_BYTES,
    MIN_AMOUNT,
    check_amount,
    check_counter,
    check_key,
    minute_of,
)
from countersink.runtime.members import check_member, no_salt, out_of_reach
from countersink.stream.connection import connect
from countersink.stream.errors import StreamMisconfigured

_ONE: Final = 1


class Producer(Engine):
    """Counts: takes increments in well under a microsecond, folds them, and sends them to Redis in
    the background.

    ``increment()`` never waits and never raises because of Redis or a disk. While Redis is away,
    rows coalesce in bounded memory, then go to the spool if there is one, else they are dropped,
    counted and logged. What is stored is counted exactly once, however often it is sent.

    One producer per process is enough: it may be used by all threads, from asyncio (where the calls
    that wait are run as ``await asyncio.to_thread(producer.flush)``), and by forked children, each
    of which starts with an empty one::

        producer = Producer("redis://localhost:6379/0")
        producer.increment("page_views", "/home")

    It is flushed when the process ends: by an exit; by ``os._exit()``, as forked children do, and
    those of RQ and Celery; and by SIGTERM, SIGHUP or SIGQUIT, if the main thread made it or has
    counted with it.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        options: keyword arguments, each with its default in
            :class:`~countersink.producers.options.Options`.

    Raises:
        TypeError, ValueError: the URL or an option cannot be used. Redis is not contacted yet.
    """

    def __init__(self, url: str, **options: Unpack[ProducerOptions]) -> None:
        checked = Options(**options)
        if not isinstance(url, str):
            raise TypeError(f"the URL is a str, not {type(url).__name__}")
        try:
            client = connect(url)
        except StreamMisconfigured as error:
            raise ValueError(str(error)) from error
        # redis-py imports more for its first connection. Here and now, not in the send thread:
        # a child that is forked in the midst of an import is left with half a module.
        client.connection_pool.make_connection()
        super().__init__(url, checked)
        lifecycle.register(
            self, handle_sigterm=checked.handle_sigterm, handle_os_exit=checked.handle_os_exit
        )

    @classmethod
    def from_env(cls) -> Self:
        """A producer as the environment asks for: see
        :func:`countersink.producers.options.from_environment`.

        Raises:
            ValueError: ``COUNTERSINK_REDIS_URL`` is missing, or a setting cannot be used; the
                message names it.
        """
        url, options = from_environment()
        return cls(url, **asdict(options))

    def increment(
        self,
        counter: str,
        key: str | Mapping[str, str] = "",
        amount: int = 1,
        *,
        at: datetime | None = None,
        id: str | None = None,
    ) -> None:
        """Add ``amount`` to ``key`` of ``counter``.

        Args:
            counter: 1 to 64 characters of ``A-Z a-z 0-9 _ . : -``.
            key: any text. One of more than 255 bytes of UTF-8 is counted under its beginning and a
                digest of the whole: :func:`countersink.runtime.limits.cut_key`. For a counter that
                has dimensions a mapping of their names to values, at most 8 of them: names as
                :func:`countersink.runtime.dimensions.check_name` has them, values as keys.
            amount: a signed 64-bit integer; 0 declares the key without counting.
            at: when it happened, an aware datetime, at most 366 days ahead. Default: now on Redis's
                clock, in whole minutes; right to within 50 ms or so.
            id: the event's own name, at most 1,000 characters: further increments of the same
                counter with the same id (and the same ``id_scope``) are not counted, as long as the
                store remembers it (``ledger_days``). Each
                such increment travels as an entry of its own: for the few events that need it.

        Raises:
            TypeError, ValueError: an argument is not as above. Nothing is counted.
            RuntimeError: the producer is closed.
        """
        # The usual call: an increment by 1, now. `is`: small ints are singletons, and True is not
        # 1.
        try:
            if amount is _ONE and at is None and id is None:
                if type(key) is str:
                    if len(key) <= MAX_KEY_BYTES and key.isascii():
                        self._fast[counter](key)
                        return
                elif type(key) is dict:
                    values, known, append = self._fast_dimensions[counter][len(key)]
                    append(known[values(key)])
                    return
        except (LookupError, TypeError):
            pass  # a counter or values not seen before, or nothing that could be one
        check_counter(counter)
        row_key = self._known_dimensions.row_key(counter, key)
        check_amount(amount)
        minute = None if at is None else minute_of(at)
        if id is not None:
            check_id(id)
        events = self._events
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put(counter, row_key, minute, amount, id)

    def increment_many(
        self, counter: str, amounts: Mapping[str, int], *, at: datetime | None = None
    ) -> None:
        """Add ``amounts[key]`` to each key of ``counter``: all, or none if one of them is not
        valid or there is no room for all of them, which are dropped then.

        Args:
            counter, at: as for :meth:`increment`.
            amounts: key → amount. A key is text: dimensions, which a mapping cannot have for keys,
                go by :meth:`increment` or :meth:`increment_batch`.

        Raises:
            TypeError, ValueError: an argument is not as above. Nothing is counted.
            RuntimeError: the producer is closed.
        """
        check_counter(counter)
        minute = None if at is None else minute_of(at)
        if not isinstance(amounts, Mapping):
            raise TypeError(f"amounts is a mapping of key to amount, not {type(amounts).__name__}")
        items = list(amounts.items())  # once: another thread may be changing it
        if not items:
            return
        keys, values = [key for key, _ in items], [value for _, value in items]
        if not (
            set(map(type, keys)) == {str}
            and "".join(keys).isascii()
            and max(map(len, keys)) <= MAX_KEY_BYTES
        ):
            keys = [check_key(key) for key in keys]
        if not (
            set(map(type, values)) == {int}
            and min(values) >= MIN_AMOUNT
            and max(values) <= MAX_AMOUNT
        ):
            for value in values:
                check_amount(value)
        events = self._events
        if events.mode is Mode.CLOSED:
            self._refuse(len(keys))
            return
        events.put_many(counter, minute, keys, values)

    def increment_batch(
        self, increments: Iterable[Asked | Increment], *, id: str | None = None
    ) -> bool:
        """Accept all these increments, or none: for those who pass on what others send.

        What was accepted here is not dropped for lack of memory later, as that of
        :meth:`increment` may be.

        Args:
            increments: at most 1,000; each an :class:`~countersink.producers.Increment`, or a tuple
                like it; as for :meth:`increment`.
            id: of the whole batch, at most 1,000 characters; none of its increments has one then.
                The batch travels as one entry: however often, by however many producers of the same
                ``id_scope`` and however concurrently batches with this id are sent, one of them is
                counted, as a whole, as long as the store remembers it (``ledger_days``).

        Returns:
            Whether it was accepted. False: there is no room for all of it now, or the salt of a
            counter whose members it has is not known yet; nothing of it is counted, in ``stats()``
            neither.

        Raises:
            InvalidBatch: a ValueError with the position of each increment that is not valid.
                Nothing is counted.
            TypeError, ValueError: the id or the number of increments is not as above, likewise.
            RuntimeError: the producer is closed.
        """
        events = self._events
        batch = check_batch(increments, id, self._hash_member)
        if batch is None:
            return False
        if not batch.rows:
            return True
        if events.mode is Mode.CLOSED:
            self._refuse(batch.rows)
            return False
        return events.put_batch(batch)

    def seen(
        self,
        counter: str,
        key: str | Mapping[str, str],
        member: str | bytes,
        *,
        at: datetime | None = None,
    ) -> None:
        """Count one sighting of ``member`` under ``key`` of ``counter``: an increment by 1, and one
        of the different members of which ``totals --unique`` tells the number.

        The counter has to be one of different members: ``countersink counter set COUNTER
        --unique``. Members are hashed here with a salt of the counter, which a worker puts into
        Redis, and never leave the process otherwise. Until the salt is known, 10,000 of them wait
        in memory; those beyond that, and those left at the close, count without their members.

        Args:
            counter, key, at: as for :meth:`increment`.
            member: who was seen, of any length; a ``str`` is its UTF-8.

        Raises:
            TypeError, ValueError: an argument is not as above. Nothing is counted.
            RuntimeError: the producer is closed.
        """
        try:
            if at is None and len(member) <= LARGE_MEMBER:
                small = type(member) is bytes or (type(member) is str and member.isascii())
                if small and type(key) is str:
                    if len(key) <= MAX_KEY_BYTES and key.isascii():
                        self._fast_seen[counter]((key, member))
                        return
                elif small and type(key) is dict:
                    values, known, _ = self._known[counter][len(key)]
                    self._fast_seen[counter]((known[values(key)], member))
                    return
        except (LookupError, TypeError):
            pass  # as in increment()
        check_counter(counter)
        row_key = self._known_dimensions.row_key(counter, key)
        data = check_member(member)
        minute = None if at is None else minute_of(at)
        events = self._events
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put_seen(counter, row_key, minute, data)

    def counts_members(self, counter: str) -> bool | None:
        """Whether a counter counts different members, as Redis told last; None: it has not told
        yet. Has Redis asked where that is due, and never waits.
        """
        salts = self._events.sightings.salts
        found = salts.counts_members(counter)
        closed = self._events.mode is Mode.CLOSED
        if salts.is_due(counter) and not closed and self._start(wait=False):
            self._send_thread.flush_now()
        return found

    def awaits_salt(self, counter: str) -> bool:
        """Whether the present salt of a counter is not known, and may be soon: Redis has not told
        yet, the counter has got ``--unique`` just now, or workers were away when it was to be made.
        As :meth:`counts_members`.
        """
        found = self._events.sightings
        if found.hashed(counter, None, b"") is not None:
            return False
        self.counts_members(counter)
        return not found.salts.has_none(counter, time.monotonic() - ASK_AGAIN_SECONDS)

    @property
    def spool(self) -> str | None:
        """The directory of its spool; None without one."""
        spool = self._options.spool
        return None if spool is None else os.fspath(spool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_over(self) -> None:
        """Begin empty: the parent of a forked child sends what it had accepted."""
        super().start_over()
        self._fast = self._events.fast
        self._fast_dimensions = self._events.fast_dimensions
        self._fast_seen = self._events.sightings.fast
        self._known_dimensions = self._events.known_dimensions
        self._known = self._known_dimensions.of

    def _hash_member(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes] | None:
        """A member of a batch, which cannot wait for its salt.

        Raises:
            ValueError: the counter has none.
        """
        events = self._events
        found = events.sightings.hashed(counter, minute, member)
        if found is None:
            if self.counts_members(counter) is False and events.sightings.salts.has_none(counter):
                raise ValueError(no_salt(counter))
            if minute is not None and events.sightings.is_out_of_reach(counter, minute):
                raise ValueError(out_of_reach(counter))
        return found

    def _refuse(self, increments: int) -> None:
        if not self._exited:
            raise RuntimeError("the producer is closed")
        wait_for_end()
        # Another exit hook, after ours: it is not wrong to count there, only too late.
        self._events.refuse(increments)
        self._log.seldom("dropped", "counted after the flush at exit, and so dropped")
