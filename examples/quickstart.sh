#!/usr/bin/env bash
# A stream from its creation to its end, with curl: create, append, append exactly once, read, follow, delete.
# It needs a running node and leaves nothing behind on it. Usage: examples/quickstart.sh [http://127.0.0.1:4437]
set -euo pipefail

node=${1:-http://127.0.0.1:4437}
stream=$node/v1/stream/quickstart-$$
json='Content-Type: application/json'
trap 'curl -sS -X DELETE "$stream"' EXIT

echo "creating $stream"
curl -fsS -X PUT "$stream" -H "$json"

echo 'appending two records, an array is one record per element'
curl -fsS -X POST "$stream" -H "$json" -d '[{"step":1},{"step":2}]'

echo 'appending a third, twice: the numbers say that it is the same'
for attempt in first second; do
  status=$(curl -fsS -o /dev/null -w '%{http_code}' -X POST "$stream" -H "$json" -d '{"step":3}' \
    -H 'Producer-Id: quickstart' -H 'Producer-Epoch: 0' -H 'Producer-Seq: 0')
  echo "  $attempt: $status"
done

echo 'reading everything'
curl -fsS "$stream?offset=-1"
echo

echo 'closing it, and following it to its end'
curl -fsS -X POST "$stream" -H 'Stream-Closed: true'
curl -fsSN "$stream?offset=-1&live=sse"
