"""Formats of logs: what tells them, what is said of lines that are in none, and server's words."""

import pytest

from countersink.logs import Counts, Malformed, Parser
from countersink.logs.errors import UnknownFormat
from countersink.logs.formats import LOG_FORMATS
from countersink.logs.formats.detection import Detected, detect
from countersink.logs.formats.log_format import format_from_text
from tests.backfill.format_helpers import cell
from tests.support.examples import MANY
from tests.support.log_samples import SAMPLES

PLAIN = b'192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 1 "-" "-"'
REST = PLAIN.partition(b"192.0.2.1")[2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"Mar 11 12:00:00 web nginx: " + PLAIN, "--envelope syslog reads it"),
        (b"web-1 | " + PLAIN, "--envelope compose reads it"),
        (b'"' + PLAIN + b'"', "--envelope quotes reads it"),
        (b"shop.example:80 " + PLAIN, "--input-format vhost_combined reads it"),
        (b"some words in front client.example" + REST, "is not client, ident and user"),
        (b".0.2.1" + REST, "is not client, ident and user"),
        (b"2001:db8:::1" + REST, "is not client, ident and user"),
        (b"192.0.2.1," + REST, r"is not client, .* \(--log-format reads other layouts\)"),
        (b"192.0.2.1 - fr [10/Oc" + PLAIN, "is not client, ident and user"),
        (b"192.0.2.1 - - [10/Oct/2000" + PLAIN, "is not client, ident and user"),
    ],
)
def test_a_line_under_a_wrong_client_is_rejected_and_says_what_reads_it(
    line: bytes, says: str
) -> None:
    for key in ("path", "host"):
        with pytest.raises(Malformed, match=says):
            cell(Parser(key, input_format="combined"), line)


@pytest.mark.parametrize(
    "client",
    [
        "::",
        "::1",
        "fe80::1%eth0",
        "::ffff:192.0.2.1",
        "[2001:db8::1]",
        "localhost",
        "xn--bcher-kva.example",
        "unix:",
        "-",
        "300.example.com",
        "10.300.isp.net",
    ],
)
def test_clients(client: str) -> None:
    found = cell(Parser("host", input_format="combined"), client.encode() + REST)
    assert found is not None
    assert found[0] == client


def test_an_address_has_numbers_up_to_255() -> None:
    with pytest.raises(Malformed, match="up to 255"):
        cell(Parser("host", input_format="combined"), b"192.0.2.256" + REST)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_format_is_told_from_its_own_lines_alone(sample) -> None:  # type: ignore[no-untyped-def]
    if "-words" in sample.name:
        assert detect([line.encode() for line in sample.lines]) is None
        return
    detected = detect([line.encode() for line in sample.lines])
    assert detected is not None
    assert detected.input_format in LOG_FORMATS
    for other in SAMPLES:
        if "-words" not in other.name and (
            one := detect([line.encode() for line in other.lines])
        ) not in (None, detected):
            together = [line.encode() for line in (*sample.lines, *other.lines)]
            assert one is not None
            assert str(one) != str(detected)
            if {one, detected} == {Detected("combined"), Detected("vhost_combined")}:
                assert detect(together) == Detected("vhost_combined")
                continue
            with pytest.raises(UnknownFormat, match="in several formats"):
                detect(together)


def test_lines_in_no_format_do_not_tell_one() -> None:
    assert detect([b"", b"nonsense", b'{"a": 1}', b"#Fields: a b", b"[]"]) is None
    assert detect([b"nonsense", PLAIN]) == Detected("combined")
    rejected = Parser().count([b"", b"nonsense", b" \r"], 1, {})
    assert [each.line for each in rejected] == [2]


