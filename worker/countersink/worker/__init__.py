"""The worker: it applies the entries of the streams to MySQL, each entry exactly once.

``run(WorkerOptions(redis_url=…, mysql_url=…))`` runs a worker in this process.
"""

from countersink.runtime.process import Stop
from countersink.worker.loop import run
from countersink.worker.options import WorkerOptions
from countersink.worker.report import Vitals

__all__ = ["Stop", "Vitals", "WorkerOptions", "run"]
