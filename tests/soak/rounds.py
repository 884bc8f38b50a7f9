"""Rounds of a soak, one after another until the time is up: each draws from a seed of its own."""

import argparse
import logging
import os
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import Kind, MySQLServer, RedisServer
from tests.support.templates import SMALL, template


@dataclass
class Outcome:
    """A round that was exact.

    Attributes:
        events: how many were sent, by the kind of source.
        faults: how many befell it, by kind.
        said: what was played.
        lost: increments that the queue itself lost when a replica was promoted.
        idle_s: the longest time without an acknowledged entry; None: not measured.
        slowest_s: the longest call of ``increment()``; None: not measured.
    """

    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    said: str = ""
    lost: int = 0
    idle_s: float | None = None
    slowest_s: float | None = None


@contextmanager
def durable_servers(parent: Path, kind: Kind) -> Iterator[tuple[RedisServer, MySQLServer]]:
    """Redis and a database that lose nothing when killed."""
    with (
        RedisServer(parent / "redis", appendfsync="always") as redis_server,
        MySQLServer(
            parent / "mysql", kind=kind, template=template(kind), extra=SMALL[kind]
        ) as mysql_server,
    ):
        yield redis_server, mysql_server


def arguments(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that all soaks have."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin rounds for so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rounds", type=int, default=0, help="play so many, whatever they take")
    return parser


def played(
    options: argparse.Namespace, command: str, play: Callable[[int, Path], str]
) -> tuple[int, bool]:
    """Play rounds, and print a line for each.

    Args:
        options: see :func:`arguments`.
        command: module and arguments that play a round again.
        play: plays the round with a seed, in a directory; what to say of it.

    Returns:
        how many were exact, and whether all were: the first one that is not ends it.
    """
    # what is wrong is on purpose
    logging.getLogger("countersink").addHandler(logging.NullHandler())
    print(f"seed {options.seed}: {command}", flush=True)
    begun, done = time.monotonic(), 0
    while done < options.rounds if options.rounds else time.monotonic() - begun < options.seconds:
        seed, began = options.seed + done, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="csk-") as directory:
            os.environ["XDG_STATE_HOME"] = f"{directory}/state"
            try:
                said = play(seed, Path(directory))
            except Exception:
                traceback.print_exc()
                print(f"FAILED: python -m {command} --seed {seed} --rounds 1", flush=True)
                return done, False
        print(f"seed {seed} {time.monotonic() - began:.1f} s {said}", flush=True)
        done += 1
    return done, True
