"""Add, and get your own value."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from countersink.database.session import Session
from countersink.sequences import Sequences
from countersink.store import SequenceExhausted, Store
from tests.support.entries import MAX, MIN, together

NAMES = (
    "",
    "a",
    "A",
    "a ",
    "\u00e1",
    "a\u0301",
    "Il nome della rosa",
    'L\'élégance "du" hérisson; DROP TABLE sequence; --',
    "back\\slash\\' OR 1=1",
    "100 % %s %(name)s {x}",
    "`quoted`",
    "😀" * 63 + "abc",
    "x" * 255,
    "\0\n\t\x1a",
)
"""Names that are all different, to the byte."""


def test_values_go_on_by_the_step_and_begin_with_it_or_at_a_start(sequences: Sequences) -> None:
    assert [sequences.next("tickets") for _ in range(3)] == [1, 2, 3]
    assert [sequences.next("dozens", step=12) for _ in range(3)] == [12, 24, 36]
    assert [sequences.next("down", -3) for _ in range(3)] == [-3, -6, -9]
    # A start counts only where there is no value yet.
    assert [sequences.next("a", start=-10, step=-3) for _ in range(3)] == [-10, -13, -16]
    assert [sequences.next("b", start=0) for _ in range(3)] == [0, 1, 2]
    assert sequences.next("b", start=1000) == 3
    # Zero and negatives are values like any other.
    assert [sequences.next("c", start=-2) for _ in range(5)] == [-2, -1, 0, 1, 2]
    assert [sequences.next("c", step) for step in (-2, -1, 1, -5, 5)] == [0, -1, 0, -5, 0]


@pytest.mark.servers("mariadb", "mysql")
def test_names_are_what_they_are_to_the_byte(sequences: Sequences) -> None:
    for number, name in enumerate(NAMES):
        assert sequences.next(name, start=number * 10) == number * 10
    for number, name in enumerate(NAMES):
        assert sequences.next(name) == number * 10 + 1
        assert sequences.peek(name) == number * 10 + 1
    assert [found.name for found in sequences.list()] == sorted(NAMES, key=str.encode)


@pytest.mark.servers("mariadb", "mysql")
def test_values_of_64_bits(sequences: Sequences) -> None:
    for start in (MAX, MIN, MAX - 1, MIN + 1, 2**32, -(2**32), 2**53 + 1):
        name, away = str(start), -1 if start > 0 else 1
        assert sequences.next(name, away, start=start) == start
        assert sequences.next(name, away) == start + away
        assert sequences.next(name, -away) == start
        assert sequences.peek(name) == start


@pytest.mark.servers("mariadb", "mysql")
def test_beyond_64_bits_is_an_error_and_changes_nothing_however_wide_the_step(
    sequences: Sequences,
) -> None:
    for end, step in ((MAX, 1), (MIN, -1), (MAX, MAX), (MIN, MIN)):
        sequences.set("edge", end)
        for _ in range(2):
            with pytest.raises(SequenceExhausted, match="'edge' has no value left"):
                sequences.next("edge", step)
        assert sequences.peek("edge") == end
        back = 1 if end < 0 else -1
        assert sequences.next("edge", back) == end + back
    # Steps may be as wide.
    sequences.set("wide", MIN)
    assert [sequences.next("wide", MAX), sequences.next("wide", MAX)] == [-1, MAX - 1]
    sequences.set("wide", 0)
    assert sequences.next("wide", MIN) == MIN


def test_a_block_is_so_many_values_at_once(sequences: Sequences) -> None:
    assert list(sequences.next_block("a", 3)) == [1, 2, 3]
    assert sequences.next("a") == 4
    assert list(sequences.next_block("a", 3, 10)) == [14, 24, 34]
    assert list(sequences.next_block("a", 2, -30)) == [4, -26]
    assert sequences.next_block("a", 1) == range(-25, -24)
    assert list(sequences.next_block("new", 4, 5, start=-7)) == [-7, -2, 3, 8]
    assert list(sequences.next_block("down", 3, -1)) == [-1, -2, -3]
    assert len(sequences.next_block("big", 10**12)) == 10**12
    assert sequences.next("big") == 10**12 + 1


def test_a_block_goes_by_the_step_that_is_configured_now(store: Store, mysql_url: str) -> None:
    with Store(mysql_url) as other:
        store.sequences.configure("a", step=10, start=100)
        assert list(other.sequences.next_block("a", 3)) == [100, 110, 120]
        store.sequences.configure("a", step=-1)
        assert list(other.sequences.next_block("a", 2)) == [119, 118]
        assert list(other.sequences.next_block("a", 2, 5)) == [123, 128]
        assert other.sequences.next("a") == 127
        # One that was too wide for a block, and is not any more.
        other.sequences.configure("b", step=2**62)
        with pytest.raises(SequenceExhausted, match="no block of 10 values left"):
            store.sequences.next_block("b", 10)
        other.sequences.configure("b", step=3)
        assert list(store.sequences.next_block("b", 2)) == [3, 6]


def test_a_block_at_the_end_is_refused_as_a_whole(sequences: Sequences) -> None:
    sequences.configure("a", maximum=5)
    assert list(sequences.next_block("a", 3)) == [1, 2, 3]
    with pytest.raises(SequenceExhausted, match="no block of 3 values left"):
        sequences.next_block("a", 3)
    assert sequences.peek("a") == 3
    assert list(sequences.next_block("a", 2)) == [4, 5]
    with pytest.raises(SequenceExhausted):
        sequences.next_block("new", MAX, start=1000)
    assert sequences.peek("new") is None


def test_blocks_of_a_configured_step_that_are_wider_than_64_bits(
    store: Store, mysql_url: str
) -> None:
    """They are refused as a whole; what is wider than 63 bits, and fits, is not."""
    configured: list[tuple[str, int, int, dict[str, Any]]] = [
        ("unsigned", 2**60, 17, {"start": MIN}),
        ("up", 10**18, 20, {"start": -9 * 10**18}),
        ("down", -(10**18), 20, {"start": 9 * 10**18}),
        ("far", 2**61, 100, {"start": 0}),
        ("cycle", 2**61, 100, {"start": 0, "minimum": 0, "maximum": MAX, "cycle": True}),
        ("limited", 10**18, 11, {"start": -9 * 10**18, "maximum": 10**6}),
    ]
    sequences = store.sequences
    with Store(mysql_url) as other:
        for name, step, n, options in configured:
            assert list(other.sequences.next_block(name, 1)) == [1]
            sequences.reset(name)
            sequences.configure(name, step=step, **options)
            for each in (sequences, sequences, other.sequences):
                with pytest.raises(SequenceExhausted, match="configure"):
                    each.next_block(name, n)
            assert sequences.peek(name) is None
            first = options["start"]
            assert list(other.sequences.next_block(name, 2)) == [first, first + step]
    sequences.configure("whole", step=2**60, start=MIN)
    assert sequences.next_block("whole", 16)[-1] == MIN + 15 * 2**60


def test_stock_goes_down_to_its_limit(sequences: Sequences) -> None:
    """The first value of a new row would be beyond the limit, but there is a row."""
    sequences.set("stock", 10)
    sequences.configure("stock", minimum=0)
    assert [sequences.next("stock", -4) for _ in range(2)] == [6, 2]
    for _ in range(2):
        with pytest.raises(SequenceExhausted):
            sequences.next("stock", -4)
    assert [sequences.next("stock", -1) for _ in range(2)] == [1, 0]
    assert list(sequences.next_block("stock", 3)) == [1, 2, 3]
    sequences.reset("stock")
    with pytest.raises(SequenceExhausted):
        sequences.next("stock", -1)
    assert sequences.peek("stock") is None


def test_a_block_larger_than_what_a_new_row_has_room_for(sequences: Sequences) -> None:
    sequences.configure("a", start=50, minimum=0, maximum=100)
    sequences.set("a", 1)
    assert sequences.next_block("a", 60) == range(2, 62)


@pytest.mark.servers("mariadb", "mysql")
def test_a_cycle_begins_again_at_its_start_whatever_step_is_taken(sequences: Sequences) -> None:
    sequences.configure("up", start=3, minimum=1, maximum=5, cycle=True)
    assert [sequences.next("up") for _ in range(7)] == [3, 4, 5, 3, 4, 5, 3]
    assert [sequences.next("up", -1) for _ in range(3)] == [2, 1, 3]
    sequences.configure("down", step=-2, start=0, minimum=-5, cycle=True)
    assert [sequences.next("down") for _ in range(5)] == [0, -2, -4, 0, -2]
    sequences.configure("one", start=7, minimum=7, maximum=7, cycle=True)
    assert [sequences.next("one") for _ in range(20)] == [7] * 20
    # Whatever step is taken.
    sequences.configure("a", minimum=1, maximum=10, cycle=True)
    assert [sequences.next("a", 4) for _ in range(3)] == [4, 8, 1]
    assert [sequences.next("a", -4) for _ in range(2)] == [1, 1]
    sequences.configure("b", start=5, minimum=1, maximum=10, cycle=True)
    assert [sequences.next("b", 4) for _ in range(3)] == [5, 9, 5]
    assert sequences.next_block("b", 3, -2) == range(5, -1, -2)
    # Also at the ends of 64 bits.
    sequences.configure("most", start=MAX - 1, maximum=MAX, cycle=True)
    assert [sequences.next("most") - MAX for _ in range(5)] == [-1, 0, -1, 0, -1]
    sequences.configure("least", step=-1, start=MIN + 1, minimum=MIN, cycle=True)
    assert [sequences.next("least") - MIN for _ in range(5)] == [1, 0, 1, 0, 1]


def test_a_block_that_does_not_fit_begins_a_cycle_again_as_a_whole(sequences: Sequences) -> None:
    sequences.configure("a", maximum=10, cycle=True)
    assert sequences.next_block("a", 6) == range(1, 7)
    assert sequences.next_block("a", 6) == range(1, 7)
    assert sequences.next_block("a", 4) == range(7, 11)
    with pytest.raises(SequenceExhausted):
        sequences.next_block("a", 11)
    assert sequences.peek("a") == 10


@pytest.mark.parametrize(
    "step", [0, True, 1.0, "1", MAX + 1, MIN - 1, 10**30, float("nan"), b"1", [1]]
)
def test_steps_that_are_refused(nowhere: Sequences, step: Any) -> None:
    takes: list[Callable[[], object]] = [
        lambda: nowhere.next("a", step),
        lambda: nowhere.next_block("a", 2, step),
        lambda: nowhere.configure("a", step=step),
    ]
    if step != 0:
        takes += [lambda: nowhere.next("a", start=step), lambda: nowhere.set("a", step)]
    for take in takes:
        with pytest.raises((TypeError, ValueError), match=r"step|start|value"):
            take()


@pytest.mark.parametrize("n", [0, -1, True, 1.5, None, MAX + 1])
def test_sizes_of_blocks_that_are_refused(nowhere: Sequences, n: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="block"):
        nowhere.next_block("a", n)
    with pytest.raises(ValueError, match="do not fit into 64 bits"):
        nowhere.next_block("a", MAX, 2)


@pytest.mark.parametrize("name", ["x" * 256, "😀" * 64, "\ud800", "\udcff", b"a", 7, None])
def test_names_that_are_refused(nowhere: Sequences, name: Any) -> None:
    calls = (
        nowhere.next,
        lambda name: nowhere.next_block(name, 2),
        lambda name: nowhere.set(name, 1),
        lambda name: nowhere.configure(name, step=2),
        *(nowhere.peek, nowhere.reset, nowhere.delete),
        *(nowhere.periods, nowhere.total, nowhere.list),
    )
    for call in calls:
        with pytest.raises(ValueError if isinstance(name, str) else TypeError, match="name"):
            call(name)


@pytest.mark.servers("mariadb", "mysql")
def test_one_round_trip_each(sequences: Sequences, session: Session) -> None:
    sequences.next("a")
    sequences.configure("limited", maximum=100, cycle=True, step=2)
    sequences.next("limited")
    sql = "SHOW GLOBAL STATUS LIKE 'Questions'"
    before = int(session.query(sql)[0][1])
    for _ in range(5):
        sequences.next("a")
        sequences.next("limited")
        sequences.next_block("a", 10)
    assert int(session.query(sql)[0][1]) - before == 15 + 1


@pytest.mark.servers("mariadb", "mysql")
def test_first_use_by_many_at_once(mysql_url: str) -> None:
    stores = [Store(mysql_url) for _ in range(8)]
    for round_ in range(3):
        name = f"new {round_}"
        taken = together(*(partial(store.sequences.next, name) for store in stores))
        assert sorted(taken) == list(range(1, 9))
    for store in stores:
        store.close()
