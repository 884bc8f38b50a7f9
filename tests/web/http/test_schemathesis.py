"""The OpenAPI document is true: a short exploration; ``make soak`` has long ones."""

from pathlib import Path

from tests.web.exploring import explored


def test_the_server_does_what_its_document_says(
    redis_url: str, mysql_url: str, tmp_path: Path
) -> None:
    found = explored(redis_url, mysql_url, tmp_path, examples=1, seed=1, phases="fuzzing")
    assert not found, found
