// An idempotent producer that writes plan.count messages in many small, pipelined batches over a bad network.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"
import { counts, plan, print, stubbornFetch } from "./shared.mjs"

const stream = await DurableStream.create({ url: plan.url, contentType: plan.contentType, fetch: stubbornFetch })
const errors = []
const producer = new IdempotentProducer(stream, "producer-1", {
  fetch: stubbornFetch,
  maxBatchBytes: plan.batchBytes,
  lingerMs: 1,
  maxInFlight: 5,
  epoch: plan.epoch ?? 0,
  autoClaim: plan.autoClaim ?? false,
  onError: (error) => errors.push(String(error)),
})
for (let n = 0; n < plan.count; n++) {
  producer.append(plan.contentType === "application/json" ? JSON.stringify({ n }) : `${n};`)
  if (n % 50 === 49) await producer.flush()
}
await producer.flush()
const closed = plan.close ? await producer.close() : await producer.detach?.()
print({ errors, ...counts, closed: closed ?? null, epoch: producer.epoch, nextSeq: producer.nextSeq })
process.exit(0)
