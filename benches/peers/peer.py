"""The side of a peer that `run.py` talks to: a workload's name per line in, one JSON line out."""
import json
import statistics
import sys
import time


def timed(call):
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def serve(system, workload):
    """Answers names with the median time of `workload(name)`, a call that returns when its work is done; `None` for a name it lacks."""
    print(json.dumps({"system": system}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        call = workload(name)
        if call is None:
            print(json.dumps({"work": name}), flush=True)
            continue
        first = timed(call)
        timed(call), timed(call)
        times, begun = [], time.perf_counter()
        while len(times) < 5 or (time.perf_counter() - begun < 1.0 and len(times) < 2000):
            times.append(timed(call))
        call = None
        print(json.dumps({"work": name, "ms": statistics.median(times), "first_ms": first}), flush=True)
