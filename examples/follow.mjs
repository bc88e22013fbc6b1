// Follows a JSON stream to its end and prints one message per line, across lost connections and its own restarts.
// Owns one file: the offset to go on from. Never asks again for what it printed before that offset was written.
//
//   node examples/follow.mjs http://127.0.0.1:4437/v1/stream/journal offset.txt

import { existsSync, readFileSync, writeFileSync } from "node:fs"

const RETRY_MS = 250
const [url, file] = process.argv.slice(2)
if (!file) {
  console.error("usage: node follow.mjs STREAM_URL OFFSET_FILE")
  process.exit(2)
}

let offset = existsSync(file) ? readFileSync(file, "utf8") : "-1"

/** One event of an SSE connection: its name and its data, lines joined. */
function parse(block) {
  const data = []
  let name = "message"
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim()
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""))
  }
  return { name, data: data.join("\n") }
}

/** Reads one connection until it ends. Returns true when the stream itself has ended. */
async function connection() {
  const answer = await fetch(`${url}?offset=${offset}&live=sse`)
  if (answer.status === 429 || answer.status >= 500) throw new Error(`answered ${answer.status}`)
  if (!answer.ok) {
    // 404: no such stream. 410: it no longer keeps this offset. Trying again would not help.
    console.error(`${answer.status} ${await answer.text()}`)
    process.exit(1)
  }
  let text = ""
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (text + part).split("\n\n")
    text = blocks.pop()
    for (const block of blocks) {
      const event = parse(block)
      if (event.name === "data") {
        for (const message of JSON.parse(event.data)) console.log(JSON.stringify(message))
      } else if (event.name === "control") {
        const control = JSON.parse(event.data)
        offset = control.streamNextOffset
        writeFileSync(file, offset)
        if (control.streamClosed) return true
      }
    }
  }
  return false
}

for (;;) {
  try {
    if (await connection()) break
  } catch (error) {
    console.error(`connection lost (${error.cause?.code ?? error.message}), going on at ${offset}`)
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
  }
}
