// Opens a page of another origin in headless Chromium, runs one scenario in it, prints what the page saw.
import { createServer } from "node:http"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { chromium } from "playwright-core"

const plan = JSON.parse(process.argv[2])
const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--no-first-run",
]

// These run in the page: no variable of this file reaches them but their argument.
const scenarios = {
  // What a page gets that only listens, and leaves coming back to the browser.
  async listen({ url, path, untilText }) {
    const events = []
    let opens = 0
    const source = new EventSource(`${url}${path}?offset=-1&live=sse`)
    source.onopen = () => opens++
    await new Promise((resolve) => {
      source.addEventListener("data", (event) => {
        events.push({ name: "data", data: event.data })
        if (opens > 1 && event.data.includes(untilText)) resolve()
      })
      source.addEventListener("control", (event) => events.push({ name: "control", data: event.data }))
    })
    source.close()
    return { events, opens, origin: location.origin }
  },
  // A page that remembers where it stood, as the protocol asks of clients.
  async follow({ url, path, untilText }) {
    const datas = []
    let offset = "-1"
    let lives = 0
    for (let done = false; !done; ) {
      lives++
      const source = new EventSource(`${url}${path}?offset=${offset}&live=sse`)
      await new Promise((resolve) => {
        source.onerror = resolve
        source.addEventListener("data", (event) => datas.push(event.data))
        source.addEventListener("control", (event) => {
          offset = JSON.parse(event.data).streamNextOffset
          done = datas.at(-1)?.includes(untilText)
          if (done) resolve()
        })
      })
      source.close()
    }
    return { datas, offset, lives }
  },
  // One connection for many streams; the browser resumes it with Last-Event-ID and the page does nothing.
  async tail({ url, query, untilText }) {
    const seen = []
    let opens = 0
    const source = new EventSource(`${url}/__headwater/tail?${query}`)
    source.onopen = () => opens++
    await new Promise((resolve) => {
      source.addEventListener("data", (event) => {
        const { stream, data } = JSON.parse(event.data)
        seen.push([stream, data])
        if (JSON.stringify(data).includes(untilText)) resolve()
      })
    })
    source.close()
    return { seen, opens }
  },
  // Everything a page does with fetch: methods and headers that need a preflight, and headers it reads.
  async fetches({ url, path }) {
    const told = async (method, headers = {}, body, at = path) => {
      const response = await fetch(url + at, { method, headers, body })
      const names = ["Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Earliest-Offset"]
      names.push("Stream-TTL", "Producer-Seq", "Producer-Expected-Seq", "ETag", "Stream-Durability", "Location")
      const seen = Object.fromEntries(names.map((name) => [name, response.headers.get(name)]))
      return { status: response.status, text: await response.text(), ...seen }
    }
    const text = { "Content-Type": "text/plain" }
    const producer = { "Producer-Id": "page", "Producer-Epoch": "0" }
    return {
      created: await told("PUT", { ...text, "Stream-TTL": "3600" }),
      appended: await told("POST", { ...text, ...producer, "Producer-Seq": "0" }, "hello"),
      gap: await told("POST", { ...text, ...producer, "Producer-Seq": "7" }, "hello"),
      read: await told("GET", {}, undefined, `${path}?offset=-1`),
      head: await told("HEAD"),
      refused: await told("POST", { ...text, "If-Match": '"other"' }, "x"),
      missing: await told("GET", {}, undefined, `${path}-missing`),
      closed: await told("POST", { "Stream-Closed": "true" }),
      deleted: await told("DELETE"),
    }
  },
  // Whether a request with these headers passes the browser's own checks.
  async preflights({ url, path, headers }) {
    const refused = []
    for (const [name, value] of Object.entries(headers)) {
      try {
        await fetch(url + path, { method: "PUT", headers: { [name]: value } })
      } catch {
        refused.push(name)
      }
    }
    return { refused }
  },
}

const profile = mkdtempSync(join(tmpdir(), "headwater-browser-"))
const server = createServer((request, response) => {
  response.setHeader("Content-Type", "text/html")
  response.end(request.url === "/" ? "<!doctype html><title>a page of another origin</title>" : "")
})
await new Promise((resolve) => server.listen(plan.pagePort ?? 0, "127.0.0.1", resolve))
const context = await chromium.launchPersistentContext(profile, { executablePath: plan.chromium, args: FLAGS })
try {
  const page = await context.newPage()
  const complaints = []
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()))
  await page.goto(`http://127.0.0.1:${server.address().port}/`)
  process.stdout.write(JSON.stringify({ ready: true }) + "\n")
  const facts = await page.evaluate(scenarios[plan.scenario], plan)
  process.stdout.write(JSON.stringify({ ...facts, complaints }) + "\n")
} finally {
  await context.close()
  server.close()
  rmSync(profile, { recursive: true, force: true })
}
process.exit(0)
