"""Every error of the driver ends as one of ours, with its cause and code."""

import inspect
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator

import pymysql.err
import pytest
from pymysql.constants import CR, ER

from countersink.database.errors import (
    BadData,
    Conflict,
    DuplicateKey,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
    translate,
)
from countersink.database.sql import Dialect, parse_version
from countersink.database.url import with_database

pytestmark = pytest.mark.servers("mariadb", "mysql")


def _classes() -> Iterator[type[pymysql.err.MySQLError]]:
    for _, kind in inspect.getmembers(pymysql.err, inspect.isclass):
        if issubclass(kind, pymysql.err.MySQLError):
            yield kind


def _codes() -> Iterator[int]:
    for module in (ER, CR):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int):
                yield value


def test_every_class_with_every_code_is_one_of_ours() -> None:
    kinds = list(_classes())
    assert len(kinds) >= 10
    for kind in kinds:
        for code in _codes():
            ours = translate(kind(code, "text"))
            assert type(ours) is not StoreError
            assert isinstance(ours, StoreError)
            assert ours.code == code
        for arguments in ((), ("Already closed",), (0, ""), (None, "x"), ("a", "b", "c")):
            assert isinstance(translate(kind(*arguments)), Unavailable | Refused)


MEANING: dict[type[StoreError], tuple[int, ...]] = {
    Unavailable: (
        *(0, 2002, 2003, 2006, 2013, 1290, 1792, 1836, 1053),
        *(1040, 1047, 3098, 3032, 3100, 1927, 4031, 1180),
    ),
    Conflict: (1205, 1213, 1020, 3101, 3572),
    DuplicateKey: (1062,),
    BadData: (1264, 1690, 1406, 1366),
    SchemaMismatch: (1049, 1146),
    Refused: (1045, 1142, 1021, 1114, 1064, 1419, 1048, 65000),
}


@pytest.mark.parametrize(
    ("code", "kind"), [(code, kind) for kind, codes in MEANING.items() for code in codes]
)
def test_what_each_code_means(code: int, kind: type[StoreError]) -> None:
    assert type(translate(pymysql.err.OperationalError(code, "text"))) is kind


@pytest.mark.parametrize(
    "error",
    [
        OSError("broken"),
        TimeoutError(),
        EOFError(),
        ssl.SSLError("bad record"),
        struct.error("unpack requires 4 bytes"),
        IndexError(),
        AttributeError("'NoneType' object has no attribute 'sendall'"),
    ],
)
def test_what_the_driver_stumbles_over_is_a_lost_connection(error: Exception) -> None:
    assert type(translate(error)) is Unavailable


def test_other_exceptions_are_refusals_and_ours_stay_as_they_are() -> None:
    assert type(translate(RuntimeError("'cryptography' package is required"))) is Refused
    ours = Conflict("x")
    assert translate(ours) is ours


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("10.11.19-MariaDB-0+deb12u1", Dialect("mariadb", (10, 11, 19))),
        ("5.5.5-10.6.12-MariaDB-log", Dialect("mariadb", (10, 6, 12))),
        ("12.1.2-MariaDB-ubu2404", Dialect("mariadb", (12, 1, 2))),
        ("9.7.4-2", Dialect("mysql", (9, 7, 4))),
        ("8.0.19", Dialect("mysql", (8, 0, 19))),
        ("8.0.30-Vitess", Dialect("mysql", (8, 0, 30))),
        ("8.4", Dialect("mysql", (8, 4, 0))),
        ("10.0.1", Dialect("mysql", (10, 0, 1))),
    ],
)
def test_versions(text: str, dialect: Dialect) -> None:
    assert parse_version(text) == dialect


@pytest.mark.parametrize("text", ["10.5.29-MariaDB", "8.0.18", "5.7.44-log", "8.0.9", "", "x"])
def test_too_old_or_no_version(text: str) -> None:
    with pytest.raises(Refused, match=r"needs|no number"):
        parse_version(text)


AS_DJANGO = """
import sys
import pymysql

pymysql.install_as_MySQLdb()
import MySQLdb.connections  # loads modules of PyMySQL a second time
from MySQLdb.constants import CLIENT
from MySQLdb.converters import conversions

from countersink.store import Store

with Store(sys.argv[1]) as store:
    try:
        print(store.totals.total("page_views"))
    except Exception as error:
        print(type(error).__name__)
"""


def test_an_application_may_load_the_driver_twice(mysql_url: str) -> None:
    """As Django does, whose backend imports MySQLdb."""
    away, missing = "mysql://u@127.0.0.1:1/x", with_database(mysql_url, "no_such_database")
    for url, expected in ((away, "Unavailable"), (missing, "SchemaMismatch")):
        done = subprocess.run(
            [sys.executable, "-c", AS_DJANGO, url], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{expected}\n"
