"""Times of every way of writing, and of none."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.logs import Malformed
from countersink.logs.errors import Misread
from countersink.logs.times import Clock
from tests.backfill.format_helpers import at
from tests.support.examples import examples

MINUTE = at(2015, 5, 17, 10, 5)


@pytest.mark.parametrize(
    "time",
    [
        "2015-05-17T10:05:03Z",
        "2015-05-17T10:05:59.999999Z",
        "2015-05-17T10:05:03.123456789Z",
        "2015-05-17T10:05:60Z",
        "20150517T100560Z",
        "17/May/2015:10:05:60 +0000",
        "2015-05-17T10:05Z",
        "2015-05-17 12:05:03+02:00",
        "2015-05-17 12:05:03 +0200",
        "2015-05-17 12:05:03 +02",
        "2015-05-17 10:05:03 UTC",
        "20150517T100503Z",
        " 2015-05-17T10:05:03Z ",
        "1431857103",
        "1431857103123",
        "1431857103123456",
        "1431857103123456789",
        "2015-05-17t10:05:03z",
        1431857103,
        1431857103123456789,
        "17/May/2015:10:05:03 +0000",
        "[17/May/2015:12:05:03 +0200]",
    ],
)
def test_what_auto_takes(time: object) -> None:
    assert Clock().minute(time) == MINUTE


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ("", "there is no time"),
        ("  ", "there is no time"),
        (None, "there is no time"),
        ("2015-05-17T10:05:03", "no time zone; give one by --time-zone"),
        ("20150517", "no time zone"),
        ("yesterday", "neither ISO 8601 nor a Unix time"),
        ("2015-05-17+02:00", "no time zone"),
        ("2015-05-17x10:05:03Z", "neither ISO 8601"),
        ("201505171005", "neither ISO 8601"),
        ("2015-02-30T10:05:03Z", "ISO 8601 has no such date or time"),
        ("2015-05-17T25:05:03Z", "ISO 8601 has no such date or time"),
        ("2015-05-17T10:05:03+01:60", "its offset has 60 minutes or more"),
        ("2015-05-17+01:60", "its offset has 60 minutes or more"),
        ("2015-05-17T10:05:03+01:00:60", "its offset has 60"),
        ("17/May/2015:10:05:03 +0160", "there is no such time zone"),
        ("2015-05-17T10:05:61Z", "no such date or time"),
        ("2015-02-30", "ISO 8601 has no such date or time"),
        ("31/Feb/2015:10:05:03 +0000", "there is no such day"),
        ("1969-12-31T23:59:59Z", "between 1970-01-01 and 9999-12-25"),
        ("9999-12-26T00:00:00Z", "between 1970-01-01 and 9999-12-25"),
        ("0001-01-01T00:00:00+14:00", "between 1970-01-01 and 9999-12-25"),
        ("-1", "cannot be"),
        (5, "cannot be"),
        (10**30, "neither a text nor a number in range"),
        (float("nan"), "neither a text nor a number in range"),
        (True, "neither a text nor a number in range"),
        ("1" * 100_000, "the time is too long"),
        ("17/Mai/2015:10:05:03 +0000", "no month Mai"),
        ("١٤٣١٨٥٧١٠٣", "neither ISO 8601"),
    ],
)
def test_what_is_no_time_says_why(time: object, reason: str) -> None:
    clock = Clock()
    for _ in range(2):
        with pytest.raises(Malformed, match=reason):
            clock.minute(time)


@pytest.mark.parametrize(
    ("time_zone", "time", "expected"),
    [
        ("Europe/Berlin", "2015-05-17T12:05:03", MINUTE),
        ("Europe/Berlin", "2015-05-17T10:05:03Z", MINUTE),
        ("Europe/Berlin", "2015-05-17", at(2015, 5, 16, 22)),
        ("UTC", "2015-05-17 10:05:03.5", MINUTE),
        # Twice: the first. Skipped: as far after the last that there was.
        ("Europe/Berlin", "2015-10-25T02:30:00", at(2015, 10, 25, 0, 30)),
        ("Europe/Berlin", "2015-03-29T02:30:00", at(2015, 3, 29, 1, 30)),
        ("America/Sao_Paulo", "2015-10-18", at(2015, 10, 18, 3)),
        ("Asia/Kathmandu", "2015-05-17T15:50:03", MINUTE),
    ],
)
def test_times_without_a_zone_are_in_that_of_the_recipe(
    time_zone: str, time: str, expected: int
) -> None:
    assert Clock(time_zone=time_zone).minute(time) == expected


@pytest.mark.parametrize(
    ("time_format", "time", "expected"),
    [
        ("unix", "60", 1),
        ("unix", "0", 0),
        ("unix-ms", "119999", 1),
        ("unix-ms", "1431857103123", MINUTE),
        ("unix-us", "1431857103123456", MINUTE),
        ("unix-ns", 1431857103123456789, MINUTE),
        ("%d.%m.%Y %H:%M:%S %z", "17.05.2015 12:05:03 +0200", MINUTE),
        ("%Y-%m-%dT%H:%M:%S.%f%z", "2015-05-17T10:05:03.5Z", MINUTE),
        ("%Y-%m-%d %H:%M:%S %z", "2015-05-17 12:05:60 +0200", MINUTE),
        ("%Y%m%d%H%M%S%z", "20150517100560Z", MINUTE),
    ],
)
def test_a_format_is_taken_at_its_word(time_format: str, time: object, expected: int) -> None:
    assert Clock(time_format).minute(time) == expected


@pytest.mark.parametrize(
    ("time_format", "time"),
    [
        ("unix", "2015-05-17T10:05:03Z"),
        ("unix", "-1"),
        ("unix", "１"),
        ("unix-ms", "-0.5"),
        ("%d.%m.%Y %z", "2015-05-17T10:05:03Z"),
        ("%d.%m.%Y %z", "31.02.2015 +0000"),
        ("%Y-%m-%d %H:%M:%S %z", "2015-05-17 10:05:61 +0000"),
        ("%Y-%m-%d %H:%M:%S %z", "2015-05-17 10:05:03 +0160"),
    ],
)
def test_what_is_not_in_the_format_is_malformed(time_format: str, time: str) -> None:
    with pytest.raises(Malformed, match=r"column 'at': the time '.*' cannot be counted: "):
        Clock(time_format, column="at").minute(time)


@pytest.mark.parametrize("unit", ["unix", "unix-ms", "unix-us", "unix-ns"])
@pytest.mark.parametrize("other", ["unix", "unix-ms", "unix-us", "unix-ns"])
@pytest.mark.parametrize("seconds", [631_152_000, 1_431_857_103, 1_795_000_000])
def test_a_number_that_only_another_unit_fits_names_it(unit: str, other: str, seconds: int) -> None:
    time = f"{seconds}{'0' * 3 * ['unix', 'unix-ms', 'unix-us', 'unix-ns'].index(other)}"
    if unit == other:
        assert Clock(unit).minute(time) == seconds // 60
        return
    with pytest.raises(Misread, match=f"--time-format {other} reads"):
        Clock(unit).minute(time)


@pytest.mark.parametrize("time", ["2026051209", "2026123123", "2026051210050", "2026051210050312"])
def test_a_date_with_its_hour_is_not_taken_for_a_unix_time(time: str) -> None:
    with pytest.raises(Malformed, match=rf"'{time}' cannot be counted: .*at most 366 days ahead"):
        Clock("auto").minute(time)  # of the year 2034
    assert Clock("unix").minute("1726051209") == 1726051209 // 60
    assert Clock("%Y%m%d%H", "UTC").minute("2026051209") == 29_642_940


@pytest.mark.parametrize(("time_format", "time"), [("auto", "soon"), ("unix-ms", "1431857103")])
def test_a_reason_names_time_format_where_there_is_such_an_option(
    time_format: str, time: str
) -> None:
    for advises in (True, False):
        with pytest.raises(Malformed) as caught:
            Clock(time_format, advises=advises).minute(time)
        assert ("--time-format" in str(caught.value)) is advises


class Days(list[date]):
    """The days of a counter that were asked for; each begins at minute 7."""

    def begins(self, day: date) -> int:
        self.append(day)
        return 7


@pytest.mark.parametrize(
    "time",
    ["2026-05-12+02:00", "2026-05-12-05:00", "2026-05-12 +02:00", "2026-05-12Z", "2026-05-12z",
     "2026-05-12 UTC", "20260512+0200", "2026-05-12+14:00", "2026-05-12"],
)  # fmt: skip
@pytest.mark.parametrize("time_zone", ["", "Asia/Tokyo"])
def test_a_date_with_its_offset_is_the_day_that_it_names(time: str, time_zone: str) -> None:
    days = Days()
    clock = Clock("auto", time_zone, days.begins)
    assert clock.minute(time) == 7
    assert days == [date(2026, 5, 12)]


def test_so_is_one_by_a_pattern() -> None:
    days = Days()
    clock = Clock("%d.%m.%Y%z", "", days.begins)
    assert clock.minute("12.05.2026+02:00") == 7
    assert days == [date(2026, 5, 12)]


def test_a_pattern_without_zone_takes_that_of_the_recipe() -> None:
    clock = Clock("%d/%m/%Y %H:%M", "America/New_York")
    assert clock.minute("17/05/2015 06:05") == MINUTE
    assert Clock("%m/%d/%y", "UTC").minute("05/17/15") == at(2015, 5, 17)


@pytest.mark.parametrize(
    ("time_format", "time_zone", "says"),
    [
        ("%d.%m.%Y", "", "has no %z: give the zone of the times"),
        ("%H:%M %z", "", "has no year"),
        ("%Q", "UTC", "bad directive"),
        ("%Y%", "UTC", "stray %"),
        ("iso", "UTC", "has no year"),
        ("%Y-%m-%d %Z", "UTC", "ignores the zone that %Z reads"),
        ("auto", "Mars/Olympus", "is no time zone"),
        ("auto", "../../etc/passwd", "is no time zone"),
    ],
)
def test_a_format_or_zone_that_cannot_be_is_refused(
    time_format: str, time_zone: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Clock(time_format, time_zone)


@examples(few=25, many=100)
@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2027, 11, 28), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(["", "Asia/Tokyo"]),
)
def test_a_time_with_its_zone_is_what_it_says(when: datetime, zone: str) -> None:
    minute = int(when.timestamp() // 60)
    clock = Clock(time_zone=zone)
    assert clock.minute(when.isoformat()) == minute
    assert clock.minute(str(when)) == minute
    assert (
        Clock("%Y-%m-%d %H:%M:%S.%f%z").minute(f"{when:%Y-%m-%d %H:%M:%S.%f%z}".zfill(31)) == minute
    )


@examples(few=25, many=100)
@given(st.text(max_size=80) | st.integers() | st.floats() | st.none())
def test_nothing_raises_anything_but_malformed(time: object) -> None:
    for clock in (
        Clock(time_zone="Europe/Berlin"),
        Clock("unix"),
        Clock("unix-ms"),
        Clock("unix-ns"),
        Clock("%Y %z"),
    ):
        try:
            clock.minute(time)
        except Malformed:
            pass


def test_more_times_than_are_remembered_are_read_all_the_same() -> None:
    clock = Clock("unix")
    assert [clock.minute(60 * n) for n in range(0, 50_000, 7)] == list(range(0, 50_000, 7))
