# Builds smss as one static binary in an otherwise empty image.
#
#   docker build -t smss .
#   docker run -d --name smss -p 12301:12301 -v smss-data:/data smss
#
# README.md tells more: settings, the health check, a read-only root.

FROM golang:1.26 AS build
ARG VERSION=unreleased
WORKDIR /src
# The modules are a layer of their own: a change of code does not fetch them
# again.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=${VERSION}" -o /out/smss . \
 && mkdir -p /out/data

FROM scratch
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="smss" \
      org.opencontainers.image.description="Small message server: topics on disk, publish and subscribe over TCP" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /out/smss /smss
# The server runs as this user and writes below /data only. A new volume takes
# over the owner of the directory that it is mounted on.
COPY --from=build --chown=10001:10001 /out/data /data
USER 10001:10001
ENV SMSS_STORE_PATH=/data
VOLUME /data
EXPOSE 12301
STOPSIGNAL SIGTERM
# There is no shell in here: the binary asks itself. A server on another port
# needs SMSS_ADDR=127.0.0.1:PORT beside SMSS_PORT.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["/smss", "ping"]
ENTRYPOINT ["/smss"]
