"""``countersink partitions``: which partition lies where and how full it is, warnings about masters
without any, partitions that are beyond their number and nodes that are away; and ``set N``."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import click
import redis

from countersink.cli import output, settings
from countersink.cli.commands.operate.info import look_around, stream_states
from countersink.cli.errors import Misuse
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
@settings.of_redis("table", "json", "csv")
def command(action: str | None, number: int | None) -> None:
    """Show the partitions of the queue, or set how many there are.

    Producers spread over the first N of them; one that runs changes when it connects again.
    Workers read every partition that was ever used, so none is lost by a smaller N. Of a Redis
    Cluster the node of a partition is the master that has it.
    """
    if action and number is None:
        raise Misuse(
            f"say how many, from 1 to {names.MAX_PARTITIONS}: countersink partitions set N"
        )
    client = settings.open_queue("countersink-partitions")
    if number is not None:
        names.set_partitions(client, number)
    layout = look(client)
    streams = layout["streams"]
    output.write_result(layout, partial(_print, streams), (_MEMBERS, streams))
    for warning in () if settings.noted("format") == "json" else layout["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _print(streams: Sequence[dict[str, Any]]) -> None:
    columns = (">partition", "node", ">entries", ">pending", ">bytes", ">oldest waits")
    rows = []
    for each in streams:
        waits = None if each["oldest"] is None else output.ago(each["lag_ms"] / 1000)
        numbers = (each[name.removeprefix(">")] for name in columns[:-1])
        rows.append((*numbers, waits))
    output.write_rows(columns, rows)


def look(client: redis.Redis) -> dict[str, Any]:
    """Where the partitions lie, and how full they are, as ``--format json`` prints it: over how
    many producers spread (null: the master that has this number is away), all partitions that are
    or were used, the masters of a cluster, and what somebody should do something about.

    Raises:
        StreamError: Redis did not do its part; of a cluster, no node did.
    """
    at, away = look_around(client)
    number: int | None = names.partitions(client)
    if (cluster := cluster_of(client)) is not None:
        with mapped():
            holder = cluster.master_of(names.PARTITIONS_KEY)
        if holder is None or holder.text in away:
            number = None  # what names.partitions said is the default
    streams = [
        {**each, "beyond": number is not None and each["partition"] >= number}
        for each in stream_states(client, at, away)
    ]
    masters = names.masters(client)
    taken: dict[str, list[int]] = {node: [] for node in masters}
    for each in streams:
        if each["node"] in taken and not each["beyond"]:
            taken[each["node"]].append(each["partition"])
    warnings = list(_warned(number, streams, away))
    if bare := [node for node in masters if not taken[node]]:
        enough = _enough(client, masters)
        advice = f": countersink partitions set {enough}" if enough else ""
        warnings.append(f"no partition lies on {', '.join(bare)}, which takes no entries{advice}")
    return {
        "partitions": number,
        "streams": streams,
        "nodes": [
            {"node": node, "partitions": taken[node], "error": away.get(node)} for node in masters
        ],
        "warnings": warnings,
    }


def _warned(
    number: int | None, streams: Sequence[dict[str, Any]], away: dict[str, str]
) -> Iterator[str]:
    for node, error in away.items():
        theirs = ", ".join(str(each["partition"]) for each in streams if each["node"] == node)
        what = f"partitions {theirs} hold" if theirs else "it holds"
        yield f"{node} is away ({error}): what {what} is not known"
    if number is None:
        yield "how many partitions there are is not known: a master that is away has it"
    for each in streams:
        if each["beyond"] and each["entries"]:
            yield (
                f"producers do not send to partition {each['partition']} any more;"
                f" {each['entries']:,} of its entries wait, and workers read it on"
            )


def _enough(client: redis.Redis, masters: Sequence[str]) -> int | None:
    """The least number of partitions with which every master has one."""
    bare = set(masters)
    for partition in range(names.MAX_PARTITIONS if masters else 0):
        bare.discard(names.master_of(client, partition) or "")
        if not bare:
            return partition + 1
    return None
