#!/usr/bin/env bash
# Larger tests of shared work on this machine (`just scale`): four shards of an evaluation, one of
# which is killed and continued, must give the results of a single run. If Python has `vattention`
# and `ray` (pip install './python[ray]' pytest), a cluster of two nodes follows, one of which dies.
set -euo pipefail
cd "$(dirname "$0")/.."

out=target/scale
rm -rf $out && mkdir -p $out
cargo build --release --quiet

evaluate() {
    target/release/vattention evaluate --model models/recall --pipelines configs/{dense,streaming-llm}.toml models/recall/pipelines/*.toml \
        --tasks niah_single_1,niah_multikey_2,vt --context 2048 --cases 20 "$@"
}

echo "== one run"
time evaluate --json $out/one.json > $out/one.txt
for shard in 1 2 3 4; do
    echo "== shard $shard of 4"
    if [ $shard = 3 ]; then
        (evaluate --results $out/3.jsonl --shard 3/4 & sleep 2; kill -KILL $(pgrep -f 'shard 3/4') ; wait) 2> /dev/null || true
        echo "killed after $(($(wc -l < $out/3.jsonl) - 1)) answers"
    fi
    evaluate --results $out/$shard.jsonl --shard $shard/4
done
echo "== merged"
target/release/vattention merge $out/{1,2,3,4}.jsonl --results $out/all.jsonl --json $out/all.json > $out/all.txt
cat $out/all.txt
cmp $out/one.txt $out/all.txt && cmp $out/one.json $out/all.json
echo "table and JSON equal those of one run"

if python3 -c 'import ray, pytest, vattention' 2> /dev/null; then
    echo "== two nodes, one dies"
    VATTENTION_REQUIRE_RAY=1 python3 -m pytest -q -s python/tests/test_ray.py -k real_command
else
    echo "the tests with Ray are skipped; to run them: pip install './python[ray]' pytest"
fi
