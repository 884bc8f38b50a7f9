"""The producer of a command: its URL is the command's, the rest comes from the environment."""

import os
from dataclasses import asdict, replace

from countersink.producers import Producer
from countersink.producers.options import URL_VARIABLE, Options, from_environment


def options_for(redis_url: str) -> Options:
    """The settings ``COUNTERSINK_PRODUCER_*``. Signals are for the command.

    Raises:
        ValueError: one cannot be used; the message names it.
    """
    environment = {name: value for name, value in os.environ.items() if URL_VARIABLE not in name}
    _, options = from_environment({**environment, URL_VARIABLE: redis_url})
    return replace(options, handle_sigterm=False)


def producer_for(redis_url: str, options: Options) -> Producer:
    """The producer.

    Raises:
        ValueError: the URL cannot be used.
    """
    return Producer(redis_url, **asdict(options))
