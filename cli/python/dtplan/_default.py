"""The functions of the module: those of a planner of the catalogues that came with it, made when first asked."""

import os
import threading
from typing import Optional, Union

from ._library import Answer, Planner, Rows, Scenario, Setting

_lock = threading.Lock()
_planner: Optional[Planner] = None


def _default() -> Planner:
    global _planner
    with _lock:
        if _planner is None:
            _planner = Planner()
        return _planner


def plan(*, scenario: Scenario = None, **settings: Setting) -> Answer:
    return _default().plan(scenario=scenario, **settings)


def simulate(*, scenario: Scenario = None, **settings: Setting) -> Answer:
    return _default().simulate(scenario=scenario, **settings)


def explain(*, scenario: Scenario = None, **settings: Setting) -> Answer:
    return _default().explain(scenario=scenario, **settings)


def whatif(*, scenario: Scenario = None, **settings: Setting) -> Answer:
    return _default().whatif(scenario=scenario, **settings)


def search(*, scenario: Scenario = None, **settings: Setting) -> Answer:
    return _default().search(scenario=scenario, **settings)


def sweep(*, scenario: Scenario = None, **settings: Setting) -> Rows:
    return _default().sweep(scenario=scenario, **settings)


def backtest(*tables: "Union[str, os.PathLike[str]]", **settings: Setting) -> Answer:
    return _default().backtest(*tables, **settings)


for _function in (plan, simulate, explain, whatif, search, sweep, backtest):
    _function.__doc__ = getattr(Planner, _function.__name__).__doc__
