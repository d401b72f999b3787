"""The CPU workloads of benches/peers/kiln.rs in JAX: a workload's name per line in, one JSON line out."""
import jax
import jax.numpy as jnp

from of_jax import gelu_chain, jitted, normal, training
from peer import serve


def polynomial(x, a, b):
    return ((x * a + b) * x + a) * x + b


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def workload(name):
    if name.startswith(("gelu chain", "polynomial")):
        function = gelu_chain if name.startswith("gelu") else polynomial
        return jitted(function, *(normal(i, (1 << int(name.split("^")[1]),)) for i in range(3)))
    if name.startswith("matmul"):
        side = int(name.split()[1])
        return jitted(lambda a, b: a @ b, normal(0, (side, side)), normal(1, (side, side)))
    square = (4096, 4096)
    match name:
        case "softmax":
            return jitted(lambda x: jax.nn.softmax(x, -1), normal(0, square))
        case "layer norm":
            return jitted(layer_norm, normal(0, square), jnp.ones(4096), jnp.zeros(4096))
        case "sum rows":
            return jitted(lambda x: x.sum(-1), normal(0, square))
        case "sum columns":
            return jitted(lambda x: x.sum(0), normal(0, square))
        case "sum all":
            return jitted(lambda x: x.sum(), normal(0, square))
        case "transpose + 1":
            return jitted(lambda x: x.T + 1, normal(0, square))
        case "conv2d":
            convolution = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")
            return jitted(convolution, normal(0, (8, 64, 56, 56)), normal(1, (64, 64, 3, 3)))
        case "step 784-512-512-10":
            return training((784, 512, 512, 10), 128)
        case "step 64-128-10":
            return training((64, 128, 10), 32)
    return None


def finished(name):
    call = workload(name)
    return call and (lambda: jax.block_until_ready(call()))


serve(f"jax {jax.__version__}", finished)
