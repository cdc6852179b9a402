#!/usr/bin/env bash
# Compiles every source with Debian 13's compiler and libraries, for its errors alone (scripts/check_syntax.py): a Debian 12 accepts what a
# Debian 13 refuses, and the README promises both. Needs root, debootstrap and the network; leaves a small Debian 13 in build/debian13.
#
#   scripts/check_debian13.sh
#
# Exit status 1 where a source does not compile, 2 where the check could not be made.
set -euo pipefail
cd "$(dirname "$0")/.."
system=$PWD/build/debian13

fail() {
  echo "check_debian13.sh: $*" >&2
  exit 2
}

# This machine's own sources of packages, for the other release.
make_system() {
  local mirror
  mirror=$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null |
    sed -n -E 's/^URIs: *//p; s/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p' | head -n 1)
  rm -rf "$system.new"
  debootstrap --variant=minbase --include=ca-certificates,make,python3 trixie "$system.new" "${mirror:-http://deb.debian.org/debian}" \
    >build/debian13.log 2>&1 || return 1
  cp -a /etc/apt/. "$system.new/etc/apt/"
  sed -i 's/bookworm/trixie/g' "$system.new"/etc/apt/sources.list "$system.new"/etc/apt/sources.list.d/* 2>/dev/null || true
  cp -L /etc/resolv.conf /etc/hosts "$system.new/etc/"
  cp -a /etc/ssl/. "$system.new/etc/ssl/"
  cp -a /usr/local/share/ca-certificates "$system.new/usr/local/share/"
  cp -a /etc/pip.conf "$system.new/etc/" 2>/dev/null || true
  mv "$system.new" "$system"
}

[ "$(id -u)" -eq 0 ] || fail "needs root, for a system of its own"
mkdir -p build
if ! command -v debootstrap >/dev/null; then
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y debootstrap >build/debian13.log 2>&1 ||
    { apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -q -y debootstrap >build/debian13.log 2>&1; } ||
    fail "debootstrap cannot be installed: $(tail -n 1 build/debian13.log)"
fi
for try in 1 2 3; do
  [ -e "$system/bin/bash" ] && break
  make_system || echo "Debian 13 cannot be made (try $try): $(tail -n 1 build/debian13.log)" >&2
done
[ -e "$system/bin/bash" ] || fail "no Debian 13 to check with"

# The sources at their own path, and what compilers need of a system. The mounts end with this shell's namespace.
mkdir -p "$system$PWD"
export system
unshare --mount bash -euo pipefail -c '
  mount -t proc proc "$system/proc"
  mount --rbind /dev "$system/dev"
  mount --bind "$PWD" "$system$PWD"
  exec chroot "$system" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    bash -euo pipefail -c "cd \"$PWD\"
      scripts/install_dependencies.sh >/dev/null
      rm -rf build/syntax13
      cmake -S . -B build/syntax13 -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
      protoc -I src/metrics --cpp_out=build/syntax13 src/metrics/tensorboard_test.proto
      python3 scripts/check_syntax.py build/syntax13"'
