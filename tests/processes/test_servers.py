"""What each server loses at each of its ends, under load: as docs/processes.md says."""

import re
from pathlib import Path

import pytest
import redis

from tests.processes.ends import bring_to
from tests.processes.servers import ENDS, INTERVAL, NONE, SERVERS, TABLE
from tests.support.processes import PROJECT

DOCUMENT = PROJECT / "docs/processes.md"
CASES = [
    (server, end, counts)
    for server, outcomes in TABLE.items()
    for end, outcome in zip(ENDS, outcomes, strict=True)
    for counts in (("handler", "middleware") if end == "SIGTERM" else ("handler",))
    if outcome != NONE
]
SHORT = {
    ("uvicorn --workers 2", "SIGTERM", "middleware"),
    ("gunicorn -k gevent --preload", "SIGTERM", "handler"),
}
LONG = pytest.mark.long("the matrix of servers and their ends")


@pytest.mark.parametrize(
    ("name", "end", "counts"),
    [pytest.param(*case, marks=() if case in SHORT else LONG) for case in CASES],
)
def test_every_answered_request_is_counted_unless_the_table_says_otherwise(
    name: str,
    end: str,
    counts: str,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
) -> None:
    server = SERVERS[name]
    expected = TABLE[name][ENDS.index(end)]
    app = f"{server.interface}_{counts}" + ("()" if server.interface == "flask" else "")
    count = bring_to(end, expected, server, app, redis_client, redis_url, tmp_path)
    at_least = count.before if expected == INTERVAL else count.answered
    assert at_least <= count.counted <= count.answered + count.unanswered, count


def test_the_document_has_the_same_table() -> None:
    text = DOCUMENT.read_text("utf-8")
    (table,) = [part for part in text.split("\n\n") if "SIGTERM |" in part]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", table, re.MULTILINE)
    said = {name: tuple(cell.strip() for cell in cells.split("|")) for name, cells in rows}
    assert said == TABLE
    assert list(SERVERS) == list(TABLE)
    head = table.splitlines()[0]
    assert tuple(cell.strip() for cell in head.split("|")[2:-1]) == ENDS
