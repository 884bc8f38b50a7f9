"""Whoever is in the way of a trigger can be found by what the error says."""

import re

import pytest

from countersink.store import Conflict
from countersink.store.connection import connect
from countersink.store.tracked import triggers
from tests.store.tracked.application import App


def test_the_error_says_by_which_query_to_find_who_uses_the_table(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "ATTEMPTS", 1)
    app.run("CREATE TABLE `it's` (id INT PRIMARY KEY)")
    with connect(app.app_url) as other:
        other.begin()
        other.query("SELECT * FROM `it's`")
        with pytest.raises(Conflict, match="metadata_lock") as refused:
            app.track("`it's`", counter="c")
        query = re.search(r"(SELECT .*?) says who uses", str(refused.value))
        assert query, refused.value
        ((own,),) = other.query("SELECT CONNECTION_ID()")
        found = [who for who, *_ in app.own.query(query[1])]
    if app.session.dialect.name == "mysql":
        assert set(found) == {own}
    else:
        assert own in found  # of other tests, too
    assert triggers.PAUSES[0] >= triggers.LOCK_WAIT
