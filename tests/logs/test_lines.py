"""Reading access logs: what a line's key and minute are, and which lines are refused."""

from datetime import UTC, datetime

import pytest

from countersink.logs import (
    Counts,
    Malformed,
    Parser,
)
from countersink.runtime.limits import cut_key
from tests.backfill.format_helpers import cell

WHEN = "17/May/2015:10:05:03 +0000"
MINUTE = int(datetime(2015, 5, 17, 10, 5, tzinfo=UTC).timestamp()) // 60


def common(
    request: str = "GET /a?b=1 HTTP/1.1",
    *,
    host: str = "127.0.0.1",
    user: str = "-",
    when: str = WHEN,
    status: str = "200",
    size: str = "2326",
) -> bytes:
    return f'{host} - {user} [{when}] "{request}" {status} {size}'.encode()


def combined(request: str = "GET /a?b=1 HTTP/1.1", *, agent: str = "agent") -> bytes:
    return common(request) + f' "http://referer/" "{agent}"'.encode()


def key(line: bytes, kind: str = "path") -> str:
    found = cell(Parser(kind), line)
    assert found is not None
    assert isinstance(found[0], str)
    return found[0]


def minute(when: str) -> int:
    found = cell(Parser("path"), common(when=when))
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    "line",
    [
        *(combined() + end for end in (b"", b"\r", b" ", b' "10.1.1.1" 0.004 upstream')),
        *(common(user=user) for user in ("bob", "bob smith", "[bob", "bo[b] x", '"bob"', "-")),
        *(
            combined(agent=agent)
            for agent in (r"say \"hi\"", r"ends with \\", "", "-", 'x" "y', "[17/May/2015]")
        ),
    ],
)
def test_what_stands_beside_the_request_does_not_matter(line: bytes) -> None:
    assert cell(Parser("path"), line) == ("/a", MINUTE)


@pytest.mark.parametrize(
    ("request_line", "path", "target"),
    [
        ("GET /a/b.html?x=y?z HTTP/2.0", "/a/b.html", "/a/b.html?x=y?z"),
        ("GET /? HTTP/1.1", "/", "/?"),
        ("GET http://example.org/a?b HTTP/1.1", "/a", "http://example.org/a?b"),
        ("GET http://example.org?b HTTP/1.1", "/", "http://example.org?b"),
        ("GET //double//slash HTTP/1.1", "//double//slash", "//double//slash"),
        ("OPTIONS * HTTP/1.1", "*", "*"),
        ("CONNECT example.org:443 HTTP/1.1", "example.org:443", "example.org:443"),
        ("GET /with space/x HTTP/1.1", "/with space/x", "/with space/x"),
        ("GET /old", "/old", "/old"),
        ("M-SEARCH /upnp HTTP/1.1", "/upnp", "/upnp"),
        ("GET /é HTTP/1.1", "/é", "/é"),
        ("GET /HTTP/1.1 HTTP/1.1", "/HTTP/1.1", "/HTTP/1.1"),
    ],
)
def test_the_key_is_taken_from_the_request_target(
    request_line: str, path: str, target: str
) -> None:
    assert key(common(request_line), "path") == path
    assert key(common(request_line), "target") == target


@pytest.mark.parametrize(
    ("escaped", "path"),
    [
        (r"/a\"b", '/a"b'),
        (r"/a\\b", "/a\\b"),
        (r"/a\\x41", "/a\\x41"),
        (r"/\xc3\xa9", "/é"),
        (r"/\xff", "/%FF"),
        (r"/a\tb\nc", "/a\tb\nc"),
        (r"/\x00\x1b[2J", "/\x00\x1b[2J"),
        (r"/\q", r"/\q"),
    ],
)
def test_the_servers_escapes_are_undone(escaped: str, path: str) -> None:
    assert key(common(f"GET {escaped} HTTP/1.1")) == path


