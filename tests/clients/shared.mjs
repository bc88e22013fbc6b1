// What the scenarios share: their plan, a fetch that tries again when the network fails, and waiting.
// It knows nothing of any one client.

export const plan = JSON.parse(process.argv[2])

export const counts = { networkErrors: 0 }

// Tries again on network errors only: every answer of the server, also a refusal, is the caller's to see.
export async function stubbornFetch(...args) {
  for (let attempt = 0; ; attempt++) {
    try {
      const response = await fetch(...args)
      // A body that is cut short is a network error too.
      const body = [204, 304].includes(response.status) ? null : await response.arrayBuffer()
      return new Response(body, { status: response.status, headers: response.headers })
    } catch (error) {
      if (args[1]?.signal?.aborted || attempt > 200) throw error
      counts.networkErrors++
      await sleep(Math.min(5 * (attempt + 1), 100))
    }
  }
}

export const patience = { initialDelay: 10, maxDelay: 200, multiplier: 1.3 }

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export async function until(what, check, ms = 60_000) {
  const deadline = Date.now() + ms
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`gave up waiting until ${what}`)
    await sleep(10)
  }
}

export function print(facts) {
  process.stdout.write(JSON.stringify(facts) + "\n")
}

// Lines from the test: the scenario goes on when it is told to.
const waiting = []
const lines = []
let held = ""
process.stdin.setEncoding("utf8")
process.stdin.on("data", (data) => {
  held += data
  for (let at; (at = held.indexOf("\n")) >= 0; held = held.slice(at + 1)) {
    const line = held.slice(0, at)
    if (waiting.length) waiting.shift()(line)
    else lines.push(line)
  }
})

export function told() {
  return lines.length ? Promise.resolve(lines.shift()) : new Promise((resolve) => waiting.push(resolve))
}
