#!/usr/bin/env bash
# Provides Microsoft's Azure clients for the emulator's tests; fetches and builds them if they are not in the cache.
# Reports on stderr what it does, and prints one line on stdout for each requested part:
#
#   build.sh python  the path of an interpreter that has the packages of python/requirements.txt
#   build.sh cli     the path of an interpreter that has az, with the packages of cli/requirements.txt
#   build.sh go      the path of the program built from go/
#   build.sh         all of them
#   build.sh lint    checks the code instead
#
#   HEADGATE_CACHE   the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=azure-clients
# shellcheck source=../from-source.sh
source ../from-source.sh
program=$root/go-$(key go/go.mod go/go.sum go/*.go ../from-source.sh)

# interpreter DIRECTORY: prints the one that has its packages
interpreter() {
  local venv
  local -a options=()
  # az has 20,000 files, of which a test needs few: Python compiles those that it imports.
  [[ $1 == python ]] || options=(--no-compile)
  venv=$root/$1-$(key "$1/requirements.txt")
  has_venv "$venv" || locked make_venv "$venv" "$1/requirements.txt" "Microsoft's packages of $1/requirements.txt" "${options[@]}" >&2
  printf '%s\n' "$venv/bin/python"
}

make_program() {
  if [[ -x $program ]]; then return; fi
  cd go
  find_go
  say "building a program of Microsoft's Go client with Go $(go_version "$go"); the first time a minute on 2 cores"
  rm -f -- "$root"/.building.* # of killed builds; none is running, since this one has the lock
  run_go build -ldflags '-s -w' -o "$root/.building.go" .
  mv -T -- "$root/.building.go" "$program"
  cd ..
  say "built in $(elapsed): $program"
}

go() {
  [[ -x $program ]] || locked make_program >&2
  printf '%s\n' "$program"
}

lint() {
  local compiled
  compiled=$(mktemp -d)
  PYTHONPYCACHEPREFIX=$compiled python3 -m py_compile python/*.py cli/*.py
  rm -rf -- "$compiled"
  cd go
  lint_go
}

case ${1-} in
  python | cli) interpreter "$1" ;;
  go) go ;;
  lint) lint >&2 ;;
  '')
    interpreter python
    interpreter cli
    go
    ;;
  *) die 'usage: build.sh [python|cli|go|lint]' ;;
esac
