"""The campaign works, and its page says what its results say."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from countersink.database.migrate import migrate
from tests.campaign import report, results
from tests.campaign.book import CAP, Book, most_keys
from tests.campaign.crew import Crew
from tests.campaign.everything import Everything
from tests.campaign.results import PLACES, Round
from tests.campaign.sources import COLUMNS, Files
from tests.campaign.strikes import DEEDS, DEPTH, SERVER_FAULTS, STORM, Blow, plan, storm
from tests.support.factories import MySQLFactory, RedisFactory
from tests.support.oracle import Oracle


def test_the_page_is_made_of_the_results() -> None:
    rounds, remedy = results.read(), "python -m tests.campaign --report"
    assert report.PATH.read_text("utf-8") == report.text(rounds), remedy
    assert {each.place for each in rounds} <= set(PLACES)


def test_the_next_round_is_of_what_there_is_least_of(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.touch()
    places = [place for place in PLACES if place.act in ("everything", "bulk")]
    for _ in range(2 * len(places)):
        rounds = results.read(path)
        place = results.next_place(rounds, places)
        seed = results.next_seed(rounds, place.act)
        played = Round(
            act=place.act, server=place.server, redis=place.redis, versions=[], seed=seed
        )
        results.append(played, path)
    rounds = results.read(path)
    assert set(Counter(each.place for each in rounds).values()) == {2}
    assert [each.seed for each in rounds if each.act == "bulk"] == [*range(1, 9)]


def test_a_seed_draws_the_same_faults() -> None:
    assert plan(7) == plan(7)
    assert {blow.deed for seed in range(100) for blow in plan(seed)} >= set(SERVER_FAULTS)
    assert storm(7) == storm(7) != storm(8)
    assert sum(blow.faults for blow in storm(7)) >= STORM


def test_a_storm_strikes_nothing_twice_at_once() -> None:
    def look(blow: Blow, during: frozenset[str]) -> Iterator[str]:
        assert blow.struck not in during
        assert len(during) < DEPTH
        assert "disk" not in blow.deed or not (during or blow.beside)
        yield blow.deed
        for each in blow.beside:
            yield from look(each, during | {blow.struck})

    deeds = [deed for blow in storm(1, 5_000) for deed in look(blow, frozenset())]
    assert set(deeds) == {*SERVER_FAULTS, *DEEDS}


def test_a_file_is_undone_though_the_command_that_counted_it_was_killed_later(
    own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    url = own_mysql_server(fast=True).url_for("files")
    migrate(url)
    environment = {"COUNTERSINK_MYSQL_URL": url}
    with Crew({}, environment, lambda *_: None) as crew:
        files = Files(Book(), crew, tmp_path, 20)
        files.step()
        path = files.write(1)
        words = ("backfill", str(path), "--counter", "undone", *COLUMNS)
        counted = crew.children.countersink(*words, environment=environment)
        assert counted.wait() == 0, counted.output()
        files.step()
    with Oracle(url) as oracle:
        found = oracle.rows("SELECT SUM(amount) FROM counter_slot GROUP BY counter")
    assert [int(amount) for (amount,) in found] == [20]


def test_each_day_of_a_counter_has_a_cap_of_its_own() -> None:
    rows = [
        ("capped", f"2026-11-{day} 00", b"%d" % (day + key), 1)
        for day in (29, 29, 30)
        for key in range(CAP)
    ]
    assert most_keys(rows) == CAP
    assert most_keys([*rows, ("capped", "2026-11-30 00", b"one more", 1)]) == CAP + 1


def test_a_small_round_is_exact(
    own_redis_server: RedisFactory, own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    servers = own_redis_server(appendfsync="always"), own_mysql_server(fast=True)
    blows = [
        Blow(victim, deed, (), 0.2, 0, False)
        for victim, deed in (
            *(("worker 1", "killed"), ("app 1", "killed"), ("app 2", "terminated")),
            *(("named app", "killed"), ("", "Redis connections cut")),
        )
    ]
    beside = Blow("worker 1", "stopped", (*blows[2:4],), 0.2, 0, False), blows[0]
    blows.append(Blow("", "MySQL frozen", beside, 0.2, 0, True))
    with Everything(*servers, 1, tmp_path) as everything:
        outcome = everything.play(blows)
        assert outcome.faults.total() == sum(blow.faults for blow in blows)
        assert min(outcome.events[kind] for kind in ("producers", "requests", "packets")) > 0
        with Oracle(everything.mysql_url) as oracle:
            oracle.rows("UPDATE counter_slot SET amount = amount + 1 WHERE counter = 'lines'")
        assert everything.book.differences(everything.mysql_url)
