"""Peek, set, reset, list and delete; and what a sequence came to."""

from datetime import UTC, date, datetime, timedelta

import pytest

from countersink.store import Conflict, Store
from countersink.store.connection import Session, connect
from countersink.store.sequences import SequenceOptions, Sequences
from tests.store.helpers import MAX, MIN, together


def test_peek_takes_nothing(sequences: Sequences) -> None:
    assert sequences.peek("a") is None
    sequences.next("a", start=0)
    assert [sequences.peek("a"), sequences.peek("a"), sequences.next("a")] == [0, 0, 1]


def test_set_is_as_if_the_value_had_been_handed_out(sequences: Sequences) -> None:
    sequences.set("new", 41)
    assert sequences.next("new", start=7) == 42
    for value in (0, -1, MIN, MAX, 5, 5):
        sequences.set("new", value)
        assert sequences.peek("new") == value
    assert sequences.next("new") == 6


def test_set_within_the_limits(sequences: Sequences) -> None:
    sequences.configure("a", start=2, minimum=0, maximum=9)
    for value in (-1, 10, MAX):
        with pytest.raises(ValueError, match="not within the limits of 'a', 0 to 9"):
            sequences.set("a", value)
    assert sequences.peek("a") is None
    sequences.set("a", 9)
    sequences.configure("a", maximum=11)
    assert [sequences.next("a"), sequences.next("a")] == [10, 11]


def test_reset_says_what_there_was_and_begins_at_the_start(sequences: Sequences) -> None:
    sequences.configure("a", start=100, step=10)
    assert sequences.reset("a") is None
    assert sequences.reset("never used") is None
    assert [sequences.next("a"), sequences.next("a")] == [100, 110]
    assert sequences.reset("a") == 110
    assert sequences.reset("a") is None
    assert sequences.next("a") == 100
    sequences.set("zero", 0)
    assert sequences.reset("zero") == 0


def test_reset_all(sequences: Sequences) -> None:
    assert sequences.reset_all() == 0
    for name in ("a", "b'\\", "😀"):
        sequences.next(name, start=7)
    sequences.configure("monthly", period="month", start=3)
    sequences.next("monthly")
    sequences.configure("made, not used", step=2)
    assert sequences.reset_all() == 4
    assert sequences.reset_all() == 0
    assert [sequences.next("a"), sequences.next("monthly"), sequences.peek("😀")] == [1, 3, None]


@pytest.mark.servers("mariadb", "mysql")
def test_values_taken_beside_resets(store: Store) -> None:
    """Every reset says the last value: those handed out before it add up."""
    ends: list[int] = []

    def take() -> list[int]:
        return [store.sequences.next("a") for _ in range(60)]

    def reset() -> list[int]:
        found = [store.sequences.reset("a") for _ in range(15)]
        ends.extend(value for value in found if value is not None)
        return []

    taken = [value for own in together(take, take, reset) for value in own]
    last = store.sequences.peek("a")
    assert len(taken) == sum(ends) + (last or 0) == 120


@pytest.mark.servers("mariadb", "mysql")
def test_list_is_in_the_order_of_bytes_and_by_prefix(sequences: Sequences) -> None:
    for name in ("b", "a", "ab", "a%", "A", "", "ä", "a_", "aÿ"):
        sequences.next(name)
    names = [found.name for found in sequences.list()]
    assert names == ["", "A", "a", "a%", "a_", "ab", "aÿ", "b", "ä"]
    assert [found.name for found in sequences.list("a")] == ["a", "a%", "a_", "ab", "aÿ"]
    assert [found.name for found in sequences.list("a%")] == ["a%"]
    assert [found.name for found in sequences.list("ä")] == ["ä"]
    assert sequences.list("c") == []


