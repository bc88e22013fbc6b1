// Hands the official suite to vitest, aimed at the server that run.py names. The package's own command line does not work.
// Never starts a server and never chooses what to leave out: both are run.py's.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_TEST_URL
if (!baseUrl) throw new Error("CONFORMANCE_TEST_URL is not set: start the suite with `make conformance`")

runConformanceTests({
  baseUrl,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_TIMEOUT_MS ?? "500"),
  subscriptions: process.env.CONFORMANCE_SUBSCRIPTIONS === "1",
})
