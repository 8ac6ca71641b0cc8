#!/usr/bin/env bash
# The benchmarks that need a GPU, one after the other, in about twenty minutes: JSON and pictures go to a folder (the one
# argument; default scripts/results). What scripts/gpu_check.sh built is measured. bench_epoch needs DGL, bench_llm
# transformers, bench_multi_gpu WholeGraph and two GPUs; bench_gather, bench_dlrm and bench_codec also measure WholeGraph
# and nvCOMP where they are installed. One that fails does not stop the others.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
results=${1:-scripts/results}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$results"
failed=0
run() {
  local name=$1 output=$2
  shift 2
  echo "== $name"
  "$python" "scripts/bench_$name.py" --config "configs/bench_$name.yaml" --json "$results/$output.json" \
    --plot "$results/$output.png" "$@" || failed=1
}
run codec codec_gpu --set 'sizes.data={}' 'cpu.data={}' 'peers.data={}' 'sweep.widths=[]' 'sweep.matrices=[]'
run codec codec_sweep --set 'sizes.data={}' 'cpu.data={}' 'gpu.data={}' 'peers.data={}'
run gather gather
run epoch epoch
if "$python" -c 'import accelerate, transformers' 2>/dev/null; then run llm llm; fi
run dlrm dlrm
if "$python" -c 'import pylibwholegraph, torch, sys; sys.exit(torch.cuda.device_count() < 2)' 2>/dev/null; then
  run multi_gpu multi_gpu
fi
run codec codec_gpu_peers --set 'sizes.data={}' 'cpu.data={}' 'gpu.data={}' 'sweep.widths=[]' 'sweep.matrices=[]'
exit "$failed"
