"""Times Kiln, JAX and PyTorch on the same workloads, in turn on the same machine, and prints one table.

    pip install jax torch
    cargo bench --bench peers --no-run          # prints the path of the program
    python benches/peers/run.py PROGRAM [--rounds 3] [--only NAME ...] [--out benches/results/FILE.md]

Every system is one process that is asked for a workload by name; within a round all are asked for the same one before the next comes. A
figure is the median of the rounds' medians. Peers run twice: as a user starts them, and `warm`, with an allocator that keeps its pages.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WARM = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
# A workload, what it must move (bytes) or compute (flops), and the aim: best peer / Kiln, by default and warm.
SQUARE = 4096 * 4096
STEP = 6 * 128 * (784 * 512 + 512 * 512 + 512 * 10)
WORKLOADS = [
    ("gelu chain 2^24", "bytes", 16 << 24, (4, 1.5)),
    ("polynomial 2^24", "bytes", 16 << 24, (3.5, 1)),
    ("gelu chain 2^16", None, 0, (1.3, 1.3)),
    ("softmax", "bytes", 8 * SQUARE, (5, 1.05)),
    ("layer norm", "bytes", 8 * SQUARE, (5, 1.05)),
    ("sum rows", "bytes", 4 * SQUARE, (1, 1)),
    ("sum columns", "bytes", 4 * SQUARE, (1, 1)),
    ("sum all", "bytes", 4 * SQUARE, (1, 1)),
    ("transpose + 1", "bytes", 8 * SQUARE, (5, 1.1)),
    ("matmul 256", "flops", 2 * 256**3, (1.3, 1.3)),
    ("matmul 1024", "flops", 2 * 1024**3, (1, 1)),
    ("step 784-512-512-10", "flops", STEP, (2, 1.5)),
    ("step 64-128-10", None, 0, (2, 2)),
]


class System:
    """A process that times workloads by name."""

    def __init__(self, label, command, environment):
        self.label = label
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **environment},
        )
        self.name = json.loads(self.process.stdout.readline())["system"]

    def time(self, work):
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def cell(figure):
    return "" if figure is None else f"{figure:.3g}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[], help="systems to leave out: jax, eager, compile")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    peers = {
        "jax": [sys.executable, HERE / "cpu_jax.py"],
        "eager": [sys.executable, HERE / "cpu_torch.py", "eager"],
        "compile": [sys.executable, HERE / "cpu_torch.py", "compile"],
    }
    systems = [System("kiln", [arguments.program], {})]
    for label, command in peers.items():
        if label not in arguments.without:
            systems.append(System(label, command, {}))
            systems.append(System(label + " warm", command, WARM))
    kiln = systems[0]
    copies, times, firsts = [], {}, {}
    works = [work for work in WORKLOADS if not arguments.only or work[0] in arguments.only]
    for _ in range(arguments.rounds):
        copies.append(kiln.time("floor copy")["ms"])
        for work, *_ in works:
            for system in systems:
                answer = system.time(work)
                if "ms" in answer:
                    times.setdefault((work, system.label), []).append(answer["ms"])
                    firsts.setdefault((work, system.label), answer["first_ms"])
    ms = {key: statistics.median(values) for key, values in times.items()}
    bandwidth = (8 << 24) / statistics.median(copies) / 1e6
    rate = max((2 * 1024**3 / ms[key] / 1e6 for key in ms if key[0] == "matmul 1024"), default=None)
    labels = [system.label for system in systems]
    lines = [f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; " + ", ".join(dict.fromkeys(s.name for s in systems)),
             f"copy {bandwidth:.1f} GB/s counting both ways; best product {cell(rate)} GFLOP/s; {arguments.rounds} rounds; milliseconds", ""]
    lines.append("| workload | floor | " + " | ".join(labels) + " | best peer / kiln (aim) | warm (aim) |")
    lines.append("|" + "---|" * (len(labels) + 4))
    for work, kind, amount, (aim, aim_warm) in works:
        floor = None
        if kind == "bytes":
            floor = amount / bandwidth / 1e6
        elif kind == "flops" and rate:
            floor = amount / rate / 1e6
        ours = ms.get((work, "kiln"))
        best = min((ms[work, label] for label in labels[1:] if not label.endswith("warm") and (work, label) in ms), default=None)
        warm = min((ms[work, label] for label in labels[1:] if label.endswith("warm") and (work, label) in ms), default=None)
        ratio = f"{best / ours:.2f} ({aim})" if ours and best else ""
        ratio_warm = f"{warm / ours:.2f} ({aim_warm})" if ours and warm else ""
        row = [cell(ms.get((work, label))) for label in labels]
        lines.append(f"| {work} | {cell(floor)} | " + " | ".join(row) + f" | {ratio} | {ratio_warm} |")
    for work in ("step 784-512-512-10",):
        if (work, "kiln") in firsts:
            first = ", ".join(f"{label} {cell(firsts[work, label])}" for label in labels if (work, label) in firsts)
            lines += ["", f"first call of {work}, ms: {first}"]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text)


main()
