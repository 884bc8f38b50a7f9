"""Options refuse what no worker could run with, and show no password."""

from typing import Any

import pytest

from countersink.worker import WorkerOptions

URLS: dict[str, Any] = {"redis_url": "redis://:geheim@r/0", "mysql_url": "mysql://u:geheim@m/d"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_entries": 0},
        {"batch_rows": 0},
        {"batch_wait_ms": 0},
        {"batch_wait_ms": 5_000},
        {"claim_idle_ms": 0},
        {"claim_every_s": 0},
        {"stop_within_s": 0},
        {"log_format": "xml"},
    ],
)
def test_out_of_range_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerOptions(**URLS, **wrong)


def test_a_stop_is_forced_in_time_for_the_promised_ten_seconds() -> None:
    assert WorkerOptions(**URLS).stop_within_s <= 8.0


def test_repr_holds_no_url() -> None:
    assert "geheim" not in repr(WorkerOptions(**URLS))
