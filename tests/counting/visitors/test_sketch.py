"""Sketches of members: exact up to 256, estimates beyond, unions in any order, damaged bytes."""

import builtins
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

from countersink.counting.errors import DamagedSketch, NoSketches
from countersink.counting.visitors import (
    MOST_EXACT,
    MOST_UNITED,
    SketchUnion,
    Visitors,
    checksum,
)
from tests.support.examples import MANY
from tests.support.sketches import registers, sketch_of, united

STANDARD_ERROR = 1.04 / 8192**0.5


def hashes(seed: int, number: int) -> bytes:
    """Distinct random hashes."""
    found = np.random.default_rng(seed).integers(0, 2**64, number, dtype=np.uint64)
    return found.tobytes()


def visitors(*sketches: bytes) -> Visitors:
    union = SketchUnion()
    for sketch in sketches:
        union.add(sketch)
    return union.visitors()


@pytest.mark.parametrize("number", [0, 1, 2, 255, MOST_EXACT])
def test_a_small_set_is_exact(number: int) -> None:
    assert visitors(sketch_of(hashes(1, number))) == Visitors(number, False, number, number)


def test_a_union_of_exact_sets_is_exact_up_to_its_bound_and_an_estimate_beyond() -> None:
    parts = [sketch_of(hashes(seed, 250)) for seed in range(MOST_UNITED // 250)]
    assert visitors(*parts, *parts) == Visitors(MOST_UNITED, False, MOST_UNITED, MOST_UNITED)
    beyond = [*parts, sketch_of(hashes(1_000_000, 1))]
    found = visitors(*beyond)
    assert found.estimate
    assert found.low <= MOST_UNITED + 1 <= found.high
    random.Random(3).shuffle(beyond)
    assert visitors(*beyond, *parts) == found
    large = sketch_of(hashes(0, 5_000))
    assert visitors(*beyond, large) == visitors(large, *beyond)


def test_a_union_of_many_members_takes_little_memory() -> None:
    parts = [sketch_of(hashes(seed, 250)) for seed in range(1_600)]
    tracemalloc.start()
    try:
        found = visitors(*parts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert abs(found.total - 400_000) < 4 * STANDARD_ERROR * 400_000
    assert peak < 15_000_000  # 36 MB where all are kept


def test_estimates_are_within_three_standard_errors() -> None:
    chosen, wrong = random.Random(17), []
    for seed in range(60):
        number = round(100_000 ** chosen.random())
        found = visitors(sketch_of(hashes(seed, number)))
        if number <= MOST_EXACT:
            assert found == Visitors(number, False, number, number)
        elif abs(found.total - number) > 3 * STANDARD_ERROR * number:
            wrong.append((seed, number, found))
    assert len(wrong) <= 1, wrong


@pytest.mark.random
def test_a_union_has_the_same_registers_in_any_order_and_however_often() -> None:
    chosen = random.Random(5)
    for seed in range(30 if MANY else 12):
        whole = hashes(seed, round(20_000 ** chosen.random()))
        parts = [whole[8 * chosen.randrange(len(whole) // 8 + 1) :] for _ in range(4)]
        some = [sketch_of(part) for part in [*parts, whole[: len(whole) // 16 * 8], whole]]
        one = united(some)
        chosen.shuffle(some)
        other = united([united(some[:3]), united([*some[2:], one]), *some])
        assert registers(one) == registers(other) == registers(sketch_of(whole))
        assert len(registers(one)) == 8192
        assert registers(united([other, other])) == registers(other)
        if len(whole) > 8 * MOST_EXACT:
            assert visitors(one) == visitors(other) == visitors(sketch_of(whole))


@pytest.mark.parametrize("step", [1, 50, 199, 500, 700])
def test_a_sketch_that_grows_step_by_step_can_always_be_read(step: int) -> None:
    """As a worker has it: what is stored is read back, and gets a few members more."""
    whole = hashes(step, 1600)
    stored = sketch_of(b"")
    for at in range(0, len(whole), 8 * step):
        union = SketchUnion()
        union.add(stored)
        union.add_hashes(whole[at : at + 8 * step])
        stored = union.sketch()
    assert stored == sketch_of(whole)
    assert registers(stored) == registers(sketch_of(whole))


@pytest.mark.parametrize(
    "sketch",
    [
        b"",
        b"\x00",
        b"\x03" + bytes(8),
        b"\x01" + bytes(7),
        b"\x02",
        b"\x02damaged",
    ],
)
def test_what_is_no_sketch_is_refused(sketch: bytes) -> None:
    with pytest.raises(DamagedSketch):
        SketchUnion().add(sketch)


def test_a_union_is_as_it_was_after_a_damaged_sketch() -> None:
    union = SketchUnion()
    union.add(sketch_of(hashes(1, 100)))
    with pytest.raises(DamagedSketch):
        union.add(b"\x02damaged")
    assert union.visitors() == Visitors(100, False, 100, 100)


def test_the_checksum_is_of_the_place_and_the_bytes() -> None:
    rows: list[tuple[str, int, bytes, int, bytes]] = [
        ("a", 1, b"k", 1, b"s"),
        ("a", 11, b"k", 1, b"s"),
        ("a", 1, b"k", 11, b"s"),
        ("a", 1, b"k", 0, b"s"),
        ("a", 1, b"ks", 1, b""),
        ("a", 1, b"", 1, b"ks"),
        ("b", 1, b"k", 1, b"s"),
    ]
    assert len({checksum(*row) for row in rows}) == len(rows)


def test_small_sets_take_no_library_and_larger_ones_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = sketch_of(hashes(1, 300))
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasketches":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert visitors(sketch_of(hashes(1, 256)), sketch_of(hashes(2, 256))).total == 512
    for work in (lambda: sketch_of(hashes(1, 257)), lambda: visitors(large)):
        with pytest.raises(NoSketches, match=r"pip install 'countersink\[sketches\]'"):
            work()
