"""Logs that are added by processes which die, meet each other, or lose replies: each line counts
once.
"""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.faults.backfilling import COUNTER, ENDS_WITHIN, Backfills, compressed, minute_of_log
from tests.faults.scenarios.compaction import TOTALS
from tests.faults.stage import Stage
from tests.support.logs import PATHS, Writer
from tests.support.oracle import Oracle
from tests.support.proxies import Deed, Phase
from tests.support.run_moves import move
from tests.support.traffic import COUNTERS, now_ms, send

LINES = 150_000
"""Of a log: three chunks."""
CONFLICTS = (1205, 1213, 1020)
TABLES = (
    *("counter_slot", "counter_ledger", "counter"),
    *("backfill_journal", "backfill_chunk", "backfill_source", "backfill_run"),
)
RATES: tuple[tuple[str, ...], ...] = ((), ("--rate", "30000"))
"""The slower it is, the shorter are the chunks."""
CHANGES = ("INSERT", "UPDATE", "DELETE", "COMMIT")


def killed_again_and_again(
    stage: Stage, kills: int = 4, lines: int = LINES, *, real: bool = False
) -> None:
    """Killed at random moments and run again, then twice more: as it is, and compressed; ``real``:
    the real log, where it is to be had.
    """
    backfills = Backfills(stage)
    book = backfills.book(lines, real=real)
    sources = [book.path, compressed(book.path, stage.directory)]
    for note in backfills.until_killed(kills):
        backfills.kill(stage.random.choice(sources), *stage.random.choice(RATES))
        backfills.check_not_above(note)
    backfills.run(book.path)
    backfills.check("in the end")
    backfills.check_rejects(book)
    backfills.known(book.path)
    copy = stage.directory / "copy.log"
    copy.write_bytes(book.path.read_bytes())
    backfills.known(copy, sources[1])
    backfills.check("after copies")
    stage.finish("logs read again and again")


def two_at_once(stage: Stage, rounds: int = 1, lines: int = LINES, together: int = 2) -> None:
    """Processes that begin together on one log, which grows before each round."""
    backfills = Backfills(stage)
    writer = Writer(stage.seed)
    path = stage.directory / "access.log"
    for number in range(rounds):
        book = writer.write(path, lines, append=number > 0)
        backfills.enter(book)
        sources = [path, *(compressed(path) for _ in range(together - 1))]
        begun = [backfills.start(source) for source in sources]
        for child in begun:
            backfills.end(child)
        backfills.check(f"two at once, round {number}")
    backfills.known(path)