def test_a_user_name_tells_no_format() -> None:
    spoofed = PLAIN.replace(b" - - ", b" - x [01/Jan/2020:00:00:00 +0000] ")
    assert spoofed != PLAIN
    assert detect([spoofed, PLAIN]) == Detected("combined")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("%h %y %t", "%y at character 4"),
        ("%h %", "the % at character 4"),
        ("%h%u %t", "no text between %h at character 1 and %u|%h"),
        ("%h %i %t", "%i at character 4 .* needs a name"),
        ("%h %{%H:%Q}t", "time format '%H:%Q': 'Q' is a bad directive"),
        ("%h %r", "has no time"),
        ("%h %{%H:%M:%S}t", "has no year"),
        ("%h %{%Y-%m-%d}t %{%H:%M:%S}t", "by --time-zone"),
        ("$remote_addr$uri [$time_local]", "no text between|.uri"),
        ("log_format a escape=json '{$uri}'", "--input-format nginx-json"),
        ("%h $remote_addr", "begin it with LogFormat or with log_format"),
        ("combined", "neither directives of Apache"),
        ("%{%Y-%m-%d}t %r", "%{%Y-%m-%d}t has no hours: --log-format has no time of day"),
        ("escape=xml '$uri'", "escape=xml is not known"),
    ],
)
def test_words_that_cannot_be_read_say_where(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        format_from_text(text)


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        (
            '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
            (
                b'a.example:443 192.0.2.1 - jo hn [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1"'
                b' 200 5 "-" "say \\"x\\""'
            ),
            "{vhost}|{port}|{host}|{user}|{path}|{query}|{status}|{size}|{agent}",
            'a.example|443|192.0.2.1|jo hn|/a|b=1|200|5|say "x"',
        ),
        (
            "%a [%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t] %m %U%q %H %400,501{X-Why}i 100%%",
            b"2001:db8::1 [10/Oct/2000 13:55:36.123 -0700] GET /a/b?c=d HTTP/1.1 - 100%",
            "{host} {method} {target} {path} {query} {protocol} {header:x-why}",
            "2001:db8::1 GET /a/b?c=d /a/b c=d HTTP/1.1 -",
        ),
        (
            "%{usec}t|%h|%{SSL_PROTOCOL}x|%D",
            b"971211336123456|192.0.2.1|TLSv1.3|5",
            "{tls:ssl_protocol}{duration}",
            "",
        ),
        (
            '$time_iso8601 ${remote_addr} "$request" $status $upstream_response_time $host;',
            b'2000-10-10T20:55:36+00:00 192.0.2.1 "GET /a?b HTTP/1.1" 200 0.1, 0.2 : 0.3 a.b;',
            "{host}{path} {upstream_response_time} {vhost}",
            "192.0.2.1/a 0.1, 0.2 : 0.3 a.b",
        ),
    ],
)
def test_servers_words(text: str, line: bytes, key: str, expected: str) -> None:
    parser = Parser(key, log_format=text)
    if not expected:
        with pytest.raises(Malformed, match="is missing"):
            cell(parser, line)
        return
    assert cell(parser, line) == (expected, 971211336 // 60)


def test_a_format_of_a_thousand_words_says_at_once_what_a_line_lacks() -> None:
    names = [f"x-{number}" for number in range(1_000)]
    parser = Parser("host", log_format="%h %t " + " ".join(f"%{{{name}}}i;" for name in names))
    begin = b"192.0.2.1 [10/Oct/2000:13:55:36 -0700] "
    values = [b"%d;" % number for number in range(1_000)]
    assert cell(parser, begin + b" ".join(values)) == ("192.0.2.1", 971211336 // 60)
    for lacking in (0, 500, 999):
        ends = "';'" if lacking == 999 else "'; '"
        with pytest.raises(Malformed, match=rf"{ends} is missing after %{{x-{lacking}}}i"):
            cell(parser, begin + b" ".join([*values[:lacking], b"without"]))


BEGINS = {
    "common": b"",
    "combined": b"192.0.2.1 ",
    "vhost_combined": b"h - ",
    "alb": b"http 2018-07-02T22:23:00.1Z a ",
    "haproxy": b"<1>1 - a ",
}
EACH_BEGINNING = pytest.mark.long("each beginning for each format")
HOSTILE = [
    pytest.param(
        *(name, begin),
        id=f"{name}-{own}",
        marks=() if own == (name if name in BEGINS else "combined") else EACH_BEGINNING,
    )
    for name in [*sorted(set(LOG_FORMATS) - {"w3c"}), "words"]
    for own, begin in BEGINS.items()
]


@pytest.mark.parametrize(("name", "begin"), HOSTILE)
def test_a_hostile_line_costs_no_more_than_its_length(name: str, begin: bytes) -> None:
    # A pattern that backtracks would not come back before the test's time limit.
    zone = "UTC" if name == "haproxy" else ""
    parser = (
        Parser(log_format='%h %l %u %t "%r" %>s %{a}i | %{b}i')
        if name == "words"
        else Parser(input_format=name, time_zone=zone)
    )
    for unit in (
        b"a",
        b"a.",
        b"1.",
        b"1:",
        b" ",
        b'"',
        b"\\",
        b"[",
        b"- ",
        b"1/",
        b"{} ",
        b"a | ",
        b"1.2.3.4:5, ",
        b"a://",
    ):
        line, counts = begin + unit * (50_000 if MANY else 25_000), Counts()
        assert len(parser.count([line], 1, counts)) == bool(line.strip())
        assert counts == {}
