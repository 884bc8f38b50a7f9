"""Cron expressions in a time zone: the next time, and the errors. What they mean is
what cronsim makes of them: crontab(5), and Debian's cron where clocks are set.

Five fields (minute, hour, day of month, month, day of week), or six with seconds first. Sunday is 0
and 7. Where minutes and hours are both named, a time that a clock change leaves out comes at the
first instant after it, and one that it repeats comes once. (Not APScheduler's trigger: 0 is its
Monday, it loses the day whose midnight is left out, and stands still in a repeated hour.) On Lord
Howe Island, whose clocks are set by half an hour, a time within hours of that may be left out.
"""

from datetime import UTC, datetime
from typing import Final

from cronsim import CronSim, CronSimError

from countersink.counting.counters.buckets import zone

OFF: Final = "off"
"""The expression of a job that is not planned."""
MAX_LENGTH: Final = 255
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron:
    """An expression in a time zone. All times in and out are aware and in UTC, whole seconds.

    Attributes:
        text: the expression as it was given.
        time_zone: the IANA name.

    Raises:
        ValueError: it is none; the message says what is wrong with it.
    """

    def __init__(self, text: str, time_zone: str = "UTC") -> None:
        self.text = text
        self._zone = UTC if time_zone == "UTC" else zone(time_zone)
        self._fields = _MACROS.get(text.lower(), text)
        if len(text) > MAX_LENGTH:
            raise ValueError(f"a cron expression has at most {MAX_LENGTH} characters")
        try:
            CronSim(self._fields, datetime.now(self._zone))
        except CronSimError as error:
            why = str(error)
            raise ValueError(
                f"{text!r} is not a cron expression ({why[:1].lower()}{why[1:]}): five fields"
                " (minute, hour, day of month, month, day of week), six with seconds first, or off"
            ) from None

    def after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``; None if there is none."""
        for found in CronSim(self._fields, moment.astimezone(self._zone)):
            # In an hour that is repeated, times that have been come first.
            if (at := found.astimezone(UTC)) > moment:
                return at
        return None


def parse(text: str, time_zone: str = "UTC") -> Cron | None:
    """The expression; None for ``off``.

    Raises:
        ValueError: it is neither.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower() == OFF:
        zone(time_zone)
        return None
    return Cron(cleaned, time_zone)
