"""Class ``Producer``, through which an application counts: ``increment``, ``increment_many``,
``increment_batch``, ``seen``.

See ``engine.py`` for ``flush`` and ``close``, ``recorder.py`` for the methods that an application's
tests call (``count``, ``totals``), ``options.py`` for settings, ``runtime/limits.py`` for checks of
names and amounts with their error messages.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Final, Self, Unpack

from countersink.producers import lifecycle
from countersink.producers.batch import Increment, IncrementTuple, check_batch, check_id
from countersink.producers.buffer.events import Mode
from countersink.producers.buffer.sightings import ASK_AGAIN_SECONDS, LARGE_MEMBER
from countersink.producers.lifecycle import wait_for_end
from countersink.producers.options import (
    Missing,
    Options,
    ProducerOptions,
    from_environment,
    is_recorded,
    warn_of_variables,
)
from countersink.producers.recorder import Recorded, Recorder
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import (
    MAX_AMOUNT,
    MAX_KEY_BYTES,
    MIN_AMOUNT,
    check_amount,
    check_counter,
    check_key,
    minute_of,
)
from countersink.runtime.members import check_member, no_salt, no_salt_of_time
from countersink.runtime.process import Closable
from countersink.stream.connection import connect
from countersink.stream.errors import StreamMisconfigured

_ONE: Final = 1


class Producer(Recorded, Closable):
    """Counts events: accepts increments in well under a microsecond each, folds them into rows
    (adds up the increments of a key in a minute), and sends the rows to Redis in the background.

    ``increment()`` never waits for Redis or a disk and never raises because of them; if memory is
    nearly full, or increments come too fast, it may pause for 0.1 ms. While Redis is away, the
    producer keeps adding up in bounded memory, and writes rows to the spool if it has one. When
    there is no room left, further increments are dropped; their number is kept and logged. Stored
    increments are counted exactly once, however often they are sent.

    One producer per process is enough. All threads may use it. Asyncio code may use it, too; it
    runs calls that wait in a thread: ``await asyncio.to_thread(producer.flush)``. Forked children
    may use it; in each child the producer starts empty::

        producer = Producer("redis://localhost:6379/0")
        producer.increment("page_views", "/home")

    The producer is flushed when the process ends: at a normal exit; at ``os._exit()``, by which
    forked children, RQ jobs and pool processes of Celery end; at SIGTERM, SIGHUP and SIGQUIT, if
    the main thread created the producer or was the first to count with it.

    Args:
        url: the URL of Redis: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or
            ``redis+cluster://``. For tests: ``memory://`` keeps the increments in the process, and
            the methods ``count``, ``totals`` and ``assert_counted`` tell what was counted;
            ``off://`` counts nothing.
        options: keyword arguments, each with its default in
            :class:`~countersink.producers.options.Options`.

    Raises:
        TypeError, ValueError: the URL or an option is invalid. Redis is not contacted yet.
    """

    def __init__(self, url: str, **options: Unpack[ProducerOptions]) -> None:
        checked = Options(**options)
        if not isinstance(url, str):
            raise TypeError(f"the URL must be a str, not {type(url).__name__}")
        if is_recorded(url):
            self._recorder = Recorder(url)
            # The threads never start, and nothing connects.
            super().__init__("redis://unused", Options())
            return
        try:
            client = connect(url)
        except StreamMisconfigured as error:
            raise ValueError(str(error)) from error
        # redis-py imports more modules for its first connection. They are imported here, not in the
        # send thread: a child that is forked during an import has half a module.
        client.connection_pool.make_connection()
        super().__init__(url, checked)
        lifecycle.register(
            self, handle_sigterm=checked.handle_sigterm, handle_os_exit=checked.handle_os_exit
        )

    @classmethod
    def from_env(cls, *, missing: Missing = "error") -> Self:
        """Create a producer with the URL and the settings in environment variables: see
        :func:`countersink.producers.options.from_environment`. The log warns of variables
        ``COUNTERSINK_PRODUCER_…`` that nothing reads, once in a process.

        Args:
            missing: ``"off"``: if ``COUNTERSINK_REDIS_URL`` is missing, log a warning and return a
                producer that counts nothing, so that a module can be imported without settings.
                ``"error"``: raise ValueError.

        Raises:
            ValueError: ``COUNTERSINK_REDIS_URL`` is missing (unless ``missing`` is ``"off"``), or
                the URL or a setting is invalid; the message says which.
        """
        url, options = from_environment(missing=missing)
        warn_of_variables()
        return cls(url, **asdict(options))

    def increment(
        self,
        counter: str,
        key: str | Mapping[str, str] = "",
        amount: int = 1,
        at: datetime | None = None,
        id: str | None = None,
    ) -> None:
        """Add ``amount`` to ``key`` of ``counter``.

        Args:
            counter: 1 to 64 characters of ``A-Z a-z 0-9 _ . : -``.
            key: any text. A key of more than 255 bytes of UTF-8 is counted under its beginning and
                a digest of the full key: see :func:`countersink.runtime.limits.cut_key`. For a
                counter with dimensions, a mapping from the name of each dimension (at most 8) to
                its value. See :func:`countersink.runtime.dimensions.check_name` for the names; the
                values may be any text, as keys.
            amount: a signed 64-bit integer; 0 adds nothing, but makes the key exist.
            at: the time of the event, an aware datetime from 1970 to 366 days ahead. By default the
                event belongs to the present minute on Redis's clock, which the producer knows to
                within 50 ms or so.
            id: the application's id of the event, 1 to 1,000 characters. Further increments of
                the counter with this id (and the same ``id_scope``) are not counted, as long as
                MySQL keeps the id (3 days by default). An increment with an id is sent in an entry
                of its own, which costs more, so give an id only to the few events that need one.

        Raises:
            TypeError, ValueError: an argument is invalid. Nothing is counted.
            RuntimeError: ``close()`` was called. From the flush at exit on, increments are dropped.
        """
        # The usual call: an increment by 1, now. `is`: small ints are singletons, and True is not
        # 1. Here and in seen() `at` and `id` are not keyword-only, because CPython calls a function
        # that has such parameters more slowly: the usual call would take a seventh longer.
        try:
            if amount is _ONE and at is None and id is None:
                if type(key) is str:
                    if key.isascii() and len(key) <= MAX_KEY_BYTES:
                        self._fast[counter](key)
                        return
                elif type(key) is dict:
                    values, known, append = self._fast_dimensions[counter][len(key)]
                    append(known[values(key)])
                    return
        except (LookupError, TypeError):
            pass  # a new counter or new values, or invalid ones: the slow way checks them
        check_counter(counter)
        row_key = self._row_key(counter, key)
        check_amount(amount)
        minute = None if at is None else minute_of(at)
        if id is not None:
            check_id(id)
        events = self._events
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put(counter, row_key, minute, amount, id)

    def _row_key(self, counter: str, key: str | Mapping[str, str]) -> RowKey:
        """Return a caller's key in the form that rows contain: a text, cut if it is long, or
        checked dimensions. Raise TypeError or ValueError if the key is invalid.
        """
        return check_key(key) if type(key) is str else self._known_dimensions.row_key(counter, key)

    def increment_many(
        self, counter: str, amounts: Mapping[str, int], *, at: datetime | None = None
    ) -> None:
        """Add ``amounts[key]`` to each key of ``counter``: all of them or none. If a key or amount
        is invalid, an error is raised; if memory has no room for all, all are dropped. If memory is
        nearly full, or increments come too fast, the call may wait for a fraction of a second.

        Args:
            counter, at: as for :meth:`increment`.
            amounts: maps each key to its amount. Keys are texts; for dimensions use
                :meth:`increment` or :meth:`increment_batch`.

        Raises:
            TypeError, ValueError: an argument is invalid. Nothing is counted.
            RuntimeError: ``close()`` was called. From the flush at exit on, increments are dropped.
        """
        check_counter(counter)
        minute = None if at is None else minute_of(at)
        if not isinstance(amounts, Mapping):
            raise TypeError(f"amounts must be a mapping, not {type(amounts).__name__}")
        items = list(amounts.items())  # read once: another thread may change the mapping
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
        self, increments: Iterable[IncrementTuple | Increment], *, id: str | None = None
    ) -> bool:
        """Accept all increments of a batch, or none of them. Meant for programs that forward
        increments.

        Memory is reserved for an accepted batch. So, unlike increments of :meth:`increment`, it is
        never dropped later for lack of memory.

        Args:
            increments: at most 1,000 objects of :class:`~countersink.producers.Increment`, or
                tuples with the same items in the same order. The items mean the same as the
                arguments of :meth:`increment`; a member means a sighting, as in :meth:`seen`.
            id: the application's id of the batch, 1 to 1,000 characters. A batch with an id is
                sent as one entry, and its increments must not have ids. Only one batch with this id
                is counted, even if several producers with the same ``id_scope`` send it at the same
                time, as long as MySQL keeps the id, as for :meth:`increment`.

        Returns:
            True if the batch was accepted, or is empty. False if it was refused: memory has no room
            for all of it now, or it contains members of a counter whose salt is not known yet. A
            refused batch is not counted, and does not appear in ``stats()`` either. Also False, and
            the batch is dropped, if the last flush of an ending process has begun.

        Raises:
            InvalidBatch: some increments are invalid. The error, a ValueError, has the position of
                each, from 0. Nothing is counted.
            TypeError, ValueError: the id is invalid, or the batch has too many increments or bytes.
            RuntimeError: ``close()`` was called.
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
        at: datetime | None = None,
    ) -> None:
        """Count one sighting of ``member``, for example of a visitor, under ``key`` of ``counter``.
        A sighting adds 1 to the key, as ``increment`` does. It also adds the member to the
        different members of the key; ``countersink totals --unique`` shows their number.

        The counter must count different members: ``countersink counter set COUNTER --unique``.
        Members leave the process only as hashes. They are hashed with a salt of the counter, which
        a worker puts into Redis. Until the producer has read the salt, members wait in memory, at
        most 10,000 and 8 MiB. Sightings beyond this limit, or still waiting when the producer is
        closed, or of a time for which there is no salt, are counted without their members.

        Args:
            counter, key, at: as for :meth:`increment`.
            member: the member's name, of any length; a ``str`` is encoded as UTF-8.

        Raises:
            TypeError, ValueError: an argument is invalid. Nothing is counted.
            RuntimeError: ``close()`` was called. From the flush at exit on, sightings are dropped.
        """
        try:
            if at is None and len(member) <= LARGE_MEMBER:
                small = type(member) is bytes or (type(member) is str and member.isascii())
                if small and type(key) is str:
                    if key.isascii() and len(key) <= MAX_KEY_BYTES:
                        self._fast_seen[counter]((key, member))
                        return
                elif small and type(key) is dict:
                    values, known, _ = self._known[counter][len(key)]
                    self._fast_seen[counter]((known[values(key)], member))
                    return
        except (LookupError, TypeError):
            pass  # as in increment()
        check_counter(counter)
        row_key = self._row_key(counter, key)
        data = check_member(member)
        minute = None if at is None else minute_of(at)
        events = self._events
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put_seen(counter, row_key, minute, data)

    def counts_members(self, counter: str) -> bool | None:
        """Return whether a counter counts different members (``counter set --unique``), by Redis's
        last answer. Return None if Redis has not answered yet, or if the answer is over 2 minutes
        old although Redis can be reached. Never waits: the send thread asks Redis in the
        background.
        """
        salts = self._events.sightings.salts
        found = salts.counts_members(counter)
        closed = self._events.mode is Mode.CLOSED
        if salts.is_due(counter) and not closed and self._start(wait=False):
            self._send_thread.flush_now()
        return found

    def awaits_salt(self, counter: str) -> bool:
        """Return False if the present salt of a counter is known. Also return False if it is
        useless to wait for it: Redis has answered for 10 seconds, also in the last second, that the
        salt is missing. Otherwise return True: a worker may be about to make the salt. A caller may
        wait for False before it passes members to :meth:`increment_batch`. Does not wait itself.
        """
        found = self._events.sightings
        if found.hashed(counter, None, b"") is not None:
            return False
        self.counts_members(counter)
        return not found.salts.has_none(counter, time.monotonic() - ASK_AGAIN_SECONDS)

    @property
    def spool(self) -> str | None:
        """The directory of the spool; None where the producer has no spool."""
        spool = self._options.spool
        return None if spool is None else os.fspath(spool)

    @property
    def spools(self) -> bool:
        """Whether the producer has a spool that works: its last write or the last check of its
        directory, whichever came later, was successful. After a failure also True if no row waits
        for the next attempt to write, and the directory can be used now."""
        spool = self._spool
        return spool is not None and (not spool.failure or (not spool.failing and spool.look()))

    def start_over(self) -> None:
        """Make empty buffers and new threads, which are not started yet. Called by the constructor,
        and in a forked child, because the parent sends the increments that the child has inherited.
        """
        super().start_over()
        self._fast = self._events.fast
        self._fast_dimensions = self._events.fast_dimensions
        self._fast_seen = self._events.sightings.fast
        self._known_dimensions = self._events.known_dimensions
        self._known = self._known_dimensions.by_counter

    def _hash_member(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes] | None:
        """Hash a member of a batch. Return the minute of the sighting, the number of the salt, and
        the hash. Return None if the salt is not known yet; the batch is then refused.

        Args:
            minute: the Unix minute of the sighting; None stands for now.

        Raises:
            ValueError: for 10 seconds Redis has answered that the counter has no salt; or the salt
                of this minute was deleted or will not be made within a day.
        """
        events = self._events
        found = events.sightings.hashed(counter, minute, member)
        if found is None:
            if self.counts_members(counter) is False and events.sightings.salts.has_none(counter):
                raise ValueError(no_salt(counter))
            if minute is not None and events.sightings.is_out_of_reach(counter, minute):
                raise ValueError(no_salt_of_time(counter))
        return found

    def _refuse(self, increments: int) -> None:
        if not self._exited:
            raise RuntimeError("the producer is closed")
        wait_for_end()
        # An exit hook of the application that runs after ours: counting there is no misuse.
        self._events.refuse(increments)
        self._log.seldom("dropped", "increments dropped: they came after the flush at exit")
