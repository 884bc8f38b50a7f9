"""Which of the several hosts of a URL takes writes, the reasons why others do not (read only,
Galera, Group Replication), for how long a host that did not answer is asked last (``SILENT_S``),
and after how long a session that waits for a hung host is given up (``PATIENCE_S``)."""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from countersink.database.errors import (
    Misconfigured,
    OtherWriter,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.database.sql import GROUP, SEVERAL_PRIMARIES, is_on
from countersink.database.url import Settings

SLOW_S: Final = 1.0
"""A host that fails after more than so many seconds was silent."""
SILENT_S: Final = 60.0
"""For so many seconds a silent host is asked after the others, in this process."""
PATIENCE_S: Final = 2.0
"""A session that has waited so long for its host: it is looked whether another one takes writes."""
PROBE_S: Final = 2.0
"""Seconds that a host has for each answer when it is looked at so."""
_LOOK_EVERY_S: Final = 0.5
PAUSE_S: Final = 2.0
"""Seconds between two looks at a host that takes writes, while sessions wait: a long statement does
not cost two logins each second."""
LIMITS: Final = frozenset({1040, 1203, 1226})
"""Too many connections, of all or of this user: the server is well."""

LOGGER: Final = logging.getLogger("countersink.database")
Opened = TypeVar("Opened")
Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a query; its rows."""

READ_ONLY: Final = ("super_read_only", "read_only", "innodb_read_only")
"""Variables of which one that is on says that the server takes no writes."""
GALERA: Final = ("wsrep_on", "wsrep_provider")
"""Variables by which a node of Galera is known."""
"""Variables by which a member of a group is known, and whether all members of it take writes."""
VARIABLES: Final = (*READ_ONLY, *GALERA, *GROUP)
"""Variables of the server that :func:`why_not` looks at; it need not have them all."""
_MEMBERS: Final = (
    "SELECT member_id = @@server_uuid, member_state, member_role"
    " FROM performance_schema.replication_group_members"
)

_silent: Final[dict[str, float]] = {}
"""Host → until when on the monotonic clock it is asked last."""


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
    if not variables.get("group_replication_group_name"):
        return ""
    members = ask(_MEMBERS)
    own = [(str(state), str(role)) for is_own, state, role in members if is_own]
    state, role = own[0] if own else ("OFFLINE", "")
    if state != "ONLINE":
        return f"a group member that is {state}"
    if role != "PRIMARY":
        return f"a group member that is {role}"
    if sum(str(role) == "PRIMARY" for _, _, role in members) > 1:
        return SEVERAL_PRIMARIES
    unreachable = sum(str(state) == "UNREACHABLE" for _, state, _ in members)
    if 2 * unreachable >= len(members):
        return "a group member that does not reach the majority"
    return ""


def first_of(settings: Settings, log_in: Callable[..., Opened]) -> Opened:
    """What ``log_in`` returns for the first host, in the URL's order, that takes writes.

    Args:
        settings: with several hosts.
        log_in: given the settings of one host; raises Unavailable if it takes no writes,
            OtherWriter if it could, but another node of its cluster does; given this error, too, as
            ``former`` for the first one that could, when none does.

    Raises:
        Unavailable: none does; the message names each host and why not.
        Refused: each of them refuses the login.
        Misconfigured, SchemaMismatch: as ``log_in``.
    """
    errors: dict[str, StoreError] = {}
    asked = sorted(settings.each_host(), key=_is_silent)
    for host in asked:
        began = time.monotonic()
        try:
            opened = log_in(host)
        except (Misconfigured, SchemaMismatch):
            raise
        except StoreError as error:
            errors[host.where] = error
            # Who names another writer has waited for the cluster.
            if time.monotonic() - began > SLOW_S and not isinstance(error, OtherWriter):
                _note_silence(host)
        else:
            _silent.pop(host.where, None)
            return opened
    for host in asked:
        met = errors[host.where]
        if isinstance(met, OtherWriter) and not _answers(met.writer, errors):
            try:
                return log_in(host, former=met)
            except StoreError as again:
                errors[host.where] = again
    reasons = [f"{each.where}: {reason(errors[each.where])}" for each in settings.each_host()]
    if all(isinstance(e, Refused) and not isinstance(e, OtherWriter) for e in errors.values()):
        raise Refused("; ".join(reasons), code=next(iter(errors.values())).code)
    raise Unavailable("no host takes writes: " + "; ".join(reasons))


def _answers(writer: str, errors: Mapping[str, StoreError]) -> bool:
    """Whether a writer answered us with a limit of connections or a refusal: it serves others.

    Where its address is none of the URL, any host that did so may be it.
    """
    suspects = [errors[writer]] if writer in errors else list(errors.values())
    return any(not isinstance(each, OtherWriter) and is_well(each) for each in suspects)


def is_well(error: StoreError) -> bool:
    """Whether a host that raised this at a login may take writes, though not ours now."""
    return error.code in LIMITS or isinstance(error, Refused)


def _is_silent(host: Settings) -> bool:
    return time.monotonic() < _silent.get(host.where, 0.0)


def _note_silence(host: Settings) -> None:
    _silent[host.where] = time.monotonic() + SILENT_S


def reason(error: StoreError) -> str:
    """In few words why a host could not be used."""
    if isinstance(error, OtherWriter):
        return f"a Galera node, but {error.writer} is the one that takes countersink's writes"
    cause = error.__cause__
    origin = getattr(cause, "original_exception", None) or getattr(cause, "__context__", None)
    if isinstance(origin, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(origin, TimeoutError):
        return "did not answer in time"
    if isinstance(origin, socket.gaierror):
        return "this name has no address"
    return str(error)


class Waiting(Protocol):
    """A session, as :class:`Watch` sees it.

    Attributes:
        where: the host that it is connected to.
        waiting_since: on the monotonic clock: since when it waits for an answer; None: it does not.
        address: by which its Galera cluster knows the host; empty: there is none.
    """

    where: Settings
    waiting_since: float | None
    address: str

    def abort(self) -> None:
        """Break the connection, from any thread."""


class Watch:
    """Gives up the sessions to a host which hangs while another host takes writes.

    A frozen server, or one that is cut off from its group in the middle of a COMMIT, keeps its
    clients waiting, and a long statement on a healthy one is as silent: so a thread asks the host
    itself, by another connection, whether it still takes writes, and then the others. Of a node of
    Galera the others are believed, not the node: one that was frozen says for seconds that it takes
    writes, while the others have left it out. What the session was about is unknown then, as after
    any lost connection.

    Args:
        log_in: as for :func:`first_of`; what it opens (a Session) is closed again.
    """

    def __init__(self, log_in: Callable[[Settings], Any]) -> None:
        self._log_in = log_in
        self._lock = threading.Lock()
        self._sessions: WeakKeyDictionary[Waiting, Settings] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._next: dict[Settings, float] = {}
        """Host that takes writes, while sessions wait for it → when on the monotonic clock it is
        looked at again."""

    def add(self, session: Waiting, settings: Settings) -> None:
        """Look after a session to one of several hosts, for as long as there is one."""
        if self._pid != os.getpid():
            # A forked child: the thread stayed with its parent, as did whoever used the sessions.
            # To break one here would break it there.
            self._lock, self._pid, self._thread = threading.Lock(), os.getpid(), None
            self._sessions, self._next = WeakKeyDictionary(), {}
        with self._lock:
            self._sessions[session] = settings
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="countersink-hosts", daemon=True)
                self._thread = thread
                thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            with self._lock:
                sessions = list(self._sessions.items())
            self._look(sessions)
            del sessions

    def _look(self, sessions: Sequence[tuple[Waiting, Settings]]) -> None:
        late = time.monotonic() - PATIENCE_S
        found: dict[Settings, bool] = {}
        for session, settings in sessions:
            since, host = session.waiting_since, session.where
            if since is None or since > late:
                continue
            if host not in found:
                due = time.monotonic() >= self._next.get(host, 0.0)
                found[host] = due and self._has_moved(settings, session, since)
        for session, _ in sessions:
            # All of them: a thread that uses one after the other would wait as long for each.
            if found.get(session.where):
                session.abort()
        self._next = {host: self._next[host] for host in found if host in self._next}

    def _has_moved(self, settings: Settings, session: Waiting, since: float) -> bool:
        """Whether the host of a session that waits does not take writes, and another one does."""
        host = session.where
        error = self._trouble(host)
        others = [each for each in settings.each_host() if each.where != host.where]
        others.sort(key=_is_silent)
        if error is None or is_well(error):
            if session.address and self._is_left_out(session, others):
                _note_silence(host)  # a login there would wait, too
                self._next.pop(host, None)
                return True
            self._next[host] = time.monotonic() + PAUSE_S
            return False
        self._next.pop(host, None)
        moved = any(self._trouble(each) is None for each in others)
        return moved and session.waiting_since == since  # else it has answered after all

    def _is_left_out(self, session: Waiting, others: Sequence[Settings]) -> bool:
        """Whether the first of the others that is in the cluster says that it is."""
        found: list[bool] = []
        for host in others:
            self._trouble(host, lambda opened: found.append(opened.leaves_out(session)))
            if found:
                return found[0]
        return False

    def _trouble(
        self, host: Settings, ask: Callable[[Any], object] = lambda opened: None
    ) -> StoreError | None:
        """Why a host takes no writes, or does not answer a question; None: it does."""
        began = time.monotonic()
        try:
            with closing(self._log_in(host)) as opened:
                began = math.inf  # to wait for the whole cluster is no silence of this host
                ask(opened)
        except StoreError as error:
            if time.monotonic() - began > SLOW_S:
                _note_silence(host)
            return error
        except Exception as error:  # a bug: no reason to break anything, nor to look no more
            LOGGER.exception("looking whether %s takes writes failed", host.where)
            return Refused(f"looking at it failed: {error}")
        return None
