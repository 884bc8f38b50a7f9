"""redis-cli by the recipes in producers/README.md: hundreds of increments, exact."""

import re

from countersink.store import Store
from countersink.worker import WorkerOptions, run
from tests.clients.programs import output, redis_cli
from tests.docs.console import blocks

COUNT = 200


QUOTED = """redis-cli() { printf '"%s" ' "${@//\\"/\\\\\\"}"; }"""
"""Prints its arguments as redis-cli reads them from its standard input."""


def recipe(part: str) -> str:
    """The command in the README that has `part` in it, with what its variables stand for."""
    script = [QUOTED]
    for block in blocks("producers/README.md", "sh"):
        if part in block:
            return output(["bash", "-ec", "\n".join([*script, block])])
        script += [line for line in block.splitlines() if line.startswith("rows=")]
    raise AssertionError(f"no recipe has {part}")


def said_to_redis(url: str, lines: list[str]) -> None:
    command, environment = redis_cli(url)
    printed = output(command, said="\n".join(lines) + "\n", environment=environment)
    assert len(re.findall(r"^\"?[0-9]+-[0-9]+\"?$", printed, re.MULTILINE)) == len(lines), printed


def apply(redis_url: str, mysql_url: str) -> None:
    assert run(WorkerOptions(redis_url=redis_url, mysql_url=mysql_url, drain=True)) == 0


def test_the_shortest_recipe(redis_url: str, mysql_url: str, store: Store) -> None:
    said_to_redis(redis_url, [recipe("'*' rows")] * COUNT)
    apply(redis_url, mysql_url)
    assert store.totals.total("page_views", key="/home") == COUNT


def test_the_recipe_for_sending_again(redis_url: str, mysql_url: str, store: Store) -> None:
    line = recipe("'*' v 1 id")
    [id] = re.findall(r'"id" "([0-9a-f]{32})" "at" "[0-9]{13}"', line)
    lines = [line.replace(id, f"{number:032x}") for number in range(1, COUNT + 1)]
    said_to_redis(redis_url, lines + lines[::-1])
    apply(redis_url, mysql_url)
    said_to_redis(redis_url, lines)
    apply(redis_url, mysql_url)
    assert store.totals.total("page_views", key="/home") == COUNT
