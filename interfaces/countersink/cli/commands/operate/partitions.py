"""``countersink partitions``: the partitions of the queue with their nodes and entries, warnings,
and ``set N``, which sets the number of partitions that producers use.

There are warnings about masters without a partition, about partitions that still have entries
although producers no longer use them, about nodes that do not answer, and if the number of
partitions is unknown.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import click
import redis

from countersink.cli import output, settings
from countersink.cli.commands.operate.info import now_and_away, stream_states
from countersink.cli.errors import Misuse
from countersink.runtime.texts import ago, plural
from countersink.stream import names
from countersink.stream.connection import cluster_of, mapped

_MEMBERS: Final = (
    *("partition", "stream", "node", "entries", "pending", "bytes", "oldest", "lag_ms"),
    "beyond",
)


@click.command("partitions", cls=settings.Command)
@click.argument("action", type=click.Choice(["set"]), required=False, metavar="[set")
@click.argument(
    "number", type=click.IntRange(1, names.MAX_PARTITIONS), required=False, metavar="N]"
)
@settings.redis_options("table", "json", "csv")
def command(action: str | None, number: int | None) -> None:
    """Show the partitions of the queue, or set their number.

    Producers spread over the first N partitions; a running producer uses a new N when it connects
    again. Workers read every partition that was ever used, so a smaller N loses nothing. In
    a Redis Cluster, the node of a partition is the master that has it.
    """
    if action and number is None:
        raise Misuse(
            f"give a number from 1 to {names.MAX_PARTITIONS}: countersink partitions set N"
        )
    client = settings.open_queue("countersink-partitions")
    if number is not None:
        names.set_partitions(client, number)
    layout = partition_layout(client)
    streams = layout["streams"]
    output.write_result(layout, partial(_print, streams), (_MEMBERS, streams))
    for warning in () if settings.option_value("format") == "json" else layout["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _print(streams: Sequence[dict[str, Any]]) -> None:
    columns = (">partition", "node", ">entries", ">pending", "->bytes", ">oldest waits")
    rows = []
    for each in streams:
        waits = None if each["oldest"] is None else ago(each["lag_ms"] / 1000)
        numbers = (each[name.lstrip("->")] for name in columns[:-1])
        rows.append((*numbers, waits))
    output.write_rows(columns, rows)


def partition_layout(client: redis.Redis) -> dict[str, Any]:
    """Return the document of ``--format json``. It has the partitions that producers use or ever
    used, the masters of a cluster (none for a single Redis), and warnings. It also has the number
    of partitions that producers use, or null if the master that stores it does not answer.

    Raises:
        StreamError: Redis does not answer or refuses. In a cluster: no node answers.
    """
    now, away = now_and_away(client)
    number: int | None = names.partitions(client)
    if (cluster := cluster_of(client)) is not None:
        with mapped():
            holder = cluster.master_of(names.PARTITIONS_KEY)
        if holder is None or holder.text in away:
            number = None  # names.partitions returned the default
    streams = [
        {**each, "beyond": number is not None and each["partition"] >= number}
        for each in stream_states(client, now, away)
    ]
    masters = names.masters(client)
    taken: dict[str, list[int]] = {node: [] for node in masters}
    for each in streams:
        if each["node"] in taken and not each["beyond"]:
            taken[each["node"]].append(each["partition"])
    warnings = list(_warnings(number, streams, away))
    if bare := [node for node in masters if not taken[node]]:
        enough = _enough(client, masters)
        advice = f": countersink partitions set {enough}" if enough else ""
        warnings.append(f"no partition is on {', '.join(bare)}, which gets no entries{advice}")
    return {
        "partitions": number,
        "streams": streams,
        "nodes": [
            {"node": node, "partitions": taken[node], "error": away.get(node)} for node in masters
        ],
        "warnings": warnings,
    }


def _warnings(
    number: int | None, streams: Sequence[dict[str, Any]], away: dict[str, str]
) -> Iterator[str]:
    for node, error in away.items():
        lost = ", ".join(str(each["partition"]) for each in streams if each["node"] == node)
        unknown = f"partition{'s' * (',' in lost)} {lost}" if lost else "it"
        yield f"{node} does not answer ({error}): the entries in {unknown} are unknown"
    if number is None:
        yield "the number of partitions is unknown: the master that has it does not answer"
    for each in streams:
        if each["beyond"] and each["entries"]:
            yield (
                f"producers no longer send to partition {each['partition']}; workers still read it:"
                f" {plural(each['entries'], 'entry waits', 'entries wait')}"
            )


def _enough(client: redis.Redis, masters: Sequence[str]) -> int | None:
    """Return the smallest number of partitions with which each of ``masters`` (addresses) has at
    least one partition; the caller's warning advises it. Return None if the maximum number of
    partitions is not enough, or if there are no masters."""
    bare = set(masters)
    for partition in range(names.MAX_PARTITIONS if masters else 0):
        bare.discard(names.master_of(client, partition) or "")
        if not bare:
            return partition + 1
    return None
