"""Times Kiln, JAX and PyTorch on the same workloads, in turn on the same machine, and prints one table.

    pip install jax torch
    cargo bench --bench peers --no-run          # prints the path of the program; with `--features cuda` for a GPU
    python benches/peers/run.py PROGRAM [--gpu] [--rounds 3] [--only NAME ...] [--out benches/results/FILE.md]

Every system is one process that is asked for a workload by name; within a round all are asked for the same one before the next comes. A
figure is the median of the rounds' medians. A workload that fails in a system, or takes too long, is told as `failed` with the reason below the
table; the others go on. So is what is not begun before `--limit` seconds have passed.

On the CPU peers run twice: as a user starts them, and `warm`, with an allocator that keeps its pages. `--by-hand` puts the loops of by_hand.c
beside them, which are no peer: they tell how far the machine goes.

On a GPU (`--gpu`) many calls are handed over and then waited for together. All systems prepare their workloads at the same time, but for the
one whose first call is told: that comes before all others, alone, with nothing kept from earlier processes; `kiln again` is a second process, which
finds what the first compiled. `--device cpu --scale small` runs
the same through on the CPU, to see that it does.
"""
import argparse
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
WARM = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
# A workload, what it must move (bytes) or compute (flops), and the aims: best peer / Kiln, by default and warm.
SQUARE = 4096 * 4096
STEP = 6 * 128 * (784 * 512 + 512 * 512 + 512 * 10)
CPU_WORKLOADS = [
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
# The same for a GPU; `None` where nothing is aimed at. Gradients come with the value or result that they belong to.
ROWS = 16384 * 4096
PRODUCT = 2 * 8192 * 4096 * 4096
ATTENTION = 2 * 8 * 16 * 2048 * 2048 * 64
GPU_FIRST = "step 784-512-512-10 tf32"
GPU_WORKLOADS = [
    ("gelu chain f32", "bytes", 16 << 27, (1,)),
    ("gelu chain bf16", "bytes", 8 << 27, (1,)),
    ("softmax f32", "bytes", 8 * ROWS, (1.14,)),
    ("softmax bf16", "bytes", 4 * ROWS, (1.33,)),
    ("layer norm f32", "bytes", 8 * ROWS, (1.05,)),
    ("layer norm bf16", "bytes", 4 * ROWS, (1.3,)),
    ("residual + rms norm f32", "bytes", 16 * ROWS, (1.05,)),
    ("residual + rms norm bf16", "bytes", 8 * ROWS, (1.05,)),
    ("layer norm backward f32", "bytes", 16 * ROWS, (1.2,)),
    ("layer norm backward bf16", "bytes", 8 * ROWS, (2,)),
    ("cross entropy backward bf16", "bytes", 4 * 8192 * 50304, (2.2,)),
    ("sum rows bf16", "bytes", 2 * ROWS, (1.1,)),
    ("sum columns bf16", "bytes", 2 * ROWS, (1.35,)),
    ("sum all bf16", "bytes", 2 * ROWS, (1.1,)),
    ("matmul bf16", "flops", PRODUCT, (1,)),
    ("matmul + bias + gelu bf16", "flops", PRODUCT, (1.1,)),
    ("attention bf16", "flops", ATTENTION, (1,)),
    ("attention written out bf16", "flops", ATTENTION, (11,)),
    (GPU_FIRST, None, 0, (2.5,)),
    ("step 784-512-512-10 f32", None, 0, (None,)),
    ("step 784-2048-2048-10 tf32", None, 0, (1.1,)),
    ("step 784-2048-2048-10 f32", None, 0, (None,)),
]


class System:
    """A process that times workloads by name, started anew where it is lost."""

    # When all must be told.
    deadline = None

    def __init__(self, label, command, environment):
        self.label, self.command, self.environment = label, command, environment
        self.start()

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env={**os.environ, **self.environment},
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()

    @staticmethod
    def read(process, lines):
        for line in process.stdout:
            # Libraries may print lines of their own.
            if line.startswith("{"):
                lines.put(line)
        lines.put(None)

    def answer(self, seconds):
        """The next answer, or why there is none."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"failed": f"no answer within {seconds:.0f} s", "lost": True}
        if line is None:
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines() or ["nothing"]
            return {"failed": f"it ended with {self.process.returncode}, and said: {said[-1]}", "lost": True}
        return json.loads(line)

    def begin(self, seconds=120):
        """Its name, once it is there."""
        answer = self.answer(seconds)
        self.name = answer.get("system", f"{self.label}: {answer.get('failed')}")
        return "system" in answer

    def ask(self, line, seconds=120):
        seconds = min(seconds, self.deadline - time.perf_counter())
        if seconds <= 0:
            return {"failed": "no time was left"}
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass
        answer = self.answer(seconds)
        # What a device does after a fault says nothing.
        if answer.get("lost") or any(word in answer.get("failed", "") for word in ("K0702", "CUDA error", "CUDA_ERROR")):
            self.end()
            self.start()
            self.begin()
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


class Results:
    """What all systems answered."""

    def __init__(self):
        self.times, self.hosts, self.firsts, self.failures = {}, {}, {}, {}

    def add(self, work, label, answer):
        key = work, label
        if "failed" in answer:
            self.failures.setdefault(key, " ".join(answer["failed"].split())[:400])
        if "ms" in answer:
            self.times.setdefault(key, []).append(answer["ms"])
        if answer.get("host_us") is not None:
            self.hosts.setdefault(key, []).append(answer["host_us"])
        if "first_ms" in answer:
            self.firsts.setdefault(key, answer["first_ms"])

    def ms(self, work, label):
        return statistics.median(self.times[work, label]) if (work, label) in self.times else None

    def cell(self, work, label):
        return "failed" if (work, label) in self.failures else cell(self.ms(work, label))


def cell(figure):
    return "" if figure is None else f"{figure:.3g}"


def whole(figure):
    return "unknown" if figure is None else f"{figure:,.0f}"


def rounds(works, systems, floor, arguments, results):
    """All systems in turn, work by work; a floor that one of them times begins each round."""
    for _ in range(arguments.rounds):
        if floor:
            results.add("floor copy", floor.label, floor.ask("floor copy"))
        for work, *_ in works:
            for system in systems:
                if (work, system.label) not in results.failures:
                    results.add(work, system.label, system.ask(work))
            told = ", ".join(f"{system.label} {results.cell(work, system.label)}" for system in systems)
            print(f"{work}: {told}", file=sys.stderr, flush=True)


def table(works, results, labels, groups, bandwidth, rate):
    """Rows of all workloads. A group is a heading and the peers of which the best is put beside Kiln."""
    lines = ["| workload | floor | " + " | ".join(labels) + " | " + " | ".join(heading for heading, _ in groups) + " |"]
    lines.append("|" + "---|" * (len(labels) + len(groups) + 2))
    for work, kind, amount, aims in works:
        per_second = {"bytes": bandwidth, "flops": rate, None: None}[kind]
        floor = amount / per_second / 1e6 if per_second else None
        ours = results.ms(work, "kiln")
        ratios = []
        for (_, peers), aim in zip(groups, aims):
            best = min((ms for ms in (results.ms(work, peer) for peer in peers) if ms), default=None)
            aim = "" if aim is None else f" ({aim})"
            ratios.append(f"{best / ours:.2f}{aim}" if ours and best else "")
        row = [results.cell(work, label) for label in labels]
        lines.append(f"| {work} | {cell(floor)} | " + " | ".join(row + ratios) + " |")
    return lines


def told_of_all(what, work, figures, labels):
    figures = ", ".join(f"{label} {cell(figures[work, label])}" for label in labels if (work, label) in figures)
    return [f"{what} of {work}: {figures}"] if figures else []


def on_cpu(arguments, works):
    peers = {
        "jax": [sys.executable, HERE / "cpu_jax.py"],
        "eager": [sys.executable, HERE / "cpu_torch.py", "eager"],
        "compile": [sys.executable, HERE / "cpu_torch.py", "compile"],
    }
    wanted = {label: command for label, command in peers.items() if label not in arguments.without}
    systems = [System("kiln", [arguments.program], {})]
    for label, command in wanted.items():
        systems += [System(label, command, {}), System(label + " warm", command, WARM)]
    if arguments.by_hand:
        systems.append(System("by hand", [arguments.by_hand], {}))
    systems = [system for system in systems if system.begin()]
    results = Results()
    rounds(works, systems, systems[0], arguments, results)
    bandwidth = (8 << 24) / results.ms("floor copy", "kiln") / 1e6
    labels = [system.label for system in systems]
    product = min((ms for ms in (results.ms("matmul 1024", label) for label in labels) if ms), default=None)
    rate = 2 * 1024**3 / product / 1e6 if product else None
    groups = [("best peer / kiln (aim)", list(wanted)), ("warm (aim)", [label + " warm" for label in wanted])]
    lines = [f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; " + ", ".join(dict.fromkeys(s.name for s in systems))]
    lines += [f"copy {bandwidth:.1f} GB/s counting both ways; best product {cell(rate)} GFLOP/s; {arguments.rounds} rounds; milliseconds", ""]
    lines += table(works, results, labels, groups, bandwidth, rate) + [""]
    lines += told_of_all("first call (ms)", "step 784-512-512-10", results.firsts, labels)
    return lines, results, systems


def on_gpu(arguments, works):
    options = ["--device", arguments.device, "--scale", arguments.scale]
    folder = tempfile.TemporaryDirectory()
    # Nothing that an earlier process compiled.
    fresh = {"XDG_CACHE_HOME": "kiln", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "driver"}
    fresh = {name: str(Path(folder.name, place)) for name, place in fresh.items()}
    kiln = [arguments.program, "--gpu", *options]
    peers = {
        "jax": [sys.executable, HERE / "gpu_jax.py", *options],
        "eager": [sys.executable, HERE / "gpu_torch.py", "eager", *options],
        "compile": [sys.executable, HERE / "gpu_torch.py", "compile", *options],
        "graph": [sys.executable, HERE / "gpu_torch.py", "graph", *options],
    }
    systems = [System("kiln", kiln, fresh)]
    systems += [System(label, command, fresh) for label, command in peers.items() if label not in arguments.without]
    systems = [system for system in systems if system.begin()]
    results = Results()
    prepare = lambda system, work: results.add(work, system.label, system.ask("prepare " + work))
    names = [work for work, *_ in works]
    if GPU_FIRST in names:
        names.remove(GPU_FIRST)
        for system in systems:
            prepare(system, GPU_FIRST)
        again = System("kiln again", kiln, fresh)
        if again.begin():
            prepare(again, GPU_FIRST)
        again.end()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda system: [prepare(system, work) for work in names], systems))
    floor = next((system for system in systems if system.label == "eager"), None)
    rounds(works, systems, floor, arguments, results)
    labels = [system.label for system in systems]
    copied = results.ms("floor copy", "eager")
    bandwidth = (8 << 27) / copied / 1e6 if copied and arguments.scale == "full" else None
    product = min((ms for ms in (results.ms("matmul bf16", label) for label in labels) if ms), default=None)
    rate = PRODUCT / product / 1e6 if product and arguments.scale == "full" else None
    lines = [f"{time.strftime('%Y-%m-%d')}; " + ", ".join(system.name for system in systems)]
    lines += [f"copy {whole(bandwidth)} GB/s counting both ways; best product {whole(rate)} GFLOP/s; {arguments.rounds} rounds; milliseconds", ""]
    lines += table(works, results, labels, [("best peer / kiln (aim)", labels[1:])], bandwidth, rate) + [""]
    lines += told_of_all("first call (ms)", GPU_FIRST, results.firsts, labels + ["kiln again"])
    hosts = {key: statistics.median(values) for key, values in results.hosts.items()}
    for work in names + [GPU_FIRST]:
        if work.startswith("step"):
            lines += told_of_all("host's time for a call (us)", work, hosts, labels)
    return lines, results, systems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--gpu", action="store_true", help="the workloads for a GPU")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="where those run")
    parser.add_argument("--scale", default="full", choices=["full", "small"], help="how large those are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[], help="systems to leave out: jax, eager, compile, graph")
    parser.add_argument("--by-hand", help="the program of by_hand.c, on the CPU: a column beside the peers'")
    parser.add_argument("--limit", type=float, help="seconds after which nothing more is begun; 480 for a GPU")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    works = [work for work in (GPU_WORKLOADS if arguments.gpu else CPU_WORKLOADS) if not arguments.only or work[0] in arguments.only]
    begun = time.perf_counter()
    System.deadline = begun + (arguments.limit or (480 if arguments.gpu else 1e9))
    lines, results, systems = (on_gpu if arguments.gpu else on_cpu)(arguments, works)
    for system in systems:
        system.end()
    lines += [f"failed: {label}, {work}: {why}" for (work, label), why in results.failures.items()]
    lines += ["", f"{time.perf_counter() - begun:.0f} s in all"]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text)


main()
