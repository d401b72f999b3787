"""The CPU workloads of benches/peers/kiln.rs in JAX: a workload's name per line in, one JSON line out."""
import jax
import jax.numpy as jnp

from peer import serve

KEY = jax.random.PRNGKey(0)


def normal(index, shape):
    return jax.random.normal(jax.random.fold_in(KEY, index), shape)


def gelu_chain(x, a, b):
    return jax.nn.gelu(a * x + b) * jax.nn.sigmoid(b)


def polynomial(x, a, b):
    return ((x * a + b) * x + a) * x + b


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def training(batch, sizes):
    layers = [(normal(i, (a, b)) * 0.02, jnp.zeros(b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    zeros = jax.tree.map(jnp.zeros_like, layers)
    x, y = normal(9, (batch, sizes[0])), jnp.arange(batch) % 10

    def loss(layers, x, y):
        h = x
        for i, (w, b) in enumerate(layers):
            h = h @ w + b
            if i + 1 < len(layers):
                h = jax.nn.relu(h)
        return -jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1).mean()

    def step(state, x, y, lr):
        layers, means, squares, count = state
        value, gradients = jax.value_and_grad(loss)(layers, x, y)
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)

        def update(w, m, v):
            return w - lr * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return (jax.tree.map(update, layers, means, squares), means, squares, count), value

    step = jax.jit(step, donate_argnums=0)
    state = [(layers, zeros, jax.tree.map(jnp.zeros_like, layers), jnp.zeros(()))]

    def call():
        state[0], value = step(state[0], x, y, 1e-3)
        return state[0], value

    return call


def jitted(function, *arguments):
    function = jax.jit(function)
    return lambda: function(*arguments)


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
            return training(128, (784, 512, 512, 10))
        case "step 64-128-10":
            return training(32, (64, 128, 10))
    return None


def finished(name):
    call = workload(name)
    return call and (lambda: jax.block_until_ready(call()))


serve(f"jax {jax.__version__}", finished)
