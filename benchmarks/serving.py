"""What micro-batches are worth: src/serve.py beside the plain transformers pipeline behind FastAPI, in one run.

    python benchmarks/serving.py PATH                 a trained text classifier
    python benchmarks/serving.py PATH --seconds 10 --write benchmarks/results/serving.md

Each server is a process of its own; clients are httpx's, in a third process, each with one text a request and the next
one once the answer is there. The servers take turns, round after round, so that what else the machine does hits both.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = (1, 8, 64)

PLAIN = """
import sys
import torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

torch.set_num_threads(int(sys.argv[3]))
ask = pipeline("text-classification", model=sys.argv[1], device="cpu", top_k=None)
app = FastAPI()

class Body(BaseModel):
    inputs: str

@app.post("/predict")
def predict(body: Body):
    return ask(body.inputs, truncation=True)

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


def texts(count: int = 500) -> list[str]:
    """Return sentences of 1 to 50 words, as reviews are."""
    draw = random.Random(0)
    words = "a the film plot cast is was it of and good dull story with two hours fine moving slow very".split()
    return [" ".join(draw.choices(words, k=min(50, 1 + int(draw.expovariate(1 / 18))))) for _ in range(count)]


async def load(url: str, clients: int, seconds: float) -> tuple[list[float], float]:
    """Return how long each answer took, and how long all of it."""
    rows, took = texts(), list[float]()
    async with contextlib.AsyncExitStack() as stack:
        # Made before the clock runs: each of them reads the machine's certificates first (20 ms), though it needs none.
        made = [await stack.enter_async_context(httpx.AsyncClient(timeout=300, verify=False)) for _ in range(clients)]
        start = time.perf_counter()

        async def client(number: int) -> None:
            draw = random.Random(number)
            while time.perf_counter() < start + seconds:
                begun = time.perf_counter()
                answer = await made[number].post(f"{url}/predict", json={"inputs": draw.choice(rows)})
                answer.raise_for_status()
                took.append(time.perf_counter() - begun)

        await asyncio.gather(*(client(number) for number in range(clients)))
        return took, time.perf_counter() - start


def cpu_seconds(process: "subprocess.Popen[Any]") -> float:
    """Return how long a server has computed: what other processes do to the clock, they do less to this."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    while True:
        try:
            httpx.post(f"{url}/predict", json={"inputs": "a"}, timeout=60).raise_for_status()
            return
        except httpx.ConnectError:
            time.sleep(0.2)


def main() -> None:
    """Measure, and print (or write) the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--write", type=Path)
    words = parser.parse_args()
    ours = subprocess.Popen(
        [sys.executable, str(ROOT / "src" / "serve.py"), words.model, "--port", "0", "--device", "cpu"]
        + ["--threads", str(words.threads)],
        stdout=subprocess.PIPE,
        text=True,
    )
    plain = subprocess.Popen([sys.executable, "-c", PLAIN, words.model, "8765", str(words.threads)])
    processes: list[subprocess.Popen[Any]] = [ours, plain]
    try:
        assert ours.stdout is not None
        found = re.search(r"http://\S+", ours.stdout.readline())
        assert found is not None, "the server did not start"
        urls = {"src/serve.py": found[0], "plain pipeline": "http://127.0.0.1:8765"}
        for url in urls.values():
            wait_for(url)
        before = os.getloadavg()
        measured: dict[tuple[str, int], list[tuple[list[float], float]]] = {}
        used: dict[tuple[str, int], float] = {}
        for _ in range(words.rounds):
            for clients in CLIENTS:
                for name, url, process in zip(urls, urls.values(), processes, strict=True):
                    start = cpu_seconds(process)
                    measured.setdefault((name, clients), []).append(asyncio.run(load(url, clients, words.seconds)))
                    used[name, clients] = used.get((name, clients), 0) + cpu_seconds(process) - start
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    lines = [
        "| clients | server | rows/s | p50 ms | p99 ms | CPU ms a row | times the plain one's rows/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for clients in CLIENTS:
        for name in urls:
            took = [value for values, _ in measured[name, clients] for value in values]
            rates = [len(values) / seconds for values, seconds in measured[name, clients]]
            others = [len(values) / seconds for values, seconds in measured["plain pipeline", clients]]
            ratios = [a / b for a, b in zip(rates, others, strict=True)]
            cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
            shown = (
                ""
                if name == "plain pipeline"
                else f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
            cost = 1000 * used[name, clients] / len(took)
            rate, middle = statistics.median(rates), 1000 * statistics.median(took)
            lines.append(
                f"| {clients} | {name} | {rate:.1f} | {middle:.0f} | {1000 * cuts[98]:.0f} | {cost:.1f} | {shown} |"
            )
    about = (
        f"`python benchmarks/serving.py PATH --seconds {words.seconds:g} --rounds {words.rounds} --threads {words.threads}`, "
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores (clients and both servers share them), load average "
        f"before {before[0]:.1f}; model: {json.loads(Path(words.model, 'config.json').read_text())['model_type']}, "
        f"{Path(words.model, 'model.safetensors').stat().st_size / 1e6:.0f} MB. Median of rounds in which the servers took turns."
    )
    print(about, "", *lines, sep="\n")
    if words.write:
        words.write.write_text("\n".join(["# Serving", "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
