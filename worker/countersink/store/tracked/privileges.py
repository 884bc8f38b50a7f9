"""Rights that triggers need, and the sentences that say what to GRANT or SET where one is missing.

Only the server can tell for sure, by what it says to CREATE TRIGGER. What can be told before
anything is changed is told here.
"""

from collections.abc import Sequence
from typing import Final

from countersink.store.connection import Session
from countersink.store.errors import Refused, StoreError
from countersink.store.sql import quoted

_DENIED: Final = frozenset(
    {
        1044,  # Access denied to database
        1142,  # TRIGGER command denied to user for table
        1143,  # … for column
    }
)
_BINARY_LOG: Final = 1419  # You do not have the SUPER privilege and binary logging is enabled
_NO_PUBLIC: Final = frozenset(
    {
        1064,  # an older server takes the name for …
        1133,  # … an account,
        1141,  # … or has no such grant
        1142,  # an account of this name, which only some may look at
        1044,
    }
)
_TRUSTED: Final = frozenset({"SUPER", "BINLOG ADMIN"})
"""Privileges that lift what the binary log demands (the second on MariaDB)."""

_BINARY_LOG_ADVICE: Final = (
    "the server writes a binary log, and then only users with SUPER may make triggers: let an"
    " administrator run SET GLOBAL log_bin_trust_function_creators = 1 and write it to the server's"
    " configuration too, or grant SUPER"
)


def require_before(session: Session, schema: str, table: str, database: str) -> None:
    """Check, as far as can be told before, that triggers can be made on a table, and can count.

    Args:
        session: of the user whose triggers they will be.
        schema: the database that the table is in.
        table: its name.
        database: where the tables of countersink are.

    Raises:
        Refused: they cannot; says what to grant, or to set.
    """
    ((user, role),) = session.query("SELECT CURRENT_USER(), CURRENT_ROLE()")
    # A trigger has the rights of the user who made it; on MariaDB without those of a role.
    if role not in (None, "NONE") and session.dialect.name == "mysql":
        return
    if session.dialect.name == "mariadb" and _public(session):
        return  # what everybody has been granted a trigger has, too, but cannot be read everywhere
    if (lack := _missing(session, user, schema, table, database)) is not None:
        raise Refused(lack, code=1142)
    variables = dict(
        session.query(
            "SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'log_bin_trust_function_creators')"
        )
    )
    if (
        variables.get("log_bin") == "ON"
        and variables.get("log_bin_trust_function_creators") == "OFF"
        and not _privileges(session, user, schema, table) & _TRUSTED
    ):
        raise Refused(_BINARY_LOG_ADVICE, code=_BINARY_LOG)


def explained(error: StoreError, session: Session, schema: str, table: str) -> StoreError:
    """``error``, or one that says what to grant or to set where that is what it is about."""
    if error.code == _BINARY_LOG:
        return Refused(_BINARY_LOG_ADVICE, code=error.code)
    if error.code in _DENIED:
        ((user,),) = session.query("SELECT CURRENT_USER()")
        # Without what a general advice would say behind it.
        said, _, _ = str(error).partition(" (error ")
        advice = _lacks(user, schema, table, ("SELECT", "TRIGGER"))
        return Refused(f"{advice}; the server said: {said}", code=error.code)
    return error


def grant(session: Session, schema: str, table: str, needed: Sequence[str]) -> str:
    """What an administrator has to run for this user, in words."""
    ((user,),) = session.query("SELECT CURRENT_USER()")
    return _grant(user, schema, table, needed)


def trouble_of(
    session: Session, definer: str, schema: str, table: str, database: str
) -> str | None:
    """Why triggers that run as ``definer`` fail, and the writes with them; None if nothing is seen.

    Nothing is said of an account that this user may not look at, or that has roles.

    Args:
        session: whoever's.
        definer: ``user@host``.
        schema: the database that the table is in.
        table: its name.
        database: where the tables of countersink are.
    """
    name, _, host = definer.rpartition("@")
    accounts = {
        account
        for (account,) in session.query("SELECT grantee FROM information_schema.user_privileges")
    }
    ((user,),) = session.query("SELECT CURRENT_USER()")
    if len(accounts) < 2 and definer != user:
        return None  # whoever may not read the grants sees only its own
    if f"'{name}'@'{host}'" not in accounts:
        return f"{definer} does not exist any more"
    try:
        if session.dialect.name == "mysql":
            ((by_role,),) = session.query(
                "SELECT @@mandatory_roles <> '' OR EXISTS"
                " (SELECT 1 FROM mysql.role_edges WHERE to_user = %s AND to_host = %s)",
                (name, host),
            )
        else:
            by_role = _public(session)
    except Refused:
        return None
    return None if by_role else _missing(session, definer, schema, table, database)


def _missing(session: Session, user: str, schema: str, table: str, database: str) -> str | None:
    """What a user lacks that triggers, or whoever makes them, need; None for nothing."""
    needed = ("SELECT", "TRIGGER")
    if not _privileges(session, user, schema, table).issuperset(needed):
        return _lacks(user, schema, table, needed)
    counting = ("SELECT", "INSERT", "UPDATE")
    if not _privileges(session, user, database, "counter_slot").issuperset(counting):
        return _lacks(user, database, "counter_slot", counting)
    return None


def _public(session: Session) -> bool:
    """Whether something was granted to everybody, which MariaDB knows from 10.11 on."""
    try:
        return bool(session.query("SHOW GRANTS FOR PUBLIC"))
    except StoreError as error:
        if error.code in _NO_PUBLIC:
            return False
        raise


def _privileges(session: Session, user: str, schema: str, table: str) -> frozenset[str]:
    """The privileges on a table, or on columns of it, that a user has, without those of roles."""
    name, _, host = user.rpartition("@")
    grantee = f"'{name}'@'{host}'"
    rows = session.query(
        "SELECT privilege_type FROM information_schema.user_privileges WHERE grantee = %s"
        # A grant on a database takes its name as a pattern.
        " UNION SELECT privilege_type FROM information_schema.schema_privileges"
        " WHERE grantee = %s AND %s LIKE table_schema"
        " UNION SELECT privilege_type FROM information_schema.table_privileges"
        " WHERE grantee = %s AND table_schema = %s AND table_name = %s"
        # Those on some columns may do.
        " UNION SELECT privilege_type FROM information_schema.column_privileges"
        " WHERE grantee = %s AND table_schema = %s AND table_name = %s",
        (grantee, grantee, schema, *(grantee, schema, table) * 2),
    )
    return frozenset(kind for (kind,) in rows)


def _lacks(user: str, schema: str, table: str, needed: Sequence[str]) -> str:
    return (
        f"{user} lacks rights on {schema}.{table} that its triggers need:"
        f" {_grant(user, schema, table, needed)} (rights by a role do not do)"
    )


def _grant(user: str, schema: str, table: str, needed: Sequence[str]) -> str:
    name, _, host = user.rpartition("@")
    return (
        f"let an administrator run GRANT {', '.join(needed)} ON"
        f" {quoted(schema)}.{quoted(table)} TO {quoted(name)}@{quoted(host)}"
    )
