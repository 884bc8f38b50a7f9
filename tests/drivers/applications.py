"""An application on each of the drivers and libraries that people use: one way to talk to all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import django
import mysql.connector
import pymysql
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.orm import Session as OrmSession

from tests.drivers import mysqlclient


@dataclass(frozen=True)
class App:
    """An application with one connection.

    Attributes:
        connection: what it gives to the store.
        run: run a statement in the same transaction, in the application's own way; its rows.
        commit, rollback: end the transaction.
        close: end the connection.
    """

    connection: Any
    run: Callable[[str], list[tuple[Any, ...]]]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    close: Callable[[], object]


def where(url: str) -> dict[str, Any]:
    """The URL as the arguments that most drivers take."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
    }


def of_driver(connection: Any) -> App:
    """An application that talks to its driver itself."""

    def run(sql: str) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.execute(sql)
        rows = cursor.fetchall() if cursor.description else []
        cursor.close()
        return [tuple(row) for row in rows]

    return App(connection, run, connection.commit, connection.rollback, connection.close)


def on_pymysql(url: str, **options: Any) -> App:
    """PyMySQL."""
    return of_driver(pymysql.connect(**(where(url) | options)))


def on_mysqlclient(url: str, **options: Any) -> App:
    """mysqlclient."""
    found = where(url)
    found["db"] = found.pop("database")  # as the version of Debian 12 calls it
    found["passwd"] = found.pop("password")
    return of_driver(mysqlclient.load().connect(**(found | options)))


def on_connector(url: str, **options: Any) -> App:
    """mysql-connector-python as it comes: in C where that was built."""
    return of_driver(mysql.connector.connect(**(where(url) | options)))


def on_pure_connector(url: str, **options: Any) -> App:
    """mysql-connector-python in Python."""
    return on_connector(url, use_pure=True, **options)


def on_sqlalchemy(url: str, driver: str, raw: bool) -> App:
    """SQLAlchemy's ORM; its connection as it hands it out, or the driver's own below it."""
    engine = sqlalchemy.create_engine(url.replace("mysql://", f"mysql+{driver}://"))
    session = OrmSession(engine)

    def run(sql: str) -> list[tuple[Any, ...]]:
        result = session.execute(sqlalchemy.text(sql))
        return [tuple(row) for row in result] if result.returns_rows else []

    def close() -> None:
        session.close()
        engine.dispose()

    class Current:
        """The connection that the session has checked out for its transaction."""

        def cursor(self) -> Any:
            fairy = session.connection().connection
            return (fairy.dbapi_connection if raw else fairy).cursor()

    return App(Current(), run, session.commit, session.rollback, close)


def on_django(url: str, *, raw: bool, autocommit: bool = False) -> App:
    """Django on mysqlclient; its wrapper of the connection, or the driver's own below it."""
    mysqlclient.load()
    if not django_settings.configured:
        django_settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.mysql"}}, USE_TZ=True
        )
        django.setup()
    connections: Any = django.db.connections
    wrapper = connections["default"]
    wrapper.close()
    found = where(url)
    wrapper.settings_dict |= {
        "NAME": found["database"],
        "HOST": found["host"],
        "PORT": found["port"],
        "USER": found["user"],
        "PASSWORD": found["password"],
    }
    wrapper.ensure_connection()
    wrapper.set_autocommit(autocommit)

    def run(sql: str) -> list[tuple[Any, ...]]:
        with wrapper.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    connection = wrapper.connection if raw else wrapper
    return App(connection, run, wrapper.commit, wrapper.rollback, wrapper.close)
