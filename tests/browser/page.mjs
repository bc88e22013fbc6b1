// Opens a page of the examples in headless Chromium and prints what its elements say, each time one says what is awaited.
// It never changes the page; one line of JSON per awaited text.
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { chromium } from "playwright-core"

const { chromium: program, page: address, element, awaited, ids } = JSON.parse(process.argv[2])
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
const profile = mkdtempSync(join(tmpdir(), "headwater-page-"))
const context = await chromium.launchPersistentContext(profile, { executablePath: program, args: FLAGS })
try {
  const page = await context.newPage()
  const complaints = []
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()))
  page.on("pageerror", (error) => complaints.push(String(error)))
  await page.goto(address)
  for (const text of awaited) {
    await page.waitForFunction(
      ([id, wanted]) => document.getElementById(id).textContent.includes(wanted),
      [element, text],
      { timeout: 60_000 },
    )
    const seen = await page.evaluate(
      (names) => Object.fromEntries(names.map((name) => [name, document.getElementById(name).textContent])),
      ids,
    )
    process.stdout.write(JSON.stringify({ ...seen, complaints }) + "\n")
  }
} finally {
  await context.close()
  rmSync(profile, { recursive: true, force: true })
}
process.exit(0)
