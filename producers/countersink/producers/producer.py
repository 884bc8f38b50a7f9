"""``Producer``, what an application calls: ``increment``, ``increment_many``, ``increment_batch``,
``flush``, ``close``; checks of names and amounts with their errors are in ``runtime/limits.py``,
settings in ``options.py``."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Final, NoReturn, Self, Unpack

from countersink.producers import lifecycle
from countersink.producers.batch import Asked, Increment, check_batch, check_id
from countersink.producers.buffer.events import Mode
from countersink.producers.buffer.sightings import ASK_AGAIN_SECONDS, LARGE_MEMBER
from countersink.producers.engine import Engine, Stats
from countersink.producers.lifecycle import wait_for_end
from countersink.producers.options import Options, ProducerOptions, from_environment
from countersink.producers.redis_link import StoredMark, Trail
from countersink.producers.threads import RLock
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
from countersink.stream.connection import connect, redact
from countersink.stream.errors import StreamMisconfigured

_ONE: Final = 1


class Producer:
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
        self._options = Options(**options)
        if not isinstance(url, str):
            raise TypeError(f"the URL is a str, not {type(url).__name__}")
        try:
            client = connect(url)
        except StreamMisconfigured as error:
            raise ValueError(str(error)) from error
        # redis-py imports more for its first connection. Here and now, not in the send thread:
        # a child that is forked in the midst of an import is left with half a module.
        client.connection_pool.make_connection()
        self._url = url
        self._exited = False
        self._complete: bool | None = None  # what close() returned
        self.start_over()
        lifecycle.register(
            self,
            handle_sigterm=self._options.handle_sigterm,
            handle_os_exit=self._options.handle_os_exit,
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
        self._increment(counter, key, amount, at, id)

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
        events = self._engine.events
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
        events = self._engine.events
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
        events = self._engine.events
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put_seen(counter, row_key, minute, data)

    def counts_members(self, counter: str) -> bool | None:
        """Whether a counter counts different members, as Redis told last; None: it has not told
        yet. Has Redis asked where that is due, and never waits.
        """
        salts = self._engine.events.sightings.salts
        found = salts.counts_members(counter)
        if salts.is_due(counter) and self._engine.events.mode is not Mode.CLOSED:
            self._engine.ask_salts()
        return found

    def awaits_salt(self, counter: str) -> bool:
        """Whether the present salt of a counter is not known, and may be soon: Redis has not told
        yet, the counter has got ``--unique`` just now, or workers were away when it was to be made.
        As :meth:`counts_members`.
        """
        found = self._engine.events.sightings
        if found.hashed(counter, None, b"") is not None:
            return False
        self.counts_members(counter)
        return not found.salts.has_none(counter, time.monotonic() - ASK_AGAIN_SECONDS)

    def flush(self, timeout: float = 5.0, applied: bool = False) -> bool:
        """Wait until everything accepted before this call is stored: in Redis, or else in the
        spool.

        Args:
            timeout: seconds to wait at most.
            applied: wait until it is in MySQL (or among the dead letters), and until what this
                process has spooled is too.

        Returns:
            Whether that is so, and nothing was dropped since the last flush, nor any member. Never
            raises because of Redis or a disk. With ``applied``, False also where it cannot be
            known: entries left the stream otherwise than by a worker (Redis was emptied, started
            anew or replaced by a replica; XTRIM, XDEL, DEL), since the last call that said so. The
            log has which, and the
            next call is about what was stored since.
        """
        deadline = time.monotonic() + timeout
        since = self._engine.trail.told
        if not self._engine.flush(timeout):
            return False
        return not applied or self._engine.applied(deadline - time.monotonic(), since)

    @property
    def trail(self) -> Trail:
        """What became of all that this process has stored; tells of a :meth:`mark`."""
        return self._engine.trail

    def mark(self, since: int = 0) -> StoredMark | None:
        """Where all that this process has stored by now ends in the streams, to be asked for with
        :meth:`countersink.producers.redis_link.Trail.applied`; None as long as some of it is in its
        spool.

        Args:
            since: :attr:`Trail.breaks <countersink.producers.redis_link.Trail.breaks>` before it
                was stored.
        """
        return self._engine.mark(since)

    def stats(self) -> Stats:
        """The figures of this producer in this process."""
        return self._engine.stats()

    @property
    def id_scope(self) -> str:
        """The namespace of its ids."""
        return self._options.id_scope

    @property
    def spool(self) -> str | None:
        """The directory of its spool; None without one."""
        spool = self._options.spool
        return None if spool is None else os.fspath(spool)

    def close(self, timeout: float = 5.0) -> bool:
        """Flush, then end the threads. Calls of ``increment()`` from then on raise RuntimeError.
        Idempotent.

        What can be stored neither in Redis nor in the spool is lost: counted as dropped, and
        logged.

        Args:
            timeout: seconds that the flush may take.

        Returns:
            Whether nothing was lost, nor dropped since the last flush; a second call returns the
            same.
        """
        with self._closing:
            complete = self._complete
            if complete is None:
                # Remembered only now: a close that an exception of a signal handler ended is made
                # up for by the next one, the exit's if no other comes.
                complete = self._complete = self._engine.close(timeout)
        lifecycle.forget(self)
        return complete

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a producer cannot be pickled: make one in each process, or let children be forked"
        )

    def __repr__(self) -> str:
        return f"<Producer {redact(self._url)}>"

    # --- for the end of the process, and for forks -------------------------------------------

    @property
    def exit_timeout(self) -> float:
        """Seconds that a flush at the end of the process may take."""
        return self._options.exit_timeout

    def begin_flush(self, deadline: float) -> Callable[[], bool]:
        """Begin a flush; what is returned is called until it says that the flush is over, done or
        not, which is so from the monotonic time ``deadline`` on.
        """
        return self._engine.begin_flush_over(deadline)

    @property
    def unused(self) -> bool:
        """Whether nothing was counted in this process."""
        return self._engine.unused

    def stop_counting(self) -> None:
        """Accept no more: later increments are dropped instead of raising, and do not return if the
        process is about to end.
        """
        self._exited = True
        self._engine.events.switch(Mode.CLOSED)

    def close_at_exit(self, deadline: float) -> None:
        """Close until the monotonic time ``deadline``; later increments are dropped instead of
        raising.
        """
        self._exited = True
        # Another thread may be closing, with more time than this one has.
        if self._closing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self.close(max(0.0, deadline - time.monotonic()))
            finally:
                self._closing.release()
        else:
            self.tell_of_loss()

    def tell_of_loss(self) -> None:
        """Say, if it is so, that what was not stored is lost as the process ends now."""
        self._engine.tell_of_loss()

    def start_over(self) -> None:
        """Begin empty: the parent of a forked child sends what it had accepted."""
        self._engine = Engine(self._url, self._options)
        self._fast = self._engine.events.fast
        self._fast_dimensions = self._engine.events.fast_dimensions
        self._fast_seen = self._engine.events.sightings.fast
        self._known_dimensions = self._engine.events.known_dimensions
        self._known = self._known_dimensions.of
        self._closing = RLock()  # reentrant: a signal handler may close, too
        self._complete = None

    # --- the way for all but the usual call --------------------------------------------------

    def _increment(
        self,
        counter: str,
        key: str | Mapping[str, str],
        amount: int,
        at: datetime | None,
        id: str | None,
    ) -> None:
        check_counter(counter)
        row_key = self._known_dimensions.row_key(counter, key)
        check_amount(amount)
        minute = None if at is None else minute_of(at)
        events = self._engine.events
        if id is not None:
            check_id(id)
        if events.mode is Mode.CLOSED:
            self._refuse(1)
        else:
            events.put(counter, row_key, minute, amount, id)

    def _hash_member(
        self, counter: str, minute: int | None, member: bytes
    ) -> tuple[int, int, bytes] | None:
        """A member of a batch, which cannot wait for its salt.

        Raises:
            ValueError: the counter has none.
        """
        events = self._engine.events
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
        self._engine.events.refuse(increments)
        self._engine.complain_of_late()
