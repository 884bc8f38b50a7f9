"""The loop on real servers: everything once and nothing left, whatever is redelivered."""

from typing import Any

import pytest
import redis

from countersink.counting.apply.applier import Applier
from countersink.runtime.log import JsonFormatter, Log, TextFormatter
from countersink.stream.decode import Decoded, decode
from countersink.stream.entry import Delivery, Sealed, encode_rows, new_entry_id
from countersink.stream.group import Group
from countersink.stream.names import GROUP, PARTITIONS_KEY, stream_key
from countersink.worker import intake, readers
from countersink.worker.intake import incoming
from countersink.worker.report import LOGGER
from tests.support.oracle import Oracle
from tests.support.traffic import FIRST_MINUTE, Traffic, add, backlog, day_of, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Place, Records

EAGER: dict[str, Any] = {"claim_idle_ms": 1, "claim_every_s": 0.01, "batch_wait_ms": 10}
"""Takes over everything at once, from live workers too."""


def entries(client: redis.Redis, traffic: Traffic, count: int, rows: int = 20) -> list[Sealed]:
    return [traffic.entry(now_ms(client), rows) for _ in range(count)]


@pytest.fixture(params=["one thread", "a thread for each partition"])
def partitions(
    request: pytest.FixtureRequest, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many there are; workers read all in one thread, or as they do on a cluster."""
    if request.param != "one thread":
        monkeypatch.setattr("countersink.worker.is_cluster", lambda url: True)
    for module in intake, readers:
        monkeypatch.setattr(module, "PARTITIONS_EVERY_S", 0.05)
    redis_client.set(PARTITIONS_KEY, 4)
    return 4


def spread(client: redis.Redis, partitions: int, *sealed: Sealed) -> None:
    """Send entries to all partitions in turn."""
    for partition in range(partitions):
        send(client, *sealed[partition::partitions], partition=partition)


def dead_rows(mysql_url: str) -> list[tuple[str, int, bytes]]:
    with Oracle(mysql_url) as oracle:
        found = oracle.rows("SELECT reason, position, payload FROM dead_row ORDER BY 1, 2")
    return [(str(reason), int(position), bytes(payload)) for reason, position, payload in found]


def test_a_drain_counts_everything_and_leaves_nothing(place: Place, partitions: int) -> None:
    traffic = Traffic(1)
    spread(place.client, partitions, *entries(place.client, traffic, 120))

    place.drain(batch_entries=50)

    with Oracle(place.mysql_url) as oracle:
        oracle.check(traffic.expected)
        assert oracle.guards() == 120
    assert backlog(place.client, partitions) == 0
    for partition in range(partitions):
        assert place.client.xinfo_consumers(stream_key(partition), GROUP) == []
    assert place.client.keys("countersink:worker:*") == []


def test_copies_of_an_entry_count_once(place: Place, partitions: int) -> None:
    traffic = Traffic(3)
    sealed = entries(place.client, traffic, 12, rows=5)
    for partition in (0, 3, 1, 0):
        send(place.client, *sealed, partition=partition)

    place.drain(batch_entries=5)

    place.check(traffic)
    assert backlog(place.client, partitions) == 0


def test_an_entry_that_was_applied_but_not_acknowledged_is_acknowledged_only(place: Place) -> None:
    traffic = Traffic(4)
    send(place.client, *entries(place.client, traffic, 40))
    group = Group(place.client, [stream_key(0)], "died-after-commit")
    group.ensure()
    taken = [incoming(delivery, Log(LOGGER, consumer="test"))[1] for delivery in group.read(25, 0)]
    Applier(place.mysql_url, 7).apply(taken[:15])

    records = place.drain(claim_idle_ms=100)

    place.check(traffic)
    assert backlog(place.client) == 0
    claimed = sum(fields["entries"] for fields in records.fields("claimed"))
    assert claimed == 25
    assert sum(fields["duplicates"] for fields in records.fields("batch")) == 15


def test_workers_that_take_each_others_entries_count_them_once(
    place: Place, partitions: int
) -> None:
    traffic = Traffic(5)
    with (
        Records() as records,
        place.running(batch_entries=5, **EAGER) as one,
        place.running(batch_entries=5, **EAGER) as two,
    ):
        for _ in range(12):
            spread(place.client, partitions, *entries(place.client, traffic, 10, rows=5))
        eventually(lambda: backlog(place.client, partitions) == 0, timeout=60)
        assert [worker.end() for worker in (one, two)] == [0, 0]

    with Oracle(place.mysql_url) as oracle:
        oracle.check(traffic.expected)
        used = {slot for (slot,) in oracle.rows("SELECT DISTINCT slot FROM counter_slot")}
    given = {fields["slot"] for fields in records.fields("ready")}
    assert len(given) == 2
    assert used <= given <= set(range(1, 256))


def test_a_new_partition_is_read_without_a_restart_and_a_dropped_one_to_its_end(
    place: Place, partitions: int
) -> None:
    traffic = Traffic(6)
    place.client.set(PARTITIONS_KEY, 1)
    with place.watched() as (records, worker, oracle):
        eventually(lambda: "ready" in records.actions())
        place.client.set(PARTITIONS_KEY, partitions)
        spread(place.client, partitions, *entries(place.client, traffic, 40))
        eventually(lambda: not oracle.differences(traffic.expected))
        place.client.set(PARTITIONS_KEY, 1)
        send(place.client, *entries(place.client, traffic, 20), partition=2)
        eventually(lambda: not oracle.differences(traffic.expected))
        assert worker.end() == 0
    told = records.fields("partitions")
    assert sum(max(0, each["streams"] - each["before"]) for each in told) == partitions - 1
    assert backlog(place.client, partitions) == 0


def test_a_partition_count_that_is_no_number_is_said_and_reading_goes_on(
    place: Place, partitions: int
) -> None:
    traffic = Traffic(51)
    with place.watched() as (records, worker, oracle):
        eventually(lambda: "ready" in records.actions())
        place.client.set(PARTITIONS_KEY, "many")
        eventually(lambda: "chore_failed" in records.actions())
        spread(place.client, partitions, *entries(place.client, traffic, 20))
        eventually(lambda: not oracle.differences(traffic.expected))
        assert worker.end() == 0
    assert records.actions().count("chore_failed") == 1
    assert "'many'" in records.fields("chore_failed")[0]["error"]


def test_what_cannot_be_counted_goes_to_the_dead_letters_and_the_others_are_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad rows and entries, those that break the decoder, and those before the watermark."""
    at = now_ms(place.client)
    rows = [["views", "/", FIRST_MINUTE, 2], ["no blanks", "/", FIRST_MINUTE, 1], 7]
    good = encode_rows([("views", "/", FIRST_MINUTE, 3)])
    poison = encode_rows([("views", "poison", FIRST_MINUTE, 1)])
    old = encode_rows([("views", "old", FIRST_MINUTE, 1)])

    def breaking(delivery: Delivery) -> Decoded:
        if (b"rows", poison) in delivery.fields:
            raise ZeroDivisionError(str(delivery.fields))
        return decode(delivery)

    monkeypatch.setattr(intake, "decode", breaking)
    with Oracle(place.mysql_url) as oracle:
        oracle.rows("UPDATE control SET pruned_before = 1000000")
    add(place.client, {"rows": encode_rows(rows), "at": at})  # type: ignore[arg-type]
    add(place.client, {"rows": b"not json"})
    add(place.client, {"rows": poison})
    add(place.client, {"rows": poison, "id": new_entry_id(at)})
    add(place.client, {"rows": old, "at": 999_999, "id": new_entry_id(999_999)})
    add(place.client, {"v": 99, "id": new_entry_id(at), "rows": good})
    add(place.client, {"something": "else"})
    add(place.client, {"v": 1, "id": new_entry_id(at), "at": at, "rows": good, "more": "fields"})

    records = place.drain()

    with Oracle(place.mysql_url) as oracle:
        assert oracle.ledger() == {"views": 5}
        assert {key: total for (_, _, key), total in oracle.totals().items()} == {b"/": 5}
        assert oracle.guards() == 8, "of each entry"
    dead = dead_rows(place.mysql_url)
    assert [(reason, position) for reason, position, _ in dead] == [
        ("bad_counter", 1),
        *[("bad_entry", -1)] * 2,
        *[("internal_error", -1)] * 2,
        ("newer_version", -1),
        ("not_a_row", 2),
        ("too_old", -1),
    ]
    assert [payload for *_, payload in dead[3:5]] == [poison] * 2
    assert dead[-1][2] == old
    assert sum(fields["rows"] for fields in records.fields("dead")) == len(dead) == 8
    assert len(records.fields("entry_failed")) == 2
    assert backlog(place.client) == 0
    for formatter in (TextFormatter(), JsonFormatter()):
        printed = [formatter.format(record) for record in records.records]
        assert len([line for line in printed if "ZeroDivisionError" in line]) == 2
        assert "poison" not in "".join(printed)


def test_a_transaction_is_bounded_by_rows_and_one_entry_is_never_split(
    place: Place, partitions: int
) -> None:
    traffic = Traffic(7)
    spread(place.client, partitions, *entries(place.client, traffic, 20, rows=100))
    records = place.drain(batch_rows=250)
    batches = [fields["rows"] for fields in records.fields("batch")]
    assert sum(batches) == 2000
    assert max(batches) == 300
    assert not any(rows % 100 for rows in batches)
    place.check(traffic)


@pytest.mark.servers("mariadb", "mysql")
def test_an_entry_that_the_database_refuses_is_buried_and_the_others_are_counted(
    place: Place,
) -> None:
    """As no row that was checked is: here somebody has filled the rows that it is added to."""
    with Oracle(place.mysql_url) as oracle:
        for slot in range(1, 256):
            oracle.rows(
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
                f" VALUES ('views', '{day_of(FIRST_MINUTE)}', 'full', {slot}, {10**27 - 1})"
            )
    good = encode_rows([("views", "good", FIRST_MINUTE, 1)])
    full = encode_rows([("views", "before", FIRST_MINUTE, 1), ("views", "full", FIRST_MINUTE, 1)])
    for rows in (good, full, good):
        add(place.client, {"rows": rows, "id": new_entry_id(now_ms(place.client))})
    records = place.drain()
    assert dead_rows(place.mysql_url) == [("internal_error", -1, full)]
    assert [action for action in records.actions() if action.endswith("failed")] == [
        "batch_failed",
        "entry_failed",
    ]
    with Oracle(place.mysql_url) as oracle:
        assert oracle.ledger() == {"views": 2}
        assert oracle.guards() == 3
        counted = {key: total for (_, _, key), total in oracle.totals().items()}
    assert counted == {b"full": 255 * (10**27 - 1), b"good": 2}
