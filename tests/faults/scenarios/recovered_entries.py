"""Groups that are deleted or moved while entries are pending."""

from countersink.stream.names import GROUP
from tests.faults.stage import CLAIMS_LATE, Stage
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.traffic import STREAM


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


def _goes_on(stage: Stage, worker: Child, note: str) -> None:
    stage.wait_applied()
    stage.end(worker)
    assert stage.pending() == 0
    stage.check(note)
