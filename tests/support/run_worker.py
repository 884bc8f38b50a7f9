"""A worker in a process of its own, with options given as keyword arguments."""

from countersink.worker import WorkerOptions, run


def main(**options: object) -> int:
    """Run until drained or signalled; the exit status is the worker's."""
    return int(run(WorkerOptions(**options)) or 0)  # type: ignore[arg-type]
