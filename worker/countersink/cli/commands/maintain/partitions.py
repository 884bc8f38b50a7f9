"""``countersink partitions``: which partition lies where and how full it is, warnings about masters
without any, partitions that are beyond their number and nodes that are away; and ``set N``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import redis

from countersink.cli import output, settings
from countersink.cli.commands.maintain.info import StreamState, look_around, stream_states
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
    document = {
        "partitions": layout.number,
        "streams": layout.streams,
        "nodes": layout.nodes,
        "warnings": layout.warnings,
    }
    output.write_result(document, lambda: _print(layout), (_MEMBERS, layout.streams))
    for warning in () if settings.noted("format") == "json" else layout.warnings:
        click.echo(f"warning: {warning}", err=True)


def _print(layout: "PartitionLayout") -> None:
    columns = (">partition", "node", ">entries", ">pending", ">bytes", ">oldest waits")
    rows = []
    for each in layout.streams:
        waits = None if each["oldest"] is None else output.ago(each["lag_ms"] / 1000)
        numbers = (each[name.removeprefix(">")] for name in columns[:-1])
        rows.append((*numbers, waits))
    output.write_rows(columns, rows)


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Where the partitions lie.

    Attributes:
        number: over how many producers spread; None: the master that has this number is away.
        at: Redis's time, Unix ms, before the first was looked at.
        states: all that are or were used, in order.
        masters: addresses of a cluster's masters with slots, in order; none of a single Redis.
        away: masters that do not answer, each with why.
        enough: the least number with which every master has one; None if there is none such.
    """

    number: int | None
    at: int
    states: Sequence[StreamState]
    masters: Sequence[str]
    away: dict[str, str]
    enough: int | None

    @property
    def streams(self) -> list[dict[str, Any]]:
        """The partitions, for JSON and CSV."""
        return [
            {
                **each.document(),
                "lag_ms": None if each.oldest is None else max(0, self.at - each.oldest),
                "beyond": self._is_beyond(each.partition),
            }
            for each in self.states
        ]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The masters, for JSON."""
        return [
            {"node": node, "partitions": self._on(node), "error": self.away.get(node)}
            for node in self.masters
        ]

    @property
    def warnings(self) -> list[str]:
        """What somebody should do something about, as sentences."""
        return list(self._warned())

    def _on(self, node: str) -> list[int]:
        """The partitions on a node that producers send to."""
        return [
            each.partition
            for each in self.states
            if each.node == node and not self._is_beyond(each.partition)
        ]

    def _is_beyond(self, partition: int) -> bool:
        return self.number is not None and partition >= self.number

    def _warned(self) -> Iterator[str]:
        for node, error in self.away.items():
            theirs = ", ".join(str(each.partition) for each in self.states if each.node == node)
            what = f"partitions {theirs} hold" if theirs else "it holds"
            yield f"{node} is away ({error}): what {what} is not known"
        if self.number is None:
            yield "how many partitions there are is not known: a master that is away has it"
        if bare := [node for node in self.masters if not self._on(node)]:
            advice = f": countersink partitions set {self.enough}" if self.enough else ""
            yield f"no partition lies on {', '.join(bare)}, which takes no entries{advice}"
        for each in self.states:
            if self._is_beyond(each.partition) and each.entries:
                yield (
                    f"producers do not send to partition {each.partition} any more;"
                    f" {each.entries:,} of its entries wait, and workers read it on"
                )


def look(client: redis.Redis) -> PartitionLayout:
    """Where the partitions lie, and how full they are.

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
    states = stream_states(client, away)
    masters = names.masters(client)
    return PartitionLayout(number, at, states, masters, away, _enough(client, masters))


def _enough(client: redis.Redis, masters: Sequence[str]) -> int | None:
    """The least number of partitions with which every master has one."""
    bare = set(masters)
    for partition in range(names.MAX_PARTITIONS if masters else 0):
        bare.discard(names.master_of(client, partition) or "")
        if not bare:
            return partition + 1
    return None
