"""One question, one answer: random questions of random counters by Python, command and HTTP, in
JSON and CSV. All give the same rows and the same limits, or refuse for the same reason; and what
they give is what an oracle finds that adds up single events.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
import requests

from countersink.counting.errors import UnknownDimension
from countersink.counting.totals.query import DIMENSIONS, Answer, Query
from countersink.counting.totals.selection import KeyMatch, Last, Selection, wanted_keys
from countersink.database.errors import StoreError
from countersink.reads import Reads
from countersink.runtime.dimensions import check_dimensions
from countersink.schedules.jobs.move import open_tables
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.reads.support import Ground
from tests.reads.test_windows import HOURLY, ODD, midnight, same_minute
from tests.support.examples import MANY
from tests.support.roll_up import roll_up
from tests.support.traffic import now_minute, now_ms, send
from tests.web.serving import Web, serving

KEYS = ("", "a", "a ", "ä", "/page", "/page/2", "/page/%")
COUNTRIES, PAGES = ("DE", "AT", ""), ("/", "/a", "")
QUESTIONS = 5_000 if MANY else 60
"""Of each server."""
DAY = 1440
Values = dict[str, str]


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        key: its key; '' of one with dimensions.
        values: of its dimensions.
        minute: when it was.
        amount: how much.
        member: who it was; '' nobody.
        waits: it is still in the queue.
    """

    key: str
    minute: int
    amount: int = 1
    values: Values = field(default_factory=dict)
    member: str = ""
    waits: bool = False


@dataclass
class Counted:
    """A counter, and all that was sent to it.

    Attributes:
        name: its.
        zone: its time zone.
        since: the Unix minute from which on its breakdown holds events; None: it has none.
        unique: it counts its different members.
        events: all.
    """

    name: str
    zone: str = "UTC"
    since: int | None = None
    unique: bool = False
    events: list[Event] = field(default_factory=list)


