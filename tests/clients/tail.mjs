// A live tail of a JSON stream that goes on until it has seen {"end": true}, whatever happens to the server.
import { stream } from "@durable-streams/client"
import { patience, plan, print } from "./shared.mjs"

const items = []
let offset = plan.offset
const torn = []
let ended = false
print({ seen: 0 })
while (!ended) {
  const response = await stream({ url: plan.url, offset, live: plan.live, json: true, backoffOptions: patience })
  const seen = new Promise((resolve) => {
    response.subscribeJson(async (batch) => {
      items.push(...batch.items)
      offset = batch.offset
      print({ seen: items.length })
      ended ||= batch.items.some((item) => item.end)
      if (ended) resolve()
    })
  })
  // The client takes up a connection that ended in order; one that is torn apart ends its session, and the
  // application begins another where the last one stood.
  await Promise.race([seen, response.closed.catch((error) => torn.push(String(error.cause ?? error)))])
}
print({ items, offset, torn })
process.exit(0)
