"""Before the first batch: what a run will be, and how long it takes here.

make_plan    weights, splits and plan of a run
rules        the rules of the plan, and their sources
time         how long a run takes here, which network a time is enough for, and its share that is used
autotune     which arithmetic, kernels and threads are the fastest here
"""
