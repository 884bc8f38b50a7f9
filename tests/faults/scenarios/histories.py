"""Histories: sequences of operations at random on a handful of counters, of several time zones,
whose resolution and steps to keep change at any time; all answers are held against dictionaries of
{(key, Unix minute): amount} per counter, see ``history_books.py``.

Clocks: the database is that of a user of its own, whose connections the server gives a time of the
history's (``init_connect`` sets the session's ``timestamp``, which UTC_TIMESTAMP follows). So the
time stands still between two operations, goes on by minutes or weeks where one says so, is the same
in child processes, and does not depend on when a history is played. Redis and the times at which
entries are sent are of the real clock, which is later than all of a history.

Each operation draws from a generator of its own, seeded with the history's seed and its number.
"""

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import pymysql

from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applier
from countersink.counting.errors import UnknownCounter
from countersink.database.migrate import migrate
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.faults.scenarios.history_books import FINER, MINUTES, Book
from tests.faults.scenarios.history_questions import Reader, drawn, plain
from tests.faults.stage import Stage
from tests.support.app_connection import Connection, open_app
from tests.support.entries import beside, entry, together
from tests.support.oracle import connect
from tests.support.proxies import Deed, Phase
from tests.support.run_moves import move
from tests.support.traffic import now_ms

OPERATIONS: Final = 120
QUESTIONS: Final = 40
"""After every few operations."""
EVERY: Final = 3
ZONES: Final = (
    *("Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia"),
    *("Australia/Lord_Howe", "Africa/Casablanca", "Europe/Berlin", "UTC"),
)
ODD: Final = (*ZONES[:3], "Australia/Lord_Howe")
"""Not whole hours from UTC."""
NAMES: Final = ("c0", "c1", "c2", "c3", "c4")
KEYS: Final = ("a", "b", "a ", "ä", "Z", "")
AMOUNTS: Final = (1, 1, 1, 2, 7, 1000, -1, -3, 0)
KEEPS: Final = (
    *("minute=2d,hour=3d,day=60d", "minute=1d,quarter=5d,day=90d", "quarter=1h,hour=2d,day=40d"),
    *("minute=90m,quarter=1d", "hour=2d,day=30d", "hour=5d", "quarter=2d", "day=45d", "forever"),
)
BEGIN: Final = datetime(2025, 2, 20, tzinfo=UTC)
"""The first day on which histories begin; the last is a year later."""
CHANGES: Final = tuple(
    round(datetime.fromisoformat(f"{at}Z").timestamp()) // 60
    for at in (
        *("2010-11-07T02:31", "2011-11-06T02:31"),  # St. John's: 00:01 becomes 23:01
        *("2011-12-30T10:00", "2011-12-29T10:00", "2012-01-01T00:00"),  # Apia has no 30th
        *("2025-04-05T15:00", "2025-10-04T15:30"),  # Lord Howe: by half an hour
        *("2025-02-23T02:00", "2025-04-06T02:00", "2025-03-30T01:00", "2025-10-26T01:00"),
    )
)
"""Minutes at which clocks are changed, or a year begins."""
REQUESTS: Final = 60
"""Of a pass that is killed, at most."""
LOST: Final = (1020, 1205, 1213)
"""An application's transaction is to be rolled back after these."""


def histories(stage: Stage, operations: int = OPERATIONS, questions: int = QUESTIONS) -> None:
    """Play a history on a database of its own; prints how many questions were answered."""
    with World(stage) as world:
        history = History(world, questions)
        for number in range(operations):
            try:
                history.step(number)
            except BaseException:
                print(f"seed {stage.seed}, operation {number}: {history.said}", flush=True)
                history.close()
                raise
        history.close()
        answered, refused = history.reader.answered, history.reader.refused
        stage.traffic.increments += sum(len(book.amounts) for book in history.books.values())
    all_answered, all_refused = answered.total(), refused.total()
    print(
        f"history {stage.seed}: {operations} operations, {all_answered:,} answers compared,"
        f" {all_refused:,} refused;"
        f" {', '.join(f'{name} {count}' for name, count in history.done.most_common())}",
        flush=True,
    )
    assert all_answered > all_refused, f"seed {stage.seed}: {answered}, refused {refused}"


