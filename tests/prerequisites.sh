#!/usr/bin/env bash
# Checks that the machine has what building and testing need.
#
#   prerequisites.sh build       a C linker with the static C library, Rust, and a /dev/null that is a device; fails, with a line for each
#                                that is missing
#   prerequisites.sh lint        rustfmt and clippy; fails likewise
#   prerequisites.sh namespaces  the programs of tests with network namespaces; this only warns
#   prerequisites.sh ignored     what tests need that cargo ignores by default: network namespaces, their programs and chromium; installs
#                                nothing; fails, with a line that says what is missing
#   prerequisites.sh release     the Rust standard library and the linker for both platforms, QEMU's user mode, skopeo; fails likewise
#   prerequisites.sh browser     chromium, in which pages are checked; this only warns
#   prerequisites.sh clients     python3 with venv, for Microsoft's Python client, and node with npm, for Grafana's schema; without them
#                                their tests fail; this only warns
#   prerequisites.sh coverage    llvm-cov and llvm-profdata of the LLVM that rustc has; fails likewise
#   prerequisites.sh clocks      faketime, whose library makes the clocks of processes jump; fails likewise
#   prerequisites.sh prometheus  prometheus and promtool, for the alerts and dashboards; without them their tests fail; this only warns
#
# As root on a Debian-like machine it installs the packages for `namespaces`, `browser`, `clients`, `clocks`, `coverage`, `prometheus` and
# `release`, and with CI=true those for `build` too, and makes /dev/null again.
set -euo pipefail

say() { printf 'prerequisites: %s\n' "$*" >&2; }

# missing PROGRAM...: prints those that are missing, in one line
missing() {
  local program
  local -a absent=()
  for program in "$@"; do
    command -v "$program" >/dev/null || absent+=("$program")
  done
  printf '%s\n' "${absent[*]}"
}

