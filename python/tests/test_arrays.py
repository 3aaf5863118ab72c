"""Tests of array arguments: equal results for all types and layouts, and errors for others."""

import array

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import DENSE, DIM, KV_HEADS, QUERY_HEADS, exact, filled, normal

from vattention import Attention

QUERIES = normal(QUERY_HEADS, 3, DIM)


def test_numpy_in_f32_and_f16():
    assert_allclose(filled().attend(QUERIES).out, exact(QUERIES), atol=1e-5)
    half = QUERIES.astype(np.float16)
    assert_allclose(filled().attend(half).out, exact(half.astype(np.float32)), atol=1e-5)


@pytest.mark.parametrize(
    "same",
    [
        np.asfortranarray,
        lambda x: np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
        lambda x: np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1],
        lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
        lambda x: memoryview(np.ascontiguousarray(x)),
    ],
    ids=["fortran", "transposed", "backwards", "strided", "buffer"],
)
def test_layouts(same):
    expected = filled().attend(QUERIES).out
    np.testing.assert_array_equal(filled().attend(same(QUERIES)).out, expected)


def test_read_only_and_broadcast():
    queries = QUERIES.copy()
    queries.flags.writeable = False
    np.testing.assert_array_equal(filled().attend(queries).out, filled().attend(QUERIES).out)
    ones = np.broadcast_to(np.float32(1), (QUERY_HEADS, 1, DIM))
    np.testing.assert_array_equal(
        filled().attend(ones).out, filled().attend(np.ones((QUERY_HEADS, 1, DIM), np.float32)).out
    )


@pytest.mark.parametrize("storage", ["f32", "f16", "bf16", "q8"])
def test_keys_and_values_in_f16(storage):
    keys, values = (
        normal(KV_HEADS, 200, DIM, seed=seed).astype(np.float16)[:, ::2, ::-1] for seed in (1, 2)
    )
    narrow, wide = (Attention(DENSE, QUERY_HEADS, KV_HEADS, DIM, storage=storage) for _ in range(2))
    narrow.append(keys, values)
    wide.append(keys.astype(np.float32), values.astype(np.float32))
    np.testing.assert_array_equal(narrow.attend(QUERIES).out, wide.attend(QUERIES).out)
    with pytest.raises(ValueError, match=r"values\[0, 0, 0\] is inf: expected a finite number"):
        narrow.append(keys[:, :1], np.full((KV_HEADS, 1, DIM), np.inf, np.float16))
    assert len(narrow) == 100


@pytest.mark.parametrize("storage", ["f32", "f16", "bf16", "q8"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_and_values_of_torch(storage, dtype):
    torch = pytest.importorskip("torch")
    keys, values = (
        torch.from_numpy(normal(KV_HEADS, 200, DIM, seed=seed)).to(getattr(torch, dtype))[:, ::2]
        for seed in (1, 2)
    )
    narrow, wide = (Attention(DENSE, QUERY_HEADS, KV_HEADS, DIM, storage=storage) for _ in range(2))
    narrow.append(keys, values)
    wide.append(keys.float(), values.float())
    np.testing.assert_array_equal(narrow.attend(QUERIES).out, wide.attend(QUERIES).out)


def test_no_tokens():
    attention = filled()
    attention.append(
        np.zeros((KV_HEADS, 0, DIM), np.float32), np.zeros((KV_HEADS, 0, DIM), np.float32)
    )
    assert len(attention) == 100
    assert attention.attend(np.zeros((QUERY_HEADS, 0, DIM), np.float32)).out.shape == (
        QUERY_HEADS,
        0,
        DIM,
    )


def test_the_caller_owns_the_output():
    attention = filled()
    output = attention.attend(QUERIES)
    before = output.out.copy()
    attention.attend(2 * QUERIES)
    np.testing.assert_array_equal(output.out, before)
    output.out[:] = 0
    assert output.out.sum() == 0


@pytest.mark.parametrize(
    ("queries", "error", "message"),
    [
        (
            QUERIES.astype(np.float64),
            TypeError,
            "queries: expected float32, float16 or bfloat16, got float64",
        ),
        (
            QUERIES.astype(np.int32),
            TypeError,
            "queries: expected float32, float16 or bfloat16, got int32",
        ),
        (
            QUERIES[0],
            ValueError,
            r"queries: expected shape \[query_heads, queries, head_dim\], got \[3, 16\]",
        ),
        (QUERIES[:3], ValueError, r"queries: expected \[4, 3, 16\], got \[3, 3, 16\]"),
        (
            np.full_like(QUERIES, np.nan),
            ValueError,
            r"queries\[0, 0, 0\] is NaN: expected a finite number",
        ),
        (
            np.full_like(QUERIES, -np.inf),
            ValueError,
            r"queries\[0, 0, 0\] is -inf: expected a finite number",
        ),
        (None, TypeError, r"queries: expected an array or a tensor .*, got NoneType"),
        ([[1, "a"]], (TypeError, ValueError), "queries"),
        (array.array("d", [1.0]), TypeError, "got float64"),
    ],
)
def test_refused(queries, error, message):
    attention = filled()
    with pytest.raises(error, match=message):
        attention.attend(queries)
    assert_allclose(attention.attend(QUERIES).out, exact(QUERIES), atol=1e-5)


def test_keys_and_values_are_refused_whole():
    attention = Attention(DENSE, QUERY_HEADS, KV_HEADS, DIM)
    keys = normal(KV_HEADS, 5, DIM)
    bad = keys.copy()
    bad[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"values\[1, 2, 3\] is NaN"):
        attention.append(keys, bad)
    with pytest.raises(ValueError, match="values: expected 5, one per key, got 4"):
        attention.append(keys, keys[:, :4])
    assert len(attention) == 0


def test_a_device_that_is_not_the_cpu():
    class OnCuda:
        def __dlpack_device__(self):
            return (2, 1)

        def __dlpack__(self, **_):
            raise AssertionError("must not be called")

    with pytest.raises(
        ValueError,
        match=r"queries: expected a tensor in the CPU's memory, got one on a CUDA device \(1\)",
    ):
        filled().attend(OnCuda())


def test_a_producer_that_fails():
    class Fails:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise BufferError("no")

    with pytest.raises(ValueError, match="queries: no"):
        filled().attend(Fails())
