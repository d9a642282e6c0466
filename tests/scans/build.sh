#!/usr/bin/env bash
# Checks what the chart renders from each file of charts/headgate/ci, with kube-score and checkov, which it builds or fetches if they are not
# in the cache. What they find is in accepted.txt with its reason; anything else fails, and so does a line of the list that nothing needs.
#
#   build.sh             with both
#   build.sh kube-score  with kube-score alone, as `make lint` does
#
#   HEADGATE_CACHE  the cache directory; otherwise $XDG_CACHE_HOME/headgate or ~/.cache/headgate
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
what=scans
# shellcheck source=../from-source.sh
source ../from-source.sh
scorer=$root/$(key go.mod go.sum build.sh ../from-source.sh)/kube-score
venv=$root/checkov-$(key requirements.txt)

build_scorer() {
  [[ ! -e $scorer ]] || return 0
  find_go
  say "building kube-score with Go $(go_version "$go")"
  mkdir -p -- "${scorer%/*}"
  run_go build -ldflags '-s -w' -o "$scorer.building" github.com/zegl/kube-score/cmd/kube-score
  mv -- "$scorer.building" "$scorer"
}

case ${1-} in
  kube-score) checkov=() ;;
  '')
    has_venv "$venv" || locked make_venv "$venv" requirements.txt checkov --no-compile >&2
    checkov=(--checkov "$venv/bin/checkov")
    ;;
  *) die 'usage: build.sh [kube-score]' ;;
esac
[[ -e $scorer ]] || locked build_scorer >&2
python3 check.py --helm "$(../helm/build.sh)/helm" --kube-score "$scorer" "${checkov[@]}"
