#!/usr/bin/env bash
# Writes the plugin manifest for krew beside the archives that it names, checks it with krew's own validator, and installs the
# archive of each platform with krew.
#
#   release/krew.sh VERSION DIRECTORY     DIRECTORY has headgate-VERSION-linux-{amd64,arm64}.tar.gz
#
#   REPOSITORY_URL  where the release will be published; otherwise https://github.com/OWNER/headgate, which no one can install from
set -euo pipefail
export LC_ALL=C

die() {
  printf 'krew: %s\n' "$*" >&2
  exit 1
}

(($# == 2)) || die 'usage: krew.sh VERSION DIRECTORY'
version=$1
directory=$(cd -- "$2" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
repository=${REPOSITORY_URL:-https://github.com/OWNER/headgate}
[[ $repository =~ ^https://[A-Za-z0-9./_-]+$ ]] || die "REPOSITORY_URL is $repository; allowed: an https URL, such as https://github.com/OWNER/headgate"
tools=$(../tests/krew/build.sh)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

digest() { sha256sum <"$directory/headgate-$version-linux-$1.tar.gz" | cut -d ' ' -f 1; }

# krew wants the plugin's name as that of the file.
manifest=$work/headgate.yaml
amd64=$(digest amd64) arm64=$(digest arm64)
sed -e '1,2d' -e "s|@VERSION@|$version|g" -e "s|@REPOSITORY@|$repository|g" -e "s|@AMD64@|$amd64|" -e "s|@ARM64@|$arm64|" krew.yaml >"$manifest"
if grep -n '@' "$manifest" >&2; then
  die 'release/krew.yaml has words that krew.sh does not fill in'
fi

# Prints what a command writes only if it fails.
quiet() { "$@" >"$work/log" 2>&1 || { cat -- "$work/log" >&2 && die "failed: $*"; }; }
# The URLs lead nowhere before the release is published, so krew gets the archives here. It compares their digests all the same.
quiet "$tools/validate-krew-manifest" -manifest "$manifest" -skip-install
for platform in amd64 arm64; do
  export KREW_ROOT=$work/$platform KREW_OS=linux KREW_ARCH=$platform KREW_NO_UPGRADE_CHECK=1
  quiet "$tools/krew" install --manifest "$manifest" --archive "$directory/headgate-$version-linux-$platform.tar.gz"
  [[ -x $KREW_ROOT/bin/kubectl-headgate ]] || die "krew installed no kubectl-headgate for $platform"
  [[ -s $KREW_ROOT/store/headgate/v$version/LICENSE ]] || die "krew installed no LICENSE for $platform"
done
cp -- "$manifest" "$directory/headgate-$version-krew.yaml"