may_install() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# install PACKAGE...: prints only errors, and returns no failure; the caller checks again what is missing
install() {
  local log
  say "installing $* with apt-get"
  if ! log=$({ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"; } 2>&1 </dev/null); then
    printf '%s\n' "$log" >&2
  fi
}

# Whether the linker finds libc.a, which the static binary needs. For a missing file, cc prints the bare name.
has_static_libc() { [[ $(cc -print-file-name=libc.a 2>/dev/null) == */* ]]; }

# at_least WANTED VERSION
at_least() { [[ $(printf '%s\n' "$1" "$2" | LC_ALL=C sort -V | head -n 1) == "$1" ]]; }

build() {
  local wanted found='' good=true
  if { [[ -n $(missing cc) ]] || ! has_static_libc; } && [[ ${CI:-} == true ]] && may_install; then
    install build-essential
    hash -r
  fi
  if [[ -n $(missing cc) ]]; then
    say "cc is missing: install a C compiler, on Debian: apt-get install build-essential"
    good=false
  elif ! has_static_libc; then
    say "libc.a is missing: install the static C library, on Debian: apt-get install libc6-dev, on Fedora and openSUSE: glibc-static"
    good=false
  fi

  # A program of root that renames its output to /dev/null leaves a file there. Then cargo compiles what others wrote to it.
  if [[ ! -c /dev/null && ${CI:-} == true && $(id -u) == 0 ]]; then
    say '/dev/null is no device: making it again'
    rm -f /dev/null
    mknod -m 666 /dev/null c 1 3 || true
  fi
  if [[ ! -c /dev/null ]]; then
    say '/dev/null is no device: make it again, as root: rm -f /dev/null && mknod -m 666 /dev/null c 1 3'
    good=false
  fi

  wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$(dirname -- "${BASH_SOURCE[0]}")/../Cargo.toml")
  # In the root directory, where no toolchain file applies.
  if [[ -z $(missing cargo rustc) && $(cd / && rustc --version 2>&1) =~ ^rustc\ ([0-9]+(\.[0-9]+)+) ]]; then
    found=${BASH_REMATCH[1]}
  fi
  if [[ -z $found ]]; then
    say "cargo or rustc is missing or does not run: install Rust $wanted or newer, see https://rustup.rs"
    good=false
  elif ! at_least "$wanted" "$found"; then
    say "Rust $found is too old: install $wanted or newer, with rustup: rustup update stable"
    good=false
  fi
  $good
}

lint() {
  local component good=true
  for component in fmt clippy; do
    if ! (cd / && cargo "$component" --version) >/dev/null 2>&1; then
      say "cargo $component is missing: install it, with rustup: rustup component add ${component/fmt/rustfmt}"
      good=false
    fi
  done
  $good
}

namespace_programs=(ip unshare setpriv iptables nft conntrack)

namespaces() {
  local absent
  absent=$(missing "${namespace_programs[@]}")
  if [[ -n $absent ]] && may_install; then
    install iproute2 iptables nftables conntrack util-linux
    hash -r
    absent=$(missing "${namespace_programs[@]}")
  fi
  if [[ -n $absent ]]; then
    say "missing: $absent (on Debian: apt-get install iproute2 iptables nftables conntrack util-linux); tests that need them are ignored"
  fi
}

ignored() {
  local absent
  absent=$(missing "${namespace_programs[@]}" chromium)
  if [[ -n $absent ]]; then
    say "missing: $absent; tests that need network namespaces or a browser are ignored"
    return 1
  fi
  if ! unshare --net true 2>/dev/null; then
    say "no right to create network namespaces, which root has; tests that need them or a browser are ignored"
    return 1
  fi
}

release() {
  local other gcc packages program good=true
  case $(uname -m) in
    x86_64) other=aarch64 packages='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static' ;;
    aarch64) other=x86_64 packages='gcc-x86-64-linux-gnu libc6-dev-amd64-cross qemu-user-static' ;;
    *)
      say "releases are built on x86_64 or aarch64, and this is $(uname -m)"
      return 1
      ;;
  esac
  gcc=$other-linux-gnu-gcc packages+=' skopeo python3'
  if [[ -n $(missing "$gcc" "qemu-$other-static" skopeo python3) ]] && may_install; then
    # shellcheck disable=SC2086 # several packages
    install $packages
    hash -r
  fi
  for program in $(missing "$gcc" "qemu-$other-static" skopeo python3); do
    say "$program is missing: on Debian: apt-get install $packages"
    good=false
  done
  if [[ ! -d $(rustc --print sysroot)/lib/rustlib/$other-unknown-linux-gnu/lib ]] \
    && ! { [[ -z $(missing rustup) ]] && rustup --quiet target add "$other-unknown-linux-gnu" >&2; }; then
    say "the Rust standard library for $other is missing, with rustup: rustup target add $other-unknown-linux-gnu"
    good=false
  fi
  $good
}

browser() {
  local absent
  absent=$(missing chromium)
  if [[ -n $absent ]] && may_install; then
    install chromium fonts-dejavu-core
    hash -r
    absent=$(missing chromium)
  fi
  if [[ -n $absent ]]; then
    say "missing: $absent (on Debian: apt-get install chromium fonts-dejavu-core); tests that need it are ignored"
  fi
}

has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

clients() {
  if ! has_venv && may_install; then
    install python3-venv
    hash -r
  fi
  if ! has_venv; then
    say "python3 with venv is missing (on Debian: apt-get install python3-venv); tests with Microsoft's Python client will fail"
  fi
  if [[ -n $(missing node npm) ]] && may_install; then
    install nodejs npm
    hash -r
  fi
  if [[ -n $(missing node npm) ]]; then
    say "node or npm is missing (on Debian: apt-get install nodejs npm); the test of the dashboards' schema will fail"
  fi
}

coverage() {
  local version programs
  version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
  programs=("llvm-cov-$version" "llvm-profdata-$version")
  if [[ -n $(missing "${programs[@]}") ]] && may_install; then
    install "llvm-$version"
    hash -r
  fi
  if [[ -n $(missing "${programs[@]}") ]]; then
    say "missing: $(missing "${programs[@]}") (on Debian: apt-get install llvm-$version)"
    return 1
  fi
}

clocks() {
  if [[ -n $(missing faketime) ]] && may_install; then
    install faketime
    hash -r
  fi
  if [[ -n $(missing faketime) ]]; then
    say "faketime is missing: install it with its library, on Debian: apt-get install faketime"
    return 1
  fi
}

prometheus() {
  local absent
  absent=$(missing prometheus promtool)
  if [[ -n $absent ]] && may_install; then
    # Of this runlevel, so that the package starts no server.
    RUNLEVEL=1 install prometheus
    hash -r
    absent=$(missing prometheus promtool)
  fi
  if [[ -n $absent ]]; then
    say "missing: $absent (on Debian: apt-get install prometheus); tests of alerts and dashboards will fail"
  fi
}

case ${1-} in
  build | lint | namespaces | ignored | release | browser | clients | clocks | coverage | prometheus) "$1" ;;
  *)
    say "usage: prerequisites.sh build|lint|namespaces|ignored|release|browser|clients|clocks|coverage|prometheus"
    exit 2
    ;;
esac
