"""One holder at a time, by the server's clock."""

from countersink.database import lease
from countersink.database.connection import connect
from countersink.database.session import Session
from tests.support.entries import together


def _expire(session: Session) -> None:
    session.execute("UPDATE lease SET expires_at = 0")


def test_a_lease_is_had_once_until_it_is_released_or_expires(session: Session) -> None:
    assert lease.lease_slot(session, 1, "a", 60)
    for holder in "ba":
        assert not lease.lease_slot(session, 1, holder, 60)
    assert lease.lease_slot(session, 2, "b", 60)
    # Twice within a millisecond, too.
    assert all(lease.renew_worker_slot(session, 1, "a", 60) for _ in range(20))
    lease.release_worker_slot(session, 1, "a")
    assert lease.lease_slot(session, 1, "b", 60)


def test_an_expired_lease_is_taken_over_and_never_renewed(session: Session) -> None:
    """Somebody else may have acted meanwhile and be gone again."""
    assert lease.lease_slot(session, 1, "a", 60)
    _expire(session)
    assert not lease.renew_worker_slot(session, 1, "a", 60)
    assert lease.lease_slot(session, 1, "b", 60)
    assert not lease.renew_worker_slot(session, 1, "a", 60)
    lease.release_worker_slot(session, 1, "a")
    assert lease.renew_worker_slot(session, 1, "b", 60)


def test_workers_get_slots_of_their_own(session: Session) -> None:
    leased = [lease.lease_worker_slot(session, f"w{number}", 60) for number in range(255)]
    assert sorted(leased) == list(range(1, 256))
    shared = lease.lease_worker_slot(session, "one more", 60)
    assert 1 <= shared <= 255
    assert not lease.renew_worker_slot(session, shared, "one more", 60)
    assert lease.renew_worker_slot(session, leased[0], "w0", 60)
    lease.release_worker_slot(session, leased[7], "w7")
    assert lease.lease_worker_slot(session, "one more", 60) == leased[7]


def test_workers_that_start_together_get_different_slots(mysql_url: str, session: Session) -> None:
    sessions = [connect(mysql_url) for _ in range(8)]
    leased = together(
        *(
            lambda s=opened, n=number: lease.lease_worker_slot(s, f"w{n}", 60)
            for number, opened in enumerate(sessions)
        )
    )
    assert len(set(leased)) == 8
    for opened in sessions:
        opened.close()