def test_list_says_all_of_a_sequence(sequences: Sequences) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=60)
    sequences.next("plain")
    sequences.configure("made", step=5, minimum=0, maximum=100, cycle=True, start=10)
    sequences.configure("daily", period="day", time_zone="Asia/Tokyo")
    sequences.next("daily")
    daily, made, plain = sequences.list()
    assert (made.value, made.updated_at, made.period_start) == (None, None, None)
    assert made.options == SequenceOptions(start=10, step=5, minimum=0, maximum=100, cycle=True)
    assert (plain.value, plain.period_start, plain.options) == (1, None, SequenceOptions())
    assert plain.updated_at is not None
    assert begun < plain.updated_at < begun + timedelta(hours=1)
    tokyo = (datetime.now(UTC) + timedelta(hours=9)).date()
    assert daily.period_start is not None
    assert tokyo - daily.period_start in (timedelta(0), timedelta(days=1))
    assert daily.options.time_zone == "Asia/Tokyo"


def test_updated_at_moves_with_the_value(sequences: Sequences, session: Session) -> None:
    sequences.next("a")
    session.execute("UPDATE sequence SET updated_at = '2020-01-01'")
    old = sequences.list()[0].updated_at
    assert old == datetime(2020, 1, 1, tzinfo=UTC)
    for change in (lambda: sequences.next("a"), lambda: sequences.set("a", 2)):
        session.execute("UPDATE sequence SET updated_at = '2020-01-01'")
        change()
        moved = sequences.list()[0].updated_at
        assert moved is not None
        assert moved > old


def test_delete_leaves_nothing(store: Store, session: Session) -> None:
    sequences = store.sequences
    assert not sequences.delete("a")
    sequences.configure("a", start=50, period="year")
    sequences.next("a")
    sequences.next("b")
    assert sequences.delete("a")
    assert not sequences.delete("a")
    assert [found.name for found in sequences.list()] == ["b"]
    assert session.query("SELECT COUNT(*) FROM sequence") == [(1,)]
    assert [sequences.next("a"), sequences.peek("a")] == [1, 1]


def test_deleted_by_another_process(store: Store, mysql_url: str) -> None:
    sequences = store.sequences
    sequences.configure("a", start=50, period="year")
    assert sequences.next("a") == 50
    with Store(mysql_url) as other:
        assert other.sequences.delete("a")
        assert sequences.next("a") == 1
        assert other.sequences.delete("a")
        assert sequences.next_block("a", 2) == range(1, 3)


def test_a_sequence_without_periods_has_one(sequences: Sequences) -> None:
    assert sequences.periods("a") == []
    assert sequences.total("a") == 0
    sequences.next("a", start=-5)
    (only,) = sequences.periods("a")
    assert (only.start, only.value, only.updated_at.tzinfo) == (None, -5, UTC)
    assert sequences.total("a") == -5
    with pytest.raises(ValueError, match="'a' has no periods"):
        sequences.peek("a", period=date(2026, 11, 1))


@pytest.mark.servers("mariadb", "mysql")
def test_names_that_are_no_text_can_be_listed(sequences: Sequences, session: Session) -> None:
    """Somebody has put them there by hand."""
    session.execute("INSERT INTO sequence (name, period) VALUES (X'FF61', '1970-01-01')")
    assert [found.name for found in sequences.list()] == ["\udcffa"]


@pytest.mark.servers("mariadb", "mysql")
def test_whoever_changes_gives_way_and_says_so(
    store: Store, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.store.sequences.records.ATTEMPTS", 1)
    for name in ("a", "b", "held", "held too", "other"):
        store.sequences.next(name)
    changes = (
        lambda: store.sequences.configure("held", step=2),
        lambda: store.sequences.delete("held"),
        lambda: store.sequences.set("held too", 5),
        store.sequences.reset_all,
    )
    with connect(mysql_url) as app:
        app.begin()
        store.sequences.next_in(app._connection, "held")
        store.sequences.next_in(app._connection, "held too")
        failures: list[Conflict] = []

        def change(index: int) -> None:
            said = r"2 sequences were reset, and then .* held 'held'|nothing was changed"
            with pytest.raises(Conflict, match=said) as caught:
                changes[index]()
            failures.append(caught.value)

        together(*(lambda index=index: change(index) for index in range(len(changes))))
        assert [failure.code for failure in failures] == [1205] * len(changes)
        assert sum("2 sequences were reset" in str(failure) for failure in failures) == 1
        assert store.sequences.next("other") == 2
        app.rollback()
    assert store.sequences.next("held") == 2
