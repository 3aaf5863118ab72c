"""Golden values of the formulas for sample sizes, from an independent implementation.

    python3 tests/golden/make_formulas.py > tests/golden/formulas.json

The implementation uses mpmath 1.3 with 30 digits. Quantiles are roots of distribution functions,
suprema are taken over every rank, and the best split of delta is found by ternary search. The run
takes about two minutes.
"""

import json
from functools import lru_cache

from mpmath import erfc, exp, findroot, gammainc, log, mp, mpf, sqrt

mp.dps = 30


def upper(dof, x):
    """Returns Pr(chi-square > x)."""
    return gammainc(mpf(dof) / 2, mpf(x) / 2, regularized=True)


def isf(tail, delta, low, high):
    """Returns the x at which a falling tail function is delta.

    The root is found by bisection, and then by the secant method on the logarithm.
    """
    while tail(high) > delta:
        high *= 2
    while high - low > high / 50:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > delta else (low, middle)
    return findroot(
        lambda x: log(tail(x)) - log(delta), (low, high), tol=mpf(10) ** -50, maxsteps=60
    )


@lru_cache(None)
def chi2_isf(delta, dof):
    return isf(lambda x: upper(dof, x), delta, mpf(0), mpf(dof) + 1)


@lru_cache(None)
def z_one(delta):
    if delta > mpf(1) / 2:
        return -z_one(1 - delta)
    if delta == mpf(1) / 2:
        return mpf(0)
    return isf(lambda x: erfc(x / sqrt(2)) / 2, delta, mpf(0), mpf(1))


def z_two(delta):
    return z_one(delta / 2)


@lru_cache(None)
def flat(delta, most):
    """Returns quantiles of flat spectra of 1 to `most` dimensions, divided by the dimension.

    The search for each quantile starts from the preceding ones.
    """
    found = [chi2_isf(delta, 1), chi2_isf(delta, 2)]
    for n in range(3, most + 1):
        guess = 2 * found[-1] - found[-2]
        found.append(
            findroot(
                lambda x: log(upper(n, x)) - log(delta),
                (guess, guess * (1 + mpf(10) ** -6)),
                tol=mpf(10) ** -50,
                maxsteps=60,
            )
        )
    return [x / (n + 1) for n, x in enumerate(found)]


def c2(delta, rank):
    rank = int(rank)
    return max(flat(delta, max(rank, 2))[:rank])


def kappa(delta):
    forms = [sqrt(n + 1) * (x - 1) for n, x in enumerate(flat(delta, 400))]
    return max(forms + [sqrt(2) * z_one(delta)])


def q_rob(delta, nu, rank):
    return min(c2(delta, rank), 1 + kappa(delta) / sqrt(max(nu, 1)))


def best_split(delta, cost):
    """Returns the cheapest split of delta into two parts; the cost is unimodal in the split."""
    split = lambda u: (delta / (1 + exp(u)), delta / (1 + exp(-u)))
    low, high = mpf(-40), mpf(40)
    while high - low > mpf(10) ** -13:
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if cost(*split(a)) < cost(*split(b)) else (a, high)
    return split((low + high) / 2)


def sdpa(eps, delta, num, den, factor_num, factor_den):
    cost = lambda dn, dd: (factor_num * num(dn) + factor_den * den(dd)) / eps
    dn, dd = best_split(delta, cost)
    root = cost(dn, dd)
    return dict(
        b=root**2, delta_num=dn, delta_den=dd, eps_num=num(dn) / root, eps_den=den(dd) / root
    )


def sdpa_exact(eps, delta, s_d, s_n, rank):
    num = lambda d: sqrt(c2(d, rank)) * s_n
    return sdpa(eps, delta, num, lambda d: z_two(d) * s_d, 1, 1 + eps)


def sdpa_paper(eps, delta, s_d, s_n):
    return sdpa(eps, delta, lambda d: z_two(d) * s_n, lambda d: z_two(d) * s_d, 2, 2)


def ratio_grid(eps, delta, s_w, s_d, rank, nu):
    roots = []
    for i in range(23):
        den = delta / (1 + exp(-(mpf(i) / 2 - 7)))
        roots.append(sqrt(q_rob(delta - den, nu, rank)) * s_w / eps + max(0, z_one(den)) * s_d)
    return min(roots) ** 2


def fpc(b0, n):
    return 1 / (1 / b0 + 1 / n)


def serfling(b0, n):
    """Returns the smallest root of b = b0 * factor(b); the factor changes its form at n / 2."""
    before = b0 * (n + 1) / (n + b0)
    if before <= n / 2:
        return before
    # b = b0 (1 - b/n) (1 + 1/b): a parabola, b^2 (1 + b0/n) - b b0 (1 - 1/n) - b0 = 0.
    a, b, c = 1 + b0 / n, -b0 * (1 - 1 / n), -b0
    after = (-b + sqrt(b * b - 4 * a * c)) / (2 * a)
    return min(before, max(after, n / 2))


def hoeffding(delta, n_s, range, tolerance):
    return (range * n_s) ** 2 * log(2 / delta) / (2 * tolerance**2)


def mcdiarmid_radius(delta, trace, diameter):
    return sqrt(trace) + diameter * sqrt(log(1 / delta) / 2)


def mcdiarmid_radius_of(b, n, delta, trace, diameter):
    b, n = int(b), int(n)
    rho = sum((mpf(n - b) / (n - i)) ** 2 for i in range(1, b + 1)) / b
    return sqrt(trace * (mpf(1) / b - mpf(1) / n)) + diameter * sqrt(rho * log(1 / delta) / (2 * b))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def columns(rows):
    return [sum(column) for column in zip(*rows)]


