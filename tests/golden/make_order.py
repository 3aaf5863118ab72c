"""Golden outputs of the random order, from an independent implementation in Python integers.

    python3 tests/golden/make_order.py > tests/golden/order.json

Philox4x32-10 follows its publication (Salmon et al. 2011); the layout of the counter and the
bijection follow the descriptions in crates/core/src/step/stream.rs and order.rs.
"""

import json
import math

MASK = (1 << 32) - 1


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def block(place, purpose, index):
    packed = (place["layer"] << 20) + (place["kv_head"] << 8) + place["member"]
    counter = [(purpose << 16) + index, place["step"], packed, place["sequence"]]
    return philox(counter, [place["seed"] & MASK, place["seed"] >> 32])


def mix(x, key):
    h = (x * 0x9E3779B1 + key) & MASK
    h = ((h ^ (h >> 16)) * 0x21F0AAAD) & MASK
    h = ((h ^ (h >> 15)) * 0x735A2D97) & MASK
    return h ^ (h >> 15)


def order(place, n, count, purpose=0):
    keys = block(place, purpose, 0) + block(place, purpose, 1)
    a = max(2, math.isqrt(n - 1) + 1 if n > 0 else 0)
    b = max(2, -(-n // a))
    tokens = []
    for j in range(a * b):
        left, right = divmod(j, b)
        for i in range(0, 8, 2):
            left = (left + (mix(right, keys[i]) * a >> 32)) % a
            right = (right + (mix(left, keys[i + 1]) * b >> 32)) % b
        if left * b + right < n:
            tokens.append(left * b + right)
        if len(tokens) == count:
            break
    return tokens


def main():
    places = [
        dict(seed=0, sequence=0, layer=0, kv_head=0, member=255, step=0),
        dict(seed=0, sequence=0, layer=0, kv_head=0, member=255, step=1),
        dict(seed=0x123456789ABCDEF0, sequence=7, layer=31, kv_head=5, member=3, step=100000),
        dict(
            seed=42,
            sequence=(1 << 32) - 1,
            layer=4095,
            kv_head=4095,
            member=254,
            step=(1 << 32) - 1,
        ),
    ]
    cases = []
    for place in places:
        for n in (1, 2, 16, 57, 7168, 32768, 1 << 20):
            cases.append(
                dict(
                    place=place,
                    n=n,
                    first_block=block(place, 0, 0),
                    purpose_3_block_9=block(place, 3, 9),
                    tokens=order(place, n, 16),
                )
            )
    print(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
