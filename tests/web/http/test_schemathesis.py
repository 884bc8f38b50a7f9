"""The OpenAPI document is true: a short exploration; ``make soak`` has long ones."""

from pathlib import Path

import pytest

from tests.web.exploring import explored

SOME = r"^/v1/(increments|counters/\{counter\}/top|sequences/\{name\}/next|notes)$"
"""Operations with a body, with many parameters, and with few."""


@pytest.mark.parametrize(
    "paths",
    [SOME, pytest.param("", marks=pytest.mark.long("each operation is asked by each check"))],
    ids=["some", "all"],
)
def test_the_server_does_what_its_document_says(
    redis_url: str, mysql_url: str, tmp_path: Path, paths: str
) -> None:
    found = explored(
        redis_url, mysql_url, tmp_path, examples=1, seed=1, phases="fuzzing", paths=paths
    )
    assert not found, found
