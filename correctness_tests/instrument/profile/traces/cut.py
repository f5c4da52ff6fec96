"""Make the small traces beside this from the originals that README.md names: `python cut.py ORIGINAL... FOLDER`.

Kernels, copies, launches, annotations and operators stay, with their times, names and what of their arguments the
reader may ask for; of all other events (flows, Python functions, counters) each fortieth stays.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation"}
ARGUMENTS = ("External id", "device", "stream", "correlation", "graph node id", "context")


def cut(event: dict, number: int) -> dict | None:
    if event.get("cat") not in KEPT and number % 40:
        return None
    kept = {key: event["args"][key] for key in ARGUMENTS if key in event.get("args", {})}
    return event | {"args": kept} if "args" in event else event


def main(originals: list[Path], folder: Path) -> None:
    for path in originals:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = [cut(event, number) for number, event in enumerate(trace["traceEvents"])]
        trace["traceEvents"] = [event for event in events if event is not None]
        text = json.dumps(trace, indent=1).encode()
        (folder / path.name).write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:-1]], Path(sys.argv[-1]))
