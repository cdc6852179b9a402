#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that the build needs and that are missing; silent when nothing is.
#
#   scripts/install_dependencies.sh          what `make`, `make test` and `make train` need
#   scripts/install_dependencies.sh --fuzz   also clang and its run-time library, for `make fuzz`
#   scripts/install_dependencies.sh --deb    also what finds a package's dependencies, for `make deb`
#   scripts/install_dependencies.sh --dev    also clang-format and clang-tidy
#
# The list mirrors the find_package and pkg_check_modules lines of CMakeLists.txt.
set -euo pipefail

packages=(
  cmake ninja-build g++ ccache pkg-config
  libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libboost-dev libboost-context-dev libprotobuf-dev protobuf-compiler
  zlib1g-dev libnuma-dev libhwy-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev libxxhash-dev libssl-dev libedit-dev
  libgtest-dev libopenmpi-dev openmpi-bin python3 python3-dev python3-venv ca-certificates
)

fail() {
  echo "install_dependencies.sh: $*" >&2
  exit 1
}

# xgrammar, which no release packages: its sources at one version, by their sum, from the Python package index.
# Without them the build works and refuses schemas in one line, so a failure is told and ends nothing.
fetch_xgrammar() {
  local version=0.2.8 sum=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
  local place folder file index
  place=$(cd "$(dirname "$0")/.." && pwd)/third_party
  folder=$place/xgrammar-$version
  [ -e "$folder/cpp/grammar.cc" ] && return
  file=$(mktemp -d)/xgrammar-$version.tar.gz
  index=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)}
  echo "Fetching xgrammar $version"
  if ! python3 - "${index%/}/xgrammar/" "xgrammar-$version.tar.gz" "$file" <<'PYTHON'
import re, sys, urllib.parse, urllib.request
index, name, file = sys.argv[1:]
page = urllib.request.urlopen(index, timeout=30).read().decode()
link = next(link for link in re.findall(r'href="([^"]+)"', page) if name in link)
with open(file, "wb") as out:
    out.write(urllib.request.urlopen(urllib.parse.urljoin(index, link), timeout=120).read())
PYTHON
  then
    echo "install_dependencies.sh: xgrammar cannot be fetched: the build will refuse schemas of answers" >&2
    return
  fi 2>/dev/null
  if ! echo "$sum  $file" | sha256sum --check --status; then
    echo "install_dependencies.sh: xgrammar $version has another SHA-256 than expected: it is not used" >&2
    return
  fi
  mkdir -p "$place" && tar -xzf "$file" -C "$place" && rm -r "$(dirname "$file")"
}

for option in "$@"; do
  case "$option" in
    --fuzz) packages+=(clang) ;;
    --deb) packages+=(dpkg-dev file) ;;
    --dev) packages+=(clang-format clang-tidy) ;;
    *) fail "expected --fuzz, --deb or --dev, got $option" ;;
  esac
done

# A machine where everything was installed by other means (another distribution, a container image) is fine too:
# without dpkg the build itself tells what it misses.
if ! command -v dpkg-query >/dev/null; then
  if command -v cmake >/dev/null; then fetch_xgrammar && exit 0; fi
  fail "expected Debian or Ubuntu, found no dpkg; install the equivalents of: ${packages[*]}"
fi

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
# libFuzzer and the sanitizers come with clang on some releases and stand alone on others.
fuzz_runtime_missing=false
if [[ " $* " == *" --fuzz "* ]] && ! installed libclang-rt-dev; then fuzz_runtime_missing=true; fi

if [ ${#missing[@]} -eq 0 ] && ! $fuzz_runtime_missing; then
  fetch_xgrammar
  exit 0
fi
wanted="${missing[*]}"
if $fuzz_runtime_missing; then wanted+=" libclang-rt-dev"; fi
command -v apt-get >/dev/null || fail "expected apt-get, found none; install: $wanted"

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "not root and no sudo; ask an administrator to install: $wanted"
  root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }
known() { apt-cache show "$1" >/dev/null 2>&1; }

echo "Looking up packages (apt-get update)"
# An outdated list may still do, so a failure here is not the end.
apt update >"$log" 2>&1 || echo "apt-get update failed: $(tail -n 1 "$log")" >&2
if $fuzz_runtime_missing && known libclang-rt-dev; then missing+=(libclang-rt-dev); fi
if [ ${#missing[@]} -eq 0 ]; then
  fetch_xgrammar
  exit 0
fi

echo "Installing ${missing[*]}"
if ! apt install --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
  fail "apt-get install failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")"
fi
fetch_xgrammar
