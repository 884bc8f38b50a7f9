"""Options: what may be said, and that nobody goes by old ones; peek, set, reset, list, delete."""

from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.sequences import Sequences
from countersink.sequences.options import SequenceOptions
from countersink.store import Conflict, SequenceExhausted, Store
from tests.support.entries import MAX, MIN, together
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_what_is_not_given_stays_and_none_clears(sequences: Sequences) -> None:
    made = sequences.configure("a", start=5, step=2, minimum=1, maximum=99, cycle=True)
    assert (made.name, made.value) == ("a", None)
    assert made.options == SequenceOptions(start=5, step=2, minimum=1, maximum=99, cycle=True)
    assert sequences.configure("a").options == made.options
    assert sequences.configure("a", step=3).options.step == 3
    assert sequences.configure("a", step=3).options.start == 5
    cleared = sequences.configure("a", cycle=None, maximum=None, minimum=None, start=None)
    assert cleared.options == SequenceOptions(step=3)
    assert sequences.configure("a", step=None).options == SequenceOptions()
    assert [sequences.next("a"), sequences.configure("a").value] == [1, 1]


def test_the_step_given_goes_before_the_configured_one(sequences: Sequences) -> None:
    sequences.configure("a", step=10)
    assert [sequences.next("a"), sequences.next("a", 1), sequences.next("a")] == [10, 11, 21]
    sequences.configure("b", step=10, start=-1)
    assert [sequences.next("b", 5), sequences.next("b", 5)] == [-1, 4]
    sequences.configure("c", start=7)
    assert sequences.next("c", start=9) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0}, "a step of 0"),
        ({"step": True}, "a step is an int, not bool"),
        ({"start": 1.0}, "start is an int, not float"),
        ({"maximum": MAX + 1}, "maximum is beyond 64 bits"),
        ({"minimum": MIN - 1}, "minimum is beyond 64 bits"),
        ({"cycle": 1}, "cycle is True or False"),
        ({"period": "week"}, "period 'week' is none of none, day, month, year"),
        ({"period": 7}, "period 7"),
        ({"time_zone": "Mars/Olympus"}, "no time zone"),
        ({"time_zone": 1}, "a time zone is a str"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
        ({"colour": None}, "unexpected keyword argument 'colour'"),
    ],
)
def test_options_that_can_never_be(
    nowhere: Sequences, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        nowhere.configure("a", **options)


def test_options_that_contradict_each_other(sequences: Sequences) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"minimum": 5, "maximum": 4}, "the minimum 5 is above the maximum 4"),
        ({"minimum": 5}, r"the start \(by default the step\) 1 is not within the limits 5 to"),
        (
            {"start": 9, "maximum": 8},
            r"step\) 9 is not within the limits -2\*\*63 to 8",
        ),
        ({"cycle": True}, "needs a maximum, after which it begins again"),
        ({"cycle": True, "step": -1, "maximum": 5}, "needs a minimum"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            sequences.configure("a", **options)
    assert sequences.next("a") == 1  # and not as was asked for


def test_limits_must_hold_the_value_that_there_is(sequences: Sequences) -> None:
    sequences.set("a", 10)
    for options in ({"maximum": 9}, {"minimum": 11, "start": 20}):
        with pytest.raises(ValueError, match="the value 10 of the sequence 'a' is not within"):
            sequences.configure("a", **options)  # type: ignore[arg-type]
    sequences.configure("a", maximum=10)
    sequences.reset("a")
    sequences.configure("a", minimum=1, maximum=9)
    assert sequences.next("a") == 1


def test_a_period_can_only_change_while_there_is_no_value(sequences: Sequences) -> None:
    sequences.next("a")
    for options in ({"period": "day"}, {"time_zone": "Europe/Berlin"}):
        with pytest.raises(ValueError, match="cannot change any more"):
            sequences.configure("a", **options)  # type: ignore[arg-type]
    assert sequences.configure("a", period="none", time_zone="UTC", step=5).options.step == 5
    sequences.reset("a")
    sequences.configure("a", period="day", time_zone="Europe/Berlin")
    assert [sequences.next("a"), sequences.next("a")] == [5, 10]


def test_a_maximum_that_is_set_while_others_take_is_kept(store: Store, mysql_url: str) -> None:
    taken: list[int] = []
    limits: list[int] = []

    def take(url: str) -> None:
        with Store(url) as other:
            while not limits or taken[-1] <= limits[0]:
                try:
                    taken.append(other.sequences.next("a"))
                except SequenceExhausted:
                    return

    def limit() -> None:
        eventually(partial(_at_least, taken, 20))
        distance = 200
        while not limits:
            maximum = taken[-1] + distance
            try:
                store.sequences.configure("a", maximum=maximum)
            except ValueError:  # the others have passed it before the row was locked
                distance *= 2
            else:
                limits.append(maximum)

    together(*[partial(take, mysql_url)] * 3, limit)
    assert sorted(taken) == list(range(1, limits[0] + 1))


def _at_least(taken: list[Any], wanted: int) -> bool:
    return len(taken) >= wanted


def test_a_period_never_changes_under_a_value(mysql_url: str) -> None:
    """Whoever is first wins: either the sequence has a value, or it has periods."""
    with Store(mysql_url) as one, Store(mysql_url) as two, Store(mysql_url) as three:

        def configure(name: str) -> int:
            try:
                two.sequences.configure(name, period="month")
            except ValueError:
                return 0
            return -1

        for number in range(12):
            name = f"s{number}"
            done = together(
                partial(one.sequences.next, name),
                partial(configure, name),
                partial(three.sequences.next, name),
            )
            assert sorted(done)[1:] == [1, 2]
            (period,) = one.sequences.periods(name)
            assert period.value == 2
            assert (period.start is not None) == (min(done) == -1)


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


def test_a_sequence_without_periods_has_one(sequences: Sequences) -> None:
    assert sequences.periods("a") == []
    assert sequences.total("a") == 0
    sequences.next("a", start=-5)
    (only,) = sequences.periods("a")
    assert (only.start, only.value, only.updated_at.tzinfo) == (None, -5, UTC)
    assert sequences.total("a") == -5
    with pytest.raises(ValueError, match="'a' has no periods"):
        sequences.peek("a", period=date(2026, 11, 1))


def test_whoever_changes_gives_way_and_says_so(
    store: Store, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.sequences.records.ATTEMPTS", 1)
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
            with pytest.raises(Conflict) as caught:
                changes[index]()
            failures.append(caught.value)

        together(*(lambda index=index: change(index) for index in range(len(changes))))
        assert [failure.code for failure in failures] == [1205] * len(changes)
        assert [store.sequences.peek(name) for name in ("a", "b", "held")] == [None, None, 1]
        assert store.sequences.next("other") == 2
        app.rollback()
    assert store.sequences.next("held") == 2
