#!/usr/bin/env bash
# Builds what a release consists of into a directory: static programs for amd64 and arm64, an OCI image layout of headgate for
# both, CycloneDX bills of materials, a VEX document, manifests, CRDs, the chart (also as an OCI image layout), man pages, completions, a
# plugin manifest for krew and checksums.
#
#   release/build.sh VERSION DIRECTORY
#
# The same sources, compiler and CA bundle give the same bytes, in whatever directory they are built: times are those of the
# commit, paths of the machine are replaced, archives are sorted. Needs `tests/prerequisites.sh release` and cargo-cyclonedx.
#
#   CARGO_TARGET_DIR  where programs are built; otherwise target
#   CA_BUNDLE         the authorities in the image; otherwise those of this machine
#   REPOSITORY_URL    where the release will be published, for the plugin manifest; otherwise a placeholder
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

say() { printf 'release: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

(($# == 2)) || die 'usage: build.sh VERSION DIRECTORY'
version=$1
mkdir -p -- "$2"
out=$(cd -- "$2" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
root=$PWD

declare -A platforms=([amd64]=x86_64-unknown-linux-gnu [arm64]=aarch64-unknown-linux-gnu)
ca_bundle=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
target_dir=${CARGO_TARGET_DIR:-$root/target}
mkdir -p -- "$target_dir/release-build"
target_dir=$(cd -- "$target_dir/release-build" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')

[[ -z $(ls -A -- "$out") ]] || die "$out is not empty: remove it, or name another directory"
[[ -r $ca_bundle ]] || die "$ca_bundle cannot be read: install ca-certificates, or set CA_BUNDLE"
declared=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ $version == "$declared" ]] || die "VERSION is $version, and Cargo.toml has $declared: change workspace.package.version first"
revision=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
[[ -n ${REPOSITORY_URL:-} ]] || say 'warning: REPOSITORY_URL is not set, so the plugin manifest for krew has a placeholder'
if [[ -n $(git status --porcelain --untracked-files=no) ]]; then
  say "warning: the working tree has changes that $revision does not have"
fi

# archive FILE.tar.gz DIRECTORY PATH...: the same bytes for the same files
archive() {
  local file=$1 directory=$2
  shift 2
  tar --create --directory "$directory" --format=posix --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
    --numeric-owner --mode='u+rw,go=rX' --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -- "$@" | gzip -9n >"$file"
}

programs() {
  # Between flags there is the character that Cargo has for it: a path may have spaces. Names of source files are in the messages of panics.
  local between=$'\x1f' flags platform program
  flags=-Ctarget-feature=+crt-static$between--remap-path-prefix=$root=/src$between--remap-path-prefix=$target_dir=/target
  flags+=$between--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo
  local -a targets=()
  for platform in "${!platforms[@]}"; do
    targets+=(--target "${platforms[$platform]}")
  done
  # One after the other: together, Cargo would build headgate with what the lab needs of dependencies.
  for program in headgate headgate-lab; do
    HEADGATE_REVISION=$revision CARGO_ENCODED_RUSTFLAGS=$flags CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$(linker aarch64) CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=$(linker x86_64) \
      cargo build --locked --release -p "$program" --target-dir "$target_dir" "${targets[@]}"
  done
}

# The linker of a machine: this one's own, or the cross compiler's.
linker() { if [[ $host == "$1"-* ]]; then echo cc; else echo "$1-linux-gnu-gcc"; fi; }

# program NAME PLATFORM
program() { printf '%s/%s/release/%s\n' "$target_dir" "${platforms[$2]}" "$1"; }

texts() {
  local shell work=$1 own= program
  for platform in "${!platforms[@]}"; do
    [[ ${platforms[$platform]} != "$host" ]] || own=$platform
  done
  [[ -n $own ]] || die "no program for $host was built, so its man page cannot be printed"
  mkdir -p -- "$work/man" "$work/completions"
  for program in headgate headgate-lab; do
    "$(program "$program" "$own")" man >"$work/man/$program.1"
    for shell in bash elvish fish powershell zsh; do
      "$(program "$program" "$own")" completions "$shell" >"$work/completions/$program.$shell"
    done
  done
}

# bill_of_materials PLATFORM DIRECTORY: the crates in the program of the package in that directory. cargo-cyclonedx writes beside each Cargo.toml, so it works on a copy.
bill_of_materials() {
  local copy=$target_dir/sbom
  local -a features=()
  # headgate's features are not in the lab's program.
  [[ $2 == . ]] || features=(--no-default-features)
  rm -rf -- "$copy"
  mkdir -p -- "$copy"
  git archive HEAD Cargo.toml Cargo.lock crates lab src benches tests | tar --extract --directory "$copy"
  (cd -- "$copy" && cargo cyclonedx --quiet --format json --spec-version 1.5 "${features[@]}" --target "${platforms[$1]}" --override-filename headgate)
  python3 release/sbom.py "$copy/$2/headgate.json" "$copy"
}

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

say "building $version ($revision)"
programs
texts "$work"
program_arguments=()
for platform in "${!platforms[@]}"; do
  name=headgate-$version-linux-$platform
  mkdir -p -- "$work/$name"
  for program in headgate headgate-lab; do
    install -m 755 -- "$(program "$program" "$platform")" "$work/$name/$program"
  done
  cp -r -- LICENSE release/kubectl_complete-headgate "$work/man" "$work/completions" "$work/$name/"
  archive "$out/$name.tar.gz" "$work" "$name"
  bill_of_materials "$platform" . >"$out/$name.cdx.json"
  bill_of_materials "$platform" lab >"$out/headgate-lab-$version-linux-$platform.cdx.json"
  program_arguments+=("--program=$platform=$work/$name/headgate")
done
python3 release/oci.py --version="$version" --revision="$revision" --created="$SOURCE_DATE_EPOCH" --ca-bundle="$ca_bundle" \
  "${program_arguments[@]}" --dockerfile=Dockerfile --output="$work/image"
archive "$out/headgate-$version-image.oci.tar.gz" "$work/image" .
# Those of the commit, whatever else lies beside them.
mkdir -- "$work/sources"
git archive HEAD charts manifests | tar --extract --directory "$work/sources"
archive "$out/headgate-$version-manifests.tar.gz" "$work/sources" manifests
for crd in "$work"/sources/charts/headgate/files/crds/*.yaml; do
  printf -- '---\n'
  cat -- "$crd"
done >"$out/headgate-$version-crds.yaml"
# What .helmignore names is left out, as `helm package` does it, which writes the present time.
(cd -- "$work/sources/charts/headgate" && rm -r -- ci README.md.gotmpl)
archive "$out/headgate-$version-chart.tgz" "$work/sources/charts" headgate
touch --date="@$SOURCE_DATE_EPOCH" "$out/headgate-$version-chart.tgz" # the layout has it as the time of creation
"$(tests/helm/build.sh)/chart-oci-layout" "$out/headgate-$version-chart.tgz" "$work/chart" >&2
archive "$out/headgate-$version-chart.oci.tar.gz" "$work/chart" .
sed -e "s/@VERSION@/$version/g" -e "s/@TIME@/$(date --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)/g" release/openvex.json \
  >"$out/headgate-$version.openvex.json"
release/krew.sh "$version" "$out"
(cd -- "$out" && sha256sum -- headgate-* >SHA256SUMS)
say "done: $out"
