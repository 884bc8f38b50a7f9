"""Keys by prefix and substring: what SQL picks is what Python would pick, byte by byte."""

from collections import Counter
from collections.abc import Iterator
from datetime import date
from functools import partial

import pytest

from countersink.runtime.limits import key_bytes, key_text
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.totals.selection import ANY, KeyMatch, Selection, wanted_keys
from countersink.store.totals.snapshot import Snapshot
from countersink.store.totals.sums import by_key
from tests.store.helpers import entry, minute
from tests.store.width_rows import put_rows, put_scheme
from tests.support.asking import exported
from tests.support.oracle import Oracle

KEYS = (
    *("", "a", "A", "ab", "a%", "a_", "a\\", "a'", "b", "ü", "u\u0308", "😀", "a ", " a", "\x00"),
    *(key_text(raw) for raw in (b"\xff", b"\xff\xff", b"\xff\xffz", b"a\xff", b"a\xffb")),
)


@pytest.fixture
def counted(mysql_url: str) -> Iterator[Store]:
    """A row for each of the keys."""
    with Oracle(mysql_url) as oracle:
        for number, key in enumerate(KEYS):
            oracle.rows(
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES"
                f" ('views', '2026-10-18', UNHEX('{key_bytes(key).hex()}'), 1, {number})"
            )
    with Store(mysql_url) as store:
        yield store


def test_sql_and_python_pick_the_same(counted: Store) -> None:
    parts = [*KEYS, "nothing", "\\", "%"]
    for match in (
        *(KeyMatch(prefix=part) for part in parts),
        *(KeyMatch(contains=part) for part in parts),
        *(KeyMatch(prefix="a", contains=part) for part in parts),
        *(KeyMatch(exclude_keys=[part, "a"]) for part in parts),
        *(KeyMatch(exclude_prefix=[part, "b"]) for part in parts if part),
        *(KeyMatch(prefix=[part, "ü"], keys=["b"], exclude_prefix="a") for part in parts if part),
    ):
        found = counted.snapshot(
            partial(
                lambda session, match: by_key(Snapshot(session), Selection("views", keys=match)),
                match=match,
            )
        )
        assert {key for key, _ in found} == {key for key in KEYS if key in match}, match


def test_every_question_is_about_the_keys_that_match(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    """Totals, series and keys, in buckets and in months, against sums over what was counted."""
    days = [date(2026, 10, 18), date(2026, 10, 19), date(2026, 11, 2)]
    keys = ["", "/blog/a", "/blog/b", "/blog%", "/Blog/a", "/shop", "/shop/x", "ü"]
    counted = {(day, key): 10**n for day in days for n, key in enumerate(keys)}
    sent = [
        (number, "c", key, minute(day), amount + number)
        for number, ((day, key), amount) in enumerate(counted.items())
    ]
    applier.apply([entry(sent)])
    counted = {cell: row[-1] for cell, row in zip(counted, sent, strict=True)}
    month = date(2026, 9, 1)
    put_scheme(session, "c", rolled_month=minute(date(2026, 10, 1), 0))
    put_rows(session, [("c", "month", month, key, number) for number, key in enumerate(keys)])
    everything = {**{(month, key): n for n, key in enumerate(keys)}, **counted}
    matches = [
        KeyMatch(prefix="/blog/"),
        KeyMatch(prefix=["/blog/", "/shop"], keys=["ü", "nobody's"]),
        KeyMatch(keys=["/shop", "/blog/a"]),
        KeyMatch(keys=["/shop", "/blog/a"], exclude_keys=["/shop"]),
        KeyMatch(exclude_keys=["", "/shop"]),
        KeyMatch(exclude_prefix=["/blog", "/sh"]),
        KeyMatch(prefix="/", exclude_prefix="/blog/", exclude_keys=["/shop/x"]),
        KeyMatch(prefix="/", contains="a", exclude_prefix="/B"),
        KeyMatch(keys=["/shop"], exclude_prefix="/"),
    ]

    def wanted(cells: dict[tuple[date, str], int], match: KeyMatch) -> dict[str, int]:
        found = Counter[str]()
        for (_, key), amount in cells.items():
            if key in match:
                found[key] += amount
        return dict(found)

    with Store(mysql_url) as store:
        totals = store.totals
        for match in matches:
            within = {cell: n for cell, n in counted.items() if cell[0] == days[1]}
            assert totals.total("c", match=match) == sum(wanted(everything, match).values())
            assert totals.total("c", match=match, start=days[1], end=days[1]) == sum(
                wanted(within, match).values()
            )
            series = {d: n for d, n in totals.daily("c", match=match, start=days[0]) if n}
            assert series == {
                day: total
                for day in days
                if (total := sum(n for (d, key), n in counted.items() if d == day and key in match))
            }, match
            months = dict(totals.monthly("c", match=match))
            assert sum(months.values()) == sum(wanted(everything, match).values())
            assert dict(totals.by_key("c", match=match)) == wanted(everything, match)
            ranked = sorted(wanted(everything, match).items(), key=lambda pair: -pair[1])
            assert totals.top("c", match=match, n=2) == ranked[:2]
            for by in ("key", "key-day", "key-month", "total"):
                start = days[0] if by == "key-day" else None  # before it there are months
                chosen = Selection("c", keys=wanted_keys(None, None, match), start=start)
                found = [
                    row[-1] for row in store.snapshot(partial(exported, by=by, selection=chosen))
                ]
                cells = counted if by == "key-day" else everything
                assert sum(found) == sum(wanted(cells, match).values()), (by, match)


def _matching(match: KeyMatch, session: Session) -> list[tuple[str, int]]:
    return by_key(Snapshot(session), Selection("views", keys=match))


def test_keys_and_a_match_are_put_together() -> None:
    assert wanted_keys(None, None) is None
    assert wanted_keys("a", None) == ["a"]
    assert wanted_keys(None, ["a", "b"], KeyMatch(exclude_keys=["b"])) == ["a"]
    assert wanted_keys(None, [], KeyMatch(exclude_keys=["b"])) == []
    assert wanted_keys("a", None, KeyMatch(prefix="b")) == KeyMatch(keys=["a"], prefix="b")
    assert wanted_keys(None, None, KeyMatch(keys=["a", "b"], prefix="")) == ["a", "b"]
    assert KeyMatch(prefix="a") == KeyMatch(prefix=["a", "a"])
    assert hash(KeyMatch(prefix="a")) == hash(KeyMatch(prefix=["a"]))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude all keys"):
        KeyMatch(exclude_prefix=["a", ""])
    with pytest.raises(ValueError, match="at most 1,000"):
        KeyMatch(exclude_keys=[str(n) for n in range(1_001)])
    with pytest.raises(TypeError, match="keys is a sequence"):
        KeyMatch(keys="abc")
    with pytest.raises(ValueError, match="not both"):
        wanted_keys("a", ["b"], ANY)


def test_no_condition_is_no_condition() -> None:
    assert ANY.condition() == ("", ())
    assert all(key in ANY for key in KEYS)


def test_the_end_of_a_prefix() -> None:
    assert KeyMatch(prefix="a").condition()[1] == (b"a", b"b")
    assert KeyMatch(prefix=key_text(b"a\xff")).condition()[1] == (b"a\xff", b"b")
    assert KeyMatch(prefix=key_text(b"\xff\xff")).condition()[1] == (b"\xff\xff",)
