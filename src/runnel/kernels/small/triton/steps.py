# mypy: ignore-errors
"""Triton kernels for an actor and a critic of two hidden layers each: acting, values, the gradient of the PPO loss, and Adam.

A program keeps all weights of one network on its multiprocessor and walks over blocks of rows, forward and backward, with the
gradient of the weights in registers; nothing of a layer ever reaches device memory. Matrices are multiplied in tf32 (10 bits
of mantissa; sums in float32), as torch and JAX do by default for float32 on this hardware.

Weights lie in one vector in the order of `ActorCritic.parameters()`: log_std [D] (continuous actions), w1 [2, I, H1],
w2 [2, H1, H2], the actor's head [H2, A], the critic's [H2, 1], then the biases [2, H1], [2, H2], [A], [1]; index 0 of 2 is the
actor. Grid axis `member` counts networks of a population: member m has its own vector, and the environments
m * B ... (m + 1) * B - 1 of each step.

A bias is the weight of an input that is always 1: the padding of the observation holds it, and products with that column sum
over rows, which is three times as fast as a reduction across warps.
"""

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError:  # torch for the CPU comes without Triton: then `why_not` says so, and nothing here is ever called
    from types import SimpleNamespace

    triton, tl = SimpleNamespace(jit=lambda kernel: kernel), SimpleNamespace(constexpr=lambda value: value)

HALF_LOG_TWO_PI = tl.constexpr(0.9189385332046727)


@triton.jit
def activate(x, RELU: tl.constexpr):
    """tanh, or relu."""
    if RELU:
        return tl.maximum(x, 0.0)
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def slope(h, RELU: tl.constexpr):
    """The derivative of `activate`, from its result."""
    if RELU:
        return (h > 0.0).to(tl.float32)
    return 1.0 - h * h


@triton.jit
def offsets(net, NI: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, A: tl.constexpr, GAUSS: tl.constexpr):
    """Where the layers of one network begin in the vector, and how many outputs it has."""
    D: tl.constexpr = A if GAUSS else 0
    w1 = D + net * NI * H1
    w2 = D + 2 * NI * H1 + net * H1 * H2
    heads: tl.constexpr = D + 2 * NI * H1 + 2 * H1 * H2
    biases: tl.constexpr = heads + H2 * A + H2
    w3 = heads + net * H2 * A
    b1 = biases + net * H1
    b2 = biases + 2 * H1 + net * H2
    b3 = biases + 2 * H1 + 2 * H2 + net * A
    num = tl.where(net == 0, A, 1)
    return w1, b1, w2, b2, w3, b3, num


@triton.jit
def load_weights(
    w,
    net,
    NI: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    A: tl.constexpr,
    GAUSS: tl.constexpr,
    IP: tl.constexpr,
    AP: tl.constexpr,
):
    """[IP, H1] with the bias in row NI, [H1, H2], [H2], [H2, AP], [AP]."""
    o1, ob1, o2, ob2, o3, ob3, num = offsets(net, NI, H1, H2, A, GAUSS)
    i = tl.arange(0, IP)
    h1 = tl.arange(0, H1)
    h2 = tl.arange(0, H2)
    a = tl.arange(0, AP)
    w1 = tl.load(w + o1 + i[:, None] * H1 + h1[None, :], mask=(i < NI)[:, None] & (h1 < H1)[None, :], other=0.0)
    w1 = tl.where((i == NI)[:, None], tl.load(w + ob1 + h1)[None, :], w1)
    w2 = tl.load(w + o2 + h1[:, None] * H2 + h2[None, :])
    b2 = tl.load(w + ob2 + h2)
    w3 = tl.load(w + o3 + h2[:, None] * num + a[None, :], mask=(h2 < H2)[:, None] & (a < num)[None, :], other=0.0)
    b3 = tl.load(w + ob3 + a, mask=a < num, other=0.0)
    return w1, w2, b2, w3, b3


