#!/usr/bin/env bash
# Provides Microsoft's Azure clients for the emulator's tests; fetches and builds them if they are not in the cache.
# Reports on stderr what it does, and prints one line on stdout for each requested part:
#
#   build.sh python  the path of an interpreter that has the packages of python/requirements.txt
#   build.sh go      the path of the program built from go/
#   build.sh         both
#   build.sh lint    checks the code instead
#
#   HEADGATE_CACHE   the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=azure-clients
# shellcheck source=../from-source.sh
source ../from-source.sh
venv=$root/python-$(key python/requirements.txt)
program=$root/go-$(key go/go.mod go/go.sum go/*.go ../from-source.sh)

# Whether the environment is complete and its interpreter still exists.
has_venv() { [[ -e $venv/finished ]] && "$venv/bin/python" -c '' 2>/dev/null; }

# An environment cannot be moved, so it is created in place; the file `finished` marks it as complete.
make_venv() {
  if has_venv; then return; fi
  needs_venv "python3 with venv for Microsoft's Python client"
  say "fetching Microsoft's Python client from PyPI; 10 s, 80 MB"
  rm -rf -- "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check --quiet install \
    --require-hashes --only-binary :all: --requirement python/requirements.txt
  touch "$venv/finished"
  say "ready after $(elapsed): $venv"
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

python() {
  has_venv || locked make_venv >&2
  printf '%s\n' "$venv/bin/python"
}

go() {
  [[ -x $program ]] || locked make_program >&2
  printf '%s\n' "$program"
}

lint() {
  local compiled
  needs_venv 'python3 with venv to check the Python code'
  compiled=$(mktemp -d)
  PYTHONPYCACHEPREFIX=$compiled python3 -m py_compile python/*.py
  rm -rf -- "$compiled"
  cd go
  lint_go
}

case ${1-} in
  python | go) "$1" ;;
  lint) lint >&2 ;;
  '')
    python
    go
    ;;
  *) die 'usage: build.sh [python|go|lint]' ;;
esac
