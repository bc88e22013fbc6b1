// A proxy that sends each request to another node of a cluster, in turn: run with the nodes' URLs, prints its own.
import http from "node:http"

const nodes = process.argv.slice(2).map((url) => new URL(url))
const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity })
let turn = 0

const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  const node = nodes[turn++ % nodes.length]
  const sent = http.request({
    agent,
    host: node.hostname,
    port: node.port,
    method: request.method,
    path: request.url,
    headers: request.rawHeaders,
  })
  sent.on("response", (answer) => {
    response.writeHead(answer.statusCode, answer.statusMessage, answer.rawHeaders)
    response.flushHeaders()
    answer.on("error", () => response.destroy())
    answer.pipe(response)
  })
  sent.on("error", (error) => {
    if (response.headersSent) response.destroy()
    else response.writeHead(502).end(String(error))
  })
  response.on("close", () => sent.destroy())
  request.on("error", () => sent.destroy())
  request.pipe(sent)
})
server.listen(0, "127.0.0.1", () => console.log(`spreading on http://127.0.0.1:${server.address().port}`))
