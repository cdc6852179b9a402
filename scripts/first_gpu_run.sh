#!/usr/bin/env bash
# What only a GPU can show, in one go and one folder: versions, rates, kernels against their twins, stored cases,
# training twice, benchmarks, and the sanitizer's word on small cases. At most half an hour on an H100.
#
#   scripts/first_gpu_run.sh [FOLDER]      results, default gpu_results; a step that is done is not done again
#
#   SWITCHYARD   the program (default build/cuda/switchyard)
#   DEVICE       cuda, or cuda_emulated to try the script without a GPU: no benchmarks then
set -u
cd "$(dirname "$0")/.."
out=${1:-gpu_results} device=${DEVICE:-cuda} program=${SWITCHYARD:-build/cuda/switchyard}
mkdir -p "$out"
failed=0

# step NAME SECONDS COMMAND...: runs it once; its output goes to NAME.txt, its end to NAME.done.
step() {
  local name=$1 limit=$2 status
  shift 2
  if [ -e "$out/$name.done" ]; then
    echo "$name: done before"
    return
  fi
  timeout "$limit" "$@" > "$out/$name.txt" 2>&1
  status=$?
  if [ $status = 0 ]; then
    touch "$out/$name.done"
    echo "$name: ok"
  else
    failed=1
    echo "$name: exit status $status, see $out/$name.txt"
    tail -n 3 "$out/$name.txt" | sed 's/^/    /'
  fi
}

# verify NAME CASE KEYS...
verify() {
  local name=$1
  shift
  step "verify_$name" 300 "$program" verify "$@" "device=$device" --json "$out/verify_$name.json"
}

# Losses of a few steps, of a smaller model where there is no GPU.
train() {
  local keys=()
  [ "$device" = cuda ] || keys=(base_num_decoder_layers=2 max_target_length=32 per_device_batch_size=1)
  "$program" train configs/examples/small-moe.yml "device=$device" dataset_type=synthetic steps=3 \
    enable_checkpointing=false enable_tensorboard=false "base_output_directory=$(dirname "$1")" "metrics_file=$1" "${keys[@]}"
}

same_bits() {
  rm -f "$out/first.jsonl" "$out/second.jsonl"
  train "$out/first.jsonl" && train "$out/second.jsonl" || return 1
  python3 - "$out/first.jsonl" "$out/second.jsonl" << 'PY'
import json, sys
runs = [[{k: v for k, v in json.loads(line).items() if not k.startswith("perf/")} for line in open(path)]
        for path in sys.argv[1:]]
assert len(runs[0]) == 3, "three steps were asked for"
assert runs[0] == runs[1], "two runs differ"
print("two runs, the same numbers:", [step.get("learning/loss") for step in runs[0]])
PY
}

export -f train same_bits
export out device program

if [ "$device" = cuda ]; then
  step versions 60 nvidia-smi
fi
# A kernel that hangs or faults spoils no other: each has a process of its own.
"$program" selftest --list > "$out/kernels.txt"
while read -r kernel; do
  name=selftest_${kernel// /_}
  step "$name" 120 "$program" selftest --only "$kernel" "device=$device" --json "$out/$name.json" < /dev/null
done < "$out/kernels.txt"
for case in tests/golden/hf/*/; do
  name=$(basename "$case")
  verify "$name" "$case"
  verify "${name}_8" "$case" ranks=8 ici_data_parallelism=2 ici_expert_parallelism=2 ici_tensor_parallelism=2
done
for case in tests/golden/maxtext_moe/*.safetensors; do
  verify "$(basename "$case" .safetensors)" "$case"
done
for case in tests/golden/maxtext025_train/deepseek3_1dev.json tests/golden/maxtext_train/deepseek3_qkclip_1dev.json; do
  verify "$(basename "$case" .json)" "$case"
done
step same_bits 300 bash -c same_bits
if [ "$device" = cuda ]; then
  step bench_gmm 120 "$program" bench gmm device=cuda tokens=32768 emb=4096 mlp=1024 experts=128 topk=8
  step bench_moe 120 "$program" bench moe device=cuda tokens=32768 emb=4096 mlp=1024 experts=128 topk=8
  step bench_attention 120 "$program" bench attention device=cuda seq=4096 heads=16
  step bench_loss 120 "$program" bench loss device=cuda
  step bench_optimizer 120 "$program" bench optimizer device=cuda
  step bench_train 120 "$program" bench train device=cuda
  step bench_decode 120 "$program" bench moe device=cuda tokens=1 emb=4096 mlp=1024 experts=128 topk=8 direction=fwd \
    weight_format=bfloat16,int8,int4
  step bench_generate 120 "$program" bench generate device=cuda
  step bench_generate_int4 120 "$program" bench generate device=cuda weight_format=int4
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck initcheck; do
      step "$tool" 300 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" selftest device=cuda \
        ragged_row_dot swiglu plan_rows
    done
  fi
fi
exit $failed
