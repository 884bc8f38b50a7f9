"""Passwords of this run, so that no message can show them."""

import re
from typing import Final
from urllib.parse import unquote, urlsplit

_known: Final[set[str]] = set()
_IN_URL: Final = re.compile(r"(://[^:/@\s'\"]*:)[^@\s'\"]+@")
_IN_QUERY: Final = re.compile(r"(?i)(password=)[^&\s'\"]+")


def remember(url: str) -> None:
    """Note the password in ``url``, as written and unquoted, for :func:`scrub`."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    # A very short one would blank out innocent text; its URL is caught by its form.
    for secret in (password, unquote(password or "")):
        if secret and len(secret) >= 4:
            _known.add(secret)


def scrub(text: str) -> str:
    """``text`` without any password of this run, and without any in a URL."""
    text = _IN_QUERY.sub(r"\1***", _IN_URL.sub(r"\1***@", text))
    for secret in _known:
        text = text.replace(secret, "***")
    return text
