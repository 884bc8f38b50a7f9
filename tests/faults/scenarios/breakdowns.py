"""A counter with dimensions among deaths: each event is in all of its cells, or in none."""

from countersink.store import Store
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from tests.faults.backfilling import COUNTER as LOG
from tests.faults.backfilling import Backfills
from tests.faults.scenarios.server_deaths import killed_while_counting
from tests.faults.scenarios.worker_deaths import POINTS, killed_at
from tests.faults.stage import Stage
from tests.support.logs import Writer
from tests.support.traffic import DAYS, FIRST_MINUTE, MINUTES_PER_DAY, day_of, now_ms, send

COUNTER = "seen"
NAMES = ("country", "page")
VALUES = (("DE", "AT", "CH", ""), ("/", "/a", "/b", "/c", "/d", ""))
BREAKDOWNS = (("page",), ("country",), ("page", "country"))


def killed_with_breakdowns(stage: Stage, count: int | None = None) -> None:
    """SIGKILL at every point, or so many, with rows in several cells among the others."""
    _declare(stage)

    def send_some() -> None:
        send(stage.redis, *(_entry(stage) for _ in range(10)))
        stage.send(stage.random.randint(1, 10))

    killed_at(stage, POINTS, send_some, count=count)
    stage.finish("after deaths with breakdowns")
    stage.verify("after deaths with breakdowns")


def servers_killed_with_breakdowns(stage: Stage) -> None:
    """SIGKILL of Redis and MySQL, in any order, while a worker counts rows in several cells."""
    _declare(stage)
    killed_while_counting(stage, lambda: send(stage.redis, *(_entry(stage) for _ in range(50))))
    stage.verify("servers killed with breakdowns")


def _declare(stage: Stage) -> None:
    with Store(stage.mysql_url) as store:
        store.counters.set(COUNTER, dimensions=NAMES, breakdowns=BREAKDOWNS)


def backfills_killed_with_breakdowns(stage: Stage, lines: int, kills: int = 2) -> None:
    """SIGKILL of backfills of a counter with a breakdown, and of their undo."""
    book = Writer(stage.seed).write(stage.directory / "access.log", lines)
    with Store(stage.mysql_url) as store:
        store.counters.set(LOG, dimensions=["page"], breakdowns=["page"])
    for (day, page), count in book.hits.items():
        stage.traffic.expected[LOG, day, b""] += count
        stage.traffic.expected[f"{LOG}#1", day, page] += count
    stage.traffic.increments += book.counted
    backfills = Backfills(stage)
    arguments = book.path, "--dimension", "page=path"
    for note in backfills.until_killed(kills):
        backfills.kill(*arguments)
        backfills.check_not_above(note)
    last = backfills.run(*arguments)
    backfills.check("counted")
    backfills.check_rejects(book)
    backfills.known(*arguments)
    backfills.undo(last["run"], kills=1)
    stage.verify("undone")
    backfills.run(*arguments)
    backfills.known(*arguments)
    stage.finish("a counter with a breakdown is backfilled among deaths")


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
