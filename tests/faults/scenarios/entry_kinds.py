"""Entries of all kinds, booked: plain rows, events in several cells of breakdowns, and members. The
sketches of these are held against those of all that were sent, register by register.
"""

from collections import defaultdict
from typing import Any

from countersink.counting.counters.catalog import load
from countersink.store import Store
from countersink.store.verify import open_session
from tests.counting.visitors.sightings import hashed, salt_at, unions
from tests.faults.stage import Stage
from tests.support.sketches import registers, sketch_of
from tests.support.traffic import DAYS, FIRST_MINUTE, MINUTES_PER_DAY, day_of, now_ms, sealed, send

SEEN = "seen"
VALUES = {"country": ("DE", "AT", "CH", ""), "page": ("/", "/a", "/b", "/c", "/d", "")}
BREAKDOWNS = (("page",), ("country",), ("page", "country"))
KEYS = ("/", "/a", "/b", "")
MANY, FEW = 20_000, 40
"""So many different members has the first key, and each of the others."""
MEMBERS = 200
"""Of a row."""


class Members:
    """The members that were sent of a counter: their hashes by the bucket's label and the key."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.counter = f"members{stage.random.getrandbits(32)}"
        with Store(stage.mysql_url) as store:
            store.counters.set(self.counter, salt_days=0)
        with open_session(stage.mysql_url) as session:
            self._number, self._salt = salt_at(session, self.counter, FIRST_MINUTE)
            self._catalog = load(session)
        self._sent = defaultdict[tuple[int, str], set[bytes]](set)

    def see(self, minute: int, key: str, *members: str) -> bytes:
        """Enter members of an event; their hashes."""
        hashes = [hashed(member, self._salt) for member in members]
        self._sent[self._catalog.bucket(self.counter, minute), key].update(hashes)
        return b"".join(hashes)

    def row(self) -> Any:
        """A random row of sightings, which is booked."""
        draw, traffic = self.stage.random, self.stage.traffic
        key, minute = draw.choice(KEYS), _minute(self.stage)
        most = MANY if key == KEYS[0] else FEW
        hashes = self.see(minute, key, *(str(draw.randrange(most)) for _ in range(MEMBERS)))
        traffic.expected[self.counter, day_of(minute), key.encode()] += MEMBERS
        traffic.increments += MEMBERS
        return self.counter, key, minute, MEMBERS, self._number, hashes

    def check(self, note: str) -> None:
        """Hold the sketches against who was sent."""
        with open_session(self.stage.mysql_url) as session:
            found = unions(session, self.counter)
        assert found.keys() == self._sent.keys(), f"{note} (seed {self.stage.seed})"
        for place, members in self._sent.items():
            wanted = registers(sketch_of(b"".join(members)))
            same = registers(found[place].sketch()) == wanted
            assert same, f"{place} {note} (seed {self.stage.seed})"
        self.stage.verify(note)


class EntryKinds:
    """Sends entries of all kinds; ``members`` of a counter of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.members = Members(stage)
        with Store(stage.mysql_url) as store:
            store.counters.set(SEEN, dimensions=[*VALUES], breakdowns=BREAKDOWNS)

    def send(self, entries: int) -> None:
        """Send so many entries of each kind."""
        for _ in range(entries):
            sightings = [self.members.row() for _ in range(8)]
            events = [self._event() for _ in range(20)]
            at = now_ms(self.stage.redis)
            send(self.stage.redis, sealed(at, sightings), sealed(at, events))
        self.stage.send(entries)

    def _event(self) -> Any:
        """A random event with dimensions, which is booked in all of its cells."""
        draw, traffic = self.stage.random, self.stage.traffic
        values = {name: draw.choice(own) for name, own in VALUES.items()}
        minute, amount = _minute(self.stage), draw.choice((1, 1, 2, 7, -1, 0))
        day = day_of(minute)
        traffic.expected[SEEN, day, b""] += amount
        traffic.increments += 1
        for number, names in enumerate(BREAKDOWNS, 1):
            key = "\0".join(values[name] for name in names).encode()
            traffic.expected[f"{SEEN}#{number}", day, key] += amount
        return SEEN, tuple(sorted(values.items())), minute, amount


def _minute(stage: Stage) -> int:
    return FIRST_MINUTE + stage.random.randrange(DAYS * MINUTES_PER_DAY)
