"""What a request shows to say who sent it: a key in a header, or the cookie of a login."""

import hmac
from collections.abc import Mapping
from typing import Final

from countersink.store import api_keys, web_sessions
from countersink.web.limits import Buckets, retry_after
from countersink.web.problem import Problem
from countersink.web.register import Known, Register

SECURE_COOKIE: Final = "__Host-countersink"
"""Where the browser came by https: no other host and no plain connection can set one."""
PLAIN_COOKIE: Final = "countersink"
_NO_HASH: Final = bytes(32)
"""Compared with where there is no such key, so that the work is the same. Nothing hashes to it."""


def shown_key(heads: Mapping[bytes, bytes]) -> str | None:
    """The key that ``Authorization: Bearer`` or ``X-API-Key`` holds; None without either.

    Other schemes of ``Authorization`` are for a proxy on the way, and none of ours.
    """
    authorization = heads.get(b"authorization")
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return text.strip()
    key = heads.get(b"x-api-key")
    return None if key is None else key.decode("latin-1").strip()


def key_of(text: str, register: Register) -> Known | None:
    """The key whose id and secret ``text`` has."""
    parts = api_keys.split(text)
    id, shown = parts or ("", _NO_HASH)
    known = register.key(id)
    same = hmac.compare_digest(shown, _NO_HASH if known is None else known.hash)
    return known if same and parts is not None else None


async def holder_of(text: str, client: str, register: Register, failures: Buckets) -> Known | None:
    """The key that ``text`` is, after another look for one that was made just now.

    A right key is always found. What many wrong ones bring to an address is that they are not
    looked up any more: a neighbour there is not locked out by them, and a secret of 256 bits is not
    found by trying.

    Raises:
        Problem: 429, ``client`` has shown too many wrong ones.
    """
    known = key_of(text, register)
    if known is not None:
        return known
    wait = failures.wait(client)
    if not wait:
        if api_keys.split(text) is not None:
            await register.look_again()
            known = key_of(text, register)
            if known is not None:
                return known
        wait = failures.take(client)
    if wait:
        raise Problem(
            429,
            "Too many wrong keys came from this address: wait, and check the key",
            headers={"Retry-After": retry_after(wait)},
        )
    return None


def login_of(heads: Mapping[bytes, bytes], scheme: str, register: Register) -> Known | None:
    """The login that the cookie is of."""
    token = shown_token(heads, scheme)
    return None if token is None else register.login(web_sessions.hash_of(token))


def shown_token(heads: Mapping[bytes, bytes], scheme: str) -> str | None:
    """The token in the cookie; None without one."""
    cookies = heads.get(b"cookie")
    if cookies is None:
        return None
    wanted = cookie_name(scheme)
    for pair in cookies.decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return None


def cookie_name(scheme: str) -> str:
    """The name of the cookie for a browser that came by ``http`` or ``https``."""
    return SECURE_COOKIE if scheme == "https" else PLAIN_COOKIE
