"""Writes an OCI image layout with one image for each platform, without a container engine.

Each image has one layer: the program and the CA bundle, as in the Dockerfile, from which user, ports, entry point and labels
are read. The same input gives the same bytes.

  python3 oci.py --version=V --revision=R --created=SECONDS --ca-bundle=FILE --program=amd64=FILE --program=arm64=FILE \\
    --dockerfile=FILE --output=DIRECTORY
"""

import argparse
import gzip
import hashlib
import io
import json
import re
import shlex
import tarfile
from datetime import datetime, timezone
from pathlib import Path

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def instructions(dockerfile, variables):
    """The instructions of the last stage, continued lines joined and variables replaced, as (word, rest)."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", dockerfile))
    lines = [line.strip().split(None, 1) for line in text.splitlines() if line.strip()]
    last = max(index for index, line in enumerate(lines) if line[0] == "FROM")
    if lines[last][1] != "scratch":
        raise SystemExit("oci: the last stage of the Dockerfile is not FROM scratch; change oci.py with it")
    known = {"ARG", "LABEL", "COPY", "USER", "EXPOSE", "ENTRYPOINT"}
    found = []
    for word, rest in lines[last + 1 :]:
        if word not in known:
            raise SystemExit(f"oci: the Dockerfile's last stage has {word}, which oci.py does not know")
        for name, value in variables.items():
            rest = rest.replace(f"${name}", value)
        found.append((word, rest))
    return found


def layer(files, created):
    """A compressed tar of (path, content, mode), and the digest of the tar itself."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        parents = {str(parent) for path, _, _ in files for parent in Path(path).parents if str(parent) != "."}
        for path in sorted(parents):
            entry = tarfile.TarInfo(path + "/")
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, created
            tar.addfile(entry)
        for path, content, mode in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(content), mode, created
            tar.addfile(entry, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream:
        stream.write(plain.getvalue())
    return packed.getvalue(), "sha256:" + hashlib.sha256(plain.getvalue()).hexdigest()


class Layout:
    """The directory of a layout; blobs are named by their digest."""

    def __init__(self, directory):
        self.directory = Path(directory)
        (self.directory / "blobs" / "sha256").mkdir(parents=True)

    def add(self, media_type, content, **more):
        digest = hashlib.sha256(content).hexdigest()
        (self.directory / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("version", "revision", "ca-bundle", "dockerfile", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--created", required=True, type=int)
    parser.add_argument("--program", required=True, action="append")
    return parser.parse_args()


def main():
    given = arguments()
    created = datetime.fromtimestamp(given.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    dockerfile = Path(given.dockerfile).read_text(encoding="utf-8")
    steps = instructions(dockerfile, {"VERSION": given.version, "REVISION": given.revision})
    labels = {}
    for _, rest in (step for step in steps if step[0] == "LABEL"):
        labels.update(part.split("=", 1) for part in shlex.split(rest))
    one = {word: rest for word, rest in steps if word in ("USER", "EXPOSE", "ENTRYPOINT")}
    copied = [rest.split()[-1] for word, rest in steps if word == "COPY"]
    if sorted(copied) != ["/etc/ssl/certs/ca-certificates.crt", "/headgate"]:
        raise SystemExit(f"oci: the Dockerfile copies {copied}, which oci.py does not know")

    layout, manifests = Layout(given.output), []
    authorities = Path(given.ca_bundle).read_bytes()
    for program in sorted(given.program):
        architecture, path = program.split("=", 1)
        files = [
            ("etc/ssl/certs/ca-certificates.crt", authorities, 0o644),
            ("headgate", Path(path).read_bytes(), 0o755),
        ]
        packed, diff_id = layer(files, given.created)
        config = {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "User": one["USER"],
                "ExposedPorts": {f"{port}/tcp": {} for port in one["EXPOSE"].split()},
                "Entrypoint": json.loads(one["ENTRYPOINT"]),
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": created, "created_by": "release/oci.py"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": layout.add(CONFIG, encoded(config)),
            "layers": [layout.add(LAYER, packed)],
            "annotations": labels,
        }
        platform = {"architecture": architecture, "os": "linux"}
        manifests.append(layout.add(MANIFEST, encoded(manifest), platform=platform))

    # A tag names the index of both platforms, as a registry shows it.
    image = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": labels}
    tagged = layout.add(INDEX, encoded(image), annotations={"org.opencontainers.image.ref.name": given.version})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [tagged]}
    (layout.directory / "index.json").write_bytes(encoded(index))
    (layout.directory / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))


main()
