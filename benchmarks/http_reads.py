"""Reads by HTTP of a big table, in turns with the bare SQL query, before and after compaction.

The bare query is sent on a connection of PyMySQL that stays open, as the request goes over a
connection that stays open. It is what somebody who knows the table would write; it says neither how
fresh the answer is nor whether the counter has other days than UTC's, nor which window ends now: it
is given that of the answer.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from benchmarks.compaction_ways import open_way
from benchmarks.database import Connected, connect, one_value
from benchmarks.filling import Filling, fill
from benchmarks.measuring import Wrong
from benchmarks.processes import Child
from benchmarks.rows import on
from benchmarks.series import COUNT, Repetitions, wait_until_purged
from benchmarks.site import Site
from benchmarks.workload import COUNTER
from countersink.database.migrate import migrate
from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys

BIG: Final = Filling("/articles/", 10_000, date(2025, 9, 1), 20, 10)
"""2,000,000 slot rows, 200,000 after compaction."""
QUARTER: Final = timedelta(minutes=15)
WINDOW_KEYS: Final = 5_000
AHEAD: Final = 8
"""Quarters of an hour that have rows before they begin: the window moves while it is asked for."""
QUICK_PART: Final = 200
"""A run of less than a second per measurement has this part of the keys."""
DAYS: Final = 7
LEAST: Final = 5
"""Repetitions of a question, however long it takes."""
LIFETIME_SECONDS: Final = 600
"""Of a server: to ask for a big window takes a while each time."""
BOUND: Final = 1.5
"""How many times the median of the bare query a request may take."""

Rows = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Question:
    """The same by HTTP and in SQL.

    Attributes:
        name: of the row.
        what: one line on it.
        path: of the request, with its range.
        column: of the answer's rows, besides the total.
        sql: the bare query; its rows are (day or key, total).
        window: the beginning and the end of its range, from the document of the answer.
    """

    name: str
    what: str
    path: str
    column: str
    sql: str
    window: Callable[[dict[str, Any]], tuple[object, ...]]


_WITHIN: Final = "FROM counter_slot WHERE counter = %s AND bucket >= %s AND bucket < %s"
_TOP: Final = (
    f"SELECT counter_key, SUM(amount) AS total {_WITHIN}"
    " GROUP BY counter_key ORDER BY total DESC, counter_key LIMIT 10"
)
_PATH: Final = f"/v1/counters/{COUNTER}"


def of_days(filling: Filling) -> tuple[Question, ...]:
    """What is asked: the last week of what is there."""
    end = filling.first + timedelta(filling.days)
    start = end - timedelta(DAYS)
    last = end - timedelta(1)
    return (
        Question(
            "http_daily",
            f"/daily of {DAYS} days, all keys",
            f"{_PATH}/daily?from={start}&to={last}",
            "day",
            f"SELECT DATE(bucket), SUM(amount) {_WITHIN} GROUP BY bucket ORDER BY bucket",
            lambda document: (start, end),
        ),
        Question(
            "http_top",
            f"/top of {DAYS} days",
            f"{_PATH}/top?from={start}&to={last}",
            "key",
            _TOP,
            lambda document: (start, end),
        ),
    )


def of_window(filling: Filling) -> tuple[Question, ...]:
    """What is asked: the last 24 hours, of buckets of a quarter of an hour."""
    return (
        Question(
            "http_top_last",
            f"/top of the last 24 h of {filling.keys:,} keys by quarter",
            f"{_PATH}/top?last=24h",
            "key",
            _TOP,
            lambda document: tuple(
                datetime.fromisoformat(document["window"][end]).replace(tzinfo=None)
                for end in ("from", "to")
            ),
        ),
    )


def window_now() -> Filling:
    """A row for each key and quarter of an hour of the window that ends now, and a little ahead."""
    now = datetime.now(UTC).replace(second=0, microsecond=0, tzinfo=None)
    first = now.replace(minute=now.minute // 15 * 15) - timedelta(days=1)
    quarters = timedelta(days=1) // QUARTER + AHEAD
    return Filling("/articles/", WINDOW_KEYS, first, quarters, 1, width="quarter")


Table = tuple[Callable[[], Filling], Callable[[Filling], tuple[Question, ...]]]

TABLES: Final[tuple[Table, ...]] = ((lambda: BIG, of_days), (window_now, of_window))
"""What a table is filled with, and what is asked of it then."""
WHAT: Final = {each.name: each.what for made, asked in TABLES for each in asked(made())}
NAMES: Final = tuple(WHAT)


class HttpReads:
    """`http_reads_…`: fills a table, asks both ways, compacts it, and asks again."""

    def __init__(self, site: Site) -> None:
        self.name = on(site.kind, "http_reads")
        self._site = site

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """The `http_reads` of results.json, one for each question, asked both ways in turns until
        one has taken ``seconds``. Raises Wrong if the two do not say the same, or compaction
        changes an answer."""
        rows: list[dict[str, Any]] = []
        for made, asked in TABLES:
            filling = made()
            if seconds < 1:
                filling = replace(filling, keys=filling.keys // QUICK_PART)
            rows += self._of_table(filling, asked(filling), seconds)
        return rows

    def _of_table(
        self, filling: Filling, questions: tuple[Question, ...], seconds: float
    ) -> list[dict[str, Any]]:
        with self._site.database() as url:
            migrate(url)
            if filling.width == "quarter":
                with Store(url) as store:
                    store.counters.set(COUNTER, resolution="quarter")
            fill(url, [filling])
            with open_tables(url) as session:
                _, key = api_keys.create(session, "benchmark", ("read",))
            rows_before = one_value(url, COUNT)
            before = self._asked(url, key, questions, seconds)
            with open_way("nonstop", url, bucket="") as compact:
                compact()
            wait_until_purged(url)
            after = self._asked(url, key, questions, seconds)
            rows_after = one_value(url, COUNT)
        for (_, _, first), (_, _, second) in zip(before, after, strict=True):
            # The window has moved on meanwhile; each answer was held against the table.
            if first != second and filling.width != "quarter":
                raise Wrong(f"{self.name}: compaction changed an answer")
        return [
            {
                "name": on(self._site.kind, question.name),
                "before": _figures(*before[number][:2]),
                "after": _figures(*after[number][:2]),
                "slot_rows_before": rows_before,
                "slot_rows_after": rows_after,
                "target": f"≤ {BOUND:g}× the bare query's median",
            }
            for number, question in enumerate(questions)
        ]

    def _asked(
        self, url: str, key: str, questions: tuple[Question, ...], seconds: float
    ) -> list[tuple[Repetitions, Repetitions, Rows]]:
        with self._server(url, key) as client, _connected(url) as connection:
            return [_ask(client, connection, q, seconds) for q in questions]

    @contextmanager
    def _server(self, url: str, key: str) -> Iterator[Client]:
        """A server process, and one connection to it."""
        with Child(
            "benchmarks.children.web_server",
            bare=False,
            redis_url=self._site.redis_url,
            mysql_url=url,
            lifetime=LIFETIME_SECONDS,
        ) as child:
            client = Client(child.hear()["port"], key)
            try:
                yield client
            finally:
                client.close()
            child.say(end=True)
            child.hear()


class Client:
    """One connection that stays open; after :meth:`close` the next question opens another."""

    def __init__(self, port: int, key: str, *, timeout: float = 120) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._headers = {"Authorization": f"Bearer {key}"}

    def ask(self, path: str) -> bytes:
        """The body of the answer. Raises Wrong if it is none."""
        try:
            answer = self._answer(path)
        except http.client.RemoteDisconnected:
            # The server ends a connection that has been idle, as one is while the table is asked.
            self.close()
            answer = self._answer(path)
        body = answer.read()
        if answer.status != 200:
            raise Wrong(f"GET {path}: {answer.status} {body!r:.200}")
        return body

    def _answer(self, path: str) -> http.client.HTTPResponse:
        self._connection.request("GET", path, headers=self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def _connected(url: str) -> Iterator[Connected]:
    connection = connect(url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def _ask(
    client: Client, connection: Connected, question: Question, seconds: float
) -> tuple[Repetitions, Repetitions, Rows]:
    """Both ways in turns until one of them has taken ``seconds``; the first turn, which fills
    caches, does not count."""
    by_http: list[float] = []
    by_sql: list[float] = []
    turn = 0
    while True:
        begun = time.perf_counter()
        body = client.ask(question.path)
        between = time.perf_counter()
        document = json.loads(body)
        window = question.window(document)
        asked = time.perf_counter()
        found = _query(connection, question.sql, (COUNTER, *window))
        ended = time.perf_counter()
        answered = [(str(row[question.column]), int(row["total"])) for row in document["rows"]]
        if answered != found or not found:
            raise Wrong(f"{question.path} says {answered!r:.200}, the table {found!r:.200}")
        if turn > 0:
            by_http.append((between - begun) * 1000)
            by_sql.append((ended - asked) * 1000)
        if len(by_http) >= LEAST and max(sum(by_http), sum(by_sql)) >= seconds * 1000:
            return Repetitions(tuple(by_http)), Repetitions(tuple(by_sql)), found
        turn += 1


def _query(connection: Connected, sql: str, args: tuple[object, ...]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql, args)
        return [
            (name.decode() if isinstance(name, bytes) else str(name), int(total))
            for name, total in cursor.fetchall()
        ]


def _figures(by_http: Repetitions, by_sql: Repetitions) -> dict[str, Any]:
    http_ms, sql_ms = by_http.figures(), by_sql.figures()
    ratio = http_ms["median"] / sql_ms["median"]
    return {
        "http_ms": http_ms,
        "sql_ms": sql_ms,
        "ratio": round(ratio, 3),
        "met": ratio <= BOUND,
    }