@triton.jit
def load_rows(obs, at, m, NI: tl.constexpr, IP: tl.constexpr):
    """Observations [N, IP], with a 1 in column NI."""
    i = tl.arange(0, IP)
    x = tl.load(obs + at[:, None] * NI + i[None, :], mask=m[:, None] & (i < NI)[None, :], other=0.0)
    return tl.where((i == NI)[None, :], 1.0, x)


@triton.jit
def forward(x, w1, w2, b2, w3, b3, RELU: tl.constexpr, PREC: tl.constexpr):
    """Both hidden layers and the outputs `[N, AP]`."""
    h1 = activate(tl.dot(x, w1, input_precision=PREC), RELU)
    h2 = activate(tl.dot(h1, w2, input_precision=PREC) + b2[None, :], RELU)
    return h1, h2, tl.dot(h2, w3, input_precision=PREC) + b3[None, :]


@triton.jit
def act_kernel(
    obs,
    noise,
    vector,
    action,
    logprob,
    B,
    total,
    NI: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    A: tl.constexpr,
    GAUSS: tl.constexpr,
    RELU: tl.constexpr,
    IP: tl.constexpr,
    AP: tl.constexpr,
    BLOCK: tl.constexpr,
    PREC: tl.constexpr,
):
    """Actions and their log-probabilities for [B, NI] observations of each member."""
    member = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = rows < B
    at = member * B + rows
    w = vector + member.to(tl.int64) * total
    w1, w2, b2, w3, b3 = load_weights(w, 0, NI, H1, H2, A, GAUSS, IP, AP)
    _, _, out = forward(load_rows(obs, at, m, NI, IP), w1, w2, b2, w3, b3, RELU, PREC)
    a = tl.arange(0, AP)
    if GAUSS:
        inside = m[:, None] & (a < A)[None, :]
        place = at[:, None] * A + a[None, :]
        u = tl.load(noise + place, mask=inside, other=0.5)
        z = libdevice.normcdfinv(tl.minimum(tl.maximum(u, 5.9604645e-08), 0.99999994))
        log_std = tl.load(w + a, mask=a < A, other=0.0)
        tl.store(action + place, out + tl.exp(log_std)[None, :] * z, mask=inside)
        z = tl.where(inside, z, 0.0)
        lp = -0.5 * tl.sum(z * z, 1) - (tl.sum(log_std, 0) + A * HALF_LOG_TWO_PI)
        tl.store(logprob + at, lp, mask=m)
    else:
        u = tl.minimum(tl.load(noise + at, mask=m, other=0.5), 0.99999994)
        logits = tl.where((a < A)[None, :], out, -1e30)
        top = tl.max(logits, 1)
        e = tl.exp(logits - top[:, None])
        s = tl.sum(e, 1)
        chosen = tl.sum((tl.cumsum(e, 1) <= (u * s)[:, None]).to(tl.int32), 1)
        chosen = tl.minimum(chosen, A - 1)
        lp = tl.sum(tl.where(a[None, :] == chosen[:, None], logits, 0.0), 1) - top - tl.log(s)
        tl.store(action + at, chosen.to(tl.int64), mask=m)
        tl.store(logprob + at, lp, mask=m)


