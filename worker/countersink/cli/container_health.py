"""Health check of containers, ``python -m countersink.cli.container_health
[worker|scheduler|jobs]``: fails without a heartbeat in Redis (they expire after ``TTL_S`` in
``stream/progress.py``) or when the scheduler is stuck; its messages.

Status 0 when such a process of this host has told Redis of itself in the last minute, and the
scheduler has looked at its jobs in the last two; else another one. Without an argument
it is a worker. Settings are those of the commands.
"""

import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click
import redis

from countersink.cli import errors, settings
from countersink.cli.app import app
from countersink.cli.errors import Exit
from countersink.stream.connection import cluster_of, connect, mapped
from countersink.stream.errors import StreamRefused, StreamUnavailable
from countersink.stream.names import process_key, worker_key

WORKER: Final = "worker"
KINDS: Final = (WORKER, "scheduler", "jobs")
LOOKED_WITHIN_S: Final = 120.0
"""Seconds since its last look after which a scheduler counts as stuck."""


@click.command("container-health")
@click.argument("kind", type=click.Choice(KINDS), default=WORKER)
@settings.redis_url
@settings.jobs_redis_url
def command(kind: str, redis_url: str | None, jobs_redis_url: str | None) -> int:
    """Look, and say on stderr what is wrong."""
    # a process is named after its host, its number and a random part; the key expires by itself
    name = f"{socket.gethostname()}-*"
    if kind == WORKER:
        url, pattern = settings.needed(redis_url, "redis"), worker_key(name)
    else:
        url, pattern = settings.jobs_queue(redis_url, jobs_redis_url), process_key(kind, name)
    with connect(url, client_name="countersink-health") as client, mapped():
        found, all_asked = _reported(client, pattern)
        if not found and not all_asked:
            click.echo(
                "a master of the Redis Cluster is away, or refuses: what it has is not known",
                err=True,
            )
            return Exit.DONE  # to start processes again would not bring it back
        # the hash may expire in between: then there is nothing to hold against the process
        looks = [] if kind == WORKER else [client.hget(key, "looked") for key in found]
    if not found:
        click.echo(f"no {kind} process of this host has reported for a minute", err=True)
        return Exit.FAILED
    for looked in looks:
        ago = time.time() - int(looked or 0) / 1000
        if looked and ago > LOOKED_WITHIN_S:
            click.echo(f"the {kind} has not looked at its jobs for {ago:,.0f} s", err=True)
            return Exit.FAILED
    return Exit.DONE


def _reported(client: redis.Redis, pattern: str) -> tuple[list[Any], bool]:
    """The keys that fit, and whether all of Redis was asked: of a cluster a master may be away.

    Raises:
        StreamRefused: all masters refuse.
    """
    cluster = cluster_of(client)
    if cluster is None:
        return list(client.scan_iter(pattern, count=1000)), True
    found, refusals, silent = [], list[StreamRefused](), 0
    with mapped():
        masters = cluster.masters()
    for address in masters:
        try:
            with mapped(), cluster.asked(address, hasty=True) as master:
                found += list(master.scan_iter(pattern, count=1000))
        except StreamUnavailable:
            silent += 1
        except StreamRefused as error:
            refusals.append(error)
    if len(refusals) == len(masters):
        raise refusals[0]
    return found, not (silent or refusals)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the check; the exit status."""
    try:
        with (
            app.make_context("countersink", [str(command.name)]) as root,
            command.make_context(str(command.name), list(arguments), parent=root) as context,
        ):
            status: int = command.invoke(context)
            return status
    except BaseException as error:
        return errors.report(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
