# ruff: noqa: E501 (lines of logs are as long as they are)
"""Lines of logs as those who write them document them, and what each says, read by hand.

Of each line the oracle takes day, client, path and status by splitting it where its format says;
nothing of the code under test is used.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
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


def _vhost(line: str) -> Fields:
    return _common(line.split(" ", 1)[1])


def _after(marker: str) -> Callable[[str], Fields]:
    return lambda line: _common(line.split(marker, 1)[1])


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
    fields: str, divider: str, *, unquote: Callable[[str], str] = lambda text: text
) -> Callable[[str], Fields | None]:
    """Of lines whose columns are told here, and by directives on the way."""
    names = fields.split()

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


_CF = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)"
    " cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header"
    " cs-protocol cs-bytes time-taken x-forwarded-for ssl-protocol ssl-cipher"
    " x-edge-response-result-type cs-protocol-version fle-status fle-encrypted-fields c-port"
    " time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len sc-range-start"
    " sc-range-end"
)
_CF_END = (
    "Hit SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ== d111111abcdef8.cloudfront.net"
    " https 23 0.001 - TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 Hit HTTP/2.0 - - 11040 0.001 Hit"
    " text/html 78 - -"
)
_AGENT = "Mozilla/5.0%20(Windows%20NT%2010.0;%20Win64;%20x64)"


def _cloudfront(day: str, path: str, status: str) -> str:
    begin = f"{day} 21:02:31 LAX1 392 192.0.2.100 GET d111111abcdef8.cloudfront.net {path} {status}"
    return f"{begin} - {_AGENT} - - {_CF_END}".replace(" ", "\t")


_W = "#Fields: date time c-ip cs-username s-ip s-port cs-method cs-uri-stem cs-uri-query sc-status"
_ALB_END = (
    "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067"
)

SAMPLES = (
    Sample(
        "combined",
        (
            (
                '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
                ' "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)"'
            ),
            '2001:db8::7 - - [10/Oct/2000:23:55:36 -0700] "GET /a?b HTTP/1.1" 404 12 "-" "-"',
            (
                'crawl-1.example.net - john doe [11/Oct/2000:00:00:00 +0000] "GET / HTTP/1.1" 200 1'
                ' "-" "-"'
            ),
        ),
        (
            (
                'Mar 11 12:00:00 web nginx: 127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1"'
                ' 200 1 "-" "-"'
            ),
            'web-1 | 127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "-"',
            '.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "-"',
            '0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "-"',
            '127.0.0.1 - fr [10/O127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1',
            '127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /torn HT',
        ),
        _common,
        ("--input-format", "combined"),
    ),
    Sample(
        "common",
        (
            '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326',
            '127.0.0.1 - frank [10/Oct/2000:23:55:36 -0700] "GET /b HTTP/1.0" 304 -',
        ),
        ("10/Oct/2000:13:55:36", "1.2.3.4, 5.6.7.8 - - [10/Oct/2000:13:55:36 -0700]"),
        _common,
    ),
    Sample(
        "vhost_combined",
        (
            (
                'www.example.com:80 127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0"'
                ' 200 2326 "http://www.example.com/start.html" "Mozilla/4.08"'
            ),
            (
                'other.example.com 192.0.2.7 - - [11/Oct/2000:13:55:36 -0700] "GET /b HTTP/1.0" 404 6'
                ' "-" "-"'
            ),
        ),
        ('www.example.com:80 - frank [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 2',),
        _vhost,
    ),
    Sample(
        "traefik-common",
        (
            (
                '192.168.1.7 - - [10/Oct/2024:13:55:36 +0000] "GET /a?b HTTP/1.1" 200 2326 "-" "-" 1'
                ' "web@docker" "http://10.0.0.2:80" 3ms'
            ),
            (
                '192.168.1.7 - bob [10/Oct/2024:13:56:36 +0000] "GET /b HTTP/2.0" 502 11 "-" "curl/8" 2'
                ' "-" "-" 0ms'
            ),
        ),
        ("192.168.1.7 - - [10/Oct/2024]",),
        _common,
    ),
    Sample(
        "iis",
        (
            "#Software: Microsoft Internet Information Services 6.0",
            "#Version: 1.0",
            "#Date: 2002-05-02 17:42:15",
            f"{_W} cs(User-Agent)",
            (
                "2002-05-02 17:42:15 172.22.255.255 - 172.30.255.255 80 GET /images/picture.jpg - 200"
                " Mozilla/4.0+(compatible;MSIE+5.5;+Windows+2000+Server)"
            ),
            "#Fields: date time cs-uri-stem sc-status c-ip",
            "2002-05-03 00:00:00 /later.htm 404 172.22.255.9",
        ),
        ("2002-05-03 00:00:00 /later.htm 404", "2002-05-33 00:00:00 /later.htm 404 172.22.255.9"),
        _columns("", " "),
    ),
    Sample(
        "cloudfront",
        (
            "#Version: 1.0",
            f"#Fields: {_CF}",
            _cloudfront("2019-12-04", "/index.html", "200"),
            _cloudfront("2019-12-05", "/a%2520b", "404"),
            _cloudfront("2019-12-05", "/index.html", "200"),
        ),
        (
            _cloudfront("2019-12-05", "/x", "200").replace("GET\t", ""),
            _cloudfront("2019-12-05", "/x", "200")[:80],
        ),
        _columns("", "\t", unquote=lambda text: text.replace("%25", "%")),
    ),
    Sample(
        "alb",
        (
            "http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188"
            " 192.168.131.39:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366"
            ' "GET http://www.example.com:80/ HTTP/1.1" "curl/7.46.0" - - ' + _ALB_END + ' "Root='
            '1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward"'
            ' "-" "-" "10.0.0.1:80" "200" "-" "-"',
            "h2 2018-07-03T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188"
            " 10.0.1.252:48160 10.0.0.66:9000 0.000 0.002 0.000 404 404 5 257"
            ' "GET https://10.0.2.105:773/a/b?c=d HTTP/2.0" "curl/7.46.0"'
            " ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 " + _ALB_END + ' "Root='
            '1-58337327-72bd00b0343d75b906739c42" "-" "-" 1 2018-07-02T22:22:48.364000Z'
            ' "redirect" "https://example.com:80/" "-" "10.0.0.66:9000" "200" "-" "-"',
        ),
        (
            "http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39",
            "tls 2.0 2018-12-20T02:59:40 net/my-network-loadbalancer/c6e77e28c25b2234",
        ),
        _alb,
    ),
    Sample(
        "haproxy",
        (
            (
                "Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655]"
                " http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {}"
                ' "GET /index.html HTTP/1.1"'
            ),
            (
                "Feb  7 00:14:14 localhost haproxy[674]: 127.0.0.1:33319 [07/Feb/2009:00:14:15.655]"
                " px-http~ px-http/srv1 6559/0/7/147/6723 503 243 - - ---- 5/3/3/1/0 0/0"
                ' "HEAD / HTTP/1.0"'
            ),
            (
                "Feb  8 10:11:12 localhost haproxy[7]: 192.0.2.7:53332 [08/Feb/2009:10:11:12.143] fe~"
                ' be/s1 0/0/7/14/21 200 11394 - - ---- 2/1/0/0/0 0/0 "GET /https HTTP/1.1"'
                " 0/0000000000000000/0/0/0 www.example.org/TLSv1.3/TLS_AES_256_GCM_SHA384"
            ),
        ),
        (
            (
                "Feb  6 12:12:56 localhost haproxy[14387]: 10.0.1.2:33313 [06/Feb/2009:12:12:51.443]"
                " fnt bck/srv1 0/0/5007 212 -- 0/0/0/0/3 0/0"
            ),
            '10.0.1.2:33317 [06/Feb/2009:12:14:14.655] "GET /index.html HTTP/1.1"',
        ),
        _haproxy,
        ("--time-zone", "Europe/Paris"),
    ),
    Sample(
        "caddy",
        (
            (
                '{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled'
                ' request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":'
                '"127.0.0.1","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/?x=1",'
                '"headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"]},"tls":{"resumed":false}},'
                '"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200,'
                '"resp_headers":{"Server":["Caddy"]}}'
            ),
            (
                '{"level":"info","ts":1646961401.5,"logger":"http.log.access","msg":"handled request",'
                '"request":{"remote_ip":"192.0.2.9","proto":"HTTP/2.0","method":"GET","host":"h",'
                '"uri":"/a/b","headers":{}},"user_id":"bob","size":1,"status":404}'
            ),
        ),
        ('{"level":"info","ts":1646861401.5,"msg":"server running"}', '{"ts":1646861401.5'),
        _caddy,
    ),
    Sample(
        "traefik",
        (
            (
                '{"ClientAddr":"172.18.0.1:51234","ClientHost":"172.18.0.1","ClientUsername":"-",'
                '"DownstreamContentSize":5,"DownstreamStatus":200,"Duration":1200,"RequestHost":"h",'
                '"RequestMethod":"GET","RequestPath":"/a?b=c","RequestProtocol":"HTTP/1.1",'
                '"StartUTC":"2024-03-01T12:00:00.123456789Z","level":"info","msg":"",'
                '"time":"2024-03-01T12:00:00Z"}'
            ),
            (
                '{"ClientAddr":"172.18.0.2:4","ClientHost":"172.18.0.2","DownstreamStatus":404,'
                '"RequestMethod":"GET","RequestPath":"/b","StartUTC":"2024-03-02T00:00:00Z"}'
            ),
        ),
        ('{"level":"error","msg":"x","time":"2024-03-01T12:00:00Z"}', "{}"),
        _traefik,
    ),
    Sample(
        "nginx-json",
        (
            (
                '{"time_iso8601":"2026-05-12T00:30:00+02:00","remote_addr":"192.0.2.1","host":"a.b",'
                '"request":"GET /books?page=2 HTTP/1.1","status":"200"}'
            ),
            (
                '{"time_iso8601":"2026-05-12T10:00:01+02:00","remote_addr":"192.0.2.2","host":"a.b",'
                '"request":"GET /news HTTP/1.1","status":"404"}'
            ),
        ),
        ('{"time_iso8601":"","remote_addr":"192.0.2.1","request":"GET / HTTP/1.1"}', "[]"),
        _nginx_json,
    ),
    Sample(
        "syslog",
        (
            (
                "<190>Mar  1 12:00:00 web nginx: 192.0.2.1 - - [01/Mar/2026:12:00:00 +0000]"
                ' "GET /a HTTP/1.1" 200 1 "-" "-"'
            ),
            (
                "Mar 11 12:00:00 web nginx[77]: 192.0.2.2 - - [11/Mar/2026:12:00:00 +0000]"
                ' "GET /b HTTP/1.1" 404 1 "-" "-"'
            ),
            (
                "2026-03-11T12:00:00.123456+00:00 web nginx: 192.0.2.2 - - [11/Mar/2026:12:00:01 +0000]"
                ' "GET /b HTTP/1.1" 404 1 "-" "-"'
            ),
        ),
        ("Mar 11 12:00:00 web kernel: oom", "192.0.2.2 - - [11/Mar/2026:12:00:01 +0000]"),
        _after(": "),
    ),
    Sample(
        "syslog-5424",
        (
            (
                '<165>1 2003-10-11T22:14:15.003Z web nginx 7 ID47 [exampleSDID@32473 iut="3" a="\\]"]'
                ' 192.0.2.1 - - [11/Oct/2003:22:14:15 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"'
            ),
            (
                "<34>1 2003-10-12T22:14:15.003Z web nginx - - -"
                ' 192.0.2.2 - - [12/Oct/2003:22:14:15 +0000] "GET /b HTTP/1.1" 404 1 "-" "-"'
            ),
        ),
        ("<34>1 2003-10-12T22:14:15.003Z web nginx - - - starting",),
        lambda line: _common(line[line.index("192.0.2.") :]),
    ),
    Sample(
        "compose",
        (
            'web-1  | 192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-"',
            (
                "\x1b[36mweb-2  | \x1b[0m192.0.2.2 - -"
                ' [02/Mar/2026:12:00:00 +0000] "GET /b HTTP/1.1" 404 1 "-" "-"'
            ),
        ),
        ("web-1  | /docker-entrypoint.sh: ready", "192.0.2.1 - - [01/Mar/2026:12:00:00 +0000]"),
        lambda line: _common(line[line.index("192.0.2.") :]),
    ),
    Sample(
        "docker",
        (
            (
                r'{"log":"192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] \"GET /a?b HTTP/1.1\" 200 1 \"-\" \"-\"\n"'
                ',"stream":"stdout","time":"2026-03-01T12:00:00.689166775Z"}'
            ),
            (
                r'{"log":"192.0.2.2 - - [02/Mar/2026:12:00:00 +0000] \"GET /b HTTP/1.1\" 404 1\n"'
                ',"stream":"stdout","attrs":{"tag":"web"},"time":"2026-03-02T12:00:00.1Z"}'
            ),
        ),
        (
            r'{"log":"192.0.2.2 - - [02/Mar/2026:12:00:00 +0000] \"GET /b","stream":"stdout"}',
            r'{"log":"ready\n","stream":"stderr","time":"2026-03-02T12:00:00.1Z"}',
        ),
        lambda line: _common(json.loads(line)["log"]),
    ),
    Sample(
        "cri",
        (
            (
                "2026-03-01T12:00:00.669794202Z stdout F 192.0.2.1 - - [01/Mar/2026:12:00:00 +0000]"
                ' "GET /a?b HTTP/1.1" 200 1 "-" "-"'
            ),
            (
                "2026-03-02T14:00:00.669794202+02:00 stdout F 192.0.2.2 - -"
                ' [02/Mar/2026:12:00:00 +0000] "GET /b HTTP/1.1" 404 1 "-" "-"'
            ),
        ),
        (
            '2026-03-02T12:00:00.669794202Z stdout P 192.0.2.2 - - [02/Mar/2026] "GET /b',
            "2026-03-02T12:00:00.669794202Z stderr F ready",
        ),
        lambda line: _common(line[line.index("192.0.2.") :]),
    ),
    Sample(
        "quotes",
        (
            r'"192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"-\""',
            '"192.0.2.2 - - [02/Mar/2026:12:00:00 +0000] ""GET /b HTTP/1.1"" 404 1 ""-"" ""-"""',
            '"192.0.2.2 - - [03/Mar/2026:12:00:00 +0000] "GET /b HTTP/1.1" 404 1"',
        ),
        ('"192.0.2.2 - - [03/Mar/2026:12:00:00 +0000] "GET /b', '"'),
        _quotes,
    ),
    Sample(
        "apache-words",
        (
            '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 23 example.org',
            '127.0.0.2 - - [11/Oct/2000:13:55:36 -0700] "GET /b HTTP/1.0" 404 - -',
        ),
        ('127.0.0.2 - - [11/Oct/2000:13:55:36 -0700] "GET /b HTTP/1.0" 404 -',),
        _common,
        ("--log-format", 'LogFormat "%h %l %u %t \\"%r\\" %>s %b %{Host}i" own'),
    ),
    Sample(
        "nginx-words",
        (
            "1709294400.123|192.0.2.1|GET /a?b=c|200|0.001, 0.002|x y",
            "1709394400.123|192.0.2.2|GET /b|404|-|-",
        ),
        ("1709394400.123|192.0.2.2|GET /b|404|-", "x|192.0.2.2|GET /b|404|-|-"),
        _custom,
        (
            "--log-format",
            (
                "log_format own '$msec|$remote_addr|$request_method $request_uri|'"
                "\n '$status|$upstream_response_time|$http_user_agent';"
            ),
        ),
    ),
)
assert len({each.name for each in SAMPLES}) == len(SAMPLES)
assert all(re.fullmatch(r"[a-z_0-9-]+", each.name) for each in SAMPLES)
