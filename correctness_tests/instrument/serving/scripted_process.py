"""Takes SGLang's arguments and behaves as `SCRIPT` in its environment says: for failure handling only.

`python scripted_process.py --host H --port N --weight-version NONCE ...`. It measures nothing and generates
nothing.

    normal        two children are started, one of them in a session of its own and without the mark; then it serves
    exit          ends at start with a traceback
    hang          never listens
    refusing      says that it refuses the path under test, and then loads for ever
    raising       raises the refusal
    deaf          listens, and accepts nothing further
    unready       answers 503 from /ready for ever
    error500      answers 500 to everything
    other_nonce   says that it was started as another
    configured    reports another max_total_num_tokens than requested
    silent        normal, but its log shows a refusal of the path under test
    busy_once     the port is taken, the first time
    lost_port     the port is taken, and it does not end
    die           ends with a traceback when /generate is asked
    leave         ends without a word when /generate is asked
    stall         never answers /generate
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = os.environ.get("SCRIPT", "normal")
TRACEBACK = """[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "/env/sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process
    scheduler.run_event_loop()
{error}
"""


def fail(error: str) -> None:
    print(TRACEBACK.format(error=error), flush=True)
    os._exit(3)


def start_children() -> None:
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleep)
    # As hidden as a process can be: another session, no mark in its environment, its parent gone.
    orphan = f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True, env={{}})"
    subprocess.run([sys.executable, "-S", "-c", orphan], check=True)


class Handler(BaseHTTPRequestHandler):
    nonce = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        info = {
            "weight_version": "another" if SCRIPT == "other_nonce" else self.nonce,
            "version": os.environ.get("SCRIPT_RELEASE", "0.5.23"),
            "max_total_num_tokens": 1000,
        }
        if SCRIPT == "error500" or (SCRIPT == "unready" and path == "/ready"):
            self.answer(500 if SCRIPT == "error500" else 503, {})
        elif path == "/generate" and SCRIPT == "die":
            fail("RuntimeError: planted death")
        elif path == "/generate" and SCRIPT == "leave":
            os._exit(0)
        elif path == "/generate" and SCRIPT == "stall":
            time.sleep(600)
        else:
            self.answer(200, info)

    do_POST = do_GET

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--weight-version")
    known, _ = parser.parse_known_args()
    if counter := os.environ.get("SCRIPT_COUNTER"):
        with Path(counter).open("a") as file:
            file.write("start\n")
    if SCRIPT == "exit":
        fail("RuntimeError: planted crash")
    if SCRIPT == "refusing":
        print("Device capability 12 not supported, communicator is not available.", flush=True)
        time.sleep(600)
    if SCRIPT == "raising":
        print(TRACEBACK.format(error="ValueError: fusion requires SM90"), flush=True)
        time.sleep(1)
        os._exit(3)
    if SCRIPT == "hang":
        time.sleep(600)
    if SCRIPT == "lost_port":  # as SGLang 0.5.23 does: it says so, and neither serves nor ends
        print(f"ERROR: [Errno 98] error while attempting to bind on address ('{known.host}', {known.port})", flush=True)
        time.sleep(600)
    if SCRIPT == "busy_once" and len(Path(os.environ["SCRIPT_COUNTER"]).read_text().split()) == 1:
        fail("OSError: [Errno 98] Address already in use")
    Handler.nonce = known.weight_version
    server = ThreadingHTTPServer((known.host, known.port), Handler)
    server.daemon_threads = True
    if SCRIPT == "deaf":
        time.sleep(600)
    start_children()
    if SCRIPT == "silent":
        print("Device capability 12 not supported, communicator is not available.", flush=True)
    if SCRIPT == "plugin":
        print("[2026-01-01 00:00:00] Failed to execute general plugin: sglang_cpu", flush=True)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
