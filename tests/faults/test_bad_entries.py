"""Bad entries go to the dead letters with their reason, and cost no other entry anything."""

import pytest

from tests.faults.scenarios import bad_entries as scenarios
from tests.faults.stage import Stage


def test_each_bad_entry_has_its_reason_and_the_others_count(stage: Stage) -> None:
    scenarios.bad_entries_among_good_ones(stage)


def test_entries_without_an_id_count_once(stage: Stage) -> None:
    scenarios.entries_without_id(stage)


def test_entries_without_an_id_count_once_when_workers_die(stage: Stage) -> None:
    scenarios.entries_without_id_and_deaths(stage)


@pytest.mark.servers("mariadb", "mysql")
def test_dead_rows_of_a_flood_are_kept_or_counted_once_when_workers_die(stage: Stage) -> None:
    scenarios.floods_and_deaths(stage)


def test_sums_beyond_64_bits_are_counted(stage: Stage) -> None:
    scenarios.sums_beyond_64_bits(stage)


def test_entries_older_than_the_watermark_are_dead_letters(stage: Stage) -> None:
    scenarios.older_than_the_watermark(stage)
