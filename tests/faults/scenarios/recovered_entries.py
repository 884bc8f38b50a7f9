"""Entries that nobody holds any more: deleted groups, streams and consumers."""

from countersink.stream.group import Group
from countersink.stream.names import GROUP
from tests.faults.stage import APPLIED_WITHIN, CLAIMS_LATE, Stage
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.traffic import STREAM
from tests.support.waiting import eventually


def group_deleted_while_a_reader_blocks(stage: Stage) -> None:
    """XGROUP DESTROY under a blocked reader: it makes the group anew and skips nothing."""
    worker = _blocked_worker(stage)
    stage.redis.xgroup_destroy(STREAM, GROUP)
    stage.faults["group deleted"] += 1
    stage.send(10)
    _goes_on(stage, worker, "group deleted")


def group_deleted_with_entries_pending(stage: Stage) -> None:
    """The group, and with it the pending list, goes between the read and the COMMIT."""
    held = stage.when("commit", Phase.BEFORE, Deed.HOLD)
    stage.send(10)
    worker = stage.worker(**CLAIMS_LATE)
    stage.wait_for(held.done, "held", worker)
    stage.redis.xgroup_destroy(STREAM, GROUP)
    stage.faults["group deleted"] += 1
    stage.send(10)
    held.release.set()
    _goes_on(stage, worker, "group deleted with entries pending")


def stream_deleted_while_a_reader_blocks(stage: Stage) -> None:
    """DEL of the (empty) stream under a blocked reader."""
    worker = _blocked_worker(stage)
    stage.redis.delete(STREAM)
    stage.faults["stream deleted"] += 1
    stage.send(10)
    _goes_on(stage, worker, "stream deleted")


def pending_with_a_dead_consumer(stage: Stage) -> None:
    """A consumer read entries and was never heard of again."""
    _read_as_ghost(stage, stage.random.randint(1, 40))
    stage.finish("dead consumer")


def pending_with_nobody(stage: Stage) -> None:
    """The consumer that held entries was deleted: no reader and no claim will ever see them."""
    _read_as_ghost(stage, stage.random.randint(1, 40))
    stage.redis.xgroup_delconsumer(STREAM, GROUP, "ghost")
    stage.faults["consumer deleted"] += 1
    assert stage.pending() == 0
    worker = stage.worker()
    stage.send(5)
    _goes_on(stage, worker, "pending with nobody")


def group_position_ahead(stage: Stage) -> None:
    """The group was set past entries nobody has read (XGROUP SETID, a restore)."""
    stage.send(5)
    stage.wait_applied_by_worker()
    stage.send(20)
    stage.redis.xgroup_setid(STREAM, GROUP, "$")
    stage.faults["group moved"] += 1
    worker = stage.worker()
    stage.send(5)
    _goes_on(stage, worker, "position ahead")


def group_position_behind(stage: Stage) -> None:
    """The group's position goes back while entries are pending: they are delivered again."""
    held = stage.when("guards", Phase.BEFORE, Deed.HOLD)
    stage.send(10)
    first = stage.worker()
    stage.wait_for(held.done, "held", first)
    stage.redis.xgroup_setid(STREAM, GROUP, "0")
    stage.faults["group moved"] += 1
    second = stage.worker(proxied=False)
    stage.wait_applied()
    held.release.set()
    stage.end(second)
    _goes_on(stage, first, "position behind")


def _read_as_ghost(stage: Stage, entries: int) -> None:
    stage.faults["consumer dead"] += 1
    Group(stage.redis, [STREAM], "ghost").ensure()
    stage.send(entries)
    assert len(Group(stage.redis, [STREAM], "ghost").read(entries, 0)) == entries


def _blocked_worker(stage: Stage) -> Child:
    """A worker that has applied what there was and now waits in a blocking read."""
    worker = stage.worker(batch_wait_ms=4000, **CLAIMS_LATE)
    stage.send(1)
    stage.wait_applied()
    eventually(lambda: _blocked_clients(stage) > 0, APPLIED_WITHIN, message=worker.output)
    return worker


def _blocked_clients(stage: Stage) -> int:
    return int(stage.redis.info("clients")["blocked_clients"])


def _goes_on(stage: Stage, worker: Child, note: str) -> None:
    stage.wait_applied()
    stage.end(worker)
    assert stage.pending() == 0
    stage.check(note)
