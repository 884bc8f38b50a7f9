"""What a plan says of a table before anything is changed."""

from typing import Any

from tests.store.tracked.application import App


def test_a_plan_names_the_columns_that_triggers_read_and_what_will_need_a_recount(app: App) -> None:
    app.run(
        "CREATE TABLE bare (id INT, status INT, placed DATE)",
        "CREATE TABLE keyed (id INT, status INT, placed DATE, PRIMARY KEY (status, id))",
    )
    mariadb = app.session.dialect.name == "mariadb"
    plan = app.store.tracked.plan
    how: dict[str, Any] = {"by": ["STATUS"], "day": "placed"}
    keyed = plan(f"{app.schema}.keyed", **how)
    assert keyed.reads == ["status", "placed", *(["id"] if mariadb else [])]
    assert keyed.warnings == []
    everything = plan(f"{app.schema}.bare")
    assert (everything.reads, everything.warnings) == ([], [])
    bare = plan(f"{app.schema}.bare", **how)
    assert bare.reads == ["status", "placed"]
    assert ["UPDATE IGNORE" in warning for warning in bare.warnings] == [True] * mariadb
    notices = list[str]()
    app.track("bare", notice=notices.append, **how)
    assert notices == bare.warnings
