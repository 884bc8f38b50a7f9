"""Asking the server under attack, with or without manners."""

import http.client
from collections.abc import Mapping
from typing import Any

import requests

from tests.web.attacks.crowd import crowd
from tests.web.attacks.target import Target
from tests.web.raw import answer


def discreet(target: Target, said: bytes) -> bytes:
    """What the server has said, in which nothing of its inside is."""
    for secret in (b"Traceback", b"site-packages", b"pymysql", *target.secrets()):
        assert secret not in said, said[:1_000]
    return said


def say(target: Target, *parts: bytes) -> bytes:
    """Send these bytes, however early the server hangs up; the whole answer."""
    with crowd(target, 1) as (connection,):
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:
            pass  # it has heard enough
        return discreet(target, answer(connection))


def ask(target: Target, method: str, path: str, **arguments: Any) -> requests.Response:
    """A request with the key."""
    headers = {"X-API-Key": target.key, **arguments.pop("headers", {})}
    answered = requests.request(
        method,
        target.url + path,
        headers=headers,
        timeout=20,
        allow_redirects=False,
        **arguments,
    )
    discreet(target, answered.content)
    return answered


def post(target: Target, body: bytes, **headers: str) -> int:
    """POST to ``/v1/increments``; the status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(target, "POST", "/v1/increments", data=body, headers=named).status_code


def from_address(
    target: Target,
    address: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: str | None = None,
) -> http.client.HTTPResponse:
    """A request from another address of this machine, such as 127.0.0.9; its answer, read."""
    connection = http.client.HTTPConnection(
        target.host, target.port, timeout=20, source_address=(address, 0)
    )
    try:
        connection.request(method, path, body, dict(headers))
        answered = connection.getresponse()
        discreet(target, answered.read())
        return answered
    finally:
        connection.close()
