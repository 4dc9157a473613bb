"""Before the first batch: what a run will be, and how long it takes here.

prepare      weights, splits and plan of a run
rules        the rules of the plan, and their sources
time         which network a time is enough for
time_budget  the time that a run has used, and its share
forecast     how long a run takes here, from timed steps
autotune     which arithmetic, kernels and threads are the fastest here
memory       how many images fit the memory at once
"""
