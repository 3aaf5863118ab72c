"""Numbers of sequences, which vLLM's metadata does not have.

A batch names a sequence only by its blocks. Equal blocks need not have equal tokens: blocks are
freed and used again, and a sequence that was preempted returns in other blocks. Different sequences
share the blocks of a common prefix. So each block has a generation, a number that changes when a
row of the block is overwritten, and that no other block ever has. A sequence continues an earlier
one only if it begins with the generations of all blocks of the earlier one. All rows that were
indexed for this number are then unchanged, in whatever block they are.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Generations:
    """Generations of the blocks of a pool, which follow from the rows that are written.

    The rows of a block are written in order. A row that is not behind all rows that have been
    written begins a new generation.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.count = 0
        self.numbers: Integers = np.zeros(0, np.int64)
        """Generation of each block."""
        self.written: Integers = np.zeros(0, np.int64)
        """Number of rows that have been written of each block in its generation."""

    def write(self, slots: Integers) -> list[int]:
        """Records writes to slots, and returns the generations that end. Slots of -1 are none."""
        slots = slots[slots >= 0]
        blocks, places = np.unique(slots // self.block_size, return_inverse=True)
        first = np.full(len(blocks), self.block_size)
        np.minimum.at(first, places, slots % self.block_size)
        last = np.zeros(len(blocks), np.int64)
        np.maximum.at(last, places, slots % self.block_size)

        self._expect(blocks)
        overwritten = blocks[first < self.written[blocks]]
        ended: list[int] = self.numbers[overwritten].tolist()
        self.numbers[overwritten] = self._new(len(overwritten))
        self.written[blocks] = last + 1
        return ended

    def find(self, blocks: Integers) -> Integers:
        """Returns the generations of blocks."""
        self._expect(blocks)
        return self.numbers[blocks]

    def _expect(self, blocks: Integers) -> None:
        """Gives generations to blocks that appear for the first time."""
        new = int(blocks.max(initial=-1)) + 1 - len(self.numbers)
        if new > 0:
            self.numbers = np.concatenate([self.numbers, self._new(new)])
            self.written = np.concatenate([self.written, np.zeros(new, np.int64)])

    def _new(self, count: int) -> Integers:
        self.count += count
        return np.arange(self.count - count, self.count)


class Sequence(NamedTuple):
    """Tokens that have a number."""

    number: int
    tokens: int
    generations: Integers
    """Generations of the blocks of the tokens."""

    def begins(self, tokens: int, generations: Integers) -> bool:
        """Returns True if these tokens are the first ones of a sequence."""
        first = generations[: len(self.generations)]
        return self.tokens <= tokens and np.array_equal(self.generations, first)


class SequenceNumbers:
    """Numbers of the sequences of one group of layers.

    Tokens are only ever added to a number: tokens that differ from all sequences get a new one. A
    layer that misses a step may therefore index more tokens in the next one.
    """

    def __init__(self, block_size: int, most: int) -> None:
        """`most` is the number of sequences that are remembered, batches that are larger aside."""
        self.blocks = Generations(block_size)
        self.most = most
        self.count = 0
        self.sequences: dict[int, Sequence] = {}
        """Sequences by the generation of their last block, the last one that was used last.

        The last block has the newest token, which no other sequence has, so that no other sequence
        ends with it.
        """

    def write(self, slots: Integers) -> None:
        """Records that rows of slots are written, before sequences with these rows are found."""
        for generation in self.blocks.write(slots):
            self.sequences.pop(generation, None)

    def find(self, tables: list[Integers], lengths: list[int]) -> list[int]:
        """Returns the numbers of sequences, given their block tables and numbers of tokens."""
        numbers = [self._find(table, length) for table, length in zip(tables, lengths, strict=True)]
        for generation in list(self.sequences)[: -max(self.most, len(numbers))]:
            del self.sequences[generation]
        return numbers

    @property
    def numbers(self) -> set[int]:
        """Numbers of the sequences that may continue."""
        return {sequence.number for sequence in self.sequences.values()}

    def _find(self, table: Integers, tokens: int) -> int:
        generations = self.blocks.find(table[: -(-tokens // self.blocks.block_size)])
        earlier = self._take(tokens, generations)
        if earlier is None:
            number, self.count = self.count, self.count + 1
        else:
            number = earlier.number
        self.sequences[int(generations[-1])] = Sequence(number, tokens, generations)
        return number

    def _take(self, tokens: int, generations: Integers) -> Sequence | None:
        """Removes and returns the longest sequence that these tokens continue."""
        for generation in reversed(generations.tolist()):
            sequence = self.sequences.get(generation)
            if sequence is not None and sequence.begins(tokens, generations):
                return self.sequences.pop(generation)
        return None
