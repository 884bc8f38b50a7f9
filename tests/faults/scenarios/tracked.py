"""Tables tracked beside their writers: at every moment the counters are what COUNT(*) is."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from pymysql.err import OperationalError

from tests.faults.application import Application, application
from tests.faults.stage import Stage
from tests.support.app_tables import STATUSES
from tests.support.oracle import connect
from tests.support.processes import COUNTERSINK, countersink
from tests.support.table_oracle import snapshot

WRITERS = 8
FEW = 4
VIP = 999
"""A customer of whom no writer knows."""
VIP_ORDERS = 5_000_000
"""Ids of this customer's orders begin here: no writer touches them."""
MADE_UP = "nobody"
"""A key that no row has."""


def tracked_beside_writers(
    stage: Stage,
    seconds: float = 1.5,
    *,
    writers: int = FEW,
    rows: int = 500,
    snapshots: int = 12,
    kills_of_track: int = 0,
    done: Callable[[str], None] = print,
) -> None:
    """`track` in the midst of writers, some of which are killed later; snapshots all the while.

    Args:
        stage: where to play.
        seconds: that the writers write after all is tracked, at least.
        writers: how many.
        rows: of the tables before that.
        snapshots: in which both sides are compared, evenly spread.
        kills_of_track: how often `countersink track` is killed before it may finish.
        done: told the figures.
    """
    never = threading.Event()
    with application(stage, rows) as app:
        app.start_writers(writers)
        never.wait(seconds / 10)
        for _ in range(kills_of_track):
            _kill_track(app)
        begun = time.monotonic()
        for tracked in app.tracked:
            app.track(tracked)
        counted = time.monotonic()
        with app.compacting() as removed:
            for number in range(snapshots):
                app.check(f"in snapshot {number}")
                app.check_writers()
                if number == snapshots // 2:
                    app.kill_writers(writers // 2)
                    app.start_writers(writers // 2)
                    _nothing_to_repair(app)
                never.wait(seconds / snapshots)
            app.stop_writers()
        assert sum(removed) > 0, "nothing was compacted"
        app.check("at the end", raw=True)
        _agrees(app)
        done(
            f"seed {stage.seed}, {rows:,} rows, tracked in {counted - begun:.2f} s, then"
            f" {snapshots + 1} snapshots in {time.monotonic() - counted:.0f} s, difference 0;"
            f" {sum(removed):,} slot rows fewer by compaction\n  before: {app.wrote(until=begun)}\n"
            f"  during: {app.wrote(begun, counted)}\n  after: {app.wrote(counted)}"
        )
        app.untrack()


def tracked_among_kills_and_lock_waits(
    stage: Stage, seconds: float = 20.0, *, done: Callable[[str], None] = print
) -> None:
    """Statements are undone by KILL QUERY and lock waits, in the midst of their triggers too, and
    transactions go on without them."""
    with application(stage, 500) as app:
        app.start_writers(WRITERS, lock_wait=1)
        for tracked in app.tracked:
            app.track(tracked)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if stage.random.random() < 0.9:
                _kill_queries(app)
            else:
                _hold_rows(app)
            app.check("among kills")
            app.check_writers()
        app.stop_writers()
        app.check("at the end", raw=True)
        did = app.wrote().did
        undone = {name: did[name] for name in sorted(did) if name[-4:] in ("1205", "1317")}
        gone_on = did["own 1205"] + did["own 1317"]
        assert gone_on > 0, "no transaction went on after a statement that was undone"
        done(f"seed {stage.seed}: {app.wrote()}; {undone}")
        app.untrack()


def damage_is_found_and_mended(
    stage: Stage,
    writers: int = FEW,
    *,
    rows: int = 500,
    one_by_one: bool = False,
    done: Callable[[str], None] = print,
) -> None:
    """What fires no trigger, and what somebody does by hand: `verify` finds it, `--repair` mends
    it, while writers go on."""
    with application(stage, rows) as app, app.compacting():
        app.start_writers(writers)
        for tracked in app.tracked:
            app.track(tracked)
        damages = (
            (_truncate, app.visits, [app.name_of(app.visits)]),
            (_cascade, app.orders, [app.orders.counter]),
            (_meddle, app.all_orders, [app.all_orders.counter]),
        )
        for damage, tracked, name in damages:
            damage(app)
            stage.faults[damage.__name__.strip("_")] += 1
            if one_by_one:
                _found_and_mended(app, {tracked.counter}, name)
        if not one_by_one:
            _found_and_mended(app, {tracked.counter for tracked in app.tracked}, [])
        app.stop_writers()
        app.check("at the end", raw=True)
        _agrees(app)
        done(f"seed {stage.seed}: {app.wrote()}")
        app.untrack()


def _found_and_mended(app: Application, counters: set[str], table: list[str]) -> None:
    assert app.differences(), "no damage was done"
    found = _verify(app, *table, status=3)
    assert {each["counter"] for each in found["differences"]} == counters, found
    if app.all_orders.counter in counters:
        assert MADE_UP in [each.get("key") for each in found["differences"]], found
    mended = _verify(app, *table, "--repair", status=0)
    assert {each["counter"] for each in mended["repaired"]} == counters, mended
    assert not mended["differences"], mended
    with snapshot(app.stage.mysql_url) as seen:
        wrong = [seen.differences(one) for one in app.tracked if one.counter in counters]
        assert not any(wrong), wrong


# -- disturbances ------------------------------------------------------------------------------


def _kill_queries(app: Application) -> None:
    """KILL QUERY for every writer, whatever it is at."""
    with connect(app.url) as killer, killer.cursor() as cursor:
        for number in app.connections():
            cursor.execute(f"KILL QUERY {number:d}")
            app.stage.faults["KILL QUERY"] += 1


def _hold_rows(app: Application) -> None:
    """Lock orders, or cells of a counter, for longer than the writers wait."""
    slots = f"{app.stage.mysql_url.rpartition('/')[2]}.counter_slot"
    held = app.stage.random.choice(
        (
            "SELECT 1 FROM orders WHERE id < 100 FOR UPDATE",
            f"SELECT 1 FROM {slots} WHERE counter = 'orders:all' FOR UPDATE",
            f"SELECT 1 FROM {slots} WHERE counter = 'orders' LIMIT 200 FOR UPDATE",
        )
    )
    with connect(app.url) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(held)
            threading.Event().wait(1.3)
        except OperationalError as error:
            if error.args[0] not in (1213, 1205):  # the victim of a deadlock
                raise
        cursor.execute("ROLLBACK")
        app.stage.faults["rows were held"] += 1


# -- damage ------------------------------------------------------------------------------------


def _truncate(app: Application) -> None:
    app.execute("TRUNCATE TABLE visits")


def _cascade(app: Application) -> None:
    values = ", ".join(
        f"({VIP_ORDERS + number}, {number % 3}, 'open', '2026-11-21', {VIP})"
        for number in range(50)
    )
    app.execute(
        f"REPLACE INTO customers VALUES ({VIP})",
        f"INSERT INTO orders (id, tenant, status, placed, customer) VALUES {values}",
        f"DELETE FROM customers WHERE id = {VIP}",
    )


def _meddle(app: Application) -> None:
    """By hand: a cell changed, another one made up."""
    slots = f"{app.stage.mysql_url.rpartition('/')[2]}.counter_slot"
    app.execute(
        f"UPDATE {slots} SET amount = amount + 5 WHERE counter = 'orders:all' LIMIT 1",
        f"INSERT INTO {slots} (counter, bucket, counter_key, slot, amount)"
        f" VALUES ('orders:all', '2026-11-21', '{MADE_UP}', 300, 7)",
    )


# -- what the product says -----------------------------------------------------------------------


def _kill_track(app: Application) -> None:
    """Kill `countersink track` of one of the tables at a random moment after it has begun."""
    tracked = app.stage.random.choice(app.tracked)
    child = app.stage.children.start(
        [*COUNTERSINK, *app.track_arguments(tracked)],
        environment={"COUNTERSINK_MYSQL_URL": app.stage.mysql_url},
        name="track",
    )
    threading.Event().wait(app.stage.random.uniform(0.3, 2.5))
    child.kill()
    app.stage.faults["track was killed"] += 1


def _verify(app: Application, *arguments: str, status: int) -> Any:
    ran = countersink(
        *("verify", *arguments, "--format", "json"),
        environment={"COUNTERSINK_MYSQL_URL": app.stage.mysql_url},
    )
    assert ran.returncode == status, f"{arguments}: {ran.stdout}{ran.stderr}"
    return json.loads(ran.stdout)


def _nothing_to_repair(app: Application) -> None:
    """A repair beside writers finds nothing to mend, and mends nothing."""
    for tracked in app.tracked:
        repaired = app.store.tracked.repair(tracked.counter)
        found = (repaired.triggers, repaired.cells, repaired.difference)
        assert found == (0, 0, 0), f"{tracked.counter}: {repaired} (seed {app.stage.seed})"


def _agrees(app: Application) -> None:
    """Verification finds nothing, and row counts are what COUNT(*) says, collation and all."""
    app.stage.verify()
    with connect(app.url) as reader, reader.cursor() as cursor:
        for status in STATUSES:
            cursor.execute("SELECT COUNT(*) FROM orders WHERE status <=> %s", (status,))
            assert cursor.fetchone() == (app.store.row_count(app.orders.counter, status=status),), (
                f"{status!r} (seed {app.stage.seed})"
            )