def test_a_time_in_the_referer_is_not_the_time() -> None:
    hostile = rb" [01/Jan/1999:00:00:00 +0000] \"GET /fake HTTP/1.1\" 200 1"
    whole = common() + b' "' + hostile + b'" "agent"'
    assert cell(Parser("path"), whole) == ("/a", MINUTE)
    for end in range(len(common()) + 2, len(whole) - len(b' "agent"') + 2):
        with pytest.raises(Malformed):
            key(whole[:end])


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("17/May/2015:10:05:59 +0000", datetime(2015, 5, 17, 10, 5, tzinfo=UTC)),
        ("17/May/2015:10:05:03 -0330", datetime(2015, 5, 17, 13, 35, tzinfo=UTC)),
        ("01/Jan/2016:00:30:00 +1400", datetime(2015, 12, 31, 10, 30, tzinfo=UTC)),
        ("30/Jun/2015:23:59:60 +0000", datetime(2015, 6, 30, 23, 59, tzinfo=UTC)),
        ("29/Feb/2024:12:00:00 +0545", datetime(2024, 2, 29, 6, 15, tzinfo=UTC)),
    ],
)
def test_the_minute_is_on_utc_whatever_the_zone(when: str, expected: datetime) -> None:
    assert minute(when) == int(expected.timestamp()) // 60


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "no time"),
        (common(when="17/Mai/2015:10:05:03 +0000"), "no month Mai"),
        (common(when="31/Feb/2015:10:05:03 +0000"), "the time cannot be"),
        (common(when="17/May/2015:10:05:03 +9900"), "the time cannot be"),
        (common(when="31/Dec/1969:10:05:03 +0000"), "1970"),
        (common(when="17/May/2015 10:05:03"), "no time"),
        (b"example.org:80 127.0.0.1 - - " + common().partition(b"- - ")[2], "client, ident"),
        (b"127.0.0.1 " + common().partition(b"- - ")[2], "client, ident and user"),
        (common("-"), "no request"),
        (common(r"\x16\x03\x01\x02"), "not 'method target version'"),
        (common("GET"), "not 'method target version'"),
        (common("/a HTTP/1.1"), "not 'method target version'"),
        (common("G\xcbT /a HTTP/1.1"), "not 'method target version'"),
        (common("POST /a"), "no HTTP version"),
        (common(status="2000"), "status and size"),
        (common()[:60], "the quoted request is missing or cut off"),
        (combined()[:-1], "the line is cut off"),
        (common() + b' "referer"', "the line is cut off"),
    ],
)
def test_a_line_that_cannot_be_counted_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        cell(Parser("path", input_format="combined"), line)


@pytest.mark.parametrize("path", ["/" + "x" * 254, "/" + "x" * 255, "/" + "é" * 128])
def test_a_long_path_is_cut_as_every_key_is(path: str) -> None:
    assert key(common(f"GET {path} HTTP/1.1")) == cut_key(path)


def test_a_path_is_cut_as_it_is_shown() -> None:
    assert key(common("GET /" + 100 * r"\xff" + " HTTP/1.1")) == cut_key("/" + 100 * "%FF")


@pytest.mark.parametrize("kind", ["host", "status"])
def test_a_line_without_a_request_still_has_a_client_and_a_status(kind: str) -> None:
    assert key(common("-", status="408"), kind) in ("127.0.0.1", "408")


def test_lines_are_counted_and_numbered() -> None:
    counts: Counts = {("/a", MINUTE): 5}
    lines = [combined(), b"bad", b"", b"  \r", common("GET /c HTTP/1.1"), b"\0\0" + combined()]
    rejected = Parser("path").count(lines, 11, counts)
    assert counts == {("/a", MINUTE): 7, ("/c", MINUTE): 1}
    assert [each.line for each in rejected] == [12]
    assert "it has no time such as [17/May/2015:10:05:03 +0000]" in rejected[0].reason
