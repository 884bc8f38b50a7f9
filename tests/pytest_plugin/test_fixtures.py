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


def test_a_transaction_that_outlasts_the_fixture_leaves_no_database(
    mysql_url: str, tmp_path: Path
) -> None:
    """As that of Django's usual test, which is rolled back after the fixtures."""
    write(
        tmp_path,
        """
        import os
        import pymysql
        import pytest
        from countersink.database.url import Settings
        from countersink.store import UnknownCounter

        @pytest.fixture
        def connection():
            found = Settings.parse(os.environ["COUNTERSINK_MYSQL_URL"])
            login = {"user": found.user, "password": found.password}
            with pymysql.connect(host=found.host, port=found.port, **login) as connection:
                connection.begin()
                yield connection
                connection.rollback()

        def test_counts(connection, countersink_store):
            countersink_store.increment(connection, "signups")
            with pytest.raises(UnknownCounter):
                countersink_store.totals.total("signups")
        """,
    )
    with connect(mysql_url) as session:
        before = session.query("SHOW DATABASES")
        printed = run_pytest(tmp_path, COUNTERSINK_MYSQL_URL=mysql_url)
        assert "1 passed, 1 warning" in printed
        assert "mark the test django_db(transaction=True)" in printed
        assert session.query("SHOW DATABASES") == before


def test_a_module_with_a_store_is_imported_without_a_server(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import pytest
        from countersink.store import Misconfigured, Store

        store = Store.from_env(missing="off")

        def test_no_database():
            assert repr(store) == "Store('off://')"
            for use in (store.counters.list, store.migrate, lambda: store.sequences.next("n")):
                with pytest.raises(Misconfigured, match="COUNTERSINK_MYSQL_URL is missing or off"):
                    use()
            with pytest.raises(ValueError, match="missing must be 'error' or 'off'"):
                Store.from_env(missing="none")

        def test_of_the_store(countersink_store):
            raise AssertionError
        """,
    )
    assert "1 passed, 1 skipped" in run_pytest(tmp_path)
    assert "1 passed, 1 skipped" in run_pytest(tmp_path, COUNTERSINK_MYSQL_URL="off://")