class Site:
    """Counters of many kinds, whoever answers about them, and what they ought to answer."""

    def __init__(self, ground: Ground, web: Web, chance: random.Random) -> None:
        self.ground, self.web, self.chance = ground, web, chance
        self.reads = Reads(ground.store, ground.client)
        self.counters: dict[str, Counted] = {}
        self.now = now_minute()
        self._fill()

    def _fill(self) -> None:
        store, chance, now = self.ground.store.counters, self.chance, self.now
        steps = chance.choice((None, "minute=30m,quarter=5h,hour=2d", "minute=3h,hour=3d"))
        zone = chance.choice(HOURLY)
        store.set("minutes", time_zone=zone, resolution="minute", keep=steps)
        self.counters["minutes"] = Counted("minutes", zone)
        zone = chance.choice((*HOURLY, *ODD))
        store.set("days", time_zone=zone, keep=chance.choice((None, "day=40d")))
        self.counters["days"] = Counted("days", zone)
        self.counters["plain"] = Counted("plain")
        names = ["page", "country"]
        both = ["page,country", "country"]
        store.set("visits", resolution="hour", breakdowns=both, dimensions=names)
        self.counters["visits"] = Counted("visits", since=0)
        store.set("late", resolution="hour", dimensions=names)
        store.set("seen", resolution="minute", salt_days=0)
        self.counters["seen"] = Counted("seen", unique=True)
        self._send("late", self._events("late", 20, 9 * DAY, ahead=0))
        self._apply()
        store.set("late", breakdowns=["page,country"])
        since = store.show("late").breakdowns[0].since
        self.counters["late"].since = since
        self._send("late", self._events("late", 20, 0, ahead=since - now + 300))
        for name, back in (("minutes", 6), ("days", 130), ("plain", 9), ("visits", 9), ("seen", 3)):
            self._send(name, self._events(name, 80, back * DAY, ahead=0))
        self._apply()
        roll_up(partial(open_tables, self.ground.servers.mysql_url), rows=100)
        # What waits is of now: retention leaves that alone.
        for name in ("minutes", "plain", "visits"):
            self._send(name, self._events(name, 10, 20, ahead=0), waits=True)

    def _events(self, name: str, number: int, back: int, *, ahead: int) -> list[Event]:
        chance, known = self.chance, self.counters.setdefault(name, Counted(name))
        found = []
        for _ in range(number):
            minute = self.now + ahead - (chance.randrange(back) if back else chance.randrange(200))
            amount = chance.choice((-1, 1, 2, 3, 9))
            if name in ("visits", "late"):
                values = {"page": chance.choice(PAGES), "country": chance.choice(COUNTRIES)}
                found.append(Event("", minute, amount, values))
            elif known.unique:
                member = f"m{chance.randrange(30)}"
                found.append(Event(chance.choice(KEYS), minute, 1, member=member))
            else:
                found.append(Event(chance.choice(KEYS), minute, amount))
        return found

    def _send(self, name: str, events: list[Event], *, waits: bool = False) -> None:
        rows: list[Any] = []
        for each in events:
            key = check_dimensions(each.values) if each.values else each.key
            row: tuple[Any, ...] = (name, key, each.minute, each.amount)
            if each.member:
                salt, number = self._salt(name)
                member = blake2b(each.member.encode(), digest_size=8, key=salt).digest()
                row = (*row, number, member)
            rows.append(row)
            known = Event(each.key, each.minute, each.amount, each.values, each.member, waits)
            self.counters[name].events.append(known)
        at = now_ms(self.ground.client)
        send(self.ground.client, Sealed(new_entry_id(at), at, encode_rows(rows)))

    def _salt(self, name: str) -> tuple[bytes, int]:
        with self.ground.store.reading() as session:
            sql = "SELECT salt, number FROM visitor_salt WHERE counter = %s"
            ((salt, number),) = session.query(sql, (name,))
        return bytes(salt), int(number)

    def _apply(self) -> None:
        self.ground.servers.apply()

    # Questions

    def question(self) -> dict[str, Any]:
        """A random one: what a query has."""
        chance = self.chance
        counter = chance.choice((None, *self.counters, *self.counters))
        broken_down = counter is not None and self.counters[counter].since is not None
        asked: dict[str, Any] = {"counter": counter}
        series, ranked = ("day", "week", "hour", "minute", "month"), ["key", "total"]
        if counter is None:
            ranked.append("counter")
        by = chance.choice((*series, *ranked, *ranked))
        if broken_down and chance.random() < 0.5:
            by = chance.choice(("page", "country", "page,country", "country,page"))
        asked["by"] = by
        asked |= self._range()
        if chance.random() < 0.3:
            asked["time_zone"] = chance.choice((*HOURLY, *ODD))
        if broken_down and chance.random() < 0.5:
            asked["where"] = {"country": chance.choice(COUNTRIES)}
        elif "," not in by and by not in ("page", "country") and chance.random() < 0.4:
            asked["match"] = chance.choice(
                (
                    {"keys": ["a", "nobody's"]},
                    {"prefix": ["/page"]},
                    {"prefix": ["/page/%", "a"], "contains": "a"},
                    {"contains": "a"},
                    {"exclude_keys": ["a"]},
                    {"keys": [""], "exclude_prefix": ["/page/"]},
                    {"prefix": ["/"], "exclude_prefix": ["/page/%"], "exclude_keys": ["/page"]},
                )
            )
        if by not in series and by != "total" and chance.random() < 0.4:
            asked["top"] = chance.choice((1, 2, 5))
        unique = counter == "seen" and chance.random() < 0.6
        asked["unique"] = unique
        asked["pending"] = not unique and chance.random() < 0.3
        asked["against"] = not unique and by not in _CLOCKS and chance.random() < 0.3
        return asked

    def _range(self) -> dict[str, Any]:
        chance, kind = self.chance, self.chance.random()
        if kind < 0.3:
            return {}
        if kind < 0.5:
            return {"last": chance.choice(("24h", "90m", "7d", "1h", "2d", "60d", "1w", "9w"))}
        first = self.now - chance.randrange(10 * DAY if chance.random() < 0.7 else 130 * DAY)
        if kind < 0.7:
            width = chance.choice((1, 60, 60))
            begin = first // width * width
            end = begin + chance.choice((1, 3, 24)) * width
            moments = [datetime.fromtimestamp(each * 60, UTC) for each in (begin, end)]
            return {"start": moments[0], "end": moments[1]}
        day = datetime.fromtimestamp(first * 60, UTC).date()
        last = day + timedelta(days=chance.choice((0, 1, 6, 40)))
        chosen = chance.choice(("start", "end", "both", "both"))
        days = {"start": day, "end": last}
        return days if chosen == "both" else {chosen: days[chosen]}

    # Doors

    def by_python(self, asked: dict[str, Any]) -> Answer:
        keys = wanted_keys(None, None, KeyMatch(**asked.get("match", {})))
        dimensions = () if asked["by"] in _WORDS else tuple(asked["by"].split(","))
        last = asked.get("last")
        selection = Selection(
            asked["counter"],
            keys=keys,
            start=asked.get("start"),
            end=asked.get("end"),
            last=None if last is None else Last.of(last),
            time_zone=asked.get("time_zone"),
            where=tuple(asked.get("where", {}).items()),
        )
        query = Query(
            selection,
            by=DIMENSIONS if dimensions else asked["by"],
            dimensions=dimensions,
            top=asked.get("top"),
            against_previous=asked["against"],
            include_pending=asked["pending"],
            unique=asked["unique"],
        )
        if asked["pending"]:
            return self.reads.ask(query)
        return self.ground.store.totals.ask(query)

    def _options(self, asked: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """(name of the parameter over HTTP, value)."""
        yield "by", asked["by"]
        for name, option in (("start", "from"), ("end", "to")):
            moment = asked.get(name)
            if isinstance(moment, datetime):
                yield option, moment.strftime("%Y-%m-%dT%H:%MZ")
            elif moment is not None:
                yield option, moment.isoformat()
        for name in ("last", "time_zone", "top"):
            if name in asked:
                yield name, str(asked[name])
        for name, value in asked.get("where", {}).items():
            yield "where", f"{name}={value}"
        match = asked.get("match", {})
        for name, option in (
            ("keys", "key"),
            ("prefix", "prefix"),
            ("exclude_keys", "exclude_key"),
            ("exclude_prefix", "exclude_prefix"),
        ):
            for value in match.get(name, ()):
                yield option, value
        if match.get("contains"):
            yield "search", match["contains"]
        for name, option, value in (
            ("unique", "unique", "true"),
            ("pending", "include_pending", "true"),
            ("against", "against", "previous"),
        ):
            if asked[name]:
                yield option, value

    def by_command(self, asked: dict[str, Any], form: str) -> Any:
        arguments = [asked["counter"] or "--all"]
        for option, value in self._options(asked):
            flag = f"--{option.replace('_', '-')}"
            arguments += [flag] if value == "true" else [flag, value]
        return self.ground.servers.call("totals", *arguments, "--format", form)

    def by_http(self, asked: dict[str, Any], form: str) -> requests.Response:
        path = f"counters/{asked['counter']}/totals" if asked["counter"] else "totals"
        query = urlencode([*self._options(asked), ("format", form)])
        return requests.get(f"{self.web.url}/v1/{path}?{query}", timeout=60)

    def check(self, asked: dict[str, Any]) -> bool:
        """All doors answer alike, and rightly; False: they refuse, for the same reason."""
        command = self.by_command(asked, "json")
        http = self.by_http(asked, "json")
        try:
            answer = self.by_python(asked)
        except (StoreError, ValueError) as error:
            said = str(error)[:60].lower()
            assert command.status != 0, (asked, command.out)
            assert said in command.err.lower(), (asked, command.err, said)
            assert 400 <= http.status_code < 500, (asked, http.text)
            assert said in str(http.json()).lower(), (asked, http.text, said)
            return False
        assert command.status == 0, (asked, command.err)
        assert http.status_code == 200, (asked, http.text)
        rows = list(answer.documents())
        limits = answer.limits()
        expected = {"counter": asked["counter"], "rows": rows, **limits}
        for document in (command.json, http.json()):
            assert {**document, "complete_up_to": limits["complete_up_to"]} == expected, asked
        self._check_csv(asked, answer, rows)
        said = command.err
        assert ("are rolled up to" in said) == (answer.told_from is not None), (asked, said)
        assert ("are missing" in said) == (answer.since is not None), (asked, said)
        assert ("span too long" in said) == answer.truncated, (asked, said)
        self.check_by_oracle(asked, answer)
        return True

    def _check_csv(self, asked: dict[str, Any], answer: Answer, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, answer.columns)
        writer.writeheader()
        shown = {True: "true", False: "false"}
        writer.writerows(
            {name: shown[v] if isinstance(v, bool) else v for name, v in row.items()}
            for row in rows
        )
        command, http = self.by_command(asked, "csv"), self.by_http(asked, "csv")
        assert command.out == http.content.decode() == text.getvalue(), asked
        limits = answer.limits()
        for header, name in (
            ("Countersink-Since", "since"),
            ("Countersink-Told-From", "told_from"),
            ("Countersink-Rolled-Up-To", "rolled_up_to"),
        ):
            assert http.headers.get(header) == limits.get(name), (asked, header)
        assert ("Countersink-Truncated" in http.headers) == answer.truncated, asked

    # The oracle

    def check_by_oracle(self, asked: dict[str, Any], answer: Answer) -> None:
        """The rows are sums over single events."""
        names = [asked["counter"]] if asked["counter"] else sorted(self.counters)
        by = asked["by"]
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        width = {"total": 0}.get(by, len(by.split(","))) + ("counter" in answer.columns)
        if by == "counter":
            width = 1
        for row in answer.rows:
            found[row[:width]] = row[width:]
        expected: dict[tuple[Any, ...], Any] = {}
        for name in names:
            prefix = (name,) if "counter" in answer.columns else ()
            for place, total in self._expected(self.counters[name], asked, answer).items():
                expected[(*prefix, *place)] = total
        if by in ("day", "week", "hour", "minute", "month"):
            assert {place: own[0] for place, own in found.items() if own[0]} == {
                place: total for place, total in expected.items() if total
            }, asked
            return
        ordered = sorted(expected.items(), key=partial(_order, by))
        top = asked.get("top")
        if asked["counter"] is None and by == "key":
            ordered = [
                pair
                for name in names
                for pair in [each for each in ordered if each[0][0] == name][:top]
            ]
        elif top:
            ordered = ordered[:top]
        assert [(place, own[0]) for place, own in found.items()] == ordered, asked

    def _expected(
        self, counted: Counted, asked: dict[str, Any], answer: Answer
    ) -> dict[tuple[Any, ...], int]:
        by, zone = asked["by"], asked.get("time_zone") or counted.zone
        begin, end = self._span(counted, asked, answer, zone)
        dimensional = by not in _WORDS or "where" in asked
        if dimensional:
            assert counted.since is not None
            first = min(each.minute for each in counted.events if not each.waits)
            asked_from = midnight(_day(first, counted.zone), zone) if begin is None else begin
            assert (answer.since is not None) == (asked_from < counted.since), asked
            begin = max(begin or 0, counted.since)
        keys = wanted_keys(None, None, KeyMatch(**asked.get("match", {})))
        told = answer.told_from
        if told is not None and asked["counter"] is None:  # the latest of all counters
            with suppress(UnknownDimension):  # this one has nothing under the keys
                told = self.by_python({**asked, "counter": counted.name}).told_from
        if by in ("day", "week", "hour", "minute") and told is not None:
            instant = int(told.timestamp()) // 60 if isinstance(told, datetime) else None
            begin = max(begin or 0, midnight(told, zone) if instant is None else instant)
        sums: Counter[tuple[Any, ...]] = Counter()
        members: dict[tuple[Any, ...], set[str]] = {}
        if by == "key" and isinstance(keys, list) and not asked["unique"]:
            sums.update({(key,): 0 for key in keys})
        if by in ("total", "counter"):
            sums[()] = 0
            members[()] = set()
        for each in counted.events:
            if (begin is not None and each.minute < begin) or (
                end is not None and each.minute >= end
            ):
                continue
            if each.waits and not asked["pending"]:
                continue
            if keys is not None and each.key not in keys:
                continue
            if any(each.values.get(name) != v for name, v in asked.get("where", {}).items()):
                continue
            place = _place(by, each, zone)
            sums[place] += each.amount
            members.setdefault(place, set()).add(each.member)
        if asked["unique"]:
            return {place: len(own) for place, own in members.items()}
        return dict(sums)

    def _span(
        self, counted: Counted, asked: dict[str, Any], answer: Answer, zone: str
    ) -> tuple[int | None, int | None]:
        """The Unix minutes, from the one to before the other, that are asked for."""
        start, end = asked.get("start"), asked.get("end")
        if "last" in asked:
            if answer.window is not None:
                start, end = answer.window.start, answer.window.end
            else:
                query = Selection(
                    counted.name, last=Last.of(asked["last"]), time_zone=asked.get("time_zone")
                )
                # By day, which is told of a part, too; the window before is of totals.
                series = asked["by"] in _WORDS[:5]
                how = "total" if asked["against"] and not series else "day"
                one = Query(query, by=how, against_previous=asked["against"])
                window = self.ground.store.totals.ask(one).window
                assert window is not None
                start, end = window.start, window.end
        return _minute(start, zone, 0), _minute(end, zone, 1)


_WORDS = ("day", "week", "hour", "minute", "month", "key", "counter", "total")
_CLOCKS = ("hour", "minute")


def _day(minute: int, zone: str) -> date:
    return datetime.fromtimestamp(minute * 60, ZoneInfo(zone)).date()


def _minute(moment: date | None, zone: str, more: int) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, datetime):
        return int(moment.timestamp()) // 60
    return midnight(moment + timedelta(days=more), zone)


