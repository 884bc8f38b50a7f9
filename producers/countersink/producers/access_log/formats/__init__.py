"""The formats of access logs: which there are, how they are told, and how each is read."""

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
