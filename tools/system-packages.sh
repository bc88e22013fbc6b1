#!/usr/bin/env bash
# Makes sure that the programs the tests start are there: installs them as root on Debian, and otherwise says what to install.
# With the word `bench`, those of the benchmarks too.
# Only looks when nothing is missing: it takes milliseconds then and needs no rights.
set -euo pipefail

# program -> Debian package; why it is needed
needed=(
  "strace strace" # injects failing writes and syncs under a running node
  "chromium chromium" # meets a node as a browser does
  "java openjdk-17-jre-headless" # runs Spark
  "nginx nginx-light" # stands in front of a node
  "haproxy haproxy" # so does it
  "caddy caddy" # and it
  "javac openjdk-17-jdk-headless" # compiles a client on the JDK's own HttpClient
  "systemd-analyze systemd" # judges the systemd unit
  "curl curl" # asks for HTTP/2, as it does by --http2
)

if [ "${1-}" = bench ]; then
  needed+=("redis-server redis-server") # the peer of B7 and B14
  needed+=("stunnel4 stunnel4") # stands in front of a node in B15
fi

# Servers are there, and not everybody's PATH leads there.
PATH="$PATH:/usr/sbin"
missing=()
for entry in "${needed[@]}"; do
  read -r program package <<<"$entry"
  command -v "$program" >/dev/null 2>&1 || missing+=("$package")
done

# promtool judges the alert rules. It comes with Prometheus, which would begin to listen when it is installed: only the
# program is taken out of the package. Without it those rules are not judged, and everything else is tested.
bin=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin
if ! command -v promtool >/dev/null 2>&1 && [ ! -x "$bin/promtool" ] && [ -d "$bin" ] && command -v dpkg >/dev/null 2>&1; then
  (
    folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && chmod 755 "$folder" && cd "$folder"
    timeout 60 apt-get download -qq prometheus >/dev/null 2>&1 && dpkg -x prometheus_*.deb . && cp usr/bin/promtool "$bin/"
  ) || echo "promtool is not to be had: the alert rules are not judged"
fi

[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  {
    echo "Programs are needed that are not installed: ${missing[*]}"
    echo "Install them, on Debian or Ubuntu with: sudo apt-get install --no-install-recommends ${missing[*]}"
  } >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]}"
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
