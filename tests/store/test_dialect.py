"""Which server it is, with versions compared as numbers."""

import pytest

from countersink.store.errors import Refused
from countersink.store.sql import Dialect, parse_version

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("10.11.19-MariaDB-0+deb12u1", Dialect("mariadb", (10, 11, 19))),
        ("10.6.0-MariaDB", Dialect("mariadb", (10, 6, 0))),
        ("5.5.5-10.6.12-MariaDB-log", Dialect("mariadb", (10, 6, 12))),
        ("12.1.2-MariaDB-ubu2404", Dialect("mariadb", (12, 1, 2))),
        ("9.7.4-2", Dialect("mysql", (9, 7, 4))),
        ("8.0.19", Dialect("mysql", (8, 0, 19))),
        ("8.0.39-30.1", Dialect("mysql", (8, 0, 39))),
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
