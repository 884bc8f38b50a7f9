"""A counter with dimensions among deaths: each event is in all of its cells, or in none."""

from collections.abc import Sequence

from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.faults.backfilling import COUNTER as LOG
from tests.faults.backfilling import Backfills
from tests.faults.scenarios.server_deaths import killed_while_counting
from tests.faults.scenarios.worker_deaths import POINTS, Point, killed_at
from tests.faults.stage import Stage
from tests.support.logs import Writer
from tests.support.traffic import DAYS, FIRST_MINUTE, MINUTES_PER_DAY, day_of, now_ms, send

COUNTER = "seen"
NAMES = ("country", "page")
VALUES = (("DE", "AT", "CH", ""), ("/", "/a", "/b", "/c", "/d", ""))
BREAKDOWNS = (("page",), ("country",), ("page", "country"))


def killed_with_breakdowns(stage: Stage, points: Sequence[Point] = POINTS) -> None:
    """SIGKILL at every point, with rows in several cells among the others."""
    with Store(stage.mysql_url) as store:
        store.counters.set(COUNTER, dimensions=NAMES, breakdowns=BREAKDOWNS)

    def send_some() -> None:
        send(stage.redis, *(_entry(stage) for _ in range(10)))
        stage.send(stage.random.randint(1, 10))

    killed_at(stage, points, send_some)
    stage.finish("after deaths with breakdowns")
    with open_session(stage.mysql_url) as session:
        assert verify(session).differences == []


def servers_killed_with_breakdowns(stage: Stage) -> None:
    """SIGKILL of Redis and MySQL, in any order, while a worker counts rows in several cells."""
    with Store(stage.mysql_url) as store:
        store.counters.set(COUNTER, dimensions=NAMES, breakdowns=BREAKDOWNS)
    killed_while_counting(stage, lambda: send(stage.redis, *(_entry(stage) for _ in range(50))))
    with open_session(stage.mysql_url) as session:
        assert verify(session).differences == []


def killed_while_filled(stage: Stage, lines: int, kills: int = 2) -> None:
    """SIGKILL of backfills that fill a breakdown of what was counted before, and of their undo;
    then it begins earlier.
    """
    book = Writer(stage.seed).write(stage.directory / "access.log", lines)
    by_path = "--dimension", "page=path"
    with Store(stage.mysql_url) as store:
        store.counters.set(LOG, dimensions=["page"])
        Backfills(stage).run(book.path, *by_path)
        for (day, _), count in book.hits.items():
            stage.traffic.expected[LOG, day, b""] += count
        stage.traffic.increments += book.counted
        store.counters.set(LOG, breakdowns=["page"])
    filling = Backfills(stage, breakdown=1)
    filling.enter(book)
    arguments = book.path, *by_path, "--breakdown", "page"
    for number in range(10 * kills):
        if filling.kills >= kills:
            break
        filling.kill(*arguments)
        filling.check_not_above(f"after {filling.kills} kills, {number + 1} runs")
    first = filling.run(*arguments)
    filling.check("filled")
    filling.check_rejects(book)
    filling.known(*arguments)
    filling.undo(first["run"], kills=1)
    filling.run(*arguments)
    filling.check("filled again")
    with Store(stage.mysql_url) as store:
        first_day = min(day for day, _ in book.hits)
        store.counters.set(LOG, breakdown_since={"page": first_day})
        assert store.totals.total(LOG) == sum(
            total for _, total in store.totals.by(LOG, ["page"], start=first_day)
        )
    filling.known(*arguments)
    stage.finish("a breakdown is filled among deaths")


def _entry(stage: Stage, rows: int = 20) -> Sealed:
    """An entry of random events with dimensions, which is booked in all of their cells."""
    draw, expected = stage.random, stage.traffic.expected
    made = []
    for _ in range(rows):
        values = {name: draw.choice(own) for name, own in zip(NAMES, VALUES, strict=True)}
        minute = FIRST_MINUTE + draw.randrange(DAYS * MINUTES_PER_DAY)
        amount = draw.choice((1, 1, 2, 7, -1, 0))
        day = day_of(minute)
        expected[COUNTER, day, b""] += amount
        stage.traffic.increments += 1
        for number, names in enumerate(BREAKDOWNS, 1):
            key = "\0".join(values[name] for name in names).encode()
            expected[f"{COUNTER}#{number}", day, key] += amount
        made.append((COUNTER, tuple(sorted(values.items())), minute, amount))
    at = now_ms(stage.redis)
    return Sealed(new_entry_id(at), at, encode_rows(made), rows)
