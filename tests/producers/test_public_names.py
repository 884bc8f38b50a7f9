"""What apps may rely on: names, signatures, and how little an import costs."""

import dataclasses
import inspect
from typing import get_type_hints

import pytest

import countersink.producers
import countersink.producers.spool
import countersink.producers.testing
from countersink.producers import Options, Producer, Stats
from countersink.producers.engine import ACTIONS
from countersink.producers.options import ProducerOptions
from tests.producers.helpers import imported


def public(thing: object) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def test_public_names_are_pinned() -> None:
    assert countersink.producers.__all__ == [
        *("Increment", "InvalidBatch", "Options", "Producer", "Stats"),
    ]
    assert countersink.producers.spool.__all__ == [
        *("Replayed", "SegmentInfo", "SpoolError", "list_segments", "replay"),
    ]
    assert public(Producer) == [
        *("awaits_salt", "begin_flush", "close", "close_at_exit", "counts_members", "exit_timeout"),
        *("flush", "from_env", "increment", "increment_batch", "increment_many"),
        *("mark", "seen", "spool", "start_over", "stats", "stop_counting", "tell_of_loss"),
        "unused",
    ]
    assert [field.name for field in dataclasses.fields(Stats)] == [
        *("accepted", "stored", "resent", "spooled", "replayed", "dropped", "pending_rows"),
        *("last_error", "connected"),
    ]


def test_signature_of_increment_is_pinned() -> None:
    shown = str(inspect.signature(Producer.increment, eval_str=False))
    assert shown == (
        "(self, counter: str, key: str | collections.abc.Mapping[str, str] = '', "
        "amount: int = 1, *, "
        "at: datetime.datetime | None = None, id: str | None = None) -> None"
    )


def test_signature_of_seen_is_pinned() -> None:
    shown = str(inspect.signature(Producer.seen, eval_str=False))
    assert shown == (
        "(self, counter: str, key: str | collections.abc.Mapping[str, str], "
        "member: str | bytes, *, at: datetime.datetime | None = None) -> None"
    )


def test_constructor_takes_each_option_with_its_default() -> None:
    assert get_type_hints(ProducerOptions) == get_type_hints(Options)
    with pytest.raises(TypeError, match="no_such_option"):
        Producer("redis://127.0.0.1:1/0", no_such_option=1)  # type: ignore[call-arg]


def test_log_actions_are_pinned() -> None:
    assert sorted(ACTIONS) == [
        *("connected", "dropped", "held_back", "internal_error", "left_over", "no_members"),
        *("no_salt", "not_known", "replayed", "sigterm", "spool_damaged", "spool_failed"),
        *("unavailable",),
    ]


def test_import_brings_redis_and_little_else() -> None:
    # Each of these is small; a driver, a codec or multiprocessing would be in here.
    allowed = {"dataclasses", "fcntl", "encodings.idna", "stringprep", "unicodedata"}
    assert imported("countersink.producers", after="redis") <= allowed
