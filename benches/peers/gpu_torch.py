"""The workloads of benches/peers/gpu.rs in PyTorch: a workload's name per line in, one JSON line out.

    gpu_torch.py eager|compile|graph [--device cuda] [--scale full|small]

`graph` is the eager training step captured once as a CUDA graph; it knows nothing else. `floor copy` is the device's own copy.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import Queued, serve
from sizes import NETWORKS, SIZES, option

MODE = sys.argv[1]
DEVICE = option("--device", "cuda")
DTYPES = {"f32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 64


def gelu_chain(x, a, b):
    return F.gelu(a * x + b, approximate="tanh") * torch.sigmoid(b)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, weight.shape, weight, bias)


def residual_rms_norm(x, residual, weight):
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, 1e-6), total


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.float(), labels)


def written_out(query, key, value):
    tokens, width = query.shape[2:]
    scores = query @ key.transpose(-1, -2) / width**0.5
    allowed = torch.ones(tokens, tokens, device=query.device, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ value


def attention(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def compiled(function):
    return torch.compile(function, dynamic=False) if MODE == "compile" else function


def ready(function, *arguments):
    """The call that is timed: without gradients, compiled where this process compiles."""
    function = compiled(function)

    def call():
        with torch.no_grad():
            return function(*arguments)

    return call


def backward(function, tracked, others, seed=None):
    """The call that also computes gradients with regard to `tracked`."""
    function = compiled(function)
    tracked = [tensor.requires_grad_() for tensor in tracked]

    def call():
        result = function(*tracked, *others)
        return result, torch.autograd.grad(result, tracked, seed)

    return call


def training(sizes, batch, precision):
    layers = []
    for inner, outer in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).to(DEVICE)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=DEVICE == "cuda")
    x, y = torch.randn(batch, sizes[0], device=DEVICE), torch.arange(batch, device=DEVICE) % 10

    def step():
        adam.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        adam.step()
        return loss

    allowed = precision == "tf32"
    if MODE == "graph":
        torch.backends.cuda.matmul.allow_tf32 = allowed
        graph = recorded(step)
        return graph.replay
    step = compiled(step)

    def call():
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return step()

    return call


def recorded(step):
    """A step as a CUDA graph, after a few on a stream of their own, as PyTorch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def workload(name):
    if name == "floor copy" and MODE == "eager":
        return torch.randn(SIZES.copy, device=DEVICE).clone
    name, _, last = name.rpartition(" ")
    if last not in DTYPES:
        return None
    if name in NETWORKS:
        return training(*NETWORKS[name], last)
    if MODE == "graph":
        return None
    normal = lambda *shape: torch.randn(*shape, device=DEVICE, dtype=DTYPES[last])
    rows, columns = SIZES.rows
    m, k, n = SIZES.product
    match name:
        case "gelu chain":
            return ready(gelu_chain, *(normal(SIZES.chain) for _ in range(3)))
        case "softmax":
            return ready(lambda x: torch.softmax(x, -1), normal(rows, columns))
        case "layer norm":
            return ready(layer_norm, normal(rows, columns), normal(columns), normal(columns))
        case "residual + rms norm":
            return ready(residual_rms_norm, normal(rows, columns), normal(rows, columns), normal(columns))
        case "layer norm backward":
            tracked = [normal(rows, columns), normal(columns), normal(columns)]
            return backward(layer_norm, tracked, [], normal(rows, columns))
        case "cross entropy backward":
            labels = torch.arange(SIZES.logits[0], device=DEVICE) * 7919 % SIZES.logits[1]
            return backward(cross_entropy, [normal(*SIZES.logits)], [labels])
        case "sum rows":
            return ready(lambda x: x.sum(-1), normal(rows, columns))
        case "sum columns":
            return ready(lambda x: x.sum(0), normal(rows, columns))
        case "sum all":
            return ready(lambda x: x.sum(), normal(rows, columns))
        case "matmul":
            return ready(lambda a, b: a @ b, normal(m, k), normal(k, n))
        case "matmul + bias + gelu":
            return ready(lambda a, b, c: F.gelu(a @ b + c, approximate="tanh"), normal(m, k), normal(k, n), normal(n))
        case "attention":
            return ready(attention, *(normal(*SIZES.attention) for _ in range(3)))
        case "attention written out":
            return ready(written_out, *(normal(*SIZES.attention) for _ in range(3)))
    return None


def finish(_):
    if DEVICE == "cuda":
        torch.cuda.synchronize()


hardware = f" on {torch.cuda.get_device_name()}" if DEVICE == "cuda" else ""
serve(f"torch {torch.__version__} {MODE}{hardware}", workload, Queued(finish))
