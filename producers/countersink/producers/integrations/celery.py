"""Counting of Celery tasks by name and outcome (``succeeded``, ``failed``, ``retried``,
``revoked``), by signals of its workers.

::

    from countersink.producers.integrations.celery import count_tasks

    count_tasks(producer)                    # in the module of the Celery app
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from celery import signals

from countersink.producers.middleware.count import MAX_NAMES, KeyCounter, SupportsIncrement

_UID: Final = "countersink"
_FIELDS: Final = ("", "task", "state")


def count_tasks(
    producer: SupportsIncrement,
    *,
    counter: str = "tasks",
    max_names: int = MAX_NAMES,
    dimensions: Mapping[str, str] | None = None,
) -> None:
    """Count tasks as ``shop.tasks.charge succeeded``, ``… failed``, ``… retried`` and
    ``… revoked``.

    A task that is retried twice and then succeeds counts as 2 retried, 1 succeeded. The end of a
    pool process stores its counts, too. A second call replaces the first.

    Args:
        producer: the producer that counts.
        counter: the counter's name.
        max_names: number of task names; tasks with further names count as ``__other__``.
        dimensions: the counter's dimensions, each with its value: ``task`` or ``state``. Default:
            none, a key instead.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """
    tally = KeyCounter(
        producer, counter, max_names=max_names, fields=_FIELDS, dimensions=dimensions
    )

    def ended(**ignored: object) -> None:
        # Pool processes end by os._exit: without atexit and multiprocessing's finalizers.
        tally.flush()

    _receive(signals.task_success, _counting(tally, "succeeded"))
    _receive(signals.task_failure, _counting(tally, "failed"))
    _receive(signals.task_retry, _counting(tally, "retried"))
    _receive(signals.task_revoked, _counting(tally, "revoked"))
    _receive(signals.worker_process_shutdown, ended)


def _counting(tally: KeyCounter, state: str) -> Callable[..., None]:
    def count(sender: Any = None, **ignored: object) -> None:
        name = getattr(sender, "name", None)
        tally.add("", name if isinstance(name, str) else str(sender), state)

    return count


def _receive(signal: Any, receiver: Callable[..., None]) -> None:
    signal.disconnect(dispatch_uid=_UID)
    signal.connect(receiver, weak=False, dispatch_uid=_UID)
