# docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# Each platform is built on itself (natively or emulated), so the compiler's host is the target and nothing is
# cross-compiled.

# The digest is that of the index for all platforms, as public Dockerfiles pin it; no registry could be asked where this was written.
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
# The export of spans to an OpenTelemetry collector, 0.65 MiB; `--build-arg FEATURES=` leaves it out.
ARG FEATURES="otlp"
# A label of the metric headgate_build_info.
ARG REVISION=unknown
WORKDIR /src
COPY . .
# All checkouts share /cache, and Cargo compares times: without touch it would use what another checkout built later than these were written.
# --target, even though it is the host: without one, RUSTFLAGS would apply to proc macros too, and those cannot be static.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/cache,sharing=locked \
    find . -type f -exec touch {} + && host="$(rustc -vV | sed -n 's/^host: //p')" \
    && RUSTFLAGS='-C target-feature=+crt-static' CARGO_TARGET_DIR="/cache/$host" HEADGATE_REVISION="$REVISION" \
       cargo build --locked --release --no-default-features --features "$FEATURES" -p headgate --target "$host" \
    && cp "/cache/$host/$host/release/headgate" /headgate

FROM scratch
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="headgate" \
      org.opencontainers.image.description="Stops load-balancer traffic to a Kubernetes node before the node goes away" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
# For TLS to servers whose CA is not given, as the cluster's is by the ServiceAccount.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /headgate /headgate
USER 65532:65532
EXPOSE 10456 10457
ENTRYPOINT ["/headgate"]
