"""Logs as real servers write them come to the same through `tail` and `backfill`."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.backfill.options import Recipe
from countersink.logs.formats.detection import Detected, detect
from tests.backfill.format_helpers import at, both, read, where
from tests.support.examples import examples
from tests.support.log_samples import SAMPLES

NOON = at(2026, 3, 1, 12)
WHEN = "2026-03-01T12:00:00Z"
HAPROXY = Recipe(input_format="haproxy", time_zone="UTC")


def words(log_format: str) -> Recipe:
    return Recipe(input_format="log-format", log_format=log_format)


def haproxy(client: str, request: str = "GET /a HTTP/1.1") -> str:
    return (
        f"{client} [01/Mar/2026:12:00:00.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ----"
        f' 1/1/1/1/0 0/0 "{request}"'
    )


@pytest.mark.parametrize(
    ("client", "host"),
    [
        ("::ffff:10.10.10.1:56952", "::ffff:10.10.10.1"),
        ("2001:db8::1:443", "2001:db8::1"),
        ("1:2:3:4:5:6:7:8:443", "1:2:3:4:5:6:7:8"),
        (":::80", "::"),
        ("fe80::1%eth0:80", "fe80::1%eth0"),
        ("[2001:db8::1]:443", "[2001:db8::1]"),
        ("10.0.1.2:33317", "10.0.1.2"),
        ("unix:1", "unix"),
        ("-:-", "-"),
    ],
)
def test_haproxy_writes_a_port_behind_every_client(client: str, host: str) -> None:
    recipe = replace(HAPROXY, key="{host}{path}")
    assert both(recipe, [haproxy(client)]) == ({(f"{host}/a", NOON): 1}, {})


@pytest.mark.parametrize(
    ("written", "path"),
    [("#22x#22", '"x"'), ("#23", "#"), ("#C3#A9", "é"), ("#ff", "%FF"), (r"\x22", r"\x22")],
)
def test_haproxy_escapes_by_a_hash_alone(written: str, path: str) -> None:
    line = haproxy("192.0.2.1:1", f"GET /{written}?q HTTP/1.1")
    assert both(HAPROXY, [line]) == ({(f"/{path}", NOON): 1}, {})


ALB = (
    "http 2026-03-01T12:00:00.186641Z app/lb/50dc6c495c0c9188 192.0.2.1:2817 10.0.0.1:80 0.000"
    ' 0.001 0.000 200 200 34 366 "GET http://h.example:80/a HTTP/1.1" "curl/7.46.0" - - arn:aws:x'
    ' "Root=1-58337262-36d228ad5d99923122bbe354"'
)


@pytest.mark.parametrize(
    ("rest", "vhost"),
    [
        ("", ""),
        (" - -", "-"),
        (" - - 0", "-"),
        (' "h.example"', "h.example"),
        (' "h.example" "arn:x" 0 2026-03-01T12:00:00.0Z "forward"', "h.example"),
    ],
)
def test_lines_of_balancers_from_before_2018_end_sooner(rest: str, vhost: str) -> None:
    recipe = Recipe(input_format="alb", key="{vhost}{path}")
    assert both(recipe, [ALB + rest]) == ({(f"{vhost}/a", NOON): 1}, {})


@pytest.mark.parametrize(
    ("envelope", "prefix"),
    [
        ("syslog", "2026-03-01T12:00:00+0000 web nginx[1]: "),
        ("syslog", "2026-03-01T12:00:00.123456+0100 web nginx[1]: "),
        ("syslog", "Mar 01 12:00:00.123456 web nginx[1]: "),
        ("compose", "\x1b[36mweb_1  |\x1b[0m "),
    ],
)
def test_journalctl_and_docker_compose_write_more_prefixes(envelope: str, prefix: str) -> None:
    line = prefix + '192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"'
    recipe = Recipe(input_format="combined", envelope=envelope)
    assert both(recipe, [line]) == ({("/a", NOON): 1}, {})


def nginx(rest: str) -> str:
    return '{"time_iso8601": "' + WHEN + '", ' + rest + "}"


DEEP = '"uri": "/a", "n": ' + "[" * 499 + "%s" + "]" * 499


@pytest.mark.parametrize(
    "rest",
    [
        '"uri": "/a", "n": ' + "9" * 400,
        '"uri": "/%61", "uri": "/a"',
        r'"uri": "/a", "n": "\\ud800 \ud83d\ude00 \\\\udc00"',
        DEEP % "",
        '"uri": "/a", "n": "' + "[{" * 1000 + '"',
    ],
)
def test_json_is_read_in_one_way(rest: str) -> None:
    assert both(Recipe(input_format="nginx-json"), [nginx(rest)]) == ({("/a", NOON): 1}, {})


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (r'"uri": "/\ud800"', "no JSON"),
        (r'"request": "GET /\udcff HTTP/1.1"', "no JSON"),
        (r'"uri": "/a", "n": "\\\ud83d\ud83d\ude00"', "no JSON"),
        (r'"uri": "/a", "\uDE00\uD83D": ""', "no JSON"),
        ('"uri": "/a", "n": NaN', "no JSON"),
        ('"uri": "/a", "n": -Infinity', "no JSON"),
        ('"uri": "/a", "n": 1e999', "no JSON: Number out of range"),
        (r'"uri": "/\x22"', "escape=json"),
        (DEEP.replace("[", "[" * 200) % "", "nested too deep"),
        (DEEP.replace("[", '{"":' * 200) % "", "nested too deep"),
        ('"uri": "/a"}{"uri": "/b"', "no JSON"),
        ('"uri": "/a", "n": "\t"', "no JSON"),
        ('"uri": "/a", "time_iso8601": "2026-03-01"', "a date without a time of day"),
    ],
)
def test_json_is_refused_in_one_way(rest: str, reason: str) -> None:
    counts, rejected = both(
        Recipe(input_format="nginx-json", time_zone="Europe/Berlin"), [nginx(rest)]
    )
    assert counts == {}
    assert reason in rejected[1]


def caddy(logger: str, uri: str = "/a") -> str:
    request = {"remote_ip": "192.0.2.1", "method": "GET", "uri": uri}
    line = {"level": "info", "ts": 1772366400.5, "request": request, "status": 500}
    return json.dumps(line | ({"logger": logger} if logger else {}))


def test_caddys_other_loggers_tell_of_no_requests() -> None:
    recipe = Recipe(input_format="caddy")
    lines = [
        caddy("http.log.access"),
        caddy("http.log.access.log0"),
        caddy(""),
        caddy("http.log.error"),
        caddy("http.log.error.log0"),
        caddy("http.handlers.reverse_proxy"),
        '{"level":"info","ts":1772366400.1,"logger":"tls","msg":"cleaning storage unit"}',
    ]
    counts, rejected = both(recipe, lines)
    assert counts == {("/a", NOON): 3}
    assert list(rejected) == [4, 5, 6, 7]
    assert "Caddy's logger 'http.log.error', no request" in rejected[4]
    assert "--where 'logger~http.log.access*' leaves these out" in rejected[4]
    asked = replace(recipe, where=(where("logger", "~", "http.log.access*"),))
    assert both(asked, lines) == ({("/a", NOON): 2}, {})


@pytest.mark.parametrize("uri", ["", "-"])
@pytest.mark.parametrize("key", ["path", "target", "query"])
@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        (Recipe(input_format="caddy"), caddy("http.log.access", "URI")),
        (
            Recipe(input_format="traefik"),
            '{"StartUTC":"' + WHEN + '","RequestMethod":"GET","RequestPath":"URI"}',
        ),
        (Recipe(input_format="nginx-json"), nginx('"uri": "URI", "request": "URI"')),
        (Recipe(input_format="nginx-json"), nginx('"request_uri": "URI", "request": "-"')),
        (
            Recipe(input_format="combined"),
            '192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "URI" 408 0 "-" "-"',
        ),
        (
            Recipe(input_format="log-format", log_format='[$time_local] "$request_uri"'),
            '[01/Mar/2026:12:00:00 +0000] "URI"',
        ),
    ],
)
def test_a_request_for_nothing_is_rejected(recipe: Recipe, line: str, key: str, uri: str) -> None:
    counts, rejected = both(replace(recipe, key=key), [line.replace("URI", uri)])
    assert (counts, rejected) == ({}, {1: "the client sent no request"})


LOCAL = "[01/Mar/2026:12:00:00 +0000]"


@pytest.mark.parametrize(
    ("log_format", "line", "key", "expected"),
    [
        # Names of headers have no case.
        ('%t "%r" "%{X-Real-IP}i"', f'{LOCAL} "GET /a H" "::1"', "{header:X-REAL-ip}", "::1"),
        ('[$time_local] "$request" $Foo', f'{LOCAL} "GET /a HTTP/1" x', "{foo}", "x"),
        # What the client asked for, before what the server has made of it.
        (
            '[$time_local] $uri "$request_uri" "$request"',
            f'{LOCAL} /index.php "/a?b" "GET /x HTTP/1.1"',
            "{path}|{target}|{query}|{uri}|{method}",
            "/a|/a?b|b|/index.php|GET",
        ),
        (
            '[$time_local] "$request" $uri $args',
            f'{LOCAL} "POST /a?b HTTP/1.1" /index.php q=/a',
            "{path}|{target}|{query}|{args}|{protocol}",
            "/a|/a?b|b|q=/a|HTTP/1.1",
        ),
        ("[$time_local] $uri $args", f"{LOCAL} /a b=c", "{path}|{target}", "/a|/a?b=c"),
        ("[$time_local] $uri $args", f"{LOCAL} /a -", "{path}|{target}", "/a|/a"),
        ("[$time_local] $uri", f"{LOCAL} /a b", "path", "/a b"),
        # An address with its port.
        (
            '$remote_addr:$remote_port [$time_local] "$request"',
            f'192.0.2.1:443 {LOCAL} "GET /a HTTP/1.1"',
            "{host} {remote_port}",
            "192.0.2.1 443",
        ),
        (
            '[$time_local] "$request" $remote_addr:$remote_port',
            f'{LOCAL} "GET /a HTTP/1.1" 2001:db8::1:443',
            "{host} {remote_port}",
            "2001:db8::1 443",
        ),
        (
            '%h:%{remote}p %t "%r"',
            f'crawl.example:5 {LOCAL} "GET /a HTTP/1.1"',
            "{host} {port:remote}",
            "crawl.example 5",
        ),
        # Nothing is escaped.
        (
            """log_format a escape=none '[$time_local] "$request" "$http_user_agent"';""",
            rf'{LOCAL} "GET /\x22"b HTTP/1.1" "a\"',
            "{path} {agent}",
            '/\\x22"b a\\',
        ),
        (
            """escape=default '[$time_local] "$request"'""",
            rf'{LOCAL} "GET /\x22 HTTP/1.1"',
            "path",
            '/"',
        ),
    ],
)
def test_servers_words(log_format: str, line: str, key: str, expected: str) -> None:
    assert both(replace(words(log_format), key=key), [line]) == ({(expected, NOON): 1}, {})


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        (words("[$time_local] $uri $args"), f"{LOCAL} /c d -"),
        (words("%t %U %q"), f"{LOCAL} /c d ?e"),
        (
            words('$remote_addr:$remote_port [$time_local] "$request"'),
            f'1.2.3:4 {LOCAL} "GET / HTTP/1"',
        ),
        *((Recipe(input_format="alb"), ALB[:-1] + end) for end in ("", '" "h.exa', '""h.example"')),
        *((HAPROXY, haproxy(torn)) for torn in ("0.1.2:33317", "1:2:3:80", ":80")),
        (HAPROXY, haproxy("10.0.1.2:33317:1")),
    ],
)
def test_a_torn_line_or_one_that_would_be_read_in_a_wrong_way_is_rejected(
    recipe: Recipe, line: str
) -> None:
    counts, rejected = both(recipe, [line])
    assert (counts, list(rejected)) == ({}, [1])


FIELDS = "#Fields: date time c-ip cs-uri-stem cs-uri-query sc-status"


def w3c(path: str, divider: str = " ") -> str:
    return divider.join(["2026-03-01", "12:00:00", "192.0.2.1", path, "q=1", "200"])


def test_each_line_of_a_w3c_log_tells_what_divides_it() -> None:
    lines = [
        FIELDS,
        w3c("/a"),
        w3c("/b", "\t"),
        w3c("/c\td"),
        "",
        w3c("/e", "\t") + "\r",
        "\0 " + w3c("/f", "\t"),
        "\t" + w3c("/g"),
        "#Remark: x",
        w3c("/h i", "\t"),
        w3c("/a"),
    ]
    expected = {(f"/{path}", NOON): 1 for path in ("b", "c\td", "e", "f", "g", "h i")}
    assert both(Recipe(input_format="w3c"), lines) == (expected | {("/a", NOON): 2}, {})


def test_lines_after_fields_without_a_name_are_rejected() -> None:
    lines = [FIELDS, w3c("/a"), "#Fields:", w3c("/b"), "#Date: 2026-03-01", w3c("/c"), FIELDS]
    counts, rejected = both(Recipe(input_format="w3c"), [*lines, w3c("/d")])
    assert counts == {("/a", NOON): 1, ("/d", NOON): 1}
    assert list(rejected) == [4, 6]


@pytest.mark.parametrize("key", ["path", "status", "{cs-uri-query}"])
def test_a_torn_line_is_not_counted_at_midnight_of_its_date_directive(key: str) -> None:
    lines = ["#Date: 2026-03-01", "#Fields: time c-ip cs-uri-stem cs-uri-query sc-status"]
    lines += ["12:00:00 192.0.2.1 /a q 200", "12:00:00 192.0.2.1 /a q", "nonsense"]
    counts, rejected = both(Recipe(input_format="w3c", key=key), lines)
    assert (list(counts.values()), list(rejected)) == ([1], [4, 5])


COMMON_REST = ' - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1'
CLIENTS = [
    ("192.0.2.14", "192.0.2.14"),
    ("192.0.2.14:42001", "192.0.2.14"),
    ("[2001:db8::7]:42001", "[2001:db8::7]"),
    ("2001:db8::7", "2001:db8::7"),
    ("192.0.2.14, 198.51.100.17", "192.0.2.14"),
    ("192.0.2.14:42001,198.51.100.17:80,203.0.113.2", "192.0.2.14"),
    ("2001:db8::7, 192.0.2.14", "2001:db8::7"),
    ("unknown, 192.0.2.14", "unknown"),
]


@pytest.mark.parametrize(("written", "host"), CLIENTS)
@pytest.mark.parametrize(
    ("recipe", "before"),
    [
        (Recipe(input_format="combined"), ""),
        (Recipe(input_format="common"), ""),
        (Recipe(input_format="vhost_combined"), "www.example.org:443 "),
        (Recipe(input_format="vhost_combined"), "www.example.org "),
        (words('%h %l %u %t "%r" %>s %b'), ""),
        (words('%a %l %u %t "%r" %>s %b'), ""),
        (words('%{X-Forwarded-For}i %l %u %t "%r" %>s %b'), ""),
        (words('$remote_addr - $remote_user [$time_local] "$request" $status 1'), ""),
        (words('$http_x_forwarded_for - - [$time_local] "$request" $status 1'), ""),
    ],
)
def test_a_client_is_the_first_address_of_a_list_without_its_port(
    recipe: Recipe, before: str, written: str, host: str
) -> None:
    lines = [f"{before}{written}{COMMON_REST}", f"{before}{host}{COMMON_REST}"]
    assert both(replace(recipe, key="{host}{path}"), lines) == ({(f"{host}/a", NOON): 2}, {})


def test_a_client_of_a_w3c_log_has_no_port() -> None:
    lines = [FIELDS, *(w3c("/a").replace("192.0.2.1", f"192.0.2.14:4200{n}") for n in range(3))]
    for key in ("host", "{c-ip}"):
        recipe = Recipe(input_format="w3c", key=key)
        assert both(recipe, lines) == ({("192.0.2.14", NOON): 3}, {})


@pytest.mark.parametrize(
    "client", ["192.0.2.1,", ", 192.0.2.1", "192.0.2.1,, 192.0.2.2", "192.0.2.1, 192.0.2", "1, 2"]
)
def test_a_torn_list_of_clients_is_rejected(client: str) -> None:
    for recipe in (Recipe(input_format="combined"), Recipe(input_format="vhost_combined")):
        counts, rejected = both(recipe, [client + COMMON_REST])
        assert (counts, list(rejected)) == ({}, [1])


COMBINED_LINE = '192.0.2.4 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" '


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('- - "-" "curl/8" 45640 "-" "-" 0ms', "-|-|-|curl/8"),  # as Traefik writes it
        ('- 0 "-" "curl/8"', "-|0|-|curl/8"),
        ('200 5 - "curl/8"', "200|5|-|curl/8"),
        ('200 5 http://a.example/b?c "curl/8"', "200|5|http://a.example/b?c|curl/8"),
        ('200 5 "http://a.example/b c" -', "200|5|http://a.example/b c|-"),
        ("200 5 - -", "200|5|-|-"),
        ('200 5 - "cu\\"rl" further', '200|5|-|cu"rl'),
    ],
)
def test_servers_leave_out_a_status_or_quotes(rest: str, said: str) -> None:
    key = "{status}|{size}|{referer}|{agent}"
    for name, before in (("combined", ""), ("vhost_combined", "h.example:80 ")):
        recipe = Recipe(input_format=name, key=key)
        lines = [before + COMBINED_LINE + rest]
        assert both(recipe, lines) == ({(said, NOON): 1}, {})
        assert both(replace(recipe, key="path"), lines) == ({("/a", NOON): 1}, {})


@pytest.mark.parametrize(
    "rest",
    ['200 5 0.123 "curl/8"', '200 5 "-" cu', "200 5 http://a.exa", '-- 5 "-" "-"', '200 5 -"a"'],
)
def test_what_is_no_referer_is_not_taken_for_one(rest: str) -> None:
    counts, rejected = both(Recipe(input_format="combined"), [COMBINED_LINE + rest])
    assert (counts, list(rejected)) == ({}, [1])


@pytest.mark.parametrize("before", ["", "h.example:80 "])
def test_quotes_that_are_not_escaped_are_the_agents_at_the_end_of_a_line(before: str) -> None:
    good = before + COMBINED_LINE + '200 5 "-" "a "b" c"'
    torn = [
        good[:-1],
        good + COMBINED_LINE + '200 5 "-" "x"',
        good[:-2] + COMBINED_LINE + '200 5 "-" "x"',
    ]
    name = "vhost_combined" if before else "combined"
    recipe = Recipe(input_format=name, key="{path} {agent}")
    counts, rejected = both(recipe, [good, *torn, good + "\r"])
    assert (counts, list(rejected)) == ({('/a a "b" c', NOON): 2}, [2, 3, 4])


def test_lines_with_and_without_their_site_may_stand_in_one_log() -> None:
    lines = [
        COMBINED_LINE + '200 5 "-" "-"',
        "www.example.org:443 " + COMBINED_LINE + '200 5 "-" "-"',
        "www.example.org " + COMBINED_LINE + "200 5",
        # A client by its name, and a user with a blank: not a site, and a client without a name.
        COMBINED_LINE.replace("192.0.2.4 - -", "crawl.example - john doe") + "200 5",
        COMBINED_LINE.replace("192.0.2.4 - -", "192.0.2.4:42001 - john doe") + "200 5",
        "www.example.org:443 " + COMBINED_LINE.replace("192.0.2.4 - -", "- - -") + "200 5",
    ]
    assert detect([line.encode() for line in lines]) == Detected("vhost_combined")
    recipe = Recipe(input_format="vhost_combined", key="[{vhost}] {host} {user} {path}")
    site = "www.example.org"
    assert both(recipe, lines) == (
        {
            ("[] 192.0.2.4 - /a", NOON): 1,
            (f"[{site}] 192.0.2.4 - /a", NOON): 2,
            ("[] crawl.example john doe /a", NOON): 1,
            ("[] 192.0.2.4 john doe /a", NOON): 1,
            (f"[{site}] - - /a", NOON): 1,
        },
        {},
    )


@pytest.mark.parametrize("columns", ["cs-uri-stem", "cs-uri"])
def test_a_query_within_the_stem_is_not_of_the_path(columns: str) -> None:
    expected = "/stream|/stream?title=UKR%20Nights|title=UKR%20Nights"
    lines = [
        f"#Fields: c-ip c-dns date time {columns} c-status",
        "192.0.2.4 192.0.2.8 2026-03-01 12:00:00 /stream?title=UKR%20Nights 200",
    ]
    recipe = Recipe(input_format="w3c", key="{path}|{target}|{query}")
    assert both(recipe, lines) == ({(expected, NOON): 1}, {})
    assert both(replace(recipe, key="path"), lines) == ({("/stream", NOON): 1}, {})


CLOUDFRONT = (
    "2026-03-01\t12:00:00\tCDG50-P2\t703\t192.0.2.4\tGET\td.example\t/a\t400\t-\tcurl\tq=42"
)


def test_lines_of_cloudfront_are_known_without_their_fields() -> None:
    recipe = Recipe(input_format="w3c", key="{host} {target} {status}")
    lines = [CLOUDFRONT, CLOUDFRONT + "\t-\tHit\tid", CLOUDFRONT.replace("\t", " "), "a\tb\tc"]
    counts, rejected = both(recipe, [*lines, FIELDS, w3c("/b")])
    assert counts == {
        ("192.0.2.4 /a?q=42 400", NOON): 2,
        ("192.0.2.1 /b?q=1 200", NOON): 1,
    }
    assert rejected == dict.fromkeys((3, 4), "there is no #Fields: directive before it")


HTTPSLOG = (
    " 0/0000000000000000/0/0/0 www.example.org/TLSv1.3/TLS_AES_256_GCM_SHA384",
    " 0/0/0/0/1 -/TLSv1.2/ECDHE",
)


@pytest.mark.parametrize("rest", HTTPSLOG)
def test_haproxy_says_more_of_tls_behind_the_request(rest: str) -> None:
    line = haproxy("192.0.2.1:1") + rest
    assert both(HAPROXY, [line]) == ({("/a", NOON): 1}, {})
    assert detect([line.encode()]) == Detected("haproxy")


@pytest.mark.parametrize(
    ("written", "key", "expected"),
    [
        ("GET /a?" + "q" * 900, "path", "/a"),
        ("GET /a?q HT", "{host} {status} {method}", "192.0.2.1 200 GET"),
        ("GE", "status", "200"),
        ("GET /aaa", "path", None),
        ("GE", "method", None),
        ("GET /a?q", "query", None),
    ],
)
def test_a_line_that_haproxy_has_cut_tells_what_stands_before_the_cut(
    written: str, key: str, expected: str | None
) -> None:
    counts, rejected = both(replace(HAPROXY, key=key), [haproxy("192.0.2.1:1", written)[:-1]])
    if expected is None:
        assert counts == {}
        assert "cut off" in rejected[1]
    else:
        assert (counts, rejected) == ({(expected, NOON): 1}, {})


INNER = '192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /a?\\"é HTTP/1.1" 200 1 "-" "-"'


def docker(text: str, **more: object) -> str:
    return json.dumps({"log": text, "stream": "stdout", **more, "time": f"{WHEN[:-1]}.6Z"})


@pytest.mark.parametrize(
    ("envelope", "line"),
    [
        ("docker", docker(INNER + "\n")),
        ("docker", docker(INNER + "\r\n", attrs={"tag": "web"})),
        ("cri", f"2026-03-01T12:00:00.669794202Z stdout F {INNER}"),
        ("cri", f"2026-03-01T12:00:00.669794202+01:00 stderr F {INNER}"),
        ("cri", f"2026-03-01T12:00:00Z stdout F:tag {INNER}"),
    ],
)
def test_logs_of_containers(envelope: str, line: str) -> None:
    assert detect([line.encode()]) == Detected("combined", envelope)
    recipe = Recipe(input_format="combined", envelope=envelope)
    assert both(recipe, [line]) == ({("/a", NOON): 1}, {})


@pytest.mark.parametrize(
    ("envelope", "line"),
    [
        ("docker", docker(INNER)),  # more than 16 KiB stand in several lines
        ("docker", docker("GET /\n")),
        ("docker", '{"log": 5, "stream": "stdout"}'),
        ("docker", '{"log": "' + INNER.replace('"', '\\"')),
        ("docker", "[]"),
        ("cri", f"2026-03-01T12:00:00.6Z stdout P {INNER}"),
        ("cri", INNER),
    ],
)
def test_a_part_of_a_line_of_a_container_is_rejected_alone(envelope: str, line: str) -> None:
    whole = docker(INNER + "\n")
    whole = whole if envelope == "docker" else f"2026-03-01T12:00:00Z stdout F {INNER}"
    counts, rejected = both(
        Recipe(input_format="combined", envelope=envelope), [whole, line, whole]
    )
    assert (counts, list(rejected)) == ({("/a", NOON): 2}, [2])


BITS = [
    *'"\\{}[],:09.-#%?/ \t\r\0\x0b\x85',
    "\\ud800",
    r"\"",
    "#Fields:",
    "#Date: 2026-03-01",
    "web-1 | ",
]


@st.composite
def logs(draw: st.DrawFn) -> tuple[Recipe, list[bytes]]:
    """Lines of a format, some of them with something changed, and how they are read."""
    sample = draw(st.sampled_from(SAMPLES))
    options = dict(zip(sample.options[::2], sample.options[1::2], strict=True))
    told = detect([line.encode() for line in sample.lines])
    recipe = Recipe(
        input_format=options.get("--input-format", told.input_format if told else "log-format"),
        log_format=options.get("--log-format", ""),
        envelope=told.envelope if told else "",
        time_zone=options.get("--time-zone", ""),
        key=draw(st.sampled_from(["path", "target", "status", "{path} {status}"])),
    )
    directives = [line for line in sample.lines if line.startswith("#")]
    lines = draw(st.lists(st.sampled_from([*sample.lines, *sample.bad]), max_size=6))
    made = [line.encode() for line in directives]
    for line in lines:
        for _ in range(draw(st.integers(0, 2))):
            place = draw(st.integers(0, len(line)))
            new = draw(st.sampled_from(BITS)) if draw(st.booleans()) else ""
            line = line[:place] + new + line[place + draw(st.integers(0, 4)) :]
        made.append(line.encode("utf-8", "surrogateescape").lstrip(b"\0"))
    return recipe, made


@examples(few=25, many=150)
@given(logs())
def test_whatever_stands_in_a_log_comes_to_the_same(log: tuple[Recipe, list[bytes]]) -> None:
    both(*log)


def test_directives_may_have_a_mark_wherever_a_block_begins() -> None:
    lines = [
        "#Fields: date time cs-uri-stem",
        "2026-03-01 12:00:00 /a",
        "2026-03-01 12:00:00 /b",
        "\ufeff#Fields: cs-uri-stem date time",
        "/c 2026-03-01 12:00:00",
    ]
    recipe = Recipe(input_format="w3c")
    expected = {(path, NOON): 1 for path in ("/a", "/b", "/c")}
    assert both(recipe, lines) == (expected, {})
    assert read(recipe, lines, sizes=(2,)).counts == expected
