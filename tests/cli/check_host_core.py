"""Which core run_torch.py binds the threads that launch to, and which steps it takes for undisturbed, on cores whose loops
take what a table says: check_host_core.py FOLDER_OF_IT"""
import os
import sys
import types

sys.path.insert(0, sys.argv[1])
import run_torch  # noqa: E402

CALM_S, HALF_S = 1e-4, 1.8e-4
loops_s = {}  # of each core just now
bound = []
at_step = []  # for each step to come: cores that are disturbed from it on


class Cores(run_torch.HostCore):
    def loop_s(self):
        self.least_s = min(self.least_s, loops_s[bound[-1]])
        return loops_s[bound[-1]]


class Run:
    cuda, ranks, arguments = True, 1, types.SimpleNamespace(snapshot=None)

    def step(self, watch_gradients):
        for core in loops_s:
            loops_s[core] = HALF_S if core in at_step[0] else CALM_S
        at_step.pop(0)
        return 0.5 if loops_s[bound[-1]] == HALF_S else 0.25, 4.0


def host_of(count, disturbed, ranks=1):
    loops_s.clear()
    loops_s.update((core, HALF_S if core in disturbed else CALM_S) for core in range(count))
    os.sched_getaffinity = lambda _: set(range(count))
    os.sched_setaffinity = lambda thread, cores: bound.append(*cores) if thread == 0 else None
    run = Run()
    run.ranks = ranks
    return Cores(run), run


# The last core that nothing disturbs is taken, and kept while that holds.
host, run = host_of(4, {3, 1})
assert host.bind() and host.core == 2, host.core
at_step[:] = [{1}, {1, 2}]
assert run_torch.timed_step(run, host) == (0.25, 4.0, 0.25) and host.core == 2, host.core
loops_s[2] = HALF_S
assert run_torch.timed_step(run, host) == (0.25, 4.0, 0.25) and host.core == 3, host.core

# A step in which it was disturbed is measured, and again until one was not; the first one's seconds stand.
host, run = host_of(4, set())
at_step[:] = [{3}, {3, 2}, {3, 2}]
assert run_torch.timed_step(run, host) == (0.5, 4.0, 0.25) and host.core == 1, host.core
assert not at_step

# Where all cores are disturbed all the time nothing is said, after so many tries.
host, run = host_of(4, set())
host.bind()
at_step[:] = [{0, 1, 2, 3}] * run_torch.TRIES
assert run_torch.timed_step(run, host) == (0.5, 4.0, None) and not at_step

# Ranks have cores of their own and take one step each; with few cores nobody is bound.
host, run = host_of(8, set(), ranks=2)
assert host.cores == [6, 4, 2, 0], host.cores
at_step[:] = [{6}]
assert run_torch.timed_step(run, host) == (0.5, 4.0, None)
host, run = host_of(3, set(), ranks=2)
assert not host.cores and not host.bind()
