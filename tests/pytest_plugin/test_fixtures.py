"""Fixtures of the plugin for tests of applications, in runs of pytest of their own."""

import textwrap
from pathlib import Path

from countersink.database.connection import connect
from tests.support.plugin import run_pytest

USES_STORE = """
    import pytest
    from countersink.store import Store

    @pytest.mark.parametrize("passes", [True, False])
    def test(countersink_store, passes):
        assert countersink_store.counters.list() == []
        countersink_store.counters.set("hits")
        assert [each.name for each in Store.from_env().counters.list()] == ["hits"]
        assert passes
"""


def write(directory: Path, text: str) -> None:
    (directory / "test_app.py").write_text(textwrap.dedent(text))


def test_each_test_has_an_empty_producer_that_the_application_counts_with(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import pytest
        from countersink.producers import Producer

        producer = Producer("memory://")  # of a module of the application
        producer.increment("hits")

        @pytest.mark.parametrize("_", range(2))
        def test_counts(_, countersink_producer, caplog):
            producer.increment("hits", "/", id="1")
            Producer.from_env().increment("hits", "/")
            countersink_producer.assert_counted("hits", {"/": 2})
            assert caplog.records == []

        def test_without_the_fixture():
            with pytest.raises(ValueError, match="are both set"):
                Producer.from_env()
        """,
    )
    both = {"COUNTERSINK_REDIS_URL": "redis://h", "COUNTERSINK_REDIS_URL_FILE": "/nonexistent"}
    assert "3 passed" in run_pytest(tmp_path, **both)


def test_each_test_has_a_database_of_its_own_which_is_gone_afterwards(
    mysql_url: str, tmp_path: Path
) -> None:
    """Also if the test fails."""
    write(tmp_path, USES_STORE)
    with connect(mysql_url) as session:
        before = session.query("SHOW DATABASES")
    others = {"COUNTERSINK_MYSQL_URL_FILE": "/x", "COUNTERSINK_MYSQL_READ_URL": "mysql://h/x"}
    for printed in (
        run_pytest(tmp_path, COUNTERSINK_MYSQL_URL=mysql_url, **others),
        run_pytest(tmp_path, f"-ocountersink_mysql_url={mysql_url}", COUNTERSINK_MYSQL_URL="x"),
    ):
        assert "1 failed, 1 passed" in printed
    with connect(mysql_url) as session:  # another one: a session may not be idle for a minute
        assert session.query("SHOW DATABASES") == before
        assert session.query("SELECT * FROM counter") == []


def test_without_a_server_a_test_is_skipped_and_with_a_bad_one_it_fails(tmp_path: Path) -> None:
    write(tmp_path, USES_STORE)
    skipped = run_pytest(tmp_path)
    assert "2 skipped" in skipped
    needed = "set COUNTERSINK_MYSQL_URL, or -o countersink_mysql_url=URL"
    assert f"countersink_store needs a MySQL server: {needed}" in skipped
    for url, said in (
        ("mysql://127.0.0.1:1", "Can't connect to MySQL server on '127.0.0.1'"),
        ("redis://h", "not a MySQL URL: it has the form mysql://"),
    ):
        failed = run_pytest(tmp_path, COUNTERSINK_MYSQL_URL=url)
        assert "2 errors" in failed
        assert f"countersink_store: {said}" in failed
