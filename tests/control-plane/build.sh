#!/usr/bin/env bash
# Provides the control plane for tests and the sandbox, building it where that has not been done yet. Says on stderr
# what it does and prints one line on stdout: the directory that holds etcd, kube-apiserver and the others.
# `build.sh sandbox` builds etcd, kube-apiserver and kubectl alone where the others are not built yet.
# `build.sh lint` checks the Go code instead.
#
#   KUBEBUILDER_ASSETS  a directory with etcd and kube-apiserver: used as it is, nothing is built
#   HEADGATE_CACHE      where builds are kept; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

setup_envtest=v0.25.1
programs=(etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kwok promlint)

tags= minutes='8 to 9'
case ${1-} in
  '' | lint) ;;
  sandbox)
    tags=sandbox minutes='5 to 6' programs=(etcd kube-apiserver kubectl)
    ;;
  *)
    printf 'control-plane: usage: build.sh [sandbox | lint]\n' >&2
    exit 1
    ;;
esac

if [[ ${1-} != lint && -n ${KUBEBUILDER_ASSETS:-} ]]; then
  for program in etcd kube-apiserver; do
    if [[ ! -x $KUBEBUILDER_ASSETS/$program ]]; then
      printf 'control-plane: KUBEBUILDER_ASSETS=%s has no executable %s; unset it to have the control plane built here\n' \
        "$KUBEBUILDER_ASSETS" "$program" >&2
      exit 1
    fi
  done
  printf '%s\n' "$KUBEBUILDER_ASSETS"
  exit
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=control-plane
# shellcheck source=../from-source.sh
source ../from-source.sh
assets=$root/$(key go.mod go.sum ./*.go build.sh ../from-source.sh)
if [[ -n $tags && ! -e $assets/finished ]]; then
  assets+=-$tags
fi

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
  say "building ${programs[*]} of Kubernetes $version with Go $(go_version "$go"); the first time $minutes minutes on 2 cores, 1 GB of modules and 3 GB of Go's build cache"
  mkfifo "$building/ticker"
  tick "$building/ticker" "$minutes" &
  ticker=$!
  run_go build -tags "$tags" -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=${majorminor%.*} -X $package.gitMinor=${majorminor#*.}" \
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

# Takes the programs of a sandbox as they were released, where the list of releases answers within 5 s. Each download has a bound, after which
# they are built instead.
fetch() {
  local tool=$root/setup-envtest version directory
  find_go
  if [[ ! -x $tool ]]; then
    GOBIN=$root run_limit=60 run_go install sigs.k8s.io/controller-runtime/tools/setup-envtest@$setup_envtest 2>/dev/null || return
  fi
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
  version=${version#v}
  timeout 5 "$tool" list >/dev/null 2>&1 || return
  directory=$(timeout 180 "$tool" use "${version%.*}.x" --bin-dir "$root/envtest" --print path) || return
  mkdir -p -- "$assets" || return
  for program in "${programs[@]}"; do
    ln -sf -- "$directory/$program" "$assets/$program" || return
  done
  touch "$assets/finished" || return
  say "fetched in $(elapsed): $directory"
}

build_unless_built() {
  [[ -e $assets/finished ]] || { [[ -n $tags ]] && fetch; } || build
}

if [[ ${1-} == lint ]]; then
  lint_go >&2
  exit
fi

if [[ ! -e $assets/finished ]]; then
  locked build_unless_built >&2
fi
# What finds programs by itself expects all of them.
if [[ ! $root/current -ef $assets && (-z $tags || ! -e $root/current) ]]; then
  ln -sfn -- "${assets##*/}" "$root/.current.$$"
  mv -T -- "$root/.current.$$" "$root/current"
fi
printf '%s\n' "$assets"
