"""A log is the truth for its days, of which a third did not arrive live: afterwards all is exact,
whoever dies, meets another one, or comes late.
"""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any

from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.faults.backfilling import COUNTER, Backfills
from tests.faults.stage import Stage
from tests.support.examples import MANY
from tests.support.logs import FIRST, Book, Hit
from tests.support.processes import Child
from tests.support.traffic import Row, now_ms, send

LINES = 5_000 if MANY else 2_000
EPOCH = date(1970, 1, 1)
ELSEWHERE = FIRST.date() + timedelta(10)
"""A day that no log knows of."""
ROWS = 200


def reconcile(book: Book) -> tuple[str, ...]:
    """The options of a reconcile for which a log is the truth from its first day to its last."""
    days = [day for day, _ in book.hits]
    return "--mode", "reconcile", "--from", f"{min(days)}", "--to", f"{max(days)}"


def made_exact_beside_live_traffic(stage: Stage, *, real: bool = True) -> None:
    """Each total is corrected by what was lost of it, and by nothing else; once."""
    play = _Play(stage, real=real)
    worker = play.live()
    with stage.trickle():
        play.elsewhere()
        before = now_ms(stage.redis)
        child = play.backfills.start(play.book.path, *reconcile(play.book))
        play.elsewhere()
        play.backfills.end(child)
        play.check_drift(play.backfills.last_run())
        again = play.backfills.run(play.book.path, *reconcile(play.book))
        assert (again["corrections"], again["drift"]) == (0, []), again
    stage.wait_applied()
    play.backfills.check("reconciled")
    _come_late(play, before)
    stage.end(worker)
    stage.finish("reconciled")


def _come_late(play: _Play, before: int) -> None:
    """What a producer sent before and Redis gets now is in the log; what is sent now is not."""
    stage = play.stage
    hit = stage.random.choice(sorted(play.book.hits))
    late = play.send([hit], at=before)
    stage.wait_applied()
    stage.dead |= {(entry.id, 0) for entry in late}
    play.backfills.check("one comes late")
    play.send([hit])
    stage.wait_applied()
    report = play.backfills.run(play.book.path, *reconcile(play.book))
    figures = [(one["key"], one["delta"]) for one in report["drift"]]
    assert figures == [(hit[1].decode(), -1)], report
    play.backfills.check("one on top, taken off")


def two_reconcile(stage: Stage, rounds: int = 1) -> None:
    """Two reconcile at the same moment, and none of them corrects twice."""
    play = _Play(stage)
    worker = play.live()
    for number in range(rounds):
        if number:
            play.lose_some()
        begun = [play.backfills.start(play.book.path, *reconcile(play.book)) for _ in range(2)]
        for child in begun:
            play.backfills.end(child)
        play.backfills.check(f"two at once, round {number}")
    stage.end(worker)


def reconcile_killed(stage: Stage, kills: int = 3) -> None:
    """Killed at random moments, and run again to the end."""
    play = _Play(stage)
    worker = play.live()
    with stage.trickle():
        for number, note in enumerate(play.backfills.until_killed(kills)):
            play.backfills.kill(play.book.path, *reconcile(play.book))
            if number % 3 == 2:
                play.lose_some()
            stage.verify(note)
        play.backfills.run(play.book.path, *reconcile(play.book))
    stage.wait_applied()
    play.backfills.check("after deaths")
    stage.end(worker)


def reconcile_undone(stage: Stage, kills: int = 1) -> None:
    """Taken back, it leaves what had arrived live, and what did so since; again, until so many
    processes were killed on the way.
    """
    play = _Play(stage)
    worker = play.live()
    live = Counter(play.arrived)
    for note in play.backfills.until_killed(kills):
        run = play.backfills.run(play.book.path, *reconcile(play.book))["run"]
        stage.wait_applied()
        since = stage.random.choices(sorted(play.book.hits), k=50)
        play.send(since)
        live.update(since)
        stage.wait_applied()
        play.backfills.undo(run, kills - play.backfills.kills)
        for cell in play.book.hits:
            stage.traffic.expected.pop((COUNTER, *cell), None)
            if live[cell]:
                stage.traffic.expected[COUNTER, *cell] = live[cell]
        play.backfills.check(f"undone: {note}")
    stage.end(worker)


class _Play:
    """A log, and the same requests sent live but for every third one.

    Attributes:
        arrived, lost: the requests.
    """

    def __init__(self, stage: Stage, *, real: bool = False) -> None:
        self.stage = stage
        self.backfills = Backfills(stage)
        self.book = self.backfills.book(LINES, real=real)
        requests = sorted(self.book.hits.elements())
        stage.random.shuffle(requests)
        self.lost = requests[2::3]
        self.arrived = [hit for number, hit in enumerate(requests) if number % 3 != 2]

    def live(self) -> Child:
        """Send what arrives, and let a worker apply it, which goes on."""
        worker = self.stage.worker(proxied=False)
        self.send(self.arrived)
        return worker

    def send(self, hits: list[Hit], at: int | None = None) -> list[Sealed]:
        """Send requests, without an entry in the books: those have the log."""
        first_sent = now_ms(self.stage.redis) if at is None else at
        rows: list[Row] = [
            (COUNTER, key.decode(), (day - EPOCH).days * 1440 + 720, 1) for day, key in hits
        ]
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        made = [
            Sealed(new_entry_id(first_sent), first_sent, encode_rows(part), len(part))
            for part in parts
        ]
        send(self.stage.redis, *made)
        return made

    def elsewhere(self) -> None:
        """The same counter goes on, on a day that the log does not have."""
        minute = (ELSEWHERE - EPOCH).days * 1440
        rows: list[Row] = [(COUNTER, f"/page/{number}", minute, 1) for number in range(40)]
        send(self.stage.redis, self.stage.traffic.entry(now_ms(self.stage.redis), rows))

    def lose_some(self) -> None:
        """Some totals are off again: live ones come twice, by another id."""
        self.send(self.stage.random.sample(self.arrived, 100))
        self.stage.wait_applied()

    def check_drift(self, run: int) -> None:
        """The drift report lists the lost ones, by day and key, and nothing else."""
        lost, arrived = Counter(self.lost), Counter(self.arrived)
        expected = [
            {
                "day": day.isoformat(),
                "bucket": f"{day}T00:00",
                "width": "day",
                "key": key.decode(),
                "had": arrived[day, key],
                "should_be": self.book.hits[day, key],
                "delta": lost[day, key],
            }
            for day, key in sorted(lost)
        ]
        told: list[dict[str, Any]] = self.backfills.shown(run, "--drift")["drift"]
        assert sorted(told, key=lambda one: (one["day"], one["key"].encode())) == expected
