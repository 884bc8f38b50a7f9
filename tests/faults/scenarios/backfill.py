"""Logs that are added by processes which die, hang, or lose replies: each line counts once."""

import threading
from datetime import UTC, datetime, time
from functools import partial
from pathlib import Path

from countersink.store.verify import open_session
from tests.faults.backfilling import DONE, ENDS_WITHIN, FAILED, REJECTED, Backfills, compressed
from tests.faults.scenarios.entry_kinds import Members
from tests.faults.scenarios.schedulers import kill
from tests.faults.stage import Stage
from tests.support.logs import Writer
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.waiting import eventually

LINES = 150_000
"""Of a log: three chunks."""
CONFLICTS = (1205, 1213, 1020)
RATES: tuple[tuple[str, ...], ...] = ((), ("--rate", "30000"))
"""The slower it is, the shorter are the chunks."""
CHANGES = ("INSERT", "UPDATE", "DELETE", "COMMIT")
JOBS = ("--jobs", "3")
JOBS_LINES = 400_000
"""67 MiB: more chunks than the first ones, see `backfill.count.read_ahead.THREAD_CHUNKS`."""
DIES_WITHIN_S = 1.5
TAKES_S = 2.0
"""About, unless it is killed."""


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
    stage.forget()
    backfills.check(note)
    backfills.check_rejects(book)


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


def one_hangs(stage: Stage, lines: int = LINES) -> None:
    """One hangs in the midst of a transaction, with what it has locked; another goes on when the
    server has given the first one up. When that wakes up, nothing counts twice.
    """
    backfills = Backfills(stage)
    book = backfills.write(lines)
    kind = stage.random.choice(("control", "slots", "ledger"))
    start, skip = partial(backfills.start, book.path, proxied=True), stage.random.randrange(3)
    hung, rule = stage.struck(
        start, kind, Phase.AFTER, Deed.PASS, "stop", skip=skip, label="backfill hung"
    )
    eventually(lambda: rule.done.is_set() or not hung.running, ENDS_WITHIN, message=hung.output)
    other = backfills.start(book.path)
    status = other.wait(ENDS_WITHIN)
    assert status in (DONE, REJECTED), other.output()
    hung.go_on()
    backfills.end(hung)
    stage.mysql_proxy.forget()
    backfills.check_not_above("one hung")
    backfills.run(book.path)
    backfills.check("one hung, in the end")
    backfills.check_rejects(book)


def children_killed_at_random(stage: Stage, kills: int = 4, lines: int = JOBS_LINES) -> None:
    """A backfill of a big log, which its child processes read, and some of these, are killed again
    and again.
    """
    backfills = Backfills(stage)
    book = backfills.write(lines)
    slowly = (book.path, *JOBS, "--rate", str(int(lines / TAKES_S)))
    running = backfills.start(*slowly)
    for number in range(kills):
        # not to wait for anything: for a moment that nobody has chosen
        threading.Event().wait(stage.random.uniform(0.1, DIES_WITHIN_S))
        _strike(stage, running)
        backfills.check_not_above(f"kill {number}")
        if not running.running:
            running = backfills.start(*slowly)
    status = running.wait(ENDS_WITHIN)  # the death of a child fails its source: the next goes on
    assert status in (*backfills.good, FAILED), running.output()
    backfills.run(book.path, *JOBS)
    backfills.check("after deaths")
    backfills.check_rejects(book)
    backfills.known(book.path)


def _strike(stage: Stage, running: Child) -> None:
    """Kill a backfill, some of its children, or both."""
    draw = stage.random
    # Not multiprocessing's own.
    children = [pid for pid in running.children() if "spawn_main" in _command_of(pid)]
    if draw.random() < 0.5:
        running.kill()
        stage.faults["a backfill was killed"] += 1
    for pid in draw.sample(children, draw.randint(0, len(children))):
        kill(pid)
        stage.faults["a child of a backfill was killed"] += 1


def _command_of(pid: int) -> str:
    """The command line of a process; '' of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def killed_with_members(stage: Stage, kills: int = 3, lines: int = 70_000) -> None:
    """SIGKILL of backfills that tell visitors, two at once, and one that is undone and run again:
    who was seen is what the log says, however often it was read.
    """
    members = Members(stage)
    backfills = Backfills(stage, members.counter)
    book = backfills.write(lines)
    for line, hit in Writer(stage.seed).lines(lines):  # the same ones
        if hit is not None:
            day, key = hit
            minute = int(datetime.combine(day, time(), UTC).timestamp()) // 60
            host = line.lstrip(b"\0").split(b" ", 1)[0].decode()
            members.see(minute, key.decode(), host)
    log = (book.path, "--visitor", "host")
    for note in backfills.until_killed(kills):
        backfills.kill(*log)
        backfills.check_not_above(note)
    for child in [backfills.start(*log) for _ in range(2)]:
        backfills.end(child)
    backfills.check("backfills with members")
    backfills.check_rejects(book)
    members.check("after backfills")
    backfills.known(*log)
    while runs := _runs(stage):
        backfills.undo(max(runs), kills=1)
    members.check("undone")
    backfills.run(*log)
    backfills.check("counted again")
    members.check("counted again")


def _runs(stage: Stage) -> list[int]:
    """The numbers of the backfills that counted something."""
    with open_session(stage.mysql_url) as session:
        found = session.query("SELECT DISTINCT run FROM backfill_chunk")
    return [int(run) for (run,) in found]
