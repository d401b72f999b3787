"""The workloads of benches/peers/gpu.rs in JAX: a workload's name per line in, one JSON line out.

    gpu_jax.py [--device cuda] [--scale full|small]
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from of_jax import cross_entropy, gelu_chain, jitted, normal, training
from peer import Queued, serve
from sizes import NETWORKS, SIZES, option

DTYPES = {"f32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16}
PRECISIONS = {"f32": "float32", "tf32": "tensorfloat32", "bf16": "default"}


def layer_norm(x, weight, bias):
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias).astype(x.dtype)


def residual_rms_norm(x, residual, weight):
    total = x + residual
    wide = total.astype(jnp.float32)
    scale = jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale * weight).astype(x.dtype), total


def layer_norm_backward(x, weight, bias, seed):
    y, backward = jax.vjp(layer_norm, x, weight, bias)
    return y, backward(seed)


def attention(query, key, value):
    implementation = "cudnn" if jax.default_backend() == "gpu" else None
    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=implementation)


def written_out(query, key, value):
    tokens, width = query.shape[2:]
    scores = query @ key.swapaxes(-1, -2) / width**0.5
    allowed = jnp.tril(jnp.ones((tokens, tokens), bool))
    return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), -1) @ value


def workload(name):
    name, _, last = name.rpartition(" ")
    if last not in DTYPES:
        return None
    drawn = lambda index, shape: normal(index, shape, DTYPES[last])
    rows, columns = SIZES.rows
    table, vector = (lambda index: drawn(index, (rows, columns))), (lambda index: drawn(index, (columns,)))
    m, k, n = SIZES.product
    match name:
        case "gelu chain":
            return jitted(gelu_chain, *(drawn(i, (SIZES.chain,)) for i in range(3)))
        case "softmax":
            return jitted(lambda x: jax.nn.softmax(x, -1), table(0))
        case "layer norm":
            return jitted(layer_norm, table(0), vector(1), vector(2))
        case "residual + rms norm":
            return jitted(residual_rms_norm, table(0), table(1), vector(2))
        case "layer norm backward":
            return jitted(layer_norm_backward, table(0), vector(1), vector(2), table(3))
        case "cross entropy backward":
            labels = jnp.arange(SIZES.logits[0]) * 7919 % SIZES.logits[1]
            return jitted(jax.value_and_grad(cross_entropy), drawn(0, SIZES.logits), labels)
        case "sum rows":
            return jitted(lambda x: x.sum(-1), table(0))
        case "sum columns":
            return jitted(lambda x: x.sum(0), table(0))
        case "sum all":
            return jitted(lambda x: x.sum(), table(0))
        case "matmul":
            return jitted(lambda a, b: a @ b, drawn(0, (m, k)), drawn(1, (k, n)))
        case "matmul + bias + gelu":
            return jitted(lambda a, b, c: jax.nn.gelu(a @ b + c), drawn(0, (m, k)), drawn(1, (k, n)), drawn(2, (n,)))
        case "attention":
            # The library's layout: tokens before heads.
            batch, heads, tokens, width = SIZES.attention
            return jitted(attention, *(drawn(i, (batch, tokens, heads, width)) for i in range(3)))
        case "attention written out":
            return jitted(written_out, *(drawn(i, SIZES.attention) for i in range(3)))
    if name in NETWORKS:
        step = training(*NETWORKS[name], PRECISIONS[last])
        return lambda: step()[1]
    return None


if option("--device", "cuda") == "cpu":
    jax.config.update("jax_platforms", "cpu")
serve(f"jax {jax.__version__}", workload, Queued(jax.block_until_ready))
