"""The worker process: entries from the streams into MySQL, each once.

``run(WorkerOptions(redis_url=…, mysql_url=…))`` is a worker process.
"""

from countersink.runtime.process import Stop
from countersink.worker.loop import run
from countersink.worker.options import WorkerOptions
from countersink.worker.report import Vitals

__all__ = ["Stop", "Vitals", "WorkerOptions", "run"]
