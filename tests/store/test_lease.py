"""One holder at a time, by the server's clock, with tokens that only grow."""

from countersink.store import lease
from countersink.store.connection import Session, connect
from tests.store.helpers import together


def _expire(session: Session) -> None:
    session.execute("UPDATE lease SET expires_at = 0")


def test_a_lease_is_had_once(session: Session) -> None:
    assert lease.acquire(session, "plan", "a", 60) == 1
    assert lease.acquire(session, "plan", "b", 60) is None
    assert lease.acquire(session, "plan", "a", 60) is None
    assert lease.acquire(session, "other", "b", 60) == 1


def test_an_expired_lease_is_taken_over_with_a_larger_token(session: Session) -> None:
    assert lease.acquire(session, "plan", "a", 60) == 1
    _expire(session)
    assert lease.acquire(session, "plan", "b", 60) == 2
    assert not lease.renew(session, "plan", "a", 60)
    assert not lease.release(session, "plan", "a")
    assert lease.renew(session, "plan", "b", 60)


def test_a_released_lease_keeps_its_token(session: Session) -> None:
    assert lease.acquire(session, "plan", "a", 60) == 1
    assert lease.release(session, "plan", "a")
    assert not lease.release(session, "plan", "a")
    assert lease.acquire(session, "plan", "a", 60) == 2


def test_an_expired_lease_cannot_be_renewed(session: Session) -> None:
    """Somebody else may have acted meanwhile and be gone again."""
    lease.acquire(session, "plan", "a", 60)
    _expire(session)
    assert not lease.renew(session, "plan", "a", 60)


def test_renewing_twice_within_a_millisecond_is_renewing(session: Session) -> None:
    lease.acquire(session, "plan", "a", 60)
    assert all(lease.renew(session, "plan", "a", 60) for _ in range(20))


def test_many_ask_at_once_and_one_gets_it(mysql_url: str, session: Session) -> None:
    sessions = [connect(mysql_url) for _ in range(6)]
    for round_ in range(5):
        tokens = together(
            *(
                lambda s=opened, n=number: (lease.acquire(s, "plan", f"h{n}", 60),)
                for number, opened in enumerate(sessions)
            )
        )
        assert [token for (token,) in tokens if token is not None] == [round_ + 1]
        _expire(session)
    for opened in sessions:
        opened.close()


def test_workers_get_slots_of_their_own(session: Session) -> None:
    leased = [lease.lease_worker_slot(session, f"w{number}", 60) for number in range(255)]
    assert sorted(leased) == list(range(1, 256))
    shared = lease.lease_worker_slot(session, "one more", 60)
    assert 1 <= shared <= 255
    assert not lease.renew_worker_slot(session, shared, "one more", 60)
    assert lease.renew_worker_slot(session, leased[0], "w0", 60)
    assert lease.release_worker_slot(session, leased[7], "w7")
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
