"""Different members among deaths: the sketches are those of all members that were sent, register by
register."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time

from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import Store
from countersink.store.counters.catalog import load
from countersink.store.verify import open_session
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.faults.backfilling import Backfills
from tests.faults.scenarios.server_deaths import killed_while_counting
from tests.faults.scenarios.worker_deaths import POINTS, killed_at
from tests.faults.stage import Stage
from tests.store.visitors.sightings import hashed, salt_at, unions
from tests.support.logs import Writer
from tests.support.sketches import registers, sketch_of
from tests.support.traffic import DAYS, FIRST_MINUTE, MINUTES_PER_DAY, day_of, now_ms, send

COUNTER = "members"
KEYS = ("/", "/a", "/b", "")
MANY, FEW = 20_000, 40
"""So many different members has the first key, and each of the others."""
LINES = 70_000
"""Lines of a log: two chunks."""


@dataclass
class _Members:
    """Who was sent: the hashes by the bucket's label and the key."""

    stage: Stage
    number: int
    salt: bytes
    bucket: Callable[[int], int]
    sent: dict[tuple[int, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def send(self, entries: int, rows: int = 8) -> None:
        """Send random sightings, which are booked."""
        for _ in range(entries):
            send(self.stage.redis, self._entry(rows))

    def _entry(self, rows: int) -> Sealed:
        draw, traffic = self.stage.random, self.stage.traffic
        made = []
        for _ in range(rows):
            key = draw.choice(KEYS)
            minute = FIRST_MINUTE + draw.randrange(DAYS * MINUTES_PER_DAY)
            most = MANY if key == KEYS[0] else FEW
            members = [hashed(str(draw.randrange(most)), self.salt) for _ in range(200)]
            self.sent[self.bucket(minute), key].update(members)
            traffic.expected[COUNTER, day_of(minute), key.encode()] += 200
            traffic.increments += 200
            made.append((COUNTER, key, minute, 200, self.number, b"".join(members)))
        at = now_ms(self.stage.redis)
        return Sealed(new_entry_id(at), at, encode_rows(made), rows)

    def check(self, note: str) -> None:
        """Hold the sketches against who was sent."""
        with open_session(self.stage.mysql_url) as session:
            found = unions(session, COUNTER)
            assert found.keys() == self.sent.keys(), f"{note} (seed {self.stage.seed})"
            for place, members in self.sent.items():
                wanted = registers(sketch_of(b"".join(members)))
                assert registers(found[place].sketch()) == wanted, (
                    f"{place} {note} (seed {self.stage.seed})"
                )
        self.stage.verify(note)


def killed_with_members(stage: Stage, count: int | None = None) -> None:
    """SIGKILL of a worker at every point, or so many, and compaction after each."""
    members = _declared(stage)

    def send_some() -> None:
        members.send(6)
        stage.send(stage.random.randint(1, 10))

    def compact_all() -> None:
        compact(lambda: open_tables(stage.mysql_url), CompactOptions())

    killed_at(stage, POINTS, send_some, compact_all, count=count)
    stage.finish("after deaths with members")
    members.check("after deaths")
    compact_all()
    members.check("after compaction")


def servers_killed_with_members(stage: Stage) -> None:
    """SIGKILL of Redis and MySQL, in any order, while a worker unites members."""
    members = _declared(stage)
    killed_while_counting(stage, lambda: members.send(50))
    members.check("servers killed")


def backfills_killed_with_members(stage: Stage, kills: int = 3, lines: int = LINES) -> None:
    """SIGKILL of backfills that tell visitors, two at once, and one that is undone and run again:
    who was seen is what the log says, however often it was read."""
    members, backfills = _declared(stage), Backfills(stage, COUNTER)
    book = backfills.write(lines)
    for line, hit in Writer(stage.seed).lines(lines):  # the same ones
        if hit is not None:
            day, key = hit
            minute = int(datetime.combine(day, time(), UTC).timestamp()) // 60
            host = line.lstrip(b"\0").split(b" ", 1)[0].decode()
            members.sent[members.bucket(minute), key.decode()].add(hashed(host, members.salt))
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


def _declared(stage: Stage) -> _Members:
    with Store(stage.mysql_url) as store:
        store.counters.set(COUNTER, salt_days=0)
    with open_session(stage.mysql_url) as session:
        number, salt = salt_at(session, COUNTER, FIRST_MINUTE)
        catalog = load(session)
    return _Members(stage, number, salt, lambda minute: catalog.bucket(COUNTER, minute))
