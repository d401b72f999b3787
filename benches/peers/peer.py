"""The side of a peer that `run.py` talks to: a workload's name per line in, one JSON line out.

`prepare` before a name makes its first call only.
"""
import json
import statistics
import sys
import time


class Each:
    """Times calls that return when they are done, one by one."""

    keeps = False

    def finish(self, result):
        pass

    def measure(self, call):
        timed(call, self.finish), timed(call, self.finish)
        return {"ms": median(lambda: timed(call, self.finish), 1.0)}


class Queued:
    """Times calls that are handed over to a device: many at once, which are then waited for together."""

    keeps = True

    def __init__(self, finish):
        self.finish = finish

    def measure(self, call):
        timed(call, self.finish, 5)
        count = int(min(max(20.0 / timed(call, self.finish, 5), 5), 200))
        ms = median(lambda: timed(call, self.finish, count), 0.25)
        return {"ms": ms, "host_us": statistics.median(self.host(call) for _ in range(9))}

    def host(self, call, count=16):
        """Microseconds in which the host hands one call over; few enough calls that no queue is full."""
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        taken = (time.perf_counter() - start) * 1e6 / count
        self.finish(result)
        return taken


def timed(call, finish, count=1):
    """Milliseconds of `count` calls until all are done, divided by it."""
    start = time.perf_counter()
    for _ in range(count):
        result = call()
    finish(result)
    return (time.perf_counter() - start) * 1e3 / count


def median(time_once, seconds):
    times, begun = [], time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < seconds and len(times) < 2000):
        times.append(time_once())
    return statistics.median(times)


def serve(system, workload, timing=Each()):
    """Answers names with the median time of `workload(name)`, a call; `None` for a name it lacks."""
    say({"system": system})
    prepared = {}
    for line in sys.stdin:
        name = line.strip()
        only = name.startswith("prepare ")
        name = name.removeprefix("prepare ")
        try:
            call, first = prepared.pop(name, (None, None))
            if call is None:
                call = workload(name)
                if call is None:
                    say({"work": name})
                    continue
                first = timed(call, timing.finish)
            measured = {} if only else timing.measure(call)
            if timing.keeps:
                prepared[name] = call, first
            call = None
            say({"work": name, "first_ms": first, **measured})
        except Exception as error:
            say({"work": name, "failed": f"{type(error).__name__}: {error}"})


def say(answer):
    print(json.dumps(answer), flush=True)
