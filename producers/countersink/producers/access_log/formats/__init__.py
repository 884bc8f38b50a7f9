"""The list of names for ``--input-format`` of access logs (``LOG_FORMATS``); patterns are in
``named.py``, detection in ``detection.py``."""

from typing import Final, Literal, get_args

LogFormatName = Literal[
    "combined",
    "common",
    "vhost_combined",
    "w3c",
    "alb",
    "haproxy",
    "caddy",
    "traefik",
    "nginx-json",
]
LOG_FORMATS: Final[tuple[LogFormatName, ...]] = get_args(LogFormatName)
