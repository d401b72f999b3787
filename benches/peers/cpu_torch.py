"""The CPU workloads of benches/peers/kiln.rs in PyTorch: a workload's name per line in, one JSON line out.

    cpu_torch.py eager|compile
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import serve

COMPILED = sys.argv[1] == "compile"
torch.manual_seed(0)


def gelu_chain(x, a, b):
    return F.gelu(a * x + b, approximate="tanh") * torch.sigmoid(b)


def polynomial(x, a, b):
    return ((x * a + b) * x + a) * x + b


def ready(function, *arguments):
    """The call that is timed: without gradients, compiled where this process compiles."""
    if COMPILED:
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)

    def call():
        with torch.no_grad():
            return function(*arguments)

    return call


def training(batch, sizes):
    layers = []
    for inner, outer in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(batch, sizes[0]), torch.arange(batch) % 10

    def step():
        adam.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        adam.step()
        return loss

    if COMPILED:
        torch._dynamo.reset()
        return torch.compile(step, dynamic=False)
    return step


def workload(name):
    if name.startswith(("gelu chain", "polynomial")):
        function = gelu_chain if name.startswith("gelu") else polynomial
        return ready(function, *(torch.randn(1 << int(name.split("^")[1])) for _ in range(3)))
    if name.startswith("matmul"):
        side = int(name.split()[1])
        return ready(lambda a, b: a @ b, torch.randn(side, side), torch.randn(side, side))
    square = (4096, 4096)
    match name:
        case "softmax":
            return ready(lambda x: torch.softmax(x, -1), torch.randn(square))
        case "layer norm":
            norm = lambda x, w, b: F.layer_norm(x, (4096,), w, b)
            return ready(norm, torch.randn(square), torch.ones(4096), torch.zeros(4096))
        case "sum rows":
            return ready(lambda x: x.sum(-1), torch.randn(square))
        case "sum columns":
            return ready(lambda x: x.sum(0), torch.randn(square))
        case "sum all":
            return ready(lambda x: x.sum(), torch.randn(square))
        case "transpose + 1":
            return ready(lambda x: x.T.contiguous() + 1, torch.randn(square))
        case "conv2d":
            convolution = lambda x, w: F.conv2d(x, w, padding=1)
            return ready(convolution, torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3))
        case "step 784-512-512-10":
            return training(128, (784, 512, 512, 10))
        case "step 64-128-10":
            return training(32, (64, 128, 10))
    return None


serve(f"torch {torch.__version__} {sys.argv[1]}", workload)
