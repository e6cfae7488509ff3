"""What training a transformer on GPUs needs and takes, before the GPUs are rented.

Each function answers what the command of its name answers (``dtplan help COMMAND``). Settings are the flags of the
command line with underscores: ``--micro-batch 4`` is ``micro_batch=4``, the switch ``--compile`` is ``compile=True``
and ``--no-prefetch`` is ``prefetch=False``. A setting of ``None`` is left out.

>>> import dtplan
>>> plan = dtplan.plan(model="llama-2-7b", gpus=8, gpu="h100-sxm", strategy="full_shard", micro_batch=2)
>>> plan["memory"]["verdict"]
'fits'
>>> round(plan["memory"]["device_peak_bytes"] / 2**30) in range(30, 50)
True
>>> plan.ok
True

What does not fit is an answer as well, only not ``ok``:

>>> dtplan.plan(model="llama-2-70b", gpus=2, gpu="h100-sxm").ok
False

What is wrong is an exception that says what to do:

>>> dtplan.plan(model="llama-2-7b", gpus=8, micro_bach=2)
Traceback (most recent call last):
    ...
dtplan.BadInput: --micro-bach=2: unknown flag of 'plan'; did you mean '--micro-batch'?

Tables are lists of dicts, and frames where pandas is installed (``rows.frame()``):

>>> rows = dtplan.sweep(model="llama-2-7b", gpu="h100-sxm", gpus="8..32x2", strategy=["full_shard", "zero3"])
>>> [(row["gpus_count"], row["verdict"]) for row in rows if row["strategy"] == "full_shard"]
[(8, 'fits'), (16, 'fits'), (32, 'fits')]

Threads may ask at once; a call lets go of Python's lock while it computes.
"""

from ._library import (
    Answer,
    BadInput,
    DtplanError,
    EnvironmentFault,
    Planner,
    Rows,
    Scenario,
    Setting,
    version,
)
from ._default import backtest, explain, plan, search, simulate, sweep, whatif

__version__ = version()
__all__ = [
    "Answer",
    "BadInput",
    "DtplanError",
    "EnvironmentFault",
    "Planner",
    "Rows",
    "Scenario",
    "Setting",
    "backtest",
    "explain",
    "plan",
    "search",
    "simulate",
    "sweep",
    "version",
    "whatif",
]
