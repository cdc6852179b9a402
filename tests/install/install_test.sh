#!/bin/sh
# install_test.sh BUILD_FOLDER: installs below a temporary prefix, moves that, runs the moved program with the configs
# beside it, builds and runs examples/embed against the moved package, and unpacks and runs the Debian package.
set -eu
build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_test.sh: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
unset SWITCHYARD_CONFIG_DIR || true

# A model that only the moved configs have.
models=$work/moved/share/switchyard/configs/models
cp "$models/mixtral-8x7b.yml" "$models/only-here.yml"
cd "$work"
"$work/moved/bin/switchyard" plan model_name=only-here ranks=8 topology=h100 >plan.txt || fail "the moved program does not plan"
grep -q "46.7 B parameters" plan.txt || fail "not the model of the moved configs: $(head -3 plan.txt)"

cmake -S "$source/examples/embed" -B "$work/embed" -DCMAKE_PREFIX_PATH="$work/moved" >cmake.txt 2>&1 || fail "$(tail -5 cmake.txt)"
cmake --build "$work/embed" >build.txt 2>&1 || fail "$(tail -5 build.txt)"
"$work/embed/embed" saved >embed.txt || fail "the example ended with $?: $(cat embed.txt)"
cat embed.txt
grep -q "20 tokens after" embed.txt || fail "20 tokens were not made"
grep -q "caught: .*token 99999 is outside the vocabulary of 257" embed.txt || fail "the error was not caught"
awk '/^step/ { a = $4; b = $8; d = a - b; if (d > 1e-3 || d < -1e-3) exit 1; steps++ } END { exit steps != 3 }' embed.txt ||
  fail "losses of one rank and of two differ"
"$work/moved/bin/switchyard" generate saved prompt="A switch" max_target_length=16 >generate.txt 2>&1 ||
  fail "the program does not open what the library saved: $(tail -1 generate.txt)"

# The package, unpacked: its program finds its configs.
(cd "$build" && cpack -G DEB -B "$work/deb") >deb.txt 2>&1 || fail "$(tail -5 deb.txt)"
dpkg-deb -x "$work"/deb/*.deb "$work/root" || fail "no package: $(tail -5 deb.txt)"
models=$work/root/usr/share/switchyard/configs/models
cp "$models/mixtral-8x7b.yml" "$models/only-here.yml"
"$work/root/usr/bin/switchyard" plan model_name=only-here ranks=8 topology=h100 >plan.txt || fail "the packaged program does not plan"
grep -q "46.7 B parameters" plan.txt || fail "not the model of the package's configs: $(head -3 plan.txt)"
dpkg-deb -c "$work"/deb/*.deb | grep -q "usr/lib/.*libswitchyard.so" || fail "the package has no library"
echo "installed, moved, embedded, packed"
