// Two state databases on one stream: one writes, both follow, the server is killed in between, a third starts late.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"
import { createStateSchema, MaterializedState } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import { patience, plan, print, stubbornFetch, told, until } from "./shared.mjs"

const anything = { "~standard": { version: 1, vendor: "headwater", validate: (value) => ({ value }) } }
const state = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  notes: { schema: anything, type: "note", primaryKey: "id" },
})
const options = { url: plan.url, contentType: "application/json", backoffOptions: patience, fetch: stubbornFetch }
const stream = await DurableStream.create(options)

const open = async () => {
  const db = createStreamDB({ streamOptions: { ...options, fetch: undefined }, live: plan.live, state })
  await db.preload()
  return db
}
const rows = (db) => ({
  users: [...db.collections.users.values()].sort((a, b) => (a.id < b.id ? -1 : 1)).map(plain),
  notes: [...db.collections.notes.values()].sort((a, b) => (a.id < b.id ? -1 : 1)).map(plain),
})
const plain = ({ id, name, text }) => (name === undefined ? { id, text } : { id, name })

const producer = new IdempotentProducer(stream, "writer", { fetch: stubbornFetch, lingerMs: 0 })
const write = async (...events) => {
  for (const event of events) producer.append(JSON.stringify(event))
  await producer.flush()
}

const first = await open()
const second = await open()
await write(
  ...Array.from({ length: 20 }, (_, n) => state.users.insert({ value: { id: `u${n}`, name: `name ${n}` } })),
  state.notes.insert({ value: { id: "n1", text: "draft" } }),
)
await until("both have 20 users", () => [first, second].every((db) => db.collections.users.size === 20))
print({ ready: true })
await told() // the server was killed and is back
await write(
  state.users.update({ value: { id: "u3", name: "renamed" } }),
  ...Array.from({ length: 10 }, (_, n) => state.users.delete({ key: `u${n + 10}` })),
  state.notes.update({ value: { id: "n1", text: "final" } }),
)
const settled = (db) => db.collections.users.size === 10 && db.collections.notes.get("n1")?.text === "final"
await until("both follow the server's return", () => settled(first) && settled(second))
const third = await open()
const folded = new MaterializedState()
for (const event of await (await stream.stream({ live: false })).json()) folded.apply(event)
print({
  first: rows(first),
  second: rows(second),
  third: rows(third),
  foldedUsers: folded.getType("user").size,
  foldedNote: folded.get("note", "n1").text,
})
process.exit(0)
