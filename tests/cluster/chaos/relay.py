"""Runs in the network of one part: what connects to its loopback for webhooks is connected to the hub.

Nodes call webhooks on their own loopback alone. It imports the standard library only, so that it starts at once."""

from __future__ import annotations

import asyncio
import sys

PORT = 8099


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(hub: str) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(hub, PORT)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    # Loopback is not up yet in a new namespace: every address includes it.
    server = await asyncio.start_server(accepted, "0.0.0.0", PORT)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
