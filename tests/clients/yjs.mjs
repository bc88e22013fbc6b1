// Two people edit one Yjs document whose streams are in Headwater; it is killed, compacted, and joined late by a third.
import * as Y from "yjs"
import { Awareness } from "y-protocols/awareness"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { plan, print, told, until } from "./shared.mjs"

// The provider tells of every lost connection, which is the point here; stdout is for facts.
console.error = console.log = console.warn = () => {}
const server = new YjsServer({ port: 0, dsServerUrl: plan.url, compactionThreshold: plan.compactionBytes })
const baseUrl = `${await server.start()}/v1/yjs/room`

const join = async (name) => {
  const doc = new Y.Doc()
  const awareness = new Awareness(doc)
  const provider = new YjsProvider({ doc, baseUrl, docId: "shared/page", awareness, liveMode: plan.live })
  awareness.setLocalStateField("user", { name })
  await until(`${name} is synced`, () => provider.synced)
  return { doc, provider, awareness, text: doc.getText("body"), list: doc.getArray("list") }
}
const same = (...people) => {
  const [one, ...others] = people.map(({ text, list }) => JSON.stringify([text.toString(), list.toArray()]))
  return others.every((other) => other === one)
}

const anna = await join("anna")
const bela = await join("bela")
anna.text.insert(0, "hello ")
bela.text.insert(0, "world ")
for (let n = 0; n < 60; n++) (n % 2 ? anna : bela).list.push([`item ${n}`])
await until("the first edits converge", () => same(anna, bela) && anna.list.length === 60)
await until("anna sees bela", () => [...anna.awareness.getStates().values()].some((s) => s.user?.name === "bela"))
print({ ready: true })
await told() // the server was killed and is back
for (let n = 60; n < 200; n++) (n % 2 ? anna : bela).list.push([`item ${n}`])
anna.text.insert(0, "again ")
await until("the edits after the kill converge", () => same(anna, bela) && anna.list.length === 200)
let snapshot
await until("the document is compacted", async () => {
  anna.text.insert(0, "again ")
  snapshot = (await fetch(`${baseUrl}/docs/shared/page?offset=snapshot`, { redirect: "manual" })).headers.get("location")
  return snapshot.includes("_snapshot")
})
const carl = await join("carl")
await until("a late one has it all", () => same(anna, bela, carl))
print({ items: carl.list.toArray(), words: [...new Set(carl.text.toString().trim().split(" "))].sort(), snapshot })
process.exit(0)
