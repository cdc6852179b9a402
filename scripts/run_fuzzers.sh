#!/usr/bin/env bash
# Runs each libFuzzer program of a build folder for a bounded time; the first finding ends it with its input's path.
#
#   scripts/run_fuzzers.sh BUILD_FOLDER SECONDS_EACH
#
# What a fuzzer learns stays in BUILD_FOLDER/corpus/<fuzzer>; inputs that crash it in BUILD_FOLDER/findings.
set -euo pipefail

if [ $# -ne 2 ]; then
  echo "run_fuzzers.sh: expected BUILD_FOLDER SECONDS_EACH, got $# arguments" >&2
  exit 2
fi
folder=$1
seconds=$2
source_folder=$(cd "$(dirname "$0")/.." && pwd)

shopt -s nullglob
fuzzers=("$folder"/*_fuzz)
if [ ${#fuzzers[@]} -eq 0 ]; then
  echo "run_fuzzers.sh: no *_fuzz program in $folder" >&2
  exit 1
fi
mkdir -p "$folder/findings"
for fuzzer in "${fuzzers[@]}"; do
  name=$(basename "$fuzzer")
  corpus=("$folder/corpus/$name")
  mkdir -p "${corpus[0]}"
  seeds=$source_folder/tests/fuzz/seeds/$name
  if [ -d "$seeds" ]; then corpus+=("$seeds"); fi
  echo "$name: $seconds s"
  "$fuzzer" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$folder/findings/$name-" "${corpus[@]}"
done
echo "All ${#fuzzers[@]} fuzzers ran $seconds s each without a finding."
