"""Runs that are undone while they go on, processes that hang: each line that is there in the end
counts once.
"""

import threading
from functools import partial

from tests.faults.backfilling import DONE, ENDS_WITHIN, REJECTED, Backfills
from tests.faults.stage import Stage
from tests.support.logs import Writer
from tests.support.proxies import Deed, Phase
from tests.support.waiting import eventually

LINES = 150_000


def undone_while_it_goes_on(stage: Stage, rounds: int = 2, lines: int = LINES) -> None:
    """A run is taken back by others while its process still counts: it stops, and leaves nothing;
    another one counts it all.
    """
    backfills = Backfills(stage)
    writer = Writer(stage.seed)
    path = stage.directory / "access.log"
    for number in range(rounds):
        book = writer.write(path, lines, append=number > 0)
        backfills.enter(book)
        before = backfills.last_run()
        child = backfills.start(path, "--rate", "30000")
        eventually(lambda: backfills.last_run() > before or not child.running, ENDS_WITHIN)  # noqa: B023
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.0, 2.0))
        run = backfills.last_run()
        backfills.undo(run)
        status = child.wait(ENDS_WITHIN)
        print("undone, its process ended with", status)
        backfills.check_not_above(f"undone while it goes on, round {number}")
        assert backfills.chunks(run) == 0, f"chunks of run {run} are left"
        backfills.run(path)
        backfills.check(f"counted again, round {number}")


def one_hangs(stage: Stage, lines: int = LINES) -> None:
    """One hangs in the midst of a transaction, with what it has locked; another goes on when the
    server has given the first one up. When that wakes up, nothing counts twice.
    """
    backfills = Backfills(stage)
    book = backfills.write(lines)
    kind = stage.random.choice(("control", "slots", "ledger"))
    print("hangs after", kind)
    start, skip = partial(backfills.start, book.path, proxied=True), stage.random.randrange(3)
    hung, rule = stage.struck(
        start, kind, Phase.AFTER, Deed.PASS, "stop", skip=skip, label="backfill hung"
    )
    eventually(lambda: rule.done.is_set() or not hung.running, ENDS_WITHIN, message=hung.output)
    other = backfills.start(book.path)
    status = other.wait(ENDS_WITHIN)
    print("the other ended with", status, other.output()[-300:])
    assert status in (DONE, REJECTED), other.output()
    hung.go_on()
    backfills.end(hung)
    print("it ended with", hung.output()[-300:])
    stage.mysql_proxy.forget()
    backfills.check_not_above("one hung")
    backfills.run(book.path)
    backfills.check("one hung, in the end")
    backfills.check_rejects(book)
