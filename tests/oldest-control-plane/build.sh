#!/usr/bin/env bash
# Provides a control plane of the oldest Kubernetes version that headgate supports (docs/concepts/limits.md), building it
# where that has not been done yet. Reports on stderr what it does and prints one line on stdout: the directory that holds
# etcd and kube-apiserver, kube-controller-manager, kube-scheduler and kubectl of that version. etcd and promlint are those of
# ../control-plane.
# It is not built in CI, so the build also checks the Go code as `make lint` does elsewhere.
#
#   HEADGATE_CACHE  where builds are kept; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail

programs=(kube-apiserver kube-controller-manager kube-scheduler kubectl)

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=oldest-control-plane
# shellcheck source=../from-source.sh
source ../from-source.sh
assets=$root/$(key go.mod go.sum ./*.go build.sh ../from-source.sh)

build() {
  local version majorminor program shown package=k8s.io/component-base/version
  rm -rf -- "$root"/.building.* # left behind by builds that were killed: none runs now, the lock is ours
  building=$(mktemp -d -- "$root/.building.XXXXXX")
  chmod 755 "$building"
  trap 'rm -rf -- "$building"' EXIT
  find_go

  version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
  majorminor=${version#v}
  majorminor=${majorminor%.*}
  say "building Kubernetes $version with Go $(go_version "$go"); the first time it takes minutes"
  run_go build -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=${majorminor%.*} -X $package.gitMinor=${majorminor#*.}" \
    -o "$building/control-plane" .
  run_go vet ./...
  for program in "${programs[@]}"; do
    ln -s control-plane "$building/$program"
  done
  shown=$(KUBECONFIG=/dev/null "$building/kubectl" version --client)
  [[ $shown == *"$version"* ]] || die "what was built does not report $version but: $shown"
  touch "$building/finished"
  rm -rf -- "$assets"
  mv -T -- "$building" "$assets"
  say "built in $(elapsed): $assets, $(du -sm -- "$assets" | cut -f 1) MB"
}

build_unless_built() {
  [[ -e $assets/finished ]] || build
}

current=$(KUBEBUILDER_ASSETS='' ../control-plane/build.sh)
if [[ ! -e $assets/finished ]]; then
  locked build_unless_built >&2
fi
# Neither is part of Kubernetes' release.
for program in etcd promlint; do
  ln -sfn -- "$current/$program" "$assets/$program"
done
printf '%s\n' "$assets"
