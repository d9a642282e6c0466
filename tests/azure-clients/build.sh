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

# Whether the environment $1 is complete and its interpreter still exists.
has_venv() { [[ -e $1/finished ]] && "$1/bin/python" -c '' 2>/dev/null; }

# make_venv VENV DIRECTORY: an environment cannot be moved, so it is created in place; the file `finished` marks it as complete.
# az has 20,000 files, of which a test needs few: Python compiles those that it imports.
make_venv() {
  local -a options=()
  if has_venv "$1"; then return; fi
  needs_venv "python3 with venv for Microsoft's Python packages"
  [[ $2 == python ]] || options=(--no-compile)
  say "fetching the packages of $2/requirements.txt from PyPI"
  rm -rf -- "$1"
  python3 -m venv "$1"
  "$1/bin/python" -m pip --disable-pip-version-check --quiet install "${options[@]}" \
    --require-hashes --only-binary :all: --requirement "$2/requirements.txt"
  touch "$1/finished"
  say "ready after $(elapsed), $(du -sm -- "$1" | cut -f 1) MB: $1"
}

# interpreter DIRECTORY: prints the one that has its packages
interpreter() {
  local venv
  venv=$root/$1-$(key "$1/requirements.txt")
  has_venv "$venv" || locked make_venv "$venv" "$1" >&2
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
  needs_venv 'python3 with venv to check the Python code'
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
