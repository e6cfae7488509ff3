"""The module dtplan as programs use it: check_python.py SOURCE_TREE [CALLS]

Run with the module on PYTHONPATH and DTPLAN_LIBRARY set, or with the wheel installed. Its docstrings are examples that
must hold; then threads, files, the absence of pandas, and, over CALLS calls (default 3,000), how many plans a second
there are and whether memory stays as it is. With 10^6 calls the bound on memory is what the issue asks for.
"""

import doctest
import importlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

import dtplan
import dtplan._library

SOURCE = pathlib.Path(sys.argv[1]).resolve()
CALLS = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
LEAST_PER_SECOND = 100  # any machine, any load; what is reached is printed
failures = []


def check(good, words):
    if not good:
        failures.append(words)
        print("FAILED:", words)


def raises(kind, words, question, *arguments, **settings):
    try:
        question(*arguments, **settings)
    except kind as error:
        check(words in str(error), f"'{words}' is not in '{error}'")
        check(error.messages, "an exception without messages")
    else:
        check(False, f"no {kind.__name__} that says '{words}'")


def check_examples():
    for name in ("dtplan", "dtplan._library"):
        result = doctest.testmod(importlib.import_module(name))
        check(result.attempted > 5 and not result.failed, f"examples of {name}: {result}")


def check_answers():
    answer = dtplan.plan(scenario=SOURCE / "scenarios" / "llama3-8b-8xh100.ini")
    check(answer["schema"] == "dtplan.plan/1" and answer["cluster"]["gpus"] == 8, "the plan of a scenario's file")
    text = "[model]\nparams = 7e9\n[cluster]\ngpus = 8\n"
    check(dtplan.plan(scenario=text)["cluster"]["gpus"] == 8, "a scenario's text")
    check(dtplan.plan(scenario=text, gpus=16)["cluster"]["gpus"] == 16, "a setting above a scenario")
    check(dtplan.plan(params=7e9, gpus=8)["model"]["params"] > 6e9, "a number with an exponent")
    check(not dtplan.plan(params="70B", gpus=1).ok, "what does not fit is not ok")
    check(dtplan.plan(params="7B", gpus=8, compile=None) == dtplan.plan(params="7B", gpus=8), "None is left out")
    rows = dtplan.sweep(params="7B", gpus=[8, 16], strategy="full_shard,ddp", gpu="a10", tp=[1, 3])
    check([r["row"] for r in rows] == list(range(8)), "rows in their order")
    check(sum(r["refused_because"] is not None for r in rows) == 4, "rows that are refused")
    check({r["verdict"] for r in rows} == {"tight", "oom", None}, f"verdicts: {[r['verdict'] for r in rows]}")
    check(all(isinstance(r["step_s"], float) for r in rows if not r["refused_because"]), "seconds are floats")
    backtest = dtplan.backtest(SOURCE / "tests" / "data" / "runs.csv")
    check(backtest["schema"] == "dtplan.backtest/1" and backtest["rows"] > 0, "backtest")


def check_faults():
    raises(dtplan.BadInput, "did you mean '--gpus'", dtplan.plan, params="7B", gpuss=8)
    raises(ValueError, "gpus", dtplan.plan, params="7B", gpus=-1)
    raises(dtplan.BadInput, "scenario:2", dtplan.plan, scenario="[model]\nlairs = 3\n")
    raises(dtplan.BadInput, "NUL", dtplan.plan, params="7\0B")
    raises(dtplan.BadInput, "writes a file", dtplan.simulate, params="7B", gpus=8, trace="x.json")
    raises(dtplan.BadInput, "gpus.csv", dtplan.Planner, data="/no/such/folder")
    raises(dtplan.DtplanError, "no table", dtplan.backtest)
    raises(dtplan.BadInput, "ds_config", dtplan.plan, params="7B", gpus=8, **{"from": "/no/such/ds_config.json"})


def check_catalogs():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ours.csv"
        path.write_text("alias,key\nours,h100-sxm\n")
        answer = dtplan.Planner(catalogs=[path]).plan(params="7B", gpus=8, gpu="ours")
    check(answer["cluster"]["gpu"] == "h100-sxm", "rows of an own catalogue")


def check_threads():
    """Answers do not depend on who else asks; two threads at once take less than one after the other where cores are free."""
    asked = [dict(params="7B", gpus=8 * n, strategy="full_shard", fidelity="bounds") for n in (1, 2, 4)]
    expected = [dtplan.plan(**settings) for settings in asked]
    differs = []

    def work():
        for i in range(60):
            if dtplan.plan(**asked[i % 3]) != expected[i % 3]:
                differs.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not differs, f"answers under threads differ: {differs[:3]}")


def check_frames():
    """Rows become a frame where pandas is, and the module works where it is not."""
    rows = dtplan.sweep(model="gpt2", gpu="a10", gpus=[1, 2], strategy="ddp")
    try:
        import pandas
    except ImportError:
        print("no pandas here: frames are not tried")
    else:
        frame = rows.frame()
        check(isinstance(frame, pandas.DataFrame) and list(frame["gpus_count"]) == [1, 2], "a frame")
        check(frame["step_s"].dtype.kind == "f", "numbers of a frame")
    code = (
        "import sys; sys.modules['pandas'] = None; import dtplan\n"
        "rows = dtplan.sweep(model='gpt2', gpu='a10', gpus=1, strategy='ddp'); assert rows[0]['gpus_count'] == 1\n"
        "try:\n    rows.frame()\nexcept ImportError:\n    print('none')\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    check(said.stdout == "none\n", f"without pandas: {said.stdout}{said.stderr}")


def check_notebook():
    """Every cell of the notebook runs in order; figures are drawn where matplotlib is, and to nowhere else."""
    try:
        import matplotlib
        import pandas  # noqa: F401

        matplotlib.use("Agg")
    except ImportError:
        print("no matplotlib or pandas here: the notebook is not run")
        return
    notebook = json.loads((SOURCE / "cli" / "python" / "plots.ipynb").read_text())
    scope = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "plots.ipynb", "exec"), scope)
    check(len(scope["plt"].get_fignums()) >= 3, "the notebook draws three figures")


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def check_many_calls():
    """Different plans, one after the other: their rate, and what of memory is not given back."""
    def ask(i):
        dtplan.plan(model="llama-7b", gpu="h100-sxm", gpus=8 * (1 + i % 7), micro_batch=1 + i % 16, seq=1024 * (1 + i % 5),
                    strategy="full_shard", fidelity="bounds", no_advice=True)  # fmt: skip
        if i % 50 == 0:
            try:
                dtplan.plan(model="llama-7b", gpus="none")
            except dtplan.BadInput:
                pass

    for i in range(min(CALLS, 2000)):
        ask(i)
    before, start = resident_bytes(), time.process_time()
    for i in range(CALLS):
        ask(i)
    rate = CALLS / (time.process_time() - start)
    grown = resident_bytes() - before
    print(f"{CALLS} plans: {rate:.0f} a second of one core; resident memory grew by {grown / 1024:.0f} KiB")
    check(rate > LEAST_PER_SECOND, f"{rate:.0f} plans a second")
    check(grown < 8 << 20, f"memory grew by {grown} bytes")


check_examples()
check_answers()
check_faults()
check_catalogs()
check_threads()
check_frames()
check_notebook()
check_many_calls()
sys.exit(1 if failures else 0)
