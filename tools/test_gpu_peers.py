#!/usr/bin/env python3
"""Tests of gpu_peers.py on the CPU, to be run by hand.

    python tools/test_gpu_peers.py

In place of FlashInfer, a class computes attention in f64 by FlashInfer's documentation of requests,
pages and heads.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import torch

from gpu_peers import bench, dense, lists, naive, ours, paged, table, timing, top_k
from gpu_peers.data import Data, weighted, worst_error
from gpu_peers.entry import Entry, LeftOut, Ready, Refused
from gpu_peers.goals import Comparison
from gpu_peers.peers import Peers, Result
from gpu_peers.shape import Shape, shapes
from test_gpu_goals import document


class Files(unittest.TestCase):
    def refused(self, *arguments):
        command = [
            sys.executable,
            str(Path(__file__).with_name("gpu_peers.py")),
            *map(str, arguments),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_invalid_files_and_options(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gather.json"
            self.assertIn("No such file", self.refused(path))
            for text, message in [
                ("{", "Expecting"),
                ("[]", "expected the output of `gather --json`"),
                ("{}", "no 'kv_heads'"),
                (json.dumps(document(group=8)), "expected (8, 4, 128), got (8, 8, 128)"),
                (
                    json.dumps(document(results=[{**document()["results"][0], "seconds": 0}])),
                    "expected more than 0, got 0",
                ),
            ]:
                path.write_text(text)
                found = self.refused(path)
                self.assertTrue(str(path) in found and message in found, found)
            path.write_text(json.dumps(document()))
            self.assertIn("expected BATCHxTOKENS", self.refused(path, "--shapes", "3"))
            self.assertIn("an existing folder", self.refused(path, "--json", "nowhere/x.json"))
            self.assertIn("expected the file", self.refused())
            if not torch.cuda.is_available():
                self.assertIn("found no GPU", self.refused(path))

    def test_shapes(self):
        self.assertEqual(shapes("1x20,8x131072"), [Shape(1, 20), Shape(8, 131072)])
        for text in ["", "1", "0x99", "1x19", "1x-99", "ax99", "1x99x9", "1x99,"]:
            self.assertRaises(ValueError, shapes, text)


class Attention(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.data = Data(Shape(2, 160), "cpu")

    def test_f64_follows_the_formula(self):
        data, (sequence, head, group) = self.data, (1, 5, 2)
        query, keys = (
            data.queries[sequence, head * 4 + group].tolist(),
            data.keys[sequence, :, head].tolist(),
        )
        logits = [sum(q * k for q, k in zip(query, key)) / math.sqrt(128) for key in keys]
        weights = [math.exp(logit) for logit in logits]
        values = data.values[sequence, :, head].tolist()
        expected = [
            sum(w * value[i] for w, value in zip(weights, values)) / sum(weights)
            for i in range(128)
        ]
        found = data.exact[sequence, head * 4 + group].tolist()
        for a, b in zip(found, expected):
            self.assertAlmostEqual(a, b, places=9)

    def test_sdpa(self):
        for packed in (False, True):
            ready = dense.sdpa(self.data, "math", packed)
            self.assertLess(ready.error(ready.run()), 0.01)
            self.assertGreater(ready.error(ready.run().flip(1)), 0.5)

    def test_naive_vattention_of_all_tokens_is_dense(self):
        rows = self.data.heads_first
        for sample in (0, 40):
            out, _, _ = naive.vattention(self.data.queries, *rows, self.data.shape.tokens, sample)
            self.assertLess(worst_error(out, self.data.exact), 0.02)

    def test_naive_vattention_reads_the_top_tokens(self):
        keys, values = self.data.heads_first
        _, tokens, log_weights = naive.vattention(self.data.queries, keys, values, 8, 8)
        logits = self.data.queries[1, 21].double() @ keys[1, 5].double().T
        # Products in bf16 may swap tokens with almost equal logits.
        self.assertGreater(logits[tokens[1, 21, :8]].min() + 0.1, logits.sort().values[-8])
        self.assertTrue((log_weights[..., :8] == 0).all())
        ready = naive.ready(self.data, 10)
        self.assertLess(ready.error(ready.run()), 0.02)

    def test_the_sample_represents_the_residual(self):
        """The weights of 60 tokens drawn from 160 have the mean sum 120 if 40 are top tokens.

        With 64 heads and 50 draws, the standard error is 160 sqrt(.75 · .25 / 60 / 3200) = .16; the
        level of the test is 1e-5.
        """
        rows, sums = self.data.heads_first, []
        for _ in range(50):
            _, _, log_weights = naive.vattention(self.data.queries, *rows, 40, 60)
            sums.append(log_weights[..., 40:].double().exp().sum(-1))
        self.assertLess(abs(torch.stack(sums).mean().item() - 120), 4.42 * 0.16)

    def test_top_k(self):
        shape = Shape(2, 300)
        ready = top_k.make_torch(shape, 15, "cpu")
        values, places = ready.run()
        self.assertEqual(ready.error((values, places)), 0)
        self.assertGreater(ready.error((values, places.roll(1, -1))), 0.5)
        numbers = top_k.scores(shape, "cpu")
        worse = numbers.topk(16).indices[:, 1:]
        self.assertGreater(ready.error((numbers.gather(-1, worse), worse)), 0)

    def test_lists_equal_those_of_gather(self):
        """The sums are those in the output of `gather --emulated`."""
        for shape, step, expected in [(Shape(1, 600), 10, 143797), (Shape(1, 600), 20, 71922)]:
            chosen = lists.make_lists(shape, step, "cpu")
            self.assertEqual((tuple(chosen.shape), int(chosen.sum())), ((8, 600 // step), expected))
        entries = bench.OneShape(self.data, ours.parse(document()))
        expected = lists.make_lists(self.data.shape, 10, "cpu")
        self.assertTrue(torch.equal(entries.lists(10), expected))
        result = {
            "what": "gather",
            "batch": 2,
            "tokens": 160,
            "share": 0.1,
            "bytes": 1,
            "seconds": 1,
            "list_sum": 7,
        }
        entries = bench.OneShape(self.data, ours.parse(document(results=[result])))
        self.assertRaisesRegex(LeftOut, "differ from gather's: .* not 7", entries.lists, 10)


class StandIn:
    """Implementation of FlashInfer's BatchDecodeWithPagedKVCacheWrapper by its documentation."""

    def __init__(self, workspace, layout, use_tensor_cores):
        assert layout == "NHD" and workspace.dtype == torch.uint8 and not workspace.any()

    def plan(
        self, indptr, indices, last, query_heads, kv_heads, dim, page, q_data_type, kv_data_type
    ):
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32
        assert q_data_type == kv_data_type == torch.bfloat16 and len(indptr) == len(last) + 1
        self.requests = [indices[a:b] for a, b in zip(indptr, indptr[1:])]
        self.last, self.heads, self.page = last, (query_heads, kv_heads, dim), page

    def run(self, queries, cache):
        query_heads, kv_heads, dim = self.heads
        assert queries.shape == (len(self.requests), query_heads, dim)
        assert all(part.shape[1:] == (self.page, kv_heads, dim) for part in cache)
        out, group = torch.empty(queries.shape, dtype=torch.float64), query_heads // kv_heads
        for i, pages in enumerate(self.requests):
            count = (len(pages) - 1) * self.page + int(self.last[i])
            keys, values = (part[pages.long()].flatten(0, 1)[:count] for part in cache)
            for head in range(query_heads):
                rows = keys[:, head // group], values[:, head // group]
                out[i, head] = weighted(queries[i, head : head + 1], *rows)[0]
        return out


class Paged(unittest.TestCase):
    def setUp(self):
        stand_in = mock.Mock(BatchDecodeWithPagedKVCacheWrapper=StandIn)
        patches = [
            mock.patch.object(paged, "import_flashinfer", lambda _: stand_in),
            mock.patch.object(paged, "WORKSPACE", 64),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        self.data = Data(Shape(2, 160), "cpu")

    def test_all_tokens(self):
        ready = paged.dense(self.data, False)
        self.assertLess(ready.error(ready.run()), 1e-9)
        with self.assertRaisesRegex(LeftOut, "expected a multiple of 16 tokens, found 150"):
            paged.dense(Data(Shape(1, 150), "cpu"), False)

    def test_lists(self):
        for step in (10, 20):
            chosen = lists.make_lists(self.data.shape, step, "cpu")
            ready = paged.gathered(self.data, chosen, True)
            self.assertLess(ready.error(ready.run()), 1e-9)
            others = paged.gathered(self.data, chosen.roll(1, 0), True)
            self.assertGreater(ready.error(others.run()), 0.1)


class Failing(unittest.TestCase):
    def setUp(self):
        self.peers, self.clock = Peers("CPU", False), timing.Clock("cpu", 0.0)
        self.clock.flushed = self.clock.flushed[:64]
        args = argparse.Namespace(device="cpu", limit=3600.0, entry_limit=600.0)
        self.bench = bench.Bench(args, ours.parse(document()), self.clock, self.peers)

    def attempt(self, make, name="a peer"):
        entry = Entry("dense", name, Shape(1, 20), 1.0, 1, make)
        with mock.patch.object(bench, "note"):
            self.bench.attempt(entry)

    def expect_left_out(self, reason):
        self.assertEqual(self.peers.results, [])
        self.assertRegex(self.peers.failures[0].reason, reason)
        line = table.left_out(Comparison(ours.parse(document()), self.peers))[0]
        self.assertRegex(line, rf"left out: a peer \(dense\): {reason}.* \[1x20 100%\]")

    def test_an_entry_that_runs(self):
        self.attempt(lambda: Ready(lambda: 7, lambda out: 0.01 * (out == 7)))
        (result,) = self.peers.results
        self.assertEqual(
            (result.error, result.times, self.peers.failures), (0.01, timing.FEWEST, [])
        )

    def test_an_entry_that_cannot_be_prepared(self):
        self.attempt(mock.Mock(side_effect=OSError("no library\nof that name")))
        self.expect_left_out("OSError: no library")

    def test_an_entry_that_refuses(self):
        self.attempt(mock.Mock(side_effect=Refused("not of one token")))
        self.expect_left_out("not of one token")
        self.attempt(mock.Mock(side_effect=LeftOut("not there")))
        self.assertEqual([failure.refused for failure in self.peers.failures], [True, False])

    def test_an_entry_that_fails(self):
        self.attempt(
            lambda: Ready(
                mock.Mock(side_effect=torch.OutOfMemoryError("too much")), lambda out: 0.0
            )
        )
        self.expect_left_out("OutOfMemoryError: too much")

    def test_a_wrong_output(self):
        for error in (0.5, math.nan):
            self.attempt(lambda: Ready(lambda: 7, lambda out: error))
            self.expect_left_out("its output differs from f64 by")

    def test_a_first_output_that_is_wrong(self):
        outs = iter(range(100))
        self.attempt(lambda: Ready(lambda: next(outs), lambda out: float(out < 1)))
        self.expect_left_out("its output differs from f64 by")

    def test_an_output_that_goes_wrong_later(self):
        outs = iter(range(100))
        self.attempt(lambda: Ready(lambda: next(outs), lambda out: float(out > 3)))
        self.expect_left_out("its output differs from f64 by")

    def test_an_entry_that_takes_too_long(self):
        self.bench.args.entry_limit = 0.1
        sleep = mock.Mock(side_effect=lambda: time.sleep(600))  # The limit interrupts it.
        # Another form of the entry is not tried; other entries are.
        for name in ("slow, packed", "slow"):
            self.attempt(lambda: Ready(sleep, lambda out: 0.0), name)
        reasons = [failure.reason for failure in self.peers.failures]
        self.assertEqual(reasons, ["took more than 0.1 s", "took more than 0.1 s at 1x20"])
        self.assertEqual(sleep.call_count, 1)
        self.bench.args.entry_limit = 600.0
        self.attempt(lambda: Ready(lambda: 7, lambda out: 0.0), "another")
        self.assertEqual([result.name for result in self.peers.results], ["another"])

    def test_a_refusal_has_the_warnings_of_pytorch(self):
        def refuse():
            torch.warnings.warn("Expected one thing (Triggered internally at x.cpp:1.)")
            raise RuntimeError("No available kernel. Aborting execution.")

        with self.assertRaisesRegex(
            Refused, "^No available kernel. Aborting execution.; Expected one thing$"
        ):
            dense.try_once(refuse)
        with self.assertRaisesRegex(RuntimeError, "illegal"):
            dense.try_once(mock.Mock(side_effect=RuntimeError("illegal address")))

    def test_no_flashinfer(self):
        with (
            mock.patch.dict(sys.modules, {"flashinfer": None}),
            self.assertRaisesRegex(LeftOut, "cannot be imported"),
        ):
            paged.import_flashinfer("cuda")

    def test_without_a_graph(self):
        with mock.patch.multiple(torch.cuda, **{name: mock.MagicMock() for name in dir_of_cuda()}):
            torch.cuda.Event.return_value.elapsed_time.return_value = 2.0
            torch.cuda.graph.return_value.__exit__.return_value = False
            clock = timing.GpuClock("cpu", 0.0)
            clock.flushed = clock.flushed[:64]
            run = mock.Mock(return_value=7)
            found = clock.median(run)
            # Three calls warm up and one is captured; then the graph is replayed.
            self.assertEqual(
                (run.call_count, found.no_graph, found.out, found.seconds), (4, None, 7, 2e-3)
            )
            self.assertEqual(torch.cuda.CUDAGraph.return_value.replay.call_count, 1 + timing.FEWEST)
            torch.cuda.graph.side_effect = RuntimeError("not while capturing\nmore")
            found = clock.median(run)
            self.assertEqual(
                (run.call_count, found.no_graph), (4 + 3 + 1 + timing.FEWEST, "not while capturing")
            )
        result = Result("naive", "slow", Shape(1, 20), 0.1, 1, 1.0, 1, 0.0, found.no_graph)
        lines = table.without_graph(Peers("GPU", True, results=[result]))
        self.assertEqual(
            lines, ["timed without a graph: slow (naive): not while capturing [1x20 10%]"]
        )


def dir_of_cuda():
    return ["Stream", "current_stream", "stream", "synchronize", "CUDAGraph", "graph", "Event"]


class Whole(unittest.TestCase):
    def test_a_run_on_the_cpu(self):
        small = document(emulated=True, copy_rate=None, results=[])
        sums = {10: 143797, 20: 71922}
        for what, step in [("dense", 1), ("gather", 10), ("gather", 20), ("select", 20)]:
            place = {"what": what, "batch": 1, "tokens": 600, "share": 1 / step}
            small["results"].append(
                {
                    **place,
                    "bytes": 1,
                    "seconds": 1.0,
                    "list_sum": sums.get(step) if what == "gather" else None,
                }
            )
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch("builtins.print") as printed,
            mock.patch.object(timing, "COPIED", 64),
        ):
            path = Path(folder) / "peers.json"
            args = argparse.Namespace(
                shapes=None, device="cpu", seconds=0.0, entry_limit=600.0, limit=3600.0, json=path
            )
            bench.run(args, ours.parse(small))
            written = json.loads(path.read_text())
        text = "\n".join(str(call.args[0]) for call in printed.call_args_list if call.args)
        timed = {(result["what"], result["name"], result["share"]) for result in written["results"]}
        self.assertEqual(timed, {
            ("dense", "sdpa math", 1.0),
            ("dense", "sdpa math, packed", 1.0),
            ("top-k", "torch.topk", 0.05),
            ("naive", "naive vattention", 0.1),
            ("naive", "naive vattention", 0.05),
        })  # fmt: skip
        left_out = {(failure["what"], failure["name"]) for failure in written["left_out"]}
        self.assertEqual(len(left_out), 5)
        for what, name in left_out:
            self.assertIn(f"left out: {name} ({what}): needs a GPU [", text)
        for name in ("G1", "G2", "G3", "G5"):
            self.assertRegex(text, rf"(?m)^{name} .*: not measured \(gather ran in an emulation\)$")

    def test_the_time_limit_of_all_entries(self):
        args = argparse.Namespace(device="cpu", limit=0.0, entry_limit=1.0)
        found = Peers("CPU", False)
        with mock.patch.object(bench, "note"):
            bench.Bench(args, ours.parse(document()), None, found).measure(Shape(1, 64))
        reasons = {failure.reason for failure in found.failures}
        self.assertEqual(reasons, {"the time limit of 0 s for all entries has passed"})
        self.assertEqual(len(found.failures), 12)


if __name__ == "__main__":
    unittest.main()