@triton.jit
def value_kernel(
    obs,
    vector,
    values,
    rows,
    B,
    width,
    total,
    NI: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    A: tl.constexpr,
    GAUSS: tl.constexpr,
    RELU: tl.constexpr,
    IP: tl.constexpr,
    AP: tl.constexpr,
    BLOCK: tl.constexpr,
    PREC: tl.constexpr,
):
    """The critic on `rows` rows [T, B, NI] of each member; a few blocks a program, so that weights are loaded once."""
    member = tl.program_id(1)
    w = vector + member.to(tl.int64) * total
    w1, w2, b2, w3, b3 = load_weights(w, 1, NI, H1, H2, A, GAUSS, IP, AP)
    a = tl.arange(0, AP)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        j = block * BLOCK + tl.arange(0, BLOCK)
        m = j < rows
        at = (j // B) * width + member * B + j % B
        _, _, out = forward(load_rows(obs, at, m, NI, IP), w1, w2, b2, w3, b3, RELU, PREC)
        tl.store(values + at, tl.sum(tl.where((a == 0)[None, :], out, 0.0), 1), mask=m)


@triton.jit
def gradient_kernel(
    obs,
    action,
    logprob,
    advantage,
    returns,
    values,
    order,
    vector,
    partial,
    rows,
    start,
    order_stride,
    B,
    width,
    total,
    stride,
    inv_n,
    clip,
    dual_clip,
    value_clip,
    value_coef,
    entropy_coef,
    NI: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    A: tl.constexpr,
    GAUSS: tl.constexpr,
    RELU: tl.constexpr,
    ALONE: tl.constexpr,
    DUAL: tl.constexpr,
    CLIP_VALUE: tl.constexpr,
    IP: tl.constexpr,
    AP: tl.constexpr,
    BLOCK: tl.constexpr,
    PREC: tl.constexpr,
):
    """Each program's share of the gradient over rows order[start : start + rows], and of the metrics.

    Program axes: share, network (0 actor, 1 critic), member. The gradients of actor and critic come from one code path, told
    apart by a factor: branches in this loop break the compiler.
    """
    pid = tl.program_id(0)
    net = tl.program_id(1)
    member = tl.program_id(2)
    w = vector + member.to(tl.int64) * total
    o1, ob1, o2, ob2, o3, ob3, num = offsets(net, NI, H1, H2, A, GAUSS)
    i = tl.arange(0, IP)
    k1 = tl.arange(0, H1)
    k2 = tl.arange(0, H2)
    a = tl.arange(0, AP)
    w1, w2, b2, w3, b3 = load_weights(w, net, NI, H1, H2, A, GAUSS, IP, AP)
    w2t = tl.load(w + o2 + k1[None, :] * H2 + k2[:, None])
    w3t = tl.load(w + o3 + k2[None, :] * num + a[:, None], mask=(k2 < H2)[None, :] & (a < num)[:, None], other=0.0)
    g1 = tl.zeros((IP, H1), tl.float32)
    g2 = tl.zeros((H1, H2), tl.float32)
    g3 = tl.zeros((H2, AP), tl.float32)
    gb2 = tl.zeros((IP, H2), tl.float32)
    gb3 = tl.zeros((IP, AP), tl.float32)
    gstd = tl.zeros((IP, AP), tl.float32)
    if GAUSS:
        log_std = tl.load(w + a, mask=a < A, other=0.0)
        inv_std = tl.where(a < A, tl.exp(-log_std), 0.0)
        constant = tl.sum(log_std, 0) + A * HALF_LOG_TWO_PI
    lost = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    kl = tl.zeros((BLOCK,), tl.float32)
    outside = tl.zeros((BLOCK,), tl.float32)
    for block in range(pid, tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        r = block * BLOCK + tl.arange(0, BLOCK)
        m = r < rows
        j = tl.load(order + member * order_stride + start + r, mask=m, other=0)
        at = j if ALONE else (j // B) * width + member * B + j % B
        x = load_rows(obs, at, m, NI, IP)
        h1, h2, out = forward(x, w1, w2, b2, w3, b3, RELU, PREC)
        old = tl.load(logprob + at, mask=m, other=0.0)
        adv = tl.load(advantage + at, mask=m, other=0.0)
        target = tl.load(returns + at, mask=m, other=0.0)
        mf = m.to(tl.float32)
        # the actor: log-probability, entropy, and d logprob / d out
        if GAUSS:
            inside = m[:, None] & (a < A)[None, :]
            taken = tl.load(action + at[:, None] * A + a[None, :], mask=inside, other=0.0)
            z = tl.where(inside, (taken - out) * inv_std[None, :], 0.0)
            lp = -0.5 * tl.sum(z * z, 1) - constant
            entropy = mf * (constant + 0.5 * A)
            direction = z * inv_std[None, :]
            bonus = tl.zeros((BLOCK, AP), tl.float32)
        else:
            taken = tl.load(action + at, mask=m, other=0)
            logits = tl.where((a < A)[None, :], out, -1e30)
            top = tl.max(logits, 1)
            e = tl.exp(logits - top[:, None])
            s = tl.sum(e, 1)
            p = e / s[:, None]
            logp = logits - (top + tl.log(s))[:, None]
            hot = (a[None, :] == taken[:, None]).to(tl.float32)
            lp = tl.sum(hot * logp, 1)
            entropy = -tl.sum(p * logp, 1) * mf
            direction = hot - p
            bonus = (entropy_coef * inv_n) * p * (logp + entropy[:, None])
        log_ratio = lp - old
        ratio = tl.exp(log_ratio)
        held = tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
        earned = tl.minimum(ratio * adv, held * adv)
        earns = (ratio * adv <= held * adv).to(tl.float32)
        if DUAL:
            bound = (adv < 0.0) & (earned < dual_clip * adv)
            earned = tl.where(bound, dual_clip * adv, earned)
            earns = tl.where(bound, 0.0, earns)
        push = -earns * ratio * adv * inv_n
        # the critic: half the squared error, the larger one where values are clipped
        value = tl.sum(tl.where((a == 0)[None, :], out, 0.0), 1)
        error = value - target
        squared = error * error
        if CLIP_VALUE:
            before = tl.load(values + at, mask=m, other=0.0)
            moved = value - before
            near = before + tl.minimum(tl.maximum(moved, -value_clip), value_clip) - target
            further = near * near > squared
            error = tl.where(further, tl.where(tl.abs(moved) < value_clip, near, 0.0), error)
            squared = tl.maximum(squared, near * near)
        to_actor = push[:, None] * direction + bonus
        to_critic = tl.where((a == 0)[None, :], (value_coef * inv_n) * error[:, None], 0.0)
        dout = mf[:, None] * tl.where(net == 0, to_actor, to_critic)  # a choice: on the critic's scores a ratio may overflow
        lost += mf * tl.where(net == 0, -earned, 0.5 * squared)
        spread += entropy
        kl += mf * (ratio - 1.0 - log_ratio)
        outside += mf * (ratio != held).to(tl.float32)
        # back through the layers
        ones = tl.trans(x)
        g3 = tl.dot(tl.trans(h2), dout, g3, input_precision=PREC)
        gb3 = tl.dot(ones, dout, gb3, input_precision=PREC)
        dz2 = tl.dot(dout, w3t, input_precision=PREC) * slope(h2, RELU)
        g2 = tl.dot(tl.trans(h1), dz2, g2, input_precision=PREC)
        gb2 = tl.dot(ones, dz2, gb2, input_precision=PREC)
        dz1 = tl.dot(dz2, w2t, input_precision=PREC) * slope(h1, RELU)
        g1 = tl.dot(ones, dz1, g1, input_precision=PREC)
        if GAUSS:
            gstd = tl.dot(ones, (mf * push)[:, None] * (z * z - 1.0), gstd, input_precision=PREC)
    to = partial + (member * tl.num_programs(0) + pid).to(tl.int64) * stride
    row = (i == NI)[:, None]
    tl.store(to + o1 + i[:, None] * H1 + k1[None, :], g1, mask=(i < NI)[:, None] & (k1 < H1)[None, :])
    tl.store(to + ob1 + k1, tl.sum(tl.where(row, g1, 0.0), 0))
    tl.store(to + o2 + k1[:, None] * H2 + k2[None, :], g2)
    tl.store(to + ob2 + k2, tl.sum(tl.where(row, gb2, 0.0), 0))
    tl.store(to + o3 + k2[:, None] * num + a[None, :], g3, mask=(k2 < H2)[:, None] & (a < num)[None, :])
    tl.store(to + ob3 + a, tl.sum(tl.where(row, gb3, 0.0), 0), mask=a < num)
    if GAUSS:
        share = tl.where(pid == 0, entropy_coef * inv_n * rows, 0.0)
        tl.store(to + a, tl.sum(tl.where(row, gstd, 0.0), 0) - share, mask=(a < A) & (net == 0))
    tail = to + stride - 8
    tl.store(tail + net, tl.sum(lost, 0) * inv_n)
    tl.store(tail + 2, tl.sum(spread, 0) * inv_n, mask=net == 0)
    tl.store(tail + 3, tl.sum(kl, 0) * inv_n, mask=net == 0)
    tl.store(tail + 4, tl.sum(outside, 0) * inv_n, mask=net == 0)


@triton.jit
def reduce_kernel(partial, grad, squares, numbers, num, stride, total, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the programs' shares, and of its squares by block, for each member; one more optimiser step in
    `numbers[1]`."""
    pid = tl.program_id(0)
    member = tl.program_id(1)
    c = pid * BLOCK + tl.arange(0, BLOCK)
    source = partial + (member * num).to(tl.int64) * stride
    acc = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, num, ROWS):
        r = first + tl.arange(0, ROWS)
        acc += tl.load(source + r[:, None] * stride + c[None, :], mask=(r < num)[:, None] & (c < stride)[None, :], other=0.0)
    g = tl.sum(acc, 0)
    tl.store(grad + member * stride + c, g, mask=c < stride)
    tl.store(squares + member * tl.num_programs(0) + pid, tl.sum(tl.where(c < total, g * g, 0.0), 0))
    if pid + member == 0:
        tl.store(numbers + 1, tl.load(numbers + 1) + 1.0)


@triton.jit
def adam_kernel(
    vector,
    grad,
    mean,
    square,
    squares,
    numbers,
    report,
    total,
    stride,
    num_squares,
    max_norm,
    value_coef,
    entropy_coef,
    b1,
    b2,
    log_b1,
    log_b2,
    eps,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Clipping by norm and Adam for each member, with rate and step count in `numbers`; `report` `[members, 7]` gets the total
    loss, the gradient's five metrics and its norm before clipping."""
    pid = tl.program_id(0)
    member = tl.program_id(1)
    c = pid * BLOCK + tl.arange(0, BLOCK)
    m = c < total
    at = member.to(tl.int64) * total + c
    q = tl.arange(0, SQUARES)
    norm = tl.sqrt(tl.sum(tl.load(squares + member * num_squares + q, mask=q < num_squares, other=0.0), 0))
    if pid == 0:
        k = tl.arange(0, 8)
        found = tl.load(grad + member * stride + stride - 8 + k)
        weight = tl.where(k == 0, 1.0, tl.where(k == 1, value_coef, -entropy_coef))
        tl.store(report + member * 7, tl.sum(tl.where(k < 3, weight * found, 0.0), 0))
        tl.store(report + member * 7 + 1 + k, found, mask=k < 5)
        tl.store(report + member * 7 + 6, norm)
    g = tl.load(grad + member * stride + c, mask=m, other=0.0) * tl.minimum(max_norm / (norm + 1e-6), 1.0)
    rate = tl.load(numbers)
    t = tl.load(numbers + 1)
    mu = tl.load(mean + at, mask=m, other=0.0)
    mu += (1.0 - b1) * (g - mu)
    sq = tl.load(square + at, mask=m, other=0.0) * b2 + (1.0 - b2) * g * g
    tl.store(mean + at, mu, mask=m)
    tl.store(square + at, sq, mask=m)
    unbiased = mu / (1.0 - tl.exp(t * log_b1))
    root = tl.sqrt(sq / (1.0 - tl.exp(t * log_b2)))
    tl.store(vector + at, tl.load(vector + at, mask=m, other=0.0) - rate * unbiased / (root + eps), mask=m)