class World:
    """A database with a user and a clock of its own; a context manager."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.name = f"history_{stage.seed}"
        self.seed = stage.seed
        self._root = connect(stage.mysql_server.url)
        self._stack = ExitStack()
        self.now = round(BEGIN.timestamp()) // 60
        """Unix minute."""
        host = f"127.0.0.1:{stage.mysql_server.port}"
        self.url = f"mysql://{self.name}:{self.name}@{host}/{self.name}"

    def __enter__(self) -> Self:
        user = f"'{self.name}'@'%'"
        self.run(f"DROP DATABASE IF EXISTS {self.name}")
        self.run(f"CREATE DATABASE {self.name}")
        self.run(f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{self.name}'")
        self.run(f"GRANT ALL ON {self.name}.* TO {user}")
        migrate(self.url)
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.run("SET GLOBAL init_connect = ''")
        self.run(f"DROP DATABASE {self.name}")
        self.run(f"DROP USER '{self.name}'@'%'")
        self._root.close()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement as root."""
        with self._root.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def rows(self, columns: str, rest: str) -> list[tuple[Any, ...]]:
        """Read a table of the history's."""
        return self.run(f"SELECT {columns} FROM {self.name}.{rest}")

    def move_to(self, minute: int) -> None:
        """Move the clocks; connections are made anew."""
        self.now = minute
        self._stack.close()
        self._open()

    def _open(self) -> None:
        self.run(f"SET GLOBAL init_connect = 'SET timestamp = {self.now * 60}'")
        self.store = self._stack.enter_context(Store(self.url))
        self.appliers = [Applier(self.url, slot) for slot in (3, 17)]
        for one in self.appliers:
            self._stack.callback(one.close)
        self.verifying = self._stack.enter_context(open_session(self.url))


Row = tuple[str, str, int, int]
"""Counter, key, Unix minute, amount."""


@dataclass
class Transaction:
    """An application's transaction that is open, with what it has counted, and deleted."""

    connection: Connection
    counted: list[tuple[str, str, int, int, str]] = field(default_factory=list)
    """Counter, key, minute, amount, resolution."""
    deleted: tuple[str, str] | None = None
    """Counter and key, before anything was counted."""


Operation = Callable[["History", random.Random], None]


