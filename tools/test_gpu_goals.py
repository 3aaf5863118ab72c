#!/usr/bin/env python3
"""Tests of the goals of gpu_peers.py on invented times, to be run by hand.

python tools/test_gpu_goals.py
"""

import unittest

from gpu_peers import ours, table
from gpu_peers.goals import TIMES_DENSE, Comparison
from gpu_peers.peers import Failure, Peers, Result
from gpu_peers.shape import Shape

SHAPES = list(TIMES_DENSE)
RATE = 4e12
"""Rate of a copy in bytes per second."""
PEERS = {
    "dense": ["sdpa flash", "flashinfer"],
    "gather": ["flashinfer, pages of 1"],
    "top-k": ["torch.topk"],
    "naive": ["naive vattention"],
}


def document(**changes):
    """Returns a report of gather: E is 0.9 for rows; codes take 4 us, and their E is 0.8."""
    results = []
    for shape in SHAPES:
        codes = shape.query_heads * shape.tokens * 4
        named = [("dense", 1.0, shape.row_bytes(1), 0.9), ("gather", 0.1, shape.row_bytes(10), 0.9)]
        for what, share, size, efficiency in [
            *named,
            ("gather", 0.05, shape.row_bytes(20), 0.9),
            ("select", 0.05, codes, 0.8),
        ]:
            place = {"what": what, "batch": shape.batch, "tokens": shape.tokens, "share": share}
            results.append(
                {**place, "bytes": size, "seconds": size / RATE / efficiency, "list_sum": None}
            )
    heads = {"kv_heads": 8, "group": 4, "head_dim": 128}
    common = {
        "device": "NVIDIA H200 (sm_90), NVRTC 13.0",
        "emulated": False,
        "copy_rate": RATE,
        "left_out": [],
    }
    return {**common, **heads, "results": results, **changes}


def peers(mine, times=None):
    """Returns peers with which each goal is met by a margin of 10 %.

    `times` sets other ratios of a peer's time to this library's, by operation.
    """
    found = Peers("NVIDIA H200", True, RATE)
    comparison = Comparison(mine, found)
    for shape in SHAPES:
        for what, names in PEERS.items():
            for share in {"dense": [1.0], "top-k": [0.05]}.get(what, [0.1, 0.05]):
                own = mine.get({"top-k": "select"}.get(what, what), shape, share)
                step = comparison.seconds_of_step(shape, 0.05 if what == "dense" else share)
                wanted = {"dense": 8.0, "gather": 1.15, "top-k": 2.0, "naive": 10.0}[what]
                seconds = (step if what in ("dense", "naive") else own.seconds) * (times or {}).get(
                    what, 1.1 * wanted
                )
                found.results += [
                    Result(what, name, shape, share, 1, seconds * (1 + i))
                    for i, name in enumerate(names)
                ]
    return found


def named(comparison):
    return [(goal.name, goal) for goal in comparison.goals()]


def verdicts(mine, found):
    return {name: goal.verdict() for name, goal in named(Comparison(mine, found))}