def killed_among_others(stage: Stage, kills: int = 6) -> None:
    """One is killed again and again while another one is at the same log."""
    backfills = Backfills(stage)
    writer = Writer(stage.seed)
    path = stage.directory / "access.log"
    for number in range(kills):
        backfills.enter(writer.write(path, LINES // 2, append=number > 0))
        other = backfills.start(path)
        backfills.kill(path)
        backfills.end(other)
        backfills.check_not_above(f"kill {number}")
    backfills.run(path)
    backfills.check("in the end")


def commits_cut(stage: Stage, lines: int = LINES) -> None:
    """Nobody hears of COMMITs that the server has done, and of others that it has not."""
    for phase in Phase:
        stage.when(
            "commit_other",
            phase,
            Deed.CUT,
            times=0,
            where=lambda _request, _reply: stage.random.random() < 0.25,
            label=f"COMMIT cut {phase.value}",
        )
    _added_among_faults(stage, lines, "COMMIT replies lost")


def conflicts_while_adding(stage: Stage, lines: int = LINES) -> None:
    """Deadlocks and lock waits in place of one in 16 statements that change something."""
    for error in CONFLICTS:
        stage.when(
            "*",
            Phase.BEFORE,
            Deed.ERROR,
            error=error,
            times=0,
            where=lambda request, _reply: (
                request.text.startswith(CHANGES) and stage.random.random() < 0.02
            ),
        )
    _added_among_faults(stage, lines, "conflicts")


def _added_among_faults(stage: Stage, lines: int, note: str) -> None:
    backfills = Backfills(stage)
    book = backfills.write(lines)
    backfills.run(book.path, proxied=True)
    print(note, stage.mysql_proxy.faults)
    stage.forget()
    backfills.check(note)
    backfills.check_rejects(book)


def beside_live_traffic(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """The same counter, days and keys are counted live meanwhile, and compacted."""
    backfills = Backfills(stage)
    book = backfills.write(lines)
    worker = stage.worker(proxied=False)
    with stage.compacting():
        for _ in range(kills):
            live(stage, 20)
            backfills.kill(book.path)
        live(stage, 20)
        child = backfills.start(book.path)
        live(stage, 20)
        backfills.end(child)
    stage.wait_applied()
    stage.end(worker)
    backfills.check("beside live traffic")
    stage.finish("beside live traffic")


def server_killed(stage: Stage, kills: int = 3) -> None:
    """SIGKILL of the database in the midst; it loses nothing, and nothing counts twice."""
    backfills = Backfills(stage)
    book = backfills.write(LINES)
    for _ in range(kills):
        child = backfills.start(book.path)
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.2, 1.2))
        stage.mysql_server.kill()
        stage.faults["mysql kill"] += 1
        stage.mysql_server.start()
        child.terminate()
        child.wait(ENDS_WITHIN)  # it may have given up, or have waited for the server
        backfills.check_not_above("the server was killed")
    backfills.run(book.path)
    backfills.check("in the end")


def undone_after_live_traffic(stage: Stage, kills: int = 2, lines: int = LINES) -> None:
    """Undo leaves exactly what was counted live before and since, in whichever slot it is."""
    _undone(stage, kills, lines, "compact", stage.check)
    stage.finish("undone")


def undone_after_roll_up(stage: Stage, kills: int = 2, lines: int = LINES) -> None:
    """The same where all days have become months since, and become so again."""
    _undone(stage, kills, lines, "retention", partial(_check_keys, stage))
    with Oracle(stage.mysql_url) as oracle:  # for whoever plays another scenario on this stage
        for table in TABLES:
            oracle.rows(f"DELETE FROM {table}")
    stage.traffic.expected.clear()


def _undone(
    stage: Stage, kills: int, lines: int, what: str, check: Callable[[str], object]
) -> None:
    """Undone, and added again, until so many processes were killed on the way."""
    backfills = Backfills(stage)
    book = Writer(stage.seed).write(stage.directory / "access.log", lines)
    live(stage, 10)
    stage.wait_applied_by_worker()
    for note in backfills.until_killed(kills):
        run = backfills.run(book.path)["run"]
        live(stage, 10)
        stage.wait_applied_by_worker()
        if what == "retention":
            _keep_months(stage)
        move(what, stage.mysql_url)
        live(stage, 10)
        stage.wait_applied_by_worker()
        backfills.undo(run, kills - backfills.kills)
        check(f"undone: {note}")
        move(what, stage.mysql_url)
        check(f"undone and moved: {note}")
        stage.verify(note)
    backfills.enter(book)
    backfills.run(book.path)
    check("added once more")
    stage.verify("added once more")


def _keep_months(stage: Stage) -> None:
    with Oracle(stage.mysql_url) as oracle:
        for counter in (COUNTER, *COUNTERS):
            oracle.rows(
                "INSERT INTO counter (name, rolled_month, created)"
                f" VALUES ('{counter}', '2030-01-01', '2020-01-01')"
                " ON DUPLICATE KEY UPDATE rolled_month = '2030-01-01'"
            )


def _check_keys(stage: Stage, note: str) -> None:
    """Hold the totals, by key, against the books."""
    expected: Counter[tuple[str, bytes]] = Counter()
    for (counter, _, key), count in stage.traffic.expected.items():
        expected[counter, key] += count
    found: Counter[tuple[str, bytes]] = Counter()
    with Oracle(stage.mysql_url) as oracle:
        for counter, key, count in oracle.rows(TOTALS):
            found[counter, bytes(key)] += int(count)
    different = {
        cell: (found[cell], expected[cell])
        for cell in found.keys() | expected.keys()
        if found[cell] != expected[cell]
    }
    assert not different, f"{note} (seed {stage.seed}): counted, should be: {different}"


def live(stage: Stage, entries: int, rows: int = 20) -> None:
    """Send increments of the log's counter, days and keys, and of others."""
    for _ in range(entries):
        made = [
            (COUNTER, stage.random.choice(PATHS[:20]), minute_of_log(stage), 1) for _ in range(rows)
        ]
        send(stage.redis, stage.traffic.entry(now_ms(stage.redis), made))
    stage.send(entries)
