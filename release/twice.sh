#!/usr/bin/env bash
# Builds a release twice, in two directories, and checks that both have the same bytes, that each program runs (arm64 in
# QEMU's user mode), and that skopeo reads the image for both platforms.
#
#   release/twice.sh [VERSION [DIRECTORY]]     by default the version of Cargo.toml; builds the commit HEAD
#
# With DIRECTORY, the first release is the one that `make release` has put there, and only the second one is built.
set -euo pipefail
earlier=${2:+$(cd -- "$2" && pwd)}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
version=${1:-$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
target=${CARGO_TARGET_DIR:-target}
mkdir -p -- "$target/release-twice"
work=$(cd -- "$target/release-twice" && pwd)
unset CARGO_TARGET_DIR

rm -rf -- "$work"/{first,second,out-first,out-second,image,copied-amd64,copied-arm64}
copies=(first second)
if [[ -n $earlier ]]; then
  cp -r -- "$earlier" "$work/out-first"
  copies=(second)
fi
for copy in "${copies[@]}"; do
  git clone --quiet --no-hardlinks . "$work/$copy"
  "$work/$copy/release/build.sh" "$version" "$work/out-$copy"
  # The second one finds no artefact of the first, and there is no need for both.
  rm -rf -- "$work/$copy"
done
diff --recursive "$work/out-first" "$work/out-second"
printf 'twice: both releases have the same %d files\n' "$(find "$work/out-first" -type f | wc -l)"

(cd -- "$work/out-first" && sha256sum --quiet --check SHA256SUMS)
for platform in amd64 arm64; do
  name=headgate-$version-linux-$platform
  tar --extract --gzip --directory "$work" --file "$work/out-first/$name.tar.gz"
  emulator=
  case $(uname -m)/$platform in
    x86_64/arm64) emulator=qemu-aarch64-static ;;
    aarch64/amd64) emulator=qemu-x86_64-static ;;
  esac
  shown=$($emulator "$work/$name/headgate" --version)
  [[ $shown == "headgate $version" ]] || { printf 'twice: %s printed %s\n' "$name" "$shown" >&2; exit 1; }
  $emulator "$work/$name/headgate" agent --check-config >/dev/null
  $emulator "$work/$name/headgate-lab" budget >/dev/null
  printf 'twice: %s runs: %s\n' "$name" "$shown"
done

mkdir -p -- "$work/image"
tar --extract --gzip --directory "$work/image" --file "$work/out-first/headgate-$version-image.oci.tar.gz"
for platform in amd64 arm64; do
  skopeo --override-os linux --override-arch "$platform" inspect --format "twice: image {{.Os}}/{{.Architecture}} {{.Digest}}" "oci:$work/image:$version"
  skopeo --override-os linux --override-arch "$platform" copy --quiet "oci:$work/image:$version" "dir:$work/copied-$platform"
done
