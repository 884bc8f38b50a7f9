"""Rights that triggers need, and the sentences that say what to GRANT where one is missing.

The server is asked by trying: what triggers read and write is tried beforehand, without a row;
whether they may be made is what it says to CREATE TRIGGER.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from countersink.database.errors import Refused, StoreError
from countersink.database.session import Session
from countersink.database.sql import quoted

_DENIED: Final = frozenset(
    {
        1044,  # Access denied to database
        1142,  # TRIGGER command denied to user for table
        1143,  # … for column
    }
)


def require_before(session: Session, schema: str, table: str, database: str) -> None:
    """Check that triggers made by this user can read a table, and can count.

    Args:
        session: of the user whose triggers they will be.
        schema: the database that the table is in.
        table: its name.
        database: where the tables of countersink are.

    Raises:
        Refused: they cannot; says what to grant.
    """
    # With no rights but those that a trigger has: on MariaDB none of a role.
    ((role,),) = session.query("SELECT CURRENT_ROLE()")
    by_role = role is not None and session.dialect.name == "mariadb"
    if by_role:
        session.execute("SET ROLE NONE")
    try:
        with explaining(session, schema, table):
            session.query(f"SELECT 1 FROM {quoted(schema)}.{quoted(table)} LIMIT 0")
        with explaining(session, database, "counter_slot", ("SELECT", "INSERT", "UPDATE")):
            session.execute(
                f"INSERT INTO {quoted(database)}.counter_slot SELECT * FROM"
                f" {quoted(database)}.counter_slot AS t WHERE FALSE"
                " ON DUPLICATE KEY UPDATE amount = t.amount"
            )
    finally:
        if by_role:
            session.execute(f"SET ROLE {quoted(role)}")


@contextmanager
def explaining(
    session: Session, schema: str, table: str, needed: Sequence[str] = ("SELECT", "TRIGGER")
) -> Iterator[None]:
    """An error within that is about a missing right says what to grant."""
    try:
        yield
    except StoreError as error:
        if error.code not in _DENIED:
            raise
        # Without what a general advice would say behind it.
        said, _, _ = str(error).partition(" (error ")
        raise Refused(
            f"triggers on {schema}.{table} need rights of their own, which a role does not give:"
            f" {grant(session, schema, table, needed)}; the server said: {said}",
            code=error.code,
        ) from error


def grant(session: Session, schema: str, table: str, needed: Sequence[str]) -> str:
    """What an administrator has to run for this user, in words."""
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = user.rpartition("@")
    return (
        f"let an administrator run GRANT {', '.join(needed)} ON"
        f" {quoted(schema)}.{quoted(table)} TO {quoted(name)}@{quoted(host)}"
    )


def is_gone(session: Session, definer: str) -> bool:
    """Whether there is no user ``definer`` (``user@host``) any more, as whom triggers run; False
    where this user may not look at others.
    """
    accounts = {
        account
        for (account,) in session.query("SELECT grantee FROM information_schema.user_privileges")
    }
    ((user,),) = session.query("SELECT CURRENT_USER()")
    name, _, host = definer.rpartition("@")
    # Whoever may not read the grants sees only its own.
    return f"'{name}'@'{host}'" not in accounts and (len(accounts) > 1 or definer == user)
