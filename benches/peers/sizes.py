"""How large the workloads for a GPU are, as in gpu.rs."""
import sys
from types import SimpleNamespace


def option(name, default):
    """The word after an option of the command line."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


if option("--scale", "full") == "small":
    SIZES = SimpleNamespace(
        chain=1 << 12, rows=(64, 32), logits=(32, 64), product=(64, 32, 32), attention=(2, 2, 32, 16),
        networks=(((16, 8, 8, 10), 8), ((16, 32, 32, 10), 16)), copy=1 << 12,
    )
else:
    SIZES = SimpleNamespace(
        chain=1 << 27, rows=(16384, 4096), logits=(8192, 50304), product=(8192, 4096, 4096), attention=(8, 16, 2048, 64),
        networks=(((784, 512, 512, 10), 128), ((784, 2048, 2048, 10), 4096)), copy=1 << 27,
    )
NETWORKS = {"step 784-512-512-10": SIZES.networks[0], "step 784-2048-2048-10": SIZES.networks[1]}