def _place(by: str, event: Event, zone: str) -> tuple[Any, ...]:
    if by == "key":
        return (event.key,)
    if by in ("total", "counter"):
        return ()
    local = datetime.fromtimestamp(event.minute * 60, ZoneInfo(zone))
    if by == "day":
        return (local.date(),)
    if by == "week":
        return (date.fromisocalendar(*local.isocalendar()[:2], 1),)
    if by == "month":
        return (local.date().replace(day=1),)
    if by == "hour":
        return (local.replace(minute=0, second=0),)
    if by == "minute":
        return (local,)
    return tuple(event.values.get(name, "") for name in by.split(","))


def _order(by: str, pair: tuple[tuple[Any, ...], int]) -> Any:
    place, total = pair
    if by == "total":
        return place
    return -total, [each.encode() for each in place]


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.timeout(3600)
def test_each_question_has_one_answer_by_every_door(ground: Ground, seed: int) -> None:
    chance = random.Random(seed)
    answered = 0
    with serving(ground.servers.redis_url, ground.servers.mysql_url) as web:
        site = Site(ground, web, chance)
        for _ in range(QUESTIONS):
            asked = site.question()

            def check(_: int, asked: dict[str, Any] = asked) -> None:
                nonlocal answered
                answered += site.check(asked)

            same_minute(check)
        overview = requests.get(f"{web.url}/v1/counters?days=14", timeout=60).json()["rows"]
    # The dashboard's list tells the same as who asks each counter.
    totals = ground.store.totals
    assert {row["counter"]: row["total"] for row in overview} == totals.counters()
    for row in overview:
        days = None
        with suppress(StoreError):
            days = [
                {"day": day.isoformat(), "total": total}
                for day, total in totals.daily(row["counter"], last="14d")
            ]
        assert row["days"] == days
    assert answered > QUESTIONS // 3


@pytest.fixture
def seed() -> int:
    """Of what is random; a failing test prints it with its arguments."""
    return random.randrange(2**32)
