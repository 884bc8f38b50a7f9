"""The campaign works, and its page says what its results say."""

from collections import Counter
from pathlib import Path

from tests.campaign import report, results
from tests.campaign.everything import Everything
from tests.campaign.results import PLACES, Round
from tests.campaign.strikes import SERVER_FAULTS, Blow, plan
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


def test_a_small_round_is_exact(
    own_redis_server: RedisFactory, own_mysql_server: MySQLFactory, tmp_path: Path
) -> None:
    servers = own_redis_server(appendfsync="always"), own_mysql_server(fast=True)
    blows = [
        Blow(victim, deed, None, 0.2, 0, False)
        for victim, deed in (
            *(("worker 1", "killed"), ("app 1", "killed"), ("app 2", "terminated")),
            *(("named app", "killed"), ("", "Redis connections cut")),
        )
    ]
    with Everything(*servers, 1, tmp_path) as everything:
        outcome = everything.play(blows)
        assert outcome.faults.total() == len(blows)
        assert min(outcome.events[kind] for kind in ("producers", "requests", "packets")) > 0
        with Oracle(everything.mysql_url) as oracle:
            oracle.rows("UPDATE counter_slot SET amount = amount + 1 WHERE counter = 'lines'")
        assert everything.book.differences(everything.mysql_url)
