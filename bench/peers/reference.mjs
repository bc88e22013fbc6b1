import { DurableStreamTestServer } from "@durable-streams/server"
const dataDir = process.argv[2] || undefined // none: in memory
const server = new DurableStreamTestServer({ host: "127.0.0.1", port: 0, dataDir, compression: false })
process.on("SIGTERM", () => server.stop().finally(() => process.exit(0)))
console.log(`reference ready on ${await server.start()}`)
