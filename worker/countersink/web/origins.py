"""Whether a request that changes something comes from our own pages.

A browser sends the cookie, or at loopback simply reaches the server, also for a page of somebody
else. It says where that page is from: in ``Sec-Fetch-Site``, in older browsers ``Origin`` or
``Referer``. Programs say nothing; nor does a browser always, which :func:`may_be_silent` is about.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from countersink.web.hosts import is_of_this_machine, is_told
from countersink.web.problem import Problem


def is_own(heads: Mapping[bytes, bytes], scheme: str, *, silent: bool) -> bool:
    """Whether a page of ours, or no page at all, has sent this.

    Args:
        heads: the request's headers, by lower-case name.
        scheme: ``http`` or ``https``, as the browser sees it.
        silent: what holds where nothing is said of it: True where no cookie came along, since
            every browser that could be made to send this says something.
    """
    site = heads.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    own = f"{scheme}://{heads.get(b'host', b'').decode('latin-1')}".lower()
    origin = heads.get(b"origin")
    if origin is not None:
        return _same(origin.decode("latin-1"), own)
    referer = heads.get(b"referer")
    if referer is not None:
        return _same(referer.decode("latin-1"), own)
    return silent


def is_from_elsewhere(heads: Mapping[bytes, bytes]) -> bool:
    """Whether a page has sent this that no server of this machine's own name has delivered.

    A proxy that puts a name of ours into ``Host`` leaves ``Origin`` as the browser has sent it.
    """
    origin = heads.get(b"origin")
    if origin is None:
        return False
    return not is_of_this_machine(origin.decode("latin-1").partition("://")[2])


def may_be_silent(heads: Mapping[bytes, bytes], scheme: str) -> bool:
    """Whether only a program can have sent a GET that says nothing of where it comes from.

    For a picture on somebody's page a browser sends no ``Origin``; the page can have it leave out
    ``Referer``; and ``Sec-Fetch-Site`` it sends by https, and to its own machine by a name that it
    knows to be that (W3C Fetch Metadata, 2). Those of before 2023 that never send it say who they
    are: no page can change the ``User-Agent`` of a picture.
    """
    host = heads.get(b"host")
    if host is None:
        return True  # no browser leaves it out
    if b"mozilla" in heads.get(b"user-agent", b"").lower():
        return False
    return scheme == "https" or is_told(host.decode("latin-1"))


def refused() -> Problem:
    """What a page of another origin is told."""
    return Problem(
        403,
        "This came from a page of another origin: send it from the dashboard's own, or with a key"
        " in the Authorization header",
    )


def _same(url: str, own: str) -> bool:
    try:
        parts, ours = urlsplit(url.lower()), urlsplit(own)
        return (parts.scheme, parts.hostname, _port(parts.port, parts.scheme)) == (
            ours.scheme,
            ours.hostname,
            _port(ours.port, ours.scheme),
        )
    except ValueError:
        return False


def _port(port: int | None, scheme: str) -> int | None:
    return port if port is not None else {"http": 80, "https": 443}.get(scheme)
