"""Function ``count_tasks``, which counts Celery tasks by name and outcome (``succeeded``,
``failed``, ``retried``, ``revoked``). Celery's own signals in its worker processes tell the
outcome.

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
    """Count the tasks that this process and its pool processes run, under keys such as
    ``shop.tasks.charge succeeded``, ``… failed``, ``… retried`` and ``… revoked``.

    A task that is retried twice and then succeeds counts as 2 retried, 1 succeeded. When a pool
    process ends, the producer is flushed. A second call of this function replaces the first.

    Args:
        producer: the producer that counts.
        counter: the name of the counter to which tasks are added.
        max_names: maximum of different task names; tasks with further names are counted as
            ``__other__``.
        dimensions: maps each dimension of the counter to ``task`` (its value is the name of the
            task) or ``state`` (its value is the outcome). By default tasks are counted under keys,
            without dimensions.

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
