"""A state machine of everything that may happen to entries, held against a dictionary.

It plays producers (fold, seal, send, resend), two consumers on the real group (read, claim, apply
in any grouping, die, acknowledge), an operator (dead letters, their retry) and the pruner, on real
servers, in one process. After every step the tables must say what the dictionary says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from countersink.store import dead, guards
from countersink.store.apply import Applier
from countersink.store.connection import connect
from countersink.store.dead import DeadRow
from countersink.store.errors import StoreError
from countersink.store.merge import Incoming
from countersink.store.retry import retry
from countersink.stream.decode import decode, decode_rows
from countersink.stream.entry import Row, Sealed, encode_rows, new_entry_id
from countersink.stream.group import Delivery, Group, pages
from countersink.stream.limits import MAX_AMOUNT
from tests.support.oracle import Oracle
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.traffic import FIRST_MINUTE, MINUTES_PER_DAY, STREAM, Cell, add, day_of, now_ms

CONSUMERS = ("a", "b")
HUGE = "huge"
"""A counter so near to the end of BIGINT that some amounts do not fit."""
TABLES = ("counter_slot", "counter_ledger", "applied_entry", "dead_row")

amounts = st.integers(-3, 5)
counters = st.sampled_from(("views", "clicks"))
keys = st.sampled_from(("", "a", "A", "a ", "ä"))
days = st.integers(0, 1)


@dataclass
class Entry:
    """An entry as the model knows it."""

    sealed: Sealed
    rows: list[Row]
    poison: bool
    settled: bool = False
    """Applied once: later deliveries must change no total."""
    counted: bool = False
    """Its good rows are in the totals (those that are not dead rows)."""


@dataclass
class Consumer:
    """One worker: what it holds, and which of that it has applied."""

    group: Group
    applier: Applier
    held: dict[str, Delivery] = field(default_factory=dict)
    """By stream id."""
    applied: set[str] = field(default_factory=set)
    """Stream ids whose entries a committed transaction has settled."""


@dataclass(frozen=True)
class Ground:
    """The servers to play on; the tables are emptied before each run."""

    redis: redis.Redis
    oracle: Oracle
    proxy: MySQLProxy
    mysql_url: str


class CountingMachine(RuleBasedStateMachine):
    """Rules and invariants; a subclass names the ground to play on."""

    ground: ClassVar[Ground]

    def __init__(self) -> None:
        super().__init__()
        ground = self.ground
        self.client = ground.redis
        self.buffer: Counter[tuple[str, str, int]] = Counter()
        self.entries: dict[str, Entry] = {}
        self.watermark = 0
        self.session = connect(ground.mysql_url)
        self.consumers: dict[str, Consumer] = {}

    @initialize()
    def empty(self) -> None:
        """Begin with empty tables and an empty stream."""
        self.client.flushall()
        for table in TABLES:
            self.ground.oracle.rows(f"DELETE FROM {table}")
        self.ground.oracle.rows("UPDATE control SET pruned_before = 0")
        for number, name in enumerate(CONSUMERS, start=1):
            self.consumers[name] = self._new_consumer(name, number)

    def teardown(self) -> None:
        """Close the connections."""
        self.ground.proxy.forget()
        self.session.close()
        for consumer in self.consumers.values():
            consumer.applier.close()

    # -- producers -----------------------------------------------------------------------------

    @rule(counter=counters, key=keys, day=days, amount=amounts)
    def increment(self, counter: str, key: str, day: int, amount: int) -> None:
        """Up or down, or 0, which declares the key."""
        self.buffer[counter, key, FIRST_MINUTE + day * MINUTES_PER_DAY] += amount

    @precondition(lambda self: self.buffer)
    @rule(age_ms=st.sampled_from((0, 0, 60_000, -60_000)), poison=st.booleans())
    def flush(self, age_ms: int, poison: bool) -> None:
        """Seal what was folded, and send it; some entries carry a row that cannot be read."""
        rows = [(*cell, amount) for cell, amount in self.buffer.items()]
        self.buffer.clear()
        self._send(rows, age_ms=age_ms, poison=poison)

    @rule(amount=st.sampled_from((MAX_AMOUNT, MAX_AMOUNT, -MAX_AMOUNT)))
    def increment_near_the_limit(self, amount: int) -> None:
        """Amounts of which only some fit into a BIGINT: the others become dead letters."""
        self._send([(HUGE, "k", FIRST_MINUTE, amount)], age_ms=0, poison=False)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        """The reply was lost: the same bytes once more, however much later."""
        entries = list(self.entries.values())
        for entry in data.draw(st.lists(st.sampled_from(entries), min_size=1, max_size=4)):
            self._add(entry)

    # -- consumers -----------------------------------------------------------------------------

    @rule(name=st.sampled_from(CONSUMERS), count=st.integers(1, 5))
    def read(self, name: str, count: int) -> None:
        """New entries."""
        consumer = self.consumers[name]
        consumer.held |= {d.stream_id: d for d in consumer.group.read(count, 0)}

    @rule(name=st.sampled_from(CONSUMERS), count=st.integers(1, 5))
    def claim(self, name: str, count: int) -> None:
        """Whatever is pending, the other live consumer's too: it is merely slow."""
        consumer = self.consumers[name]
        consumer.held |= {d.stream_id: d for d in consumer.group.claim(0, count).deliveries}

    @rule(name=st.sampled_from(CONSUMERS), count=st.integers(1, 5))
    def sweep(self, name: str, count: int) -> None:
        """What lies below the group's position and is pending with nobody."""
        consumer = self.consumers[name]
        consumer.held |= {d.stream_id: d for d in consumer.group.orphans(0, count)}

    @rule(name=st.sampled_from(CONSUMERS), acknowledged=st.booleans())
    def work_off(self, name: str, acknowledged: bool) -> None:
        """What a worker does all day: read, apply, acknowledge; or die before the last."""
        self.read(name, 100)
        consumer = self.consumers[name]
        deliveries = list(consumer.held.values())
        consumer.applier.apply([_incoming(delivery) for delivery in deliveries])
        self._settled(consumer, deliveries)
        if acknowledged:
            self.acknowledge(name)

    @precondition(lambda self: any(consumer.held for consumer in self.consumers.values()))
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        """Any of what one consumer holds, in any order, some of it twice."""
        consumer, deliveries = self._draw_batch(data)
        consumer.applier.apply([_incoming(delivery) for delivery in deliveries])
        self._settled(consumer, deliveries)

    @precondition(lambda self: any(consumer.held for consumer in self.consumers.values()))
    @rule(
        data=st.data(),
        kind=st.sampled_from(("control", "guards", "slots", "ledger", "dead", "commit")),
        phase=st.sampled_from(list(Phase)),
        code=st.sampled_from((0, 0, 1205, 1213, 1020)),
    )
    def apply_with_a_fault(self, data: st.DataObject, kind: str, phase: Phase, code: int) -> None:
        """The same with one statement failing, or its connection cut before or after it."""
        consumer, deliveries = self._draw_batch(data)
        deed = Deed.ERROR if code else Deed.CUT
        self.ground.proxy.when(kind, Phase.BEFORE if code else phase, deed, error=code)
        try:
            consumer.applier.apply([_incoming(delivery) for delivery in deliveries])
        except StoreError:
            # as the worker does: again, with the same entries, until it is done
            self.ground.proxy.forget()
            if data.draw(st.booleans(), label="dies"):
                self._settled_if_committed(deliveries, kind, phase)
                self._replace(consumer)
                return
            consumer.applier.apply([_incoming(delivery) for delivery in deliveries])
        finally:
            self.ground.proxy.forget()
        self._settled(consumer, deliveries)

    @rule(name=st.sampled_from(CONSUMERS))
    def acknowledge(self, name: str) -> None:
        """What was applied, and nothing else."""
        consumer = self.consumers[name]
        consumer.group.acknowledge(
            (STREAM, stream_id, decode(consumer.held[stream_id]).id)
            for stream_id in consumer.applied
        )
        for stream_id in consumer.applied:
            del consumer.held[stream_id]
        consumer.applied.clear()

    @rule(name=st.sampled_from(CONSUMERS))
    def die(self, name: str) -> None:
        """A worker dies with all it holds; one with another name takes its place."""
        self._replace(self.consumers[name])

    @rule(name=st.sampled_from(CONSUMERS))
    def delete_consumer_with_entries_pending(self, name: str) -> None:
        """What nobody should do: its entries are then pending with nobody."""
        group = self.consumers[name].group
        self.client.xgroup_delconsumer(STREAM, "countersink", group.consumer)

    # -- operators -----------------------------------------------------------------------------

    @rule(
        keep_ms=st.sampled_from((0, 0, 30_000, 120_000)),
        careful=st.booleans(),
        chunk=st.sampled_from((1, 3, 10_000)),
    )
    def prune(self, keep_ms: int, careful: bool, chunk: int) -> None:
        """Forget old guards; with or without regard to what is still in the stream."""
        oldest = self._oldest_in_stream() if careful else None
        pruned = guards.prune(self.session, keep_ms=keep_ms, not_above_ms=oldest, chunk=chunk)
        assert pruned.watermark >= self.watermark, "the watermark went back"
        self.watermark = pruned.watermark

    @rule()
    def retry_dead_letters(self) -> None:
        """Retry what was not counted, drop what was: an entry that is too old may be either."""
        for row in dead.list_rows(self.session, limit=1000):
            entry = self.entries[row.entry_id.hex()]
            if row.position == -1 and entry.counted:
                assert dead.drop(self.session, refs=[f"{row.entry_id.hex()}:-1"]) == 1
            elif row.reason in ("too_old", "out_of_range"):
                retry(
                    self.session,
                    slot=1,
                    decode=decode_rows,
                    refs=[f"{row.entry_id.hex()}:{row.position}"],
                )
                if row.position == -1 and not self._is_dead(row):
                    entry.counted = True

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def tables_equal_the_dictionary(self) -> None:
        """Every total is the sum of what was counted, and the ledger says the same."""
        lines = self.ground.oracle.differences(self._expected())
        assert not lines, "\n".join(lines)

    @invariant()
    def nothing_is_missing(self) -> None:
        """Every entry is in the stream, or settled."""
        in_stream = {decode(delivery).id for delivery in self._in_stream()}
        for entry_id, entry in self.entries.items():
            assert entry.settled or entry_id in in_stream, f"{entry_id} is gone"

    def _expected(self) -> dict[Cell, int]:
        """The dictionary: what was counted, less the rows that are dead letters."""
        total: dict[Cell, int] = {}
        dead_rows = self.ground.oracle.dead()
        for entry_id, entry in self.entries.items():
            if not entry.counted:
                continue
            for position, (counter, key, minute, amount) in enumerate(entry.rows):
                if (entry_id, position) not in dead_rows:
                    cell = counter, day_of(minute), key.encode()
                    total[cell] = total.get(cell, 0) + amount
        return total

    # -- helpers -------------------------------------------------------------------------------

    def _new_consumer(self, name: str, slot: int) -> Consumer:
        group = Group(self.client, [STREAM], name)
        group.ensure()
        url = self.ground.proxy.url(self.ground.mysql_url)
        return Consumer(group, Applier(partial(connect, url), slot))

    def _replace(self, consumer: Consumer) -> None:
        consumer.applier.close()
        for name, known in self.consumers.items():
            if known is consumer:
                successor = f"{name}{new_entry_id(0)[-6:]}"
                self.consumers[name] = self._new_consumer(successor, consumer.applier.slot)

    def _send(self, rows: list[Row], *, age_ms: int, poison: bool) -> None:
        at = now_ms(self.client) - age_ms
        raw = encode_rows(rows)
        if poison:
            raw = raw[:-1] + b',["views","poison",0]]'
        entry = Entry(Sealed(new_entry_id(at), at, raw, len(rows)), rows, poison)
        self.entries[entry.sealed.id] = entry
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        add(self.client, entry.sealed.fields())

    def _draw_batch(self, data: st.DataObject) -> tuple[Consumer, list[Delivery]]:
        holding = [consumer for consumer in self.consumers.values() if consumer.held]
        consumer = data.draw(st.sampled_from(holding), label="consumer")
        held = list(consumer.held.values())
        picked = data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=8), label="batch")
        return consumer, picked

    def _settled(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        consumer.applied |= {delivery.stream_id for delivery in deliveries}
        for delivery in deliveries:
            entry = self.entries[decode(delivery).id]
            if not entry.settled:
                entry.settled = True
                entry.counted = entry.sealed.at >= self.watermark

    def _settled_if_committed(self, deliveries: list[Delivery], kind: str, phase: Phase) -> None:
        """A worker died of a lost connection: only after COMMIT had run does its batch count."""
        if kind == "commit" and phase is Phase.AFTER:
            for delivery in deliveries:
                entry = self.entries[decode(delivery).id]
                if not entry.settled:
                    entry.settled = True
                    entry.counted = entry.sealed.at >= self.watermark

    def _oldest_in_stream(self) -> int | None:
        """Unix ms of the oldest first attempt among the entries that are in the stream."""
        return min((decode(delivery).at for delivery in self._in_stream()), default=None)

    def _in_stream(self) -> list[Delivery]:
        return [delivery for page in pages(self.client, STREAM) for delivery in page]

    def _is_dead(self, row: DeadRow) -> bool:
        return any(
            found.position == row.position for found in dead.list_rows(self.session, refs=[row.ref])
        )


def _incoming(delivery: Delivery) -> Incoming:
    """As the worker hands it to the store."""
    entry = decode(delivery)
    name = bytes.fromhex(entry.id)
    bad = [
        DeadRow(name, row.position, delivery.stream, entry.at, row.reason, row.detail, row.payload)
        for row in entry.bad
    ]
    payload = dict(delivery.fields)[b"rows"]
    return Incoming(name, entry.at, entry.rows, bad, delivery.stream, payload)


def machine_on(ground: Ground) -> type[CountingMachine]:
    """The machine, to be played on this ground."""
    return type("Counting", (CountingMachine,), {"ground": ground})
