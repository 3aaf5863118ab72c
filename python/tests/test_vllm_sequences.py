"""Tests of the numbers of sequences in vLLM, which follow from blocks and writes."""

import random

import numpy as np
import pytest

from vattention.vllm._sequences import Generations, SequenceNumbers

BLOCK = 4


def slots(*numbers):
    return np.array(numbers, np.int64)


def test_a_block_that_is_filled_keeps_its_generation():
    blocks = Generations(BLOCK)
    assert blocks.write(slots(8, 9)) == []
    before = blocks.find(slots(0, 1, 2)).tolist()
    assert len(set(before)) == 3
    assert blocks.write(slots(10, -1, 11, 40)) == []
    assert blocks.find(slots(0, 1, 2)).tolist() == before


@pytest.mark.parametrize("overwritten", [[8], [9], [9, 10], [10, 9], [8, 9, 10, 11]])
def test_a_block_that_is_overwritten_gets_a_new_generation(overwritten):
    blocks = Generations(BLOCK)
    blocks.write(slots(4, 8, 9))
    before = blocks.find(slots(0, 1, 2))
    assert blocks.write(slots(5, *overwritten)) == [before[2]]
    after = blocks.find(slots(0, 1, 2))
    assert after[:2].tolist() == before[:2].tolist()
    assert after[2] not in before
    assert blocks.write(slots(max(overwritten) + 1 if max(overwritten) < 11 else 12)) == []


def test_blocks_that_are_read_before_they_are_written():
    blocks = Generations(BLOCK)
    assert len(set(blocks.find(slots(5, 3)).tolist())) == 2
    assert blocks.write(slots()) == []


class Pool:
    """Blocks with a random number for each token, and requests that use them as vLLM does."""

    def __init__(self, seed, most):
        self.random = random.Random(seed)
        self.numbers = SequenceNumbers(BLOCK, most)
        self.content = [0] * (60 * BLOCK)
        self.unused, self.users = list(range(60)), [0] * 60
        self.requests = []
        self.known = {}
        """Tokens of each number."""

    def free(self, request):
        for block in reversed(request["blocks"]):
            self.users[block] -= 1
            if not self.users[block]:
                self.unused.append(block)
        request.update(blocks=[], tokens=0)

    def write(self, request, new):
        """Appends tokens to a request, and returns their slots."""
        places = []
        for token in range(request["tokens"], request["tokens"] + new):
            if token % BLOCK == 0:
                request["blocks"].append(self.take())
            places.append(request["blocks"][token // BLOCK] * BLOCK + token % BLOCK)
            self.content[places[-1]] = self.random.random()
        request["tokens"] += new
        return places

    def take(self):
        block = self.unused.pop(self.random.choice([0, -1]))
        self.users[block] += 1
        return block

    def share(self):
        """Starts a request with full blocks of another one."""
        donor = self.random.choice(self.requests)
        blocks = donor["blocks"][: self.random.randint(0, donor["tokens"] // BLOCK)]
        for block in blocks:
            self.users[block] += 1
        return {"blocks": list(blocks), "tokens": len(blocks) * BLOCK}

    def change(self):
        """Starts, ends, preempts or shortens requests."""
        event = self.random.random()
        if event < 0.15 and len(self.requests) < 6:
            self.requests.append(self.share() if self.requests else {"blocks": [], "tokens": 0})
        elif event < 0.22 and self.requests:
            self.free(self.requests.pop(self.random.randrange(len(self.requests))))
        elif event < 0.27 and self.requests:
            self.free(self.random.choice(self.requests))
        elif event < 0.35 and self.requests:
            request = self.random.choice(self.requests)
            if request["tokens"] % BLOCK > 1:
                request["tokens"] -= 1  # A draft was rejected.

    def step(self):
        """Writes tokens, and compares the tokens of each sequence with those of its number."""
        self.change()
        batch = [r for r in self.requests if self.random.random() < 0.8 and r["tokens"] < 30]
        self.random.shuffle(batch)
        places = [s for r in batch for s in self.write(r, self.random.choice([1, 1, 1, 3]))]
        self.numbers.write(slots(*places))
        tables = [slots(*r["blocks"], 0, 0) for r in batch]
        found = self.numbers.find(tables, [r["tokens"] for r in batch])
        assert len(set(found)) == len(found)
        for request, number in zip(batch, found, strict=True):
            tokens = [
                self.content[request["blocks"][t // BLOCK] * BLOCK + t % BLOCK]
                for t in range(request["tokens"])
            ]
            before = self.known.get(number, [])
            assert tokens[: len(before)] == before
            self.known[number] = tokens
        assert set(found) <= self.numbers.numbers


@pytest.mark.parametrize("seed", range(10))
def test_a_number_keeps_its_tokens(seed):
    """Whatever happens to requests and blocks, the tokens of a number only grow."""
    pool = Pool(seed, most=random.Random(seed).choice([2, 100]))
    for _ in range(300):
        pool.step()


def test_undisturbed_sequences_keep_their_numbers():
    numbers = SequenceNumbers(BLOCK, 8)
    first, second = slots(0, 1, 2), slots(5, 4, 3)
    numbers.write(slots(*range(6), *range(20, 24)))
    assert numbers.find([first, second], [6, 4]) == [0, 1]
    numbers.write(slots(6, 16))
    assert numbers.find([second, first], [5, 7]) == [1, 0]
    for token in range(5, 12):
        numbers.write(slots(second[token // BLOCK] * BLOCK + token % BLOCK))
        assert numbers.find([second], [token + 1]) == [1]
    assert numbers.find([first], [7]) == [0]
    assert numbers.numbers == {0, 1}


def test_moved_blocks_do_not_continue_a_sequence():
    """The same tokens in other blocks are new, because the writes do not say what they are."""
    numbers = SequenceNumbers(BLOCK, 8)
    numbers.write(slots(*range(8)))
    assert numbers.find([slots(0, 1)], [8]) == [0]
    numbers.write(slots(*range(8, 16)))
    assert numbers.find([slots(2, 3)], [8]) == [1]
    assert numbers.find([slots(1, 0)], [8]) == [2], "another order"


def test_fewer_tokens_are_a_new_sequence():
    numbers = SequenceNumbers(BLOCK, 8)
    numbers.write(slots(*range(8)))
    assert numbers.find([slots(0, 1)], [8]) == [0]
    assert numbers.find([slots(0, 1)], [7]) == [1]


def test_a_sequence_whose_last_block_is_overwritten_is_forgotten():
    numbers = SequenceNumbers(BLOCK, 8)
    numbers.write(slots(*range(16)))
    assert numbers.find([slots(0, 1), slots(2, 3)], [8, 8]) == [0, 1]
    numbers.write(slots(4, 8))
    assert numbers.numbers == {1}
