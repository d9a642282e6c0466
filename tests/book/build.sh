#!/usr/bin/env bash
# Builds the documentation as an mdBook in the directory $1, and checks that each link inside the book leads to a file and
# to an anchor in it. Needs mdbook and python3.
set -euo pipefail
out=${1:?usage: build.sh DIRECTORY}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

rm -rf -- "$out"
mkdir -p -- "$out/src"
out=$(cd -- "$out" && pwd)
cp -- docs/book.toml "$out/"
# mdBook copies every file of src that is not a page, so that links to manifests work.
for directory in charts docs manifests; do
  [[ ! -d $directory ]] || cp -r -- "$directory" "$out/src/"
done
cp --parents -- benches/README.md lab/*/README.md tests/integration/chaos/README.md tests/mutants/README.md "$out/src/"
cp -- CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md "$out/src/"
rm -- "$out/src/docs/SUMMARY.md" "$out/src/docs/book.toml"
# The paths of the summary are relative to docs/; the book's root is the repository's.
sed -e 's#](\.\./#](/#' -e 's#](\([^/]\)#](docs/\1#' -e 's#](/#](#' docs/SUMMARY.md >"$out/src/SUMMARY.md"
# mdBook makes index.html of each README.md, and leaves the links to them as they are. It draws no diagrams.
sed -i '/^```mermaid$/,/^```$/d' "$out/src/README.md"
find "$out/src" -name README.md | while read -r page; do
  mv -- "$page" "${page%README.md}index.md"
done
find "$out/src" -name '*.md' -exec sed -i 's#\](\([^)]*/\)\{0,1\}README\.md#](\1index.md#g' {} +
mdbook build "$out"
python3 tests/book/links.py "$out/html"
