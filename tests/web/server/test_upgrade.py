"""Requests that offer to go on in another protocol: answered as any other, with their bodies.

RFC 9110, 7.8: a server ignores the Upgrade that it does not do, and goes on by HTTP/1.1. If it took
the body for something else, this would be the next request of a connection that a proxy shares
among its visitors.
"""

import json
import re
import shutil
import subprocess

import pytest
import requests

from tests.web.attacks.wire import CURL, CURL_CHUNKED, JAVA, JAVA_CHUNKED
from tests.web.raw import connected, exchange
from tests.web.serving import Web

HOST = b"Host: localhost\r\n"
OFFER = b"Connection: Upgrade\r\nUpgrade: x\r\n"
POST = b"POST /live HTTP/1.1\r\n" + HOST
PLAIN = POST + b"Content-Length: 5\r\n\r\nplain"
LAST = POST + b"Connection: close\r\nContent-Length: 4\r\n\r\nlast"
INNER = b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nhidden"
LENGTH = b"Content-Length: %d\r\n\r\n%b" % (len(INNER), INNER)
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)
OFFERS = {
    "with a length": POST + OFFER + LENGTH,
    "in chunks": POST + OFFER + CHUNKS,
    "the length first": POST + LENGTH.replace(b"\r\n\r\n", b"\r\n" + OFFER + b"\r\n", 1),
    "a websocket": POST + OFFER.replace(b"x", b"websocket") + LENGTH,
    "Java": JAVA,
    "Java in chunks": JAVA_CHUNKED,
    "curl": CURL,
    "curl in chunks": CURL_CHUNKED,
    "two Connection lines": POST + b"Connection: keep-alive\r\n" + OFFER + LENGTH,
    "two offers": POST + OFFER + b"Upgrade: y, z\r\n" + CHUNKS,
}


def lengths(said: bytes) -> list[int]:
    """Of the bodies that were read, in order; each was answered with 200."""
    assert set(re.findall(rb"HTTP/1\.1 (\d+)", said)) == {b"200"}, said
    return [int(found) for found in re.findall(rb'"body":(\d+)', said)]


def body_length(offer: bytes) -> int:
    head, _, body = offer.partition(b"\r\n\r\n")
    return int(body.partition(b"\r\n")[0], 16) if b"chunked" in head else len(body)


@pytest.fixture(params=OFFERS)
def offer(request: pytest.FixtureRequest) -> bytes:
    found = OFFERS[request.param]
    return found.replace(b"/v1/increments", b"/live")


def in_parts(web: Web, *parts: bytes) -> bytes:
    """Send the parts, each when the server has read those before it; all that it says."""
    with connected(web.url) as connection, requests.Session() as other:
        for part in parts:
            connection.sendall(part)
            assert other.get(f"{web.url}/live", timeout=20).ok
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_the_body_is_read_and_nothing_of_it_is_a_request(opened: Web, offer: bytes) -> None:
    size = body_length(offer)
    assert lengths(exchange(opened.url, offer + LAST)) == [size, 4]
    head, blank, body = offer.partition(b"\r\n\r\n")
    assert lengths(in_parts(opened, head + blank, body + LAST)) == [size, 4]
    assert lengths(in_parts(opened, head + blank, body, LAST)) == [size, 4]


def test_requests_before_and_after_it_are_answered_in_order(opened: Web, offer: bytes) -> None:
    size = body_length(offer)
    sent = PLAIN + offer + PLAIN + offer + offer + LAST
    assert lengths(exchange(opened.url, sent)) == [5, size, 5, size, size, 4]


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long("at each byte"))])
@pytest.mark.parametrize("sent", ["with a length", "in chunks", "Java", "curl in chunks"])
def test_wherever_the_network_cuts_it(opened: Web, sent: str, step: int) -> None:
    offer = OFFERS[sent].replace(b"/v1/increments", b"/live")
    size = body_length(offer)
    with connected(opened.url) as connection, requests.Session() as other:
        for cut in range(1, len(offer), step):
            connection.sendall(offer[:cut])
            assert other.get(f"{opened.url}/live", timeout=20).ok
            connection.sendall(offer[cut:])
            assert lengths(connection.recv(65_536)) == [size], cut


def test_byte_by_byte(opened: Web, offer: bytes) -> None:
    sent = offer + offer + LAST
    with connected(opened.url) as connection:
        for place in range(len(sent)):
            connection.sendall(sent[place : place + 1])
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    size = body_length(offer)
    assert lengths(said) == [size, size, 4]


def test_what_follows_a_get_with_an_offer_is_the_next_request(opened: Web) -> None:
    get = b"GET /live HTTP/1.1\r\n" + HOST + OFFER + b"\r\n"
    assert lengths(exchange(opened.url, get + LAST)) == [0, 4]
    # Frames of the protocol that was not agreed on are no requests.
    said = exchange(opened.url, get + b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58")
    assert re.findall(rb"HTTP/1\.1 (\d+)", said) in ([b"200"], [b"200", b"400"])


def test_after_an_offer_to_close_nothing_is_a_request(opened: Web) -> None:
    closing = POST + OFFER.replace(b"Upgrade\r", b"Upgrade, close\r") + LENGTH
    assert lengths(exchange(opened.url, closing + PLAIN)) == [len(INNER)]


def test_a_body_that_is_cut_off_is_none(web: Web) -> None:
    head, blank, body = CURL.partition(b"\r\n\r\n")
    with connected(web.url) as connection:
        connection.sendall(head + blank + body[:-1])
    requests.get(f"{web.url}/livez", timeout=20)
    web.apply()
    assert web.store.totals.counters() == {}


def test_a_tunnel_is_refused_and_the_connection_ends(opened: Web) -> None:
    for target in (b"localhost:80", b"/live", b"*"):
        tunnel = b"CONNECT %b HTTP/1.1\r\n" % target + HOST + b"Content-Length: 5\r\n\r\nplain"
        said = exchange(opened.url, tunnel + PLAIN + PLAIN)
        assert re.findall(rb"HTTP/1\.1 (\d+)", said) == [b"400"], target


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_that_offers_http_2(web: Web) -> None:
    command = ("curl", "--silent", "--http2", "--json", json.dumps({"counter": "curl"}))
    for more in ((), ("--header", "Transfer-Encoding: chunked")):
        to = ("--output", "/dev/null", f"{web.url}/v1/increments")
        told = subprocess.run(
            (*command, *more, "--write-out", "%{http_code} ", *to, *to),
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "202 202 "
    web.apply()
    assert web.store.totals.total("curl") == 4
