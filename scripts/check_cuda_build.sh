#!/bin/sh
# Builds the program for GPUs and checks what the compiler made of its kernels, on a machine with the CUDA
# toolkit and no GPU: no kernel keeps registers in memory (two of attention keep a few, see below), wgmma is never
# serialised, products and attention run on tensor cores, no host code calls a GPU's function, and no kernel reads
# a table that only the host has.
#
#   scripts/check_cuda_build.sh [BUILD_FOLDER] [--built]      (build/cuda_check; --built: an earlier run built it)
#
# Ends with status 1 and names what is wrong. Machine code is counted where cuobjdump is.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/cuda_check}
mkdir -p "$build"
log=$build/compile.log
if [ "${2:-}" != --built ]; then
  # A log of this run alone: what is up to date says nothing.
  rm -f "$build"/CMakeFiles/switchyard_lib.dir/src/kernels/*/cuda/*.o
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_CUDA=ON -DCMAKE_CUDA_FLAGS=-Xptxas=-v >"$build/configure.log"
  begin=$(date +%s)
  if ! cmake --build "$build" --target switchyard >"$log" 2>&1; then
    tail -n 30 "$log"
    echo "check_cuda_build: the build failed ($log)" >&2
    exit 1
  fi
  echo "built in $(($(date +%s) - begin)) s"
fi

awk '
  # Each reason has a number of its own; C7519 alone is harmless (a fence was added).
  /instructions are serialized|C75(0[89]|1[0-8])/ { print "wgmma is serialised: " $0; bad = 1 }
  /Compiling entry function/ {
    match($0, /\047[^\047]*\047/); kernel = substr($0, RSTART + 1, RLENGTH - 2)
    match($0, /for \047[^\047]*\047/); target = substr($0, RSTART + 5, RLENGTH - 6)
    entry = 1; ++kernels[target]
  }
  /bytes spill stores/ && entry {
    entry = 0
    for (i = 1; i <= NF; ++i) if ($i == "spill" && $(i + 1) ~ /stores/) spilled = $(i - 2)
    # Their warps that multiply, or those that bring, have fewer registers than they want: a block has no more.
    allowed = kernel ~ /hopper_forward.*ForwardShapeILi256E|hopper_key_gradients.*KeyShapeILi128E/ ? 32 : 0
    if (spilled > allowed) { print target " " kernel ": " spilled " bytes of registers are kept in memory"; bad = 1 }
  }
  END {
    for (target in kernels) print target ": " kernels[target] " kernels"
    if (length(kernels) == 0) { print "no kernel was compiled"; bad = 1 }
    exit bad
  }' "$log" || { echo "check_cuda_build: see $log" >&2; exit 1; }

# nvcc makes a function of the GPU that host code calls end the program, in templates without a word.
objects=$(find "$build/CMakeFiles/switchyard_lib.dir/src/kernels" -name '*.cu.o')
for object in $objects; do
  if nm "$object" | grep -q ' U exit$'; then
    echo "check_cuda_build: host code in $object calls a function of the GPU" >&2
    exit 1
  fi
done

command -v cuobjdump >/dev/null || { echo "no cuobjdump: machine code is not counted"; exit 0; }
# A constexpr table of the host is no table of the GPU: a kernel that looks something up there while it runs reads
# from an address near 0.
for object in $objects; do
  cuobjdump -ptx "$object" | awk -v object="$object" '
    /\.entry/ { split("", constant) }
    $1 ~ /^mov\.[ub]64$/ && $3 ~ /^[0-9]+;$/ { sub(",", "", $2); constant[$2] = 1 }
    $1 ~ /^ld/ && match($0, /\[%rd[0-9]+/) {
      if (substr($0, RSTART + 1, RLENGTH - 1) in constant) { print object " reads a constant address: " $0; bad = 1 }
    }
    END { exit bad }' || exit 1
done
# expect FILE TARGET INSTRUCTION: of the file's machine code for the target.
expect() {
  found=$(cuobjdump -sass -arch "$2" "$build/CMakeFiles/switchyard_lib.dir/src/kernels/$1.cu.o" | grep -c "$3" || true)
  echo "$1 for $2: $found of $3"
  [ "$found" -gt 0 ] || { echo "check_cuda_build: $1 has no $3" >&2; exit 1; }
}
expect product/cuda/product sm_80 HMMA
expect attention/cuda/flash_attention sm_80 HMMA
expect attention/cuda/flash_attention sm_90a HMMA
expect attention/cuda/flash_attention_backward sm_80 HMMA
expect attention/cuda/flash_attention_backward sm_90a HMMA
expect product/cuda/wgmma_product sm_90a HGMMA
expect product/cuda/split_product sm_90a HGMMA
expect product/cuda/tma_product sm_90a HGMMA
expect product/cuda/gated_product sm_90a HGMMA
expect product/cuda/gated_down sm_90a HGMMA
expect attention/cuda/hopper_attention sm_90a HGMMA
expect attention/cuda/hopper_attention_backward sm_90a HGMMA
expect attention/cuda/hopper_latent_attention sm_90a HGMMA
expect attention/cuda/hopper_query_gradients sm_90a HGMMA
expect product/cuda/few_rows_wgmma sm_90a HGMMA
expect product/cuda/few_rows_packed sm_80 HMMA
expect loss/cuda/narrow_loss sm_90a HGMMA
expect loss/cuda/narrow_loss_gradients sm_90a HGMMA
expect product/cuda/tma_product sm_90a UTMALDG
