"""Names of tables, as people write them and as SQL takes them."""

from datetime import UTC, datetime

import pytest

from countersink.store.errors import UnknownCounter
from countersink.store.sql import quoted
from countersink.store.tracked.definitions import (
    TrackedTable,
    default_counter,
    find,
    find_one,
    parse,
)


@pytest.mark.parametrize(
    ("written", "meant", "counter"),
    [
        ("orders", ("here", "orders"), "orders"),
        ("shop.orders", ("shop", "orders"), "shop.orders"),
        ("`shop`.`orders`", ("shop", "orders"), "shop.orders"),
        ("shop.`a.b`", ("shop", "a.b"), "shop.a.b"),
        ("`a``b`", ("here", "a`b"), None),
        ("my orders", ("here", "my orders"), None),
        ("é", ("here", "é"), None),
        ("`" + "x" * 64 + "`.y", ("x" * 64, "y"), None),
        ('a"b; DROP TABLE x', ("here", 'a"b; DROP TABLE x'), None),
    ],
)
def test_a_name_is_what_was_written(
    written: str, meant: tuple[str, str], counter: str | None
) -> None:
    assert parse(written, "here") == meant
    assert default_counter(written) == counter


@pytest.mark.parametrize("written", ["", ".", "a.", ".a", "a.b.c", "`a", "a`b", "``", "a\0b", "`"])
def test_what_is_no_name_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="backquote"):
        parse(written, "here")


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError, match="bytes"):
        parse(b"orders", "here")  # type: ignore[arg-type]


def test_a_name_cannot_leave_its_quotes() -> None:
    assert quoted("a`; DROP TABLE b; `") == "`a``; DROP TABLE b; ```"


def tracked(counter: str, schema: str, table: str) -> TrackedTable:
    return TrackedTable(
        counter=counter,
        schema=schema,
        table=table,
        by=(),
        day=None,
        app_slots=16,
        triggers="countersink_0",
        created=datetime(2026, 11, 21, tzinfo=UTC),
        counted=None,
    )


def test_a_name_means_every_tracking_of_the_table_or_else_one_counter() -> None:
    orders = tracked("shop.orders", "shop", "orders")
    by_day = tracked("by_day", "shop", "orders")
    local = tracked("local", "here", "orders")
    everything = [orders, by_day, local]
    for name in ("shop.orders", "shop.`orders`"):  # also where it is one of its counters
        assert find(everything, name, "here") == [orders, by_day]
        with pytest.raises(ValueError, match=r"name one of shop\.orders, by_day as"):
            find_one(everything, name, "here")
    assert find(everything, "by_day", "here") == [by_day] == [find_one(everything, "by_day", "x")]
    assert find_one(everything, "orders", "here") == local
    assert find(everything, "a.b.c", "here") == find(everything, "nothing", "here") == []
    with pytest.raises(UnknownCounter, match="no table is tracked as 'nothing'"):
        find_one(everything, "nothing", "here")
    elsewhere = tracked("orders", "shop", "old")
    with pytest.raises(ValueError, match=r"counter of shop.old, and table here.orders .* local:"):
        find([*everything, elsewhere], "orders", "here")
    assert find([*everything, elsewhere], "orders", "there") == [elsewhere]
