# CPU image. Build: docker build -t voxlane .   Run: docker run --network host voxlane
# (podman, buildah: with --format docker, else the HEALTHCHECK is left out.)
# Without the host's network it must listen beyond loopback, and then it needs keys: see config/deploy/compose.yaml.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p gateway --bin voxlane && strip target/release/voxlane

FROM debian:bookworm-slim
# A volume mounted on the folder of voices takes over its owner.
RUN groupadd --gid 10001 voxlane \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/voxlane --shell /usr/sbin/nologin voxlane \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/voxlane
COPY --from=build /src/target/release/voxlane /usr/local/bin/voxlane
USER 10001:10001
EXPOSE 8080 9464
# bash speaks to the admin listener itself, so the image needs no curl.
HEALTHCHECK --interval=10s --timeout=2s --start-period=10s CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/9464 && printf 'GET /readyz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["voxlane"]
CMD ["serve"]
