"""Which of the several hosts of a URL takes writes, the reasons why others do not (read only,
Galera, Group Replication), and for how long a host that did not answer is asked last
(``SILENT_S``)."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from countersink.store.errors import (
    Misconfigured,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.store.settings import Settings

SLOW_S: Final = 1.0
"""A host that fails after more than so many seconds was silent."""
SILENT_S: Final = 30.0
"""For so many seconds a silent host is asked after the others, in this process; for twice as many
each time it is silent again, up to :data:`LONGEST_SILENT_S`."""
LONGEST_SILENT_S: Final = 600.0

Opened = TypeVar("Opened")
Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a query; its rows."""

READ_ONLY: Final = ("super_read_only", "read_only", "innodb_read_only")
"""Variables of which one that is on says that the server takes no writes."""
VARIABLES: Final = (
    *READ_ONLY,
    "wsrep_on",
    "wsrep_provider",
    "group_replication_group_name",
)
"""Variables of the server that :func:`why_not` looks at; it need not have them all."""
_MEMBERS: Final = (
    "SELECT member_id = @@server_uuid, member_state, member_role"
    " FROM performance_schema.replication_group_members"
)

_silent: Final[dict[str, tuple[float, float]]] = {}
"""Host → until when on the monotonic clock, and for how many seconds, it is asked last."""


def why_not(variables: Mapping[str, str], ask: Ask) -> str:
    """Why the server takes no writes; empty: it does.

    Asks nothing but of a member of a group, and of that one thing.

    Args:
        variables: those of :data:`VARIABLES` that it has.
        ask: runs a query on it.
    """
    for name in READ_ONLY:
        if is_on(variables.get(name, "OFF")):
            return "read only"
    provider = variables.get("wsrep_provider", "none")
    if is_on(variables.get("wsrep_on", "OFF")) and provider not in ("", "none"):
        # All of its nodes take writes, and share locks do not reach from one to another: processes
        # that came to different ones would count wrongly.
        return "a Galera node, to which a URL with several hosts does not go: name one node alone"
    if variables.get("group_replication_group_name"):
        return _why_not_of_member(ask(_MEMBERS))
    return ""


def is_on(value: str) -> bool:
    """Whether a variable is on; NO_LOCK and NO_LOCK_NO_ADMIN are MariaDB 12's ways to say so."""
    return value.upper() not in ("OFF", "0")


def _why_not_of_member(members: Sequence[tuple[Any, ...]]) -> str:
    own = [(str(state), str(role)) for is_own, state, role in members if is_own]
    state, role = own[0] if own else ("OFFLINE", "")
    if state != "ONLINE":
        return f"a group member that is {state}"
    if role != "PRIMARY":
        return f"a group member that is {role}"
    if sum(str(role) == "PRIMARY" for _, _, role in members) > 1:
        return "a member of a group with several primaries: set single-primary mode"
    unreachable = sum(str(state) == "UNREACHABLE" for _, state, _ in members)
    if 2 * unreachable >= len(members):
        return "a group member that does not reach the majority"
    return ""


def first_of(settings: Settings, log_in: Callable[[Settings], Opened]) -> Opened:
    """What ``log_in`` returns for the first host, in the URL's order, that takes writes.

    Args:
        settings: with several hosts.
        log_in: given the settings of one host; raises Unavailable if it takes no writes.

    Raises:
        Unavailable: none does; the message names each host and why not.
        Refused: each of them refuses the login.
        Misconfigured, SchemaMismatch: as ``log_in``.
    """
    errors: dict[str, StoreError] = {}
    for host in sorted(settings.each_host(), key=_is_silent):
        began = time.monotonic()
        try:
            opened = log_in(host)
        except (Misconfigured, SchemaMismatch):
            raise
        except StoreError as error:
            errors[host.where] = error
            if time.monotonic() - began > SLOW_S:
                _note_silence(host)
        else:
            _silent.pop(host.where, None)
            return opened
    reasons = [f"{each.where}: {reason(errors[each.where])}" for each in settings.each_host()]
    if all(isinstance(error, Refused) for error in errors.values()):
        raise Refused("; ".join(reasons), code=next(iter(errors.values())).code)
    raise Unavailable("no host takes writes: " + "; ".join(reasons))


def _is_silent(host: Settings) -> bool:
    until, _ = _silent.get(host.where, (0.0, 0.0))
    return time.monotonic() < until


def _note_silence(host: Settings) -> None:
    _, seconds = _silent.get(host.where, (0.0, SILENT_S / 2))
    seconds = min(2 * seconds, LONGEST_SILENT_S)
    _silent[host.where] = time.monotonic() + seconds, seconds


def reason(error: StoreError) -> str:
    """In few words why a host could not be used."""
    cause = error.__cause__
    origin = getattr(cause, "original_exception", None) or getattr(cause, "__context__", None)
    if isinstance(origin, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(origin, TimeoutError):
        return "did not answer in time"
    if isinstance(origin, socket.gaierror):
        return "this name has no address"
    return str(error)
