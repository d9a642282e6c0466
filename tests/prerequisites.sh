#!/usr/bin/env bash
# Looks for what building and testing need from the machine.
#
#   prerequisites.sh build       cargo and a C linker; a failure where one is missing
#   prerequisites.sh namespaces  what tests with network namespaces run; without it they are skipped, so only a remark
#
# Root on a Debian-like machine gets the packages for `namespaces` installed, and under CI=true those for `build` too.
set -euo pipefail

say() { printf 'prerequisites: %s\n' "$*" >&2; }

# missing PROGRAM...: those that are not there, in one line
missing() {
  local program
  local -a absent=()
  for program in "$@"; do
    command -v "$program" >/dev/null || absent+=("$program")
  done
  printf '%s\n' "${absent[*]}"
}

may_install() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# install PACKAGE...: quiet unless it fails, and a failure is for the caller to notice by what is still missing
install() {
  local log
  say "installing $* with apt-get"
  if ! log=$({ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"; } 2>&1 </dev/null); then
    printf '%s\n' "$log" >&2
  fi
}

build() {
  local rust
  if [[ -n $(missing cc) && ${CI:-} == true ]] && may_install; then
    install build-essential
  fi
  if [[ -n $(missing cc) ]]; then
    say "cc is missing: install a C compiler, on Debian: apt-get install build-essential"
    exit 1
  fi
  if [[ -n $(missing cargo) ]]; then
    rust=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$(dirname -- "${BASH_SOURCE[0]}")/../Cargo.toml")
    say "cargo is missing: install Rust $rust or newer, see https://rustup.rs"
    exit 1
  fi
}

namespaces() {
  local absent
  absent=$(missing ip unshare iptables)
  if [[ -n $absent ]] && may_install; then
    install iproute2 iptables util-linux
    hash -r
    absent=$(missing ip unshare iptables)
  fi
  if [[ -n $absent ]]; then
    say "missing: $absent (on Debian: apt-get install iproute2 iptables util-linux); tests that need them will not run"
  fi
}

case ${1-} in
  build | namespaces) "$1" ;;
  *)
    say "usage: prerequisites.sh build|namespaces"
    exit 2
    ;;
esac