def sample_stats(e, values, n_s, d_certain, n_certain):
    """Computes the statistics that `SampleStats` in crates/core/src/sample/stats.rs describes."""
    m, n_s = len(e), mpf(n_s)
    rows = [[ei * x for x in v] for ei, v in zip(e, values)]
    d = d_certain + n_s / m * sum(e)
    n = [c + n_s / m * x for c, x in zip(n_certain, columns(rows))]
    out = [x / d for x in n]

    def spread(rows):
        mean = [x / m for x in columns(rows)]
        return [[x - c for x, c in zip(row, mean)] for row in rows]

    w = spread([[ei * (x - o) for x, o in zip(v, out)] for ei, v in zip(e, values)])
    squares_w = [dot(x, x) for x in w]
    squares_e = [dot(x, x) for x in spread([[x] for x in e])]
    trace_ev = sum(dot(x, x) for x in spread(rows)) / (m - 1)
    trace_w = sum(squares_w) / (m - 1)
    differences = [[x - y for x, y in zip(w[i], w[i + 1])] for i in range(0, m - 1, 2)]
    pairs = [
        dot(x, differences[i + lag]) ** 2
        for lag in range(1, 5)
        for i, x in enumerate(differences[: max(0, len(differences) - lag)])
    ]
    raw = max(trace_w**2 / (sum(pairs) / (4 * len(pairs))), 1)
    kurtosis = lambda squares: m * dot(squares, squares) / sum(squares) ** 2
    norm_squared = dot(n, n)
    return dict(
        d=d,
        norm_n=sqrt(norm_squared),
        var_e=sum(squares_e) / (m - 1),
        trace_ev=trace_ev,
        trace_w=trace_w,
        nu=max(1, 1 / (1 / raw + mpf(1) / m)),
        kurtosis_e=kurtosis(squares_e),
        kurtosis_w=kurtosis(squares_w),
    )


CALLS = [
    (z_one, [[1e-9], [0.05], [0.4], [0.75]]),
    (z_two, [[1e-12], [0.01], [0.2], [0.9]]),
    (
        chi2_isf,
        [
            [1e-9, 1],
            [0.05, 3],
            [0.2, 0.5],
            [0.3, 7.25],
            [0.01, 128],
            [0.5, 400],
            [0.99, 2.5],
            [0.9, 0.25],
        ],
    ),
    (
        c2,
        [
            [0.05, 128],
            [0.21, 8],
            [0.22, 1],
            [0.22, 128],
            [0.3, 2],
            [0.3, 128],
            [0.45, 128],
            [0.5, 300],
        ],
    ),
    (kappa, [[0.001], [0.1], [0.155], [0.2], [0.4]]),
    (q_rob, [[0.05, 1, 128], [0.05, 30, 128], [0.2, 9.5, 64], [0.4, 3, 128], [0.4, 0.5, 2]]),
    (fpc, [[5, 1000], [1000, 1000], [1e7, 100], [0.25, 7]]),
    (
        sdpa_exact,
        [
            [0.1, 0.05, 0.5, 2, 128],
            [0.05, 0.2, 3, 0.1, 64],
            [0.2, 0.01, 1, 1, 1],
            [0.1, 0.45, 0.3, 1.5, 6],
        ],
    ),
    (sdpa_paper, [[0.1, 0.05, 0.5, 2], [0.05, 0.2, 3, 0.1], [0.2, 0.4, 1, 1]]),
    (
        ratio_grid,
        [
            [0.1, 0.05, 2, 0.5, 128, 30],
            [0.02, 0.05, 0.1, 3, 128, 1],
            [0.1, 0.4, 1, 0.25, 128, 12],
            [0.1, 0.4, 1, 0, 1, 1],
        ],
    ),
    (serfling, [[10, 1000], [1200, 1000], [999, 1000], [1e6, 1000], [500, 64]]),
    (hoeffding, [[0.05, 1000, 0.5, 20], [0.2, 7000, 0.125, 3], [1e-6, 100, 2, 1]]),
    (mcdiarmid_radius, [[0.05, 2, 3], [0.2, 0.25, 0]]),
    (
        mcdiarmid_radius_of,
        [[10, 1000, 0.05, 2, 3], [900, 1000, 0.2, 0.25, 8], [1, 50, 0.1, 1, 0.5]],
    ),
]


def samples():
    """Yields samples whose numbers are exact in f32."""
    for m, dim, n_s, certain in [(12, 3, 500, 4), (7, 2, 64, 0), (40, 5, 3000, 100)]:
        e = [mpf((i * i * 37 + i * 11 + m) % 61 + 1) / 16 for i in range(m)]
        values = [
            [mpf((i * 29 + j * 17 + i * i * j) % 47 - 20) / 8 for j in range(dim)] for i in range(m)
        ]
        yield e, values, n_s, mpf(certain), [mpf(certain * (j - 1)) / 4 for j in range(dim)]


def plain(x):
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return [plain(y) for y in x] if isinstance(x, list) else float(x)


def main():
    rows = [
        dict(fn=f.__name__, inputs=inputs, expected=plain(f(*map(mpf, inputs))))
        for f, all_inputs in CALLS
        for inputs in all_inputs
    ]
    for inputs in samples():
        rows.append(
            dict(
                fn="sample_stats", inputs=plain(list(inputs)), expected=plain(sample_stats(*inputs))
            )
        )
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")


main()
