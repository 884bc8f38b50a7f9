"""The front door, and the names that others may rely on."""

from datetime import date
from pathlib import Path

import pytest

import countersink.store
from countersink.store import Misconfigured, Store, StoreError
from countersink.store.apply.apply import Applier
from tests.store.helpers import entry, rows


def test_the_public_names() -> None:
    assert sorted(countersink.store.__all__) == [
        "BadData",
        "Conflict",
        "DamagedSketch",
        "DuplicateKey",
        "IncompleteBreakdown",
        "InexactZone",
        "Misconfigured",
        "NoSketches",
        "NotUnique",
        "Refused",
        "RolledUp",
        "SchemaMismatch",
        "SequenceExhausted",
        "SequenceUncertain",
        "Store",
        "StoreError",
        "TrackedCounter",
        "Unavailable",
        "UnknownCounter",
        "UnknownDimension",
    ]
    for name in countersink.store.__all__:
        found = getattr(countersink.store, name)
        assert found is Store or issubclass(found, StoreError)


def test_from_migrating_to_a_total(empty_mysql_url: str) -> None:
    with Store(empty_mysql_url) as store:
        assert store.migrate()[-1] == "0001_schema"
        applier = Applier(empty_mysql_url, 1)
        applier.apply([entry(rows(("/home", 7)))])
        applier.close()
        assert store.totals.total("views", key="/home") == 7
        assert store.totals.daily("views") == [(date(2026, 11, 21), 7)]


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL", raising=False)
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL_FILE", raising=False)
    with pytest.raises(Misconfigured, match="set COUNTERSINK_MYSQL_URL"):
        Store.from_env()
    file = tmp_path / "url"
    file.write_text("mysql://file:s3cret@h/d\n")
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL_FILE", str(file))
    assert repr(Store.from_env()) == "Store('mysql://file@h:3306/d')"
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL", "mysql://env:s3cret@h/d")
    with pytest.raises(Misconfigured, match="are both set"):
        Store.from_env()
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL_FILE")
    assert repr(Store.from_env()) == "Store('mysql://env@h:3306/d')"
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL")
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(Misconfigured, match="cannot be read"):
        Store.from_env()


@pytest.mark.parametrize("url", ["mysql://h", "redis://h/0"])
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="MySQL URL"):
        Store(url)