class History:
    """Operations, each done to the database and noted in the books."""

    def __init__(self, world: World, questions: int = QUESTIONS) -> None:
        self.world = world
        self.books: dict[str, Book] = {}
        self.deleted: dict[str, Book] = {}
        """As what counters that were deleted are counted anew: zone and resolution stay."""
        self.recent: dict[str, set[str]] = {}
        """The resolutions that an application may remember of a counter."""
        self.open: list[Transaction] = []
        self.said = ""
        self.done = Counter[str]()
        self.reader = Reader(world.store.totals, self.books)
        self._questions = questions
        begin = random.Random(f"{world.seed}")
        self.move(begin.randrange(365 * 1440))
        for name in NAMES:
            self._make(begin, name)

    def step(self, number: int) -> None:
        """Do an operation, and after every few of them ask questions."""
        draw = random.Random(f"{self.world.seed} {number}")
        ((work, _),) = draw.choices([*OPERATION.items()], [*OPERATION.values()])
        self.said = work.__name__
        self.done[work.__name__] += 1
        work(self, draw)
        if number % EVERY == EVERY - 1:
            self.check(draw)

    def check(self, draw: random.Random) -> None:
        """Ask, and verify."""
        done = self.said
        for counter in sorted(self.books):
            for question in plain(counter):
                self.said = f"{question} after {done}"
                refused = self.reader.refused.total()
                self.reader.ask(question)
                assert self.reader.refused.total() == refused, question
        for _ in range(self._questions if self.books else 0):
            question = drawn(draw, self.books, ZONES, KEYS, self.world.now)
            self.said = f"{question} after {done}"
            self.reader.ask(question)
        self.said = f"verify after {done}"
        found = verify(self.world.verifying)
        assert found.agrees, found.differences
        ((dead,),) = self.world.rows("COUNT(*)", "dead_row")
        assert dead == 0, f"{dead} dead rows"

    def close(self) -> None:
        """Roll back what is open."""
        for transaction in self.open:
            transaction.connection.close()

    # -- counting --------------------------------------------------------------------------------

    def work(self, draw: random.Random) -> None:
        """A worker counts a batch."""
        rows, at = self._rows(draw, NAMES), now_ms(self.world.stage.redis)
        size = draw.randrange(1, 30)
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        draw.choice(self.world.appliers).apply([_numbered(part, at) for part in parts])
        for name, key, minute, amount in rows:
            self._book(name).add(key, minute, amount)

    def _rows(self, draw: random.Random, names: Sequence[str]) -> list[Row]:
        return [
            (draw.choice(names), draw.choice(KEYS), self._minute(draw), draw.choice(AMOUNTS))
            for _ in range(draw.randrange(1, 30))
        ]

    def count(self, draw: random.Random) -> None:
        """An application counts, and commits, rolls back, or leaves its transaction open."""
        transaction = self._begin()
        for _ in range(draw.randrange(1, 5)):
            amounts = {key: draw.choice(AMOUNTS) for key in draw.sample(KEYS, draw.randrange(1, 4))}
            if not self._increment(transaction, draw.choice(NAMES), amounts, self._minute(draw)):
                return
        if draw.random() < 0.8 or len(self.open) > 2:
            self._end(draw, transaction)

    def settle(self, draw: random.Random) -> None:
        """All open transactions are ended."""
        for transaction in [*self.open]:
            self._end(draw, transaction)

    def _begin(self, deleted: tuple[str, str] | None = None) -> Transaction:
        app = open_app(self.world.url, init_command="SET SESSION innodb_lock_wait_timeout = 1")
        self.open.append(Transaction(app, deleted=deleted))
        return self.open[-1]

    def _increment(
        self, transaction: Transaction, name: str, amounts: dict[str, int], minute: int
    ) -> bool:
        """Count in a transaction; False where it is lost, as another open one holds the slot."""
        at, app = datetime.fromtimestamp(minute * 60, UTC), transaction.connection
        try:
            if len(amounts) == 1:
                ((key, amount),) = amounts.items()
                self.world.store.increment(app, name, key, amount, at=at)
            else:
                self.world.store.increment_many(app, name, amounts, at=at)
        except pymysql.err.OperationalError as error:
            _require(error.args[0] in LOST, error)
            self.done["lost"] += 1
            self.open.remove(transaction)
            app.close()
            return False
        resolutions = {self._known(name).resolution, *self.recent.get(name, ())}
        resolution = max(resolutions, key=MINUTES.__getitem__)
        transaction.counted += [
            (name, key, minute, amount, resolution) for key, amount in amounts.items()
        ]
        return True

    def _end(self, draw: random.Random, transaction: Transaction) -> None:
        self.open.remove(transaction)
        if draw.random() < 0.25:
            transaction.connection.rollback()
        else:
            transaction.connection.commit()
            if transaction.deleted is not None:
                name, key = transaction.deleted
                self.books[name].delete(key)
            for name, key, minute, amount, resolution in transaction.counted:
                self._book(name).add(key, minute, amount, resolution, sure=False)
        transaction.connection.close()

    def _settle(self, name: str, draw: random.Random) -> None:
        """End the open transactions that have counted a counter."""
        for transaction in [*self.open]:
            if name in {row[0] for row in transaction.counted}:
                self._end(draw, transaction)

    # -- settings --------------------------------------------------------------------------------

    def race(self, draw: random.Random) -> None:
        """A counter is counted for the first time by a worker and an application, and set, at once:
        one of them fixes its time zone, and all of it is on the days of that.
        """
        self.settle(draw)
        free = [name for name in NAMES if name not in self.books]
        if not free:
            self.delete_counter(draw)
            return
        name, zone = draw.choice(free), draw.choice(ZONES)
        setting = partial(
            self._set, name, time_zone=zone, resolution=draw.choice(("day", "minute"))
        )
        rows = [(name, key, self._minute(draw), 10**place) for place, key in enumerate("aba")]
        entry = _numbered(rows[:2], now_ms(self.world.stage.redis))
        with open_app(self.world.url) as app:

            def count() -> str:
                at = datetime.fromtimestamp(rows[2][2] * 60, UTC)
                while True:
                    try:
                        self.world.store.increment(app, name, "a", rows[2][3], at=at)
                        app.commit()
                    except pymysql.err.OperationalError as error:
                        _require(error.args[0] in LOST, error)
                        app.rollback()
                    else:
                        return "counted"

            def apply() -> str:
                self.world.appliers[0].apply([entry])
                return "applied"

            works: list[Callable[[], str]] = [partial(_tried, setting), count, apply]
            done = together(*draw.sample(works, 3))
        shown = self.world.store.counters.show(name)
        allowed = {zone} if "set" in done else {self._known(name).zone, zone}
        assert shown.time_zone in allowed, (shown, done)
        book = self._book(name)
        book.zone, book.resolution = shown.time_zone, shown.resolution
        self.recent.setdefault(name, set()).update(("day", "minute"))
        for _, key, minute, amount in rows:
            # Whether it was set before is not known: the wider one tells less.
            book.add(key, minute, amount, "day")

    def resolution(self, draw: random.Random) -> None:
        """The resolution is changed, while a worker counts; an application may not hear of it for a
        minute, and ends transactions meanwhile.
        """
        if not self.books:
            return
        name = draw.choice(sorted(self.books))
        book, resolution = self.books[name], draw.choice(("minute", *FINER, "day"))
        setting = partial(self._set, name, resolution=resolution)
        if resolution == "hour" and book.zone in ODD and book.resolution != "hour":
            assert _tried(setting) == "refused"
            return
        rows, at = self._rows(draw, [name])[: draw.choice((0, 5))], now_ms(self.world.stage.redis)
        wider = max(book.resolution, resolution, key=MINUTES.__getitem__)
        self.recent.setdefault(name, set()).update((book.resolution, resolution))
        with beside(setting) as done:  # it waits for transactions that have counted ahead
            self._settle(name, draw)
            self.world.appliers[0].apply([_numbered(rows, at)] if rows else [])
        done.result()
        book.change_resolution(resolution, self.world.now)
        for _, key, minute, amount in rows:
            book.add(key, minute, amount, wider, sure=False)
        assert self.world.store.counters.show(name).resolution == resolution

    def keep(self, draw: random.Random) -> None:
        """The steps are changed."""
        if not self.books:
            return
        name = draw.choice(sorted(self.books))
        book, keep = self.books[name], draw.choice(KEEPS)
        steps = () if keep == "forever" else tuple(_step(part) for part in keep.split(","))
        hours = "hour" in [width for width, _ in steps[1:]] and book.zone in ODD
        too_fine = bool(steps) and MINUTES[steps[0][0]] < MINUTES[book.finest]
        if _tried(partial(self._set, name, keep=keep)) == "refused":
            assert hours or too_fine
        else:
            assert not hours
            book.steps = steps

    def _set(self, name: str, **settings: Any) -> None:
        self.world.store.counters.set(name, **settings)

    # -- deletion --------------------------------------------------------------------------------

    def delete_key(self, draw: random.Random) -> None:
        """A key is deleted, by an application, or by hand while a worker counts it."""
        if not self.books:
            return
        name, key = draw.choice(sorted(self.books)), draw.choice(KEYS)
        self._settle(name, draw)
        if draw.random() < 0.5:
            row, book = (name, key, self._minute(draw), 1_000_000_007), self.books[name]
            with beside(partial(self.world.store.counters.delete, name, key)) as done:
                self.world.appliers[0].apply([_numbered([row], now_ms(self.world.stage.redis))])
            done.result()
            book.delete(key)
            if self.world.store.totals.total(name, key=key):
                book.add(*row[1:])
            return
        transaction = self._begin(deleted=(name, key))
        self.world.store.delete(transaction.connection, name, key)
        if draw.random() < 0.5 and not self._increment(transaction, name, {key: 5}, self.world.now):
            return
        self._end(draw, transaction)

    def delete_counter(self, draw: random.Random) -> None:
        """A counter is deleted while a worker counts it; what is counted later counts from 0."""
        if not self.books:
            return
        name = draw.choice(sorted(self.books))
        self._settle(name, draw)
        row = name, "a", self._minute(draw), 7
        with beside(partial(self.world.store.counters.delete, name)) as done:
            self.world.appliers[0].apply([_numbered([row], now_ms(self.world.stage.redis))])
        done.result()
        del self.books[name]
        self.deleted[name] = self._left(name)
        with suppress(UnknownCounter):
            assert self.world.store.totals.total(name) == row[3]
            self._book(name).add(*row[1:])

    def _left(self, name: str) -> Book:
        columns = "time_zone, resolution", *(f"counted_{width}" for width in (*FINER, "day"))
        found = self.world.rows(", ".join(columns), f"counter WHERE name = '{name}'")
        if not found:
            return Book()
        (zone, resolution, *counted), *_ = found
        widths = zip((*FINER, "day"), counted, strict=True)
        return Book(zone, resolution, counted={width: 0 for width, at in widths if at})

    # -- jobs ------------------------------------------------------------------------------------

    def roll_up(self, draw: random.Random) -> None:
        """Retention, now and then killed before, and beside a worker."""
        self._pass(draw, "retention")

    def compact(self, draw: random.Random) -> None:
        """Compaction, the same way."""
        self._pass(draw, "compact")

    def _pass(self, draw: random.Random, what: str) -> None:
        if draw.random() < 0.3:
            self._killed(draw, what)
        with beside(partial(self._moved, what)) as done:
            if draw.random() < 0.5:
                self.work(draw)
        done.result()
        if what == "retention":
            for book in self.books.values():
                book.roll_up(self.world.now)

    def _moved(self, what: str) -> None:
        done = move(what, self.world.url, rows=20)
        assert done.finished, done
        assert not done.unknown, done

    def _killed(self, draw: random.Random, what: str) -> None:
        """A pass that dies at one of its requests, if it comes so far."""
        stage = self.world.stage
        url = stage.mysql_proxy.url(self.world.url)
        phase, skip, label = draw.choice([*Phase]), draw.randrange(REQUESTS), f"{what} killed"
        start = partial(stage.children.mover, what, url, rows=20)
        child, _ = stage.struck(start, "*", phase, Deed.CUT, "kill", skip=skip, label=label)
        assert child.wait() in (0, -signal.SIGKILL), child.output()
        stage.mysql_proxy.forget()

    def forward(self, draw: random.Random) -> None:
        """Time goes on; no transaction is open for so long."""
        self.settle(draw)
        self.move(draw.choice((1, 17, 60, 600, 1440, 2880, 10_080, 30_240)))

    def move(self, minutes: int) -> None:
        """Move the clocks on."""
        self.world.move_to(self.world.now + minutes)
        self.reader.totals = self.world.store.totals
        self.recent.clear()

    # -- what is drawn ---------------------------------------------------------------------------

    def _minute(self, draw: random.Random) -> int:
        """When an event happens: now, before, later, or where clocks are changed."""
        now = self.world.now
        kind = draw.random()
        if kind < 0.35:
            return now
        if kind < 0.65:
            return now - draw.randrange(draw.choice((120, 4320, 129_600)))
        if kind < 0.75:
            return now + draw.randrange(draw.choice((60, 2880, 300 * 1440)))
        return draw.choice(CHANGES) + draw.randrange(-90, 90)

    def _make(self, draw: random.Random, name: str) -> None:
        zone, resolution = draw.choice(ZONES), draw.choice(("minute", "quarter", "hour", "day"))
        if resolution == "hour" and zone in ODD:
            resolution = "quarter"
        self._set(name, time_zone=zone, resolution=resolution)
        self.books[name] = Book(zone, resolution)

    def _known(self, name: str) -> Book:
        """Books of a counter, be it unknown yet."""
        return self.books.get(name) or self.deleted.get(name) or Book()

    def _book(self, name: str) -> Book:
        """Books of a counter that is being counted, maybe for the first time."""
        self.books[name] = self._known(name)
        self.deleted.pop(name, None)
        return self.books[name]


OPERATION: Final[dict[Operation, int]] = {
    History.work: 30,
    History.count: 16,
    History.settle: 5,
    History.race: 4,
    History.resolution: 8,
    History.keep: 6,
    History.delete_key: 3,
    History.delete_counter: 2,
    History.roll_up: 6,
    History.compact: 4,
    History.forward: 7,
}
"""With how often each is drawn, relative to the others."""


def _numbered(rows: Sequence[Row], at: int) -> Incoming:
    return entry([(place, *row) for place, row in enumerate(rows)], at=at)


def _require(right: bool, error: Exception) -> None:
    if not right:
        raise error


def _tried(setting: Callable[[], object]) -> str:
    try:
        setting()
    except ValueError:
        return "refused"
    return "set"


def _step(text: str) -> tuple[str, int]:
    width, _, age = text.partition("=")
    return width, int(age[:-1]) * {"m": 1, "h": 60, "d": 1440}[age[-1]]
