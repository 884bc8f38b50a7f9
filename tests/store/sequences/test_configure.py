"""Options: what may be said, and that nobody goes by the old ones once they have changed."""

import threading
from functools import partial
from typing import Any

import pytest

from countersink.store import SequenceExhausted, Store
from countersink.store.sequences import SequenceOptions, Sequences
from tests.store.helpers import MAX, MIN, together
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


def test_period_and_zone_by_default(sequences: Sequences) -> None:
    made = sequences.configure("a", period="month", time_zone="Europe/Berlin")
    assert (made.options.period, made.options.time_zone) == ("month", "Europe/Berlin")
    assert made.period_start is not None
    assert made.period_start.day == 1
    cleared = sequences.configure("a", period=None, time_zone=None)
    assert (cleared.options, cleared.period_start) == (SequenceOptions(), None)


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
        ({"period": "week"}, "period 'week': one of none, day, month, year"),
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
        ({"start": 9, "maximum": 8}, "the start 9 is not within the limits -2\\*\\*63 to 8"),
        ({"cycle": True}, "needs an end to begin again at: give a maximum"),
        ({"cycle": True, "step": -1, "maximum": 5}, "give a minimum"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            sequences.configure("a", **options)
    assert sequences.next("a") == 1  # and not as was asked for


def test_limits_must_hold_the_value_that_there_is(sequences: Sequences) -> None:
    sequences.set("a", 10)
    for options in ({"maximum": 9}, {"minimum": 11, "start": 20}):
        with pytest.raises(ValueError, match="'a' stands at 10, which is not within"):
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


def test_other_processes_follow_at_once(store: Store, mysql_url: str) -> None:
    with Store(mysql_url) as other:
        assert [other.sequences.next("a"), other.sequences.next_block("a", 2)[-1]] == [1, 3]
        store.sequences.configure("a", step=100)
        assert [other.sequences.next("a"), other.sequences.next_block("a", 2)[-1]] == [103, 303]
        store.sequences.delete("a")
        store.sequences.configure("a", period="month", time_zone="Asia/Kathmandu", start=7)
        assert [other.sequences.next("a"), store.sequences.next("a")] == [7, 8]
        assert other.sequences.periods("a") == store.sequences.periods("a")
        assert other.sequences.periods("a")[0].start is not None


def test_steps_change_exactly_while_others_take(store: Store) -> None:
    """What begins after a change has returned goes by it; nothing goes by one before."""
    sequences = store.sequences
    sequences.configure("a", step=1)
    done = [1]
    taken: list[tuple[int, int, int]] = []
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            least = done[-1]
            block = sequences.next_block("a", 2)
            taken.append((least, block[1] - block[0], done[-1] + 1))

    def change() -> None:
        try:
            for step in range(2, 14):
                wanted = len(taken) + 4
                eventually(partial(_at_least, taken, wanted))
                sequences.configure("a", step=step)
                done.append(step)
        finally:
            over.set()

    together(take, take, take, change)
    assert all(least <= step <= most for least, step, most in taken)
    assert len({step for _, step, _ in taken}) > 6


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
        limits.append(len(taken) + 200)
        store.sequences.configure("a", maximum=limits[0])

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
