"""Lines of logs as those who write them document them (``log_samples.toml``), and what each says.

Of each line the oracle takes day, client, path and status by splitting it where its format says;
nothing of the code under test is used.
"""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

Fields = tuple[str, str, str, str]
"""Day in UTC, client, path, status."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A log.

    Attributes:
        name: of the sample; its counter.
        lines: good ones, and directives.
        bad: neighbours that are not in the format.
        read: what a good line says; None: nothing (a directive).
        options: that the commands need; none where the format tells itself.
    """

    name: str
    lines: tuple[str, ...]
    bad: tuple[str, ...]
    read: Callable[[str], Fields | None]
    options: tuple[str, ...] = ()
    expected: tuple[Fields, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(each for line in self.lines if (each := self.read(line)) is not None)
        object.__setattr__(self, "expected", found)

    @property
    def text(self) -> str:
        """The log, with the bad lines in its midst."""
        first, *others = self.lines
        return "\n".join((first, *others[:-1], *self.bad, *others[-1:])) + "\n"


def _common_day(text: str) -> str:
    """The UTC day of ``10/Oct/2000:13:55:36 -0700``."""
    when, zone = text.split(" ")
    offset = timedelta(hours=int(zone[:3]), minutes=int(zone[0] + zone[3:]))
    at = datetime.strptime(when, "%d/%b/%Y:%H:%M:%S").replace(tzinfo=timezone(offset))
    return at.astimezone(UTC).date().isoformat()


def _common(line: str) -> Fields:
    before, request, after = line.split('"')[:3]
    when = before[before.index("[") + 1 : before.index("]")]
    path = request.split(" ")[1].split("?")[0]
    return _common_day(when), before.split(" ")[0], path, after.split()[0]


def _from_host(line: str) -> Fields:
    return _common(line[line.index("192.0.2.") :])


def _quotes(line: str) -> Fields:
    return _common(line[1:-1].replace('\\"', '"').replace('""', '"'))


def _alb(line: str) -> Fields:
    words = line.split(" ")
    url = line.split('"')[1].split(" ")[1]
    path = "/" + url.split("/", 3)[3].split("?")[0]
    return words[1][:10], words[3].rsplit(":", 1)[0], path, words[8]


def _haproxy(line: str) -> Fields:
    words = line[line.index("]: ") + 3 :].split(" ")
    paris = ZoneInfo("Europe/Paris")
    at = datetime.strptime(words[1][1:-5], "%d/%b/%Y:%H:%M:%S").replace(tzinfo=paris)
    day = at.astimezone(UTC).date().isoformat()
    return day, words[0].split(":")[0], line.split('"')[1].split(" ")[1], words[5]


def _caddy(line: str) -> Fields:
    found = json.loads(line)
    at = datetime.fromtimestamp(found["ts"], UTC)
    request = found["request"]
    path = request["uri"].split("?")[0]
    return at.date().isoformat(), request["remote_ip"], path, str(found["status"])


def _traefik(line: str) -> Fields:
    found = json.loads(line)
    path = found["RequestPath"].split("?")[0]
    return found["StartUTC"][:10], found["ClientHost"], path, str(found["DownstreamStatus"])


def _nginx_json(line: str) -> Fields:
    found = json.loads(line)
    at = datetime.fromisoformat(found["time_iso8601"]).astimezone(UTC)
    path = found["request"].split(" ")[1].split("?")[0]
    return at.date().isoformat(), found["host"], path, found["status"]


def _columns(
    divider: str, *, unquote: Callable[[str], str] = lambda text: text
) -> Callable[[str], Fields | None]:
    """Of lines whose columns are told by directives on the way."""
    names = list[str]()

    def read(line: str) -> Fields | None:
        nonlocal names
        if line.startswith("#"):
            if line.startswith("#Fields:"):
                names = line.split()[1:]
            return None
        row = dict(zip(names, line.split(divider), strict=True))
        return row["date"], row["c-ip"], unquote(row["cs-uri-stem"]), row["sc-status"]

    return read


def _custom(line: str) -> Fields:
    """``$msec|$remote_addr|$request_method $request_uri|$status|…``."""
    when, host, request, status, *_ = line.split("|")
    day = datetime.fromtimestamp(float(when), UTC).date().isoformat()
    return day, host, request.split(" ")[1].split("?")[0], status


_READERS: Final[dict[str, Callable[[str], Fields | None]]] = {
    "combined": _common,
    "common": _common,
    "vhost_combined": lambda line: _common(line.split(" ", 1)[1]),
    "traefik-common": _common,
    "iis": _columns(" "),
    "cloudfront": _columns("\t", unquote=lambda text: text.replace("%25", "%")),
    "alb": _alb,
    "haproxy": _haproxy,
    "caddy": _caddy,
    "traefik": _traefik,
    "nginx-json": _nginx_json,
    "syslog": lambda line: _common(line.split(": ", 1)[1]),
    "syslog-5424": _from_host,
    "compose": _from_host,
    "docker": lambda line: _common(json.loads(line)["log"]),
    "cri": _from_host,
    "quotes": _quotes,
    "apache-words": _common,
    "nginx-words": _custom,
}
_FILE: Final = Path(__file__).with_suffix(".toml")
SAMPLES: Final = tuple(
    Sample(
        each["name"],
        tuple(each["lines"]),
        tuple(each["bad"]),
        _READERS[each["name"]],
        tuple(each.get("options", ())),
    )
    for each in tomllib.loads(_FILE.read_text("utf-8"))["sample"]
)
assert [each.name for each in SAMPLES] == [*_READERS]
