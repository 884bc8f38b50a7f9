"""What the tests of reads share: entries with known rows, some applied, some only queued."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

import redis

from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applier
from countersink.database.session import Session
from countersink.store import Store
from countersink.stream.decode import decode
from countersink.stream.entry import Sealed, encode_rows, new_entry_id, pages
from countersink.stream.names import stream_key
from tests.cli.command import Servers
from tests.support.traffic import now_ms, send

DAYS = (date(2026, 11, 18), date(2026, 11, 19), date(2026, 11, 20), date(2026, 11, 21))

EasyRow = tuple[str, str, int, int]
"""(counter, key, index of the day, amount)."""


def sealed(client: redis.Redis, rows: Sequence[EasyRow]) -> Sealed:
    """An entry of these rows."""
    at = now_ms(client)
    exact = [(counter, key, minute_of(day), amount) for counter, key, day, amount in rows]
    return Sealed(new_entry_id(at), at, encode_rows(exact))


def minute_of(day: int) -> int:
    """A minute of the day with this index: its last."""
    return int(datetime.combine(DAYS[day], time(23, 59), UTC).timestamp()) // 60


def queue(client: redis.Redis, *rows: EasyRow, partition: int = 0) -> str:
    """Send one entry; its stream id."""
    return send(client, sealed(client, rows), partition=partition)[0]


def apply_all(client: redis.Redis, mysql_url: str, *, acknowledge: bool) -> None:
    """Apply what lies in stream 0; leave it there, as a worker does that dies before
    acknowledging.
    """
    applier = Applier(mysql_url, 3)
    for page in pages(client, stream_key(0)):
        entries = [decode(delivery) for delivery in page]
        applier.apply([Incoming(bytes.fromhex(e.id), e.at, e.rows) for e in entries])
        if acknowledge:
            client.xdel(stream_key(0), *(delivery.stream_id for delivery in page))
    applier.close()


@dataclass
class Ground:
    """The servers, and what is connected to them."""

    session: Session
    store: Store
    client: redis.Redis
    servers: Servers

    def queue(self, *rows: EasyRow, partition: int = 0) -> str:
        """Send one entry; its stream id."""
        return queue(self.client, *rows, partition=partition)

    def apply(self, *, acknowledge: bool) -> None:
        """Apply what lies in stream 0; leave it there, as a worker does that dies before
        acknowledging.
        """
        apply_all(self.client, self.servers.mysql_url, acknowledge=acknowledge)
