"""The coalescing buffer against a plain dictionary."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from countersink.producers.buffer.generations import RowChunk
from countersink.producers.buffer.rows import NEVER, RowBuffer
from countersink.runtime.dimensions import RowKey
from countersink.stream.entry import Row
from tests.support.examples import examples

KEYS = st.sampled_from(["a", "b", "c", "d"])
MINUTES = st.integers(0, 1)
AMOUNTS = st.one_of(
    st.integers(-3, 3), st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 2**31 + 1])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ones"), MINUTES, st.lists(KEYS, min_size=1, max_size=6)),
        st.tuples(st.just("add"), MINUTES, KEYS, AMOUNTS),
        st.tuples(
            st.just("batch"),
            MINUTES,
            st.lists(st.tuples(KEYS, AMOUNTS), min_size=1, max_size=4, unique_by=lambda p: p[0]),
        ),
        st.tuples(st.just("named"), MINUTES, st.lists(KEYS, min_size=1, max_size=3)),
        st.tuples(st.just("promised"), MINUTES, st.lists(KEYS, min_size=1, max_size=3)),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("settle")),
    ),
    max_size=40,
)


@examples(few=40, many=100)
@given(steps=STEPS, limit=st.integers(1, 12))
def test_nothing_is_lost_and_nothing_appears(steps: list[tuple[object, ...]], limit: int) -> None:
    buffer = RowBuffer(limit)
    expected: Counter[tuple[str, int]] = Counter()
    asked = dropped = 0
    exact = True  # until a step found room for a part: which is the buffer's choice
    out: list[RowChunk] = []
    for step in steps:
        match step:
            case ("ones", int(minute), list(keys)):
                lost = buffer.add_ones("c", minute, keys)
                asked, dropped = asked + len(keys), dropped + lost
                if not lost:
                    expected.update((key, minute) for key in keys)
                exact = exact and not lost
            case ("add", int(minute), str(key), int(amount)):
                lost = buffer.add("c", key, minute, amount, 1)
                asked, dropped = asked + 1, dropped + lost
                expected[key, minute] += 0 if lost else amount
            case ("batch", int(minute), list(pairs)):
                keys, amounts = [p[0] for p in pairs], [p[1] for p in pairs]
                lost = buffer.add_many("c", minute, keys, amounts)
                assert lost in (0, len(keys)), "all or nothing"
                asked, dropped = asked + len(pairs), dropped + lost
                if not lost:
                    for key, amount in pairs:
                        expected[key, minute] += amount
                exact = exact and not lost
            case ("named", int(minute), list(keys)):
                lost = buffer.add_named(("id",), [("c", key, minute, 1) for key in keys])
                asked, dropped = asked + len(keys), dropped + lost
                assert lost in (0, len(keys)), "all or nothing"
                if not lost:
                    expected.update((key, minute) for key in keys)
            case ("promised", int(minute), list(keys)):
                if len(keys) <= buffer.free_rows:
                    buffer.promised += len(keys)
                    # Others take whatever room is left, but not this.
                    strangers = [f"stranger {number}" for number in range(limit)]
                    asked += limit
                    dropped += buffer.add_ones("c", minute, strangers)
                    exact = False
                    asked += len(keys)
                    assert not buffer.add_ones("c", minute, keys[:1], bounded=False)
                    for key in keys[1:]:
                        assert not buffer.add("c", key, minute, 1, 1, bounded=False)
                    buffer.redeemed += len(keys)
                    assert buffer.reserved == 0
            case ("take", int(size)):
                piece = buffer.take(size, NEVER)
                if piece is not None:
                    out.append(piece)
                    assert piece.names or len(piece.rows) <= size
            case _:
                for piece in out:
                    if piece.generation:
                        buffer.settle(piece.generation, len(piece.rows))
                out = [RowChunk(0, piece.rows, piece.increments, piece.names) for piece in out]
        assert buffer.held <= limit
        assert buffer.free_rows <= limit - buffer.held, "no room is there twice"
        assert all(-(2**63) <= row[3] < 2**63 for piece in out for row in piece.rows)
    out += _drain(buffer)
    assert not exact or _sums(out) == {cell: amount for cell, amount in expected.items() if amount}
    assert sum(piece.increments for piece in out) + dropped == asked


def test_rows_with_names_leave_in_the_order_in_which_they_came() -> None:
    buffer = RowBuffer(100)

    def add(*numbers: int) -> None:
        for number in numbers:
            rows: list[Row] = [("c", str(item), 0, 1) for item in range(number)]
            assert not buffer.add_named((str(number),), rows)

    def take() -> str:
        piece = buffer.take(10, NEVER)
        assert piece is not None
        buffer.settle(piece.generation, len(piece.rows))
        return piece.names[0]

    add(1, 5, 3)
    assert (take(), buffer.held) == ("1", 8)
    add(7, 2)
    assert buffer.held == 17
    left = [(take(), buffer.held) for _ in range(4)]
    assert left == [("5", 12), ("3", 9), ("7", 2), ("2", 0)]
    assert buffer.free_rows == 100


def _drain(buffer: RowBuffer) -> list[RowChunk]:
    pieces = []
    while (piece := buffer.take(2, NEVER)) is not None:
        pieces.append(piece)
    return pieces


def _sums(pieces: list[RowChunk]) -> dict[tuple[RowKey, int], int]:
    sums: Counter[tuple[RowKey, int]] = Counter()
    for piece in pieces:
        for row in piece.rows:
            sums[row[1], row[2]] += row[3]
    return {cell: amount for cell, amount in sums.items() if amount}
