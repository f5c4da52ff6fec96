"""A scripted HTTP server on a free loopback port, to test the client: it says exactly what a test tells it,
byte by byte.

It runs on a thread and loop of its own, so that a client that blocks does not slow it down, and notes when
it sent what.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

RESET = object()
"""A script yields it to reset the connection."""
HANG_UP = object()
"""A script yields it to close the connection in the middle of the chunked body."""

Script = Callable[[dict[str, Any]], AsyncIterator[Any]]


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(
    tokens: int,
    *,
    per_chunk: int = 1,
    cumulative: bool = True,
    spec: dict[str, int] | None = None,
    claim: int | None = None,
    cached: int = 0,
    prompt_tokens: int = 20,
    ids: list[int] | None = None,
) -> list[bytes]:
    """The events of one answer as SGLang sends them, without `[DONE]`; `claim` falsifies the last
    completion_tokens."""
    ids = ids or [100 + (7 * index * index) % 151 for index in range(tokens)]
    out = []
    for start in range(0, tokens, per_chunk):
        end = min(start + per_chunk, tokens)
        last = end == tokens
        meta: dict[str, Any] = {
            "id": "r",
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached,
            "completion_tokens": claim if last and claim is not None else end,
            "finish_reason": {"type": "length", "length": tokens} if last else None,
        }
        if last:
            meta |= spec or {}
        out.append(
            sse(
                {
                    "text": "x" * end,
                    "output_ids": ids[:end] if cumulative else ids[start:end],
                    "meta_info": meta,
                }
            )
        )
    return out


def answer(pieces: list[Any], pause_s: float = 0.0) -> Script:
    """A script that sends the pieces one after another, `pause_s` before each."""

    async def script(_: dict[str, Any]) -> AsyncIterator[Any]:
        for piece in pieces:
            if pause_s:
                await asyncio.sleep(pause_s)
            yield piece

    return script


def normal(tokens: int, pause_s: float = 0.0, **how: Any) -> Script:
    return answer([*events(tokens, **how), DONE], pause_s)


@dataclass
class ScriptedServer:
    url: str = ""
    status: int = 200
    generate: Script = field(default_factory=lambda: normal(8))
    flush: Callable[[int], int] = lambda call: 200  # status by number of the call
    bodies: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    received_s: list[float] = field(default_factory=list)
    sent_s: list[list[float]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    flushes: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
            body = await reader.readexactly(int(lengths[0]) if lengths else 0)
            if "/flush_cache" in head:
                self.flushes += 1
                self.order.append("flush")
                status = self.flush(self.flushes)
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
                await writer.drain()
            else:
                await self._generate(json.loads(body), writer)
        writer.close()

    async def _generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self.order.append("generate")
        self.received_s.append(time.perf_counter())
        moments: list[float] = []
        self.sent_s.append(moments)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.status != 200:
                text = b"boom"
                writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
                await writer.drain()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            async for piece in self.generate(body):
                if piece is HANG_UP:
                    return
                if piece is RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                moments.append(time.perf_counter())
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            self.in_flight -= 1


@contextlib.contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(server.handle, "127.0.0.1", 0), loop).result(10)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    async def close() -> None:
        listening.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
