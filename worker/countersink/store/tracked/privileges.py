"""What a user needs to make triggers, and what to grant where it is missing.

Only the server can tell for sure, by what it says to CREATE TRIGGER. What can be told before
anything is changed is told here.
"""

from collections.abc import Sequence
from typing import Final

from countersink.store.connection import Session
from countersink.store.errors import Refused, StoreError
from countersink.store.tracked.names import quoted

_DENIED: Final = frozenset(
    {
        1044,  # Access denied to database
        1142,  # TRIGGER command denied to user for table
        1143,  # … for column
        1227,  # you need (at least one of) the SUPER privilege(s)
        1370,  # … for routine
    }
)
_BINARY_LOG: Final = 1419  # You do not have the SUPER privilege and binary logging is enabled
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
    for place, needed in (
        ((schema, table), ("SELECT", "TRIGGER")),
        ((database, "counter_slot"), ("SELECT", "INSERT", "UPDATE")),
    ):
        if not _privileges(session, user, *place).issuperset(needed):
            raise Refused(_grant(user, *place, needed), code=1142)
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
        advice = _grant(user, schema, table, ("SELECT", "TRIGGER"))
        return Refused(f"{advice} ({error})", code=error.code)
    return error


def _privileges(session: Session, user: str, schema: str, table: str) -> frozenset[str]:
    """The privileges on a table that a user has, without those of roles."""
    name, _, host = user.rpartition("@")
    grantee = f"'{name}'@'{host}'"
    rows = session.query(
        "SELECT privilege_type FROM information_schema.user_privileges WHERE grantee = %s"
        # A grant on a database takes its name as a pattern.
        " UNION SELECT privilege_type FROM information_schema.schema_privileges"
        " WHERE grantee = %s AND %s LIKE table_schema"
        " UNION SELECT privilege_type FROM information_schema.table_privileges"
        " WHERE grantee = %s AND table_schema = %s AND table_name = %s",
        (grantee, grantee, schema, grantee, schema, table),
    )
    return frozenset(kind for (kind,) in rows)


def _grant(user: str, schema: str, table: str, needed: Sequence[str]) -> str:
    name, _, host = user.rpartition("@")
    return (
        f"this user lacks rights on {schema}.{table} that its triggers need: let an administrator"
        f" run GRANT {', '.join(needed)} ON {quoted(schema)}.{quoted(table)} TO {quoted(name)}"
        f"@{quoted(host)} (rights by a role do not do)"
    )