class Goals(unittest.TestCase):
    def setUp(self):
        self.ours = ours.parse(document())

    def replaced(self, what, shape, share, **changes):
        """Returns this library's measurements with one result changed."""
        report = document()
        for result in report["results"]:
            if (result["what"], result["batch"], result["tokens"], result["share"]) == (
                what,
                shape.batch,
                shape.tokens,
                share,
            ):
                result.update(changes)
        return ours.parse(report)

    def without_own_dense(self, report=None):
        report = report or document()
        results = [result for result in report["results"] if result["what"] != "dense"]
        return ours.parse({**report, "results": results})

    def test_all_goals_are_met(self):
        mine = self.without_own_dense()
        for name, verdict in verdicts(mine, peers(mine)).items():
            self.assertTrue(verdict.startswith("met (closest: "), (name, verdict))

    def test_our_own_dense_attention_counts(self):
        own, comparison = (
            self.ours.get("dense", SHAPES[3], 1.0),
            Comparison(self.ours, peers(self.ours, {"dense": 20.0})),
        )
        self.assertEqual(comparison.fastest("dense", SHAPES[3], 0.1), ("our dense", own.seconds))
        # A token has 4096 bytes of rows at an E of 0.9, and 128 bytes of codes at 0.8.
        got = own.seconds / comparison.seconds_of_step(SHAPES[3], 0.1)
        self.assertAlmostEqual(got, 1 / (0.1 + 128 / 4096 * 0.9 / 0.8), places=2)
        goal = next(goal for goal in comparison.goals() if goal.name == "G3")
        eight = next(
            condition
            for condition in goal.conditions
            if condition.text == "times dense, 8x131072, 10% of rows"
        )
        self.assertAlmostEqual(eight.got, got)

    def test_the_conditions_in_json(self):
        found = peers(self.ours, {"top-k": 1.5})
        found.failures = [
            Failure("naive", "another", SHAPES[0], share, "not there") for share in (0.1, 0.05)
        ]
        comparison = Comparison(self.ours, found)
        met = {
            name: [one["met"] for one in goal.summary()["conditions"]]
            for name, goal in named(comparison)
        }
        self.assertEqual(met["G1"], [True] * 12)
        self.assertEqual(met["G2"], [True] * 3 + [False] * 5)
        self.assertEqual(met["G5"], [None, None, True, True, True, True])
        found.on_gpu = False
        for _, goal in named(comparison):
            self.assertEqual({one["met"] for one in goal.summary()["conditions"]}, {None})

    def test_the_shortfall_is_named(self):
        large = Shape(8, 131072)
        size = large.row_bytes(10)
        mine = self.replaced("gather", large, 0.1, seconds=size / RATE / 0.6)
        found = verdicts(mine, peers(mine))["G1"]
        self.assertEqual(found, "missed by 25% (0.6 of 0.8, E, 8x131072, 10% of rows)")
        alone = Shape(1, 131072)
        mine = self.replaced("select", alone, 0.05, seconds=10e-6)
        found = verdicts(mine, peers(mine))["G2"]
        self.assertTrue(found.startswith("missed by 25% (10 of at most 8, us, 1x131072"), found)

    def test_the_worst_of_several_is_named(self):
        found = verdicts(self.ours, peers(self.ours, {"top-k": 1.5}))["G2"]
        self.assertTrue(
            found.startswith("missed by 25% (1.5 of 2, times top-k of ready scores, "), found
        )
        self.assertTrue(found.endswith("; 5 of 8 conditions are missed)"), found)
        found = verdicts(self.ours, peers(self.ours, {"naive": 9.0}))["G5"]
        self.assertTrue(found.startswith("missed by 10% (9 of 10, times naive, 1x"), found)

    def test_the_higher_rate_of_a_copy_counts(self):
        found = peers(self.ours)
        found.copy_rate = 1.5 * RATE
        self.assertTrue(
            verdicts(self.ours, found)["G1"].startswith("missed by 25% (0.6 of 0.8, E, ")
        )

    def test_a_missing_peer_leaves_a_goal_open(self):
        mine = self.without_own_dense()
        found = peers(mine)
        found.results = [
            result for result in found.results if result.name != "flashinfer, pages of 1"
        ]
        found.failures = [Failure("gather", "flashinfer, pages of 1", SHAPES[2], 0.1, "not there")]
        verdict = verdicts(mine, found)["G1"]
        start = "not measured (6 of 12 conditions met; times FlashInfer, 1x524288, 10% of rows: "
        self.assertTrue(verdict.startswith(start), verdict)
        self.assertTrue(verdict.endswith("flashinfer, pages of 1: not there)"), verdict)
        found.failures = [Failure("dense", "sdpa cudnn", SHAPES[0], 1.0, "took more than 40 s")]
        verdict = verdicts(mine, found)["G3"]
        start = "not measured (8 of 10 conditions met; times dense, 1x32768, 10% of rows: "
        self.assertTrue(verdict.startswith(f"{start}sdpa cudnn: took"), verdict)

    def test_a_missed_goal_stays_missed_without_a_peer(self):
        found = peers(self.ours, {"dense": 1.0})
        found.failures = [Failure("dense", "sdpa cudnn", SHAPES[0], 1.0, "took more than 40 s")]
        verdict = verdicts(self.ours, found)["G3"]
        self.assertTrue(verdict.startswith("missed by 87% (0.63 of 5, times dense, "), verdict)
        found = peers(self.ours, {"naive": 9.0})
        found.results = [
            result
            for result in found.results
            if (result.what, result.shape) != ("naive", SHAPES[1])
        ]
        found.failures = [
            Failure("naive", "naive vattention", SHAPES[1], share, "no memory")
            for share in (0.1, 0.05)
        ]
        verdict = verdicts(self.ours, found)["G5"]
        self.assertTrue(verdict.startswith("missed by 10% (9 of 10, times naive, 1x"), verdict)
        end = "; 2 not measured (naive vattention: no memory))"
        self.assertTrue(verdict.endswith(end), verdict)

    def test_another_form_or_a_refusal_leaves_no_goal_open(self):
        mine = self.without_own_dense()
        for failure in [
            Failure("dense", "sdpa flash, packed", SHAPES[0], 1.0, "out of memory"),
            Failure("dense", "sdpa cudnn", SHAPES[0], 1.0, "No available kernel", refused=True),
        ]:
            found = peers(mine)
            found.failures = [failure]
            self.assertTrue(verdicts(mine, found)["G3"].startswith("met "))
            self.assertIn(
                f"left out: {failure.name} (dense): {failure.reason} [1x32768 100%]",
                table.left_out(Comparison(mine, found)),
            )

    def test_no_verdict_without_a_gpu_or_on_different_gpus(self):
        for name, changes in [
            ("emulation", {"emulated": True}),
            ("H100", {"device": "NVIDIA H100 (sm_90)"}),
        ]:
            mine = ours.parse(document(**changes))
            for verdict in verdicts(mine, peers(mine)).values():
                self.assertTrue(verdict.startswith("not measured (") and name in verdict, verdict)
        found = peers(self.ours)
        found.on_gpu = False
        self.assertEqual(
            set(verdicts(self.ours, found).values()), {"not measured (peers ran without a GPU)"}
        )

    def test_a_shape_that_is_left_out(self):
        report = document(left_out=[{"batch": 1, "tokens": 524288, "reason": "it needs 3 GB"}])
        report["results"] = [result for result in report["results"] if result["tokens"] != 524288]
        mine = self.without_own_dense(report)
        found = peers(self.without_own_dense())
        for name, verdict in verdicts(mine, found).items():
            self.assertTrue(
                verdict.startswith("not measured (") and "it needs 3 GB" in verdict, (name, verdict)
            )

    def test_the_table(self):
        lines = table.markdown(Comparison(self.ours, peers(self.ours)), [SHAPES[3]]).splitlines()
        micro = SHAPES[3].row_bytes(10) / RATE / 0.9 * 1e6
        peer = f"flashinfer, pages of 1 | {micro * 1.265:.1f} | 1.26"
        self.assertIn(f"| 8x131072 | gather | 10% | {micro:.1f} | 0.90 | {peer} |", lines)
        self.assertEqual(len(lines), 2 + 8)


if __name__ == "__main__":
    unittest.main()
