"""Minimal asynchronous HTTP client, which can disconnect in the middle of an answer.

This module needs the standard library alone.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Answer:
    """Answer of the API: the status, the text of the first choice, and the times of its parts."""

    status: int
    body: str = ""
    text: str = ""
    usage: dict | None = None
    begin: float = 0.0
    times: list[float] = field(default_factory=list)


class Connection:
    """Connection that sends one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> "Connection":
        parts = urlsplit(address)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24))

    async def post(self, path: str, body: dict, host: str = "127.0.0.1") -> None:
        data = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        head += [f"Content-Length: {len(data)}", "Connection: close", "", ""]
        self.writer.write("\r\n".join(head).encode() + data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Reads the status and the headers, whose names are in lower case."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = [line.partition(":") for line in head[1:] if line]
        status = int(head[0].split(" ")[1])
        return status, {name.lower(): value.strip() for name, _, value in headers}

    async def read_parts(self, headers: dict[str, str]):
        """Yields the parts of the body as they arrive."""
        if headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # The server may have closed the connection first.


async def complete(address: str, body: dict, parts: int | None = None) -> Answer | None:
    """Sends a streaming completion; `parts` is the number of parts to read before disconnecting.

    Returns `None` after disconnecting.
    """
    connection = await Connection.open(address)
    try:
        begin = time.perf_counter()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        await connection.post("/v1/completions", {**body, **options})
        if parts == 0:
            return None
        status, headers = await connection.read_head()
        answer, rest = Answer(status, begin=begin), b""
        async for part in connection.read_parts(headers):
            rest = read_part(answer, rest + part)
            parts = None if parts is None else parts - 1
            if parts == 0:
                return None
        answer.body += rest.decode()
        return answer
    finally:
        await connection.close()


def read_part(answer: Answer, received: bytes) -> bytes:
    """Reads the complete events of a stream, and returns the rest."""
    if answer.status != 200:
        return received
    *events, rest = received.split(b"\n\n")
    for event in events:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]" or not event.startswith(b"data: "):
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            answer.body += data.decode()
            continue
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk["choices"]:
            answer.times.append(time.perf_counter())
            answer.text += choice["text"]
    return rest
