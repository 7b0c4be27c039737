"""Time from a saved model to the first result in a new process, and the memory of each further process.

    python benchmarks/artifact.py MODEL.onnx [--processes N] [--threads N]

For each way to load a model, N processes start one after another and stay until all have run. The columns are medians:
the seconds to import the engine; the seconds and CPU seconds to load the model and get the first result; the private
memory in MB (from /proc/PID/smaps_rollup) without the first process, measured when all processes are up. Files and
caches exist before. The row "imports" loads no model: it shows Python, NumPy and the engine. The engines' own saved
models are ONNX Runtime's optimized model (format ort) and OpenVINO's cache.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from graphq.errors import how_to_install

COMMON = """
import json, sys, time
import numpy as np
file, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
saved = folder + "/" + {name!r}
def feed(inputs):
    return {{k: np.zeros([d if isinstance(d, int) and d > 0 else 1 for d in s], t) for k, s, t in inputs}}
start = time.perf_counter()
{imports}
imported, before = time.perf_counter(), time.process_time()
{run}
done, used = time.perf_counter(), time.process_time()
print(json.dumps([imported - start, done - imported, used - before]), flush=True)
sys.stdin.read()
"""

GRAPHQ = "import graphq as gq"
CALL = "model({name: np.zeros([d or 1 for d in t.shape], t.dtype.numpy) for name, t in model.inputs.items()})"
ORT = """import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads"""
ORT_CALL = """session.run(None, feed((x.name, x.shape, np.dtype(
    {"tensor(float)": "f4", "tensor(int64)": "i8", "tensor(uint8)": "u1"}[x.type])) for x in session.get_inputs()))"""
OPENVINO = """import openvino
core = openvino.Core()
core.set_property({"CACHE_DIR": folder + "/openvino"})"""
OPENVINO_CALL = """model = core.compile_model(file, "CPU", {"INFERENCE_NUM_THREADS": threads})
model(feed((x.any_name, [d.get_length() if d.is_static else 1 for d in x.partial_shape],
            x.element_type.to_dtype()) for x in model.inputs))"""

WAYS = {
    "graphq, imports": (GRAPHQ, "pass", None),
    "graphq, load_compiled": (GRAPHQ, f"model = gq.load_compiled(saved)\n{CALL}",
                              "gq.compile(gq.load_onnx(file), threads=threads).save(saved)"),
    "graphq, compile of the file, kept": (GRAPHQ, f"model = gq.compile(file, threads=threads)\n{CALL}",
                                          f"model = gq.compile(file, threads=threads)\n{CALL}"),
    "graphq, load_onnx and compile": (GRAPHQ, f"model = gq.compile(gq.load_onnx(file), threads=threads)\n{CALL}", None),
    "ONNX Runtime, imports": (ORT, "pass", None),
    "ONNX Runtime, optimized model": (
        ORT, f"session = onnxruntime.InferenceSession(saved, options)\n{ORT_CALL}",
        "options.optimized_model_filepath = saved\n"
        "options.add_session_config_entry('session.save_model_format', 'ORT')\n"
        "onnxruntime.InferenceSession(file, options)"),
    "OpenVINO, imports": (OPENVINO, "pass", None),
    "OpenVINO, cache": (OPENVINO, OPENVINO_CALL, OPENVINO_CALL),
}


def started(code: str, arguments: list[str]) -> tuple[subprocess.Popen[str], list[float]]:
    """Start a process; returns the waiting process, and its times."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "OMP_NUM_THREADS": arguments[2]})
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("the measured process failed")
    return process, json.loads(line)


def private_megabytes(pid: int) -> float:
    """The memory in MB that a process shares with no other process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def measure(way: str, arguments: list[str], processes: int) -> tuple[float, ...]:
    """Medians of the times, and of the private memory of all processes except the first."""
    imports, run, prepare = WAYS[way]
    name = way.replace(" ", "_").replace(",", "") + (".ort" if "Runtime" in way else "")
    if prepare is not None:
        process, _ = started(COMMON.format(name=name, imports=imports, run=prepare), arguments)
        process.communicate()
    made = [started(COMMON.format(name=name, imports=imports, run=run), arguments) for _ in range(processes)]
    memory = statistics.median(private_megabytes(p.pid) for p, _ in made[1:] or made)
    for process, _ in made:
        process.communicate()
    return *map(statistics.median, zip(*(times for _, times in made), strict=True)), memory


def main() -> None:
    """Measure each way to load whose engine is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"{'':34}{'import':>9}{'first result':>14}{'CPU':>9}{'private MB':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            engine = {"graphq": "graphq", "ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}[way.split(",")[0]]
            if find_spec(engine) is None:
                print(f"{way:34}it needs {engine} ({how_to_install('bench')})")
                continue
            imported, first, cpu, memory = measure(way, [os.path.abspath(options.model), folder, str(options.threads)],
                                              max(1, options.processes))
            print(f"{way:34}{imported:9.3f}{first:14.3f}{cpu:9.3f}{memory:12.1f}", flush=True)


if __name__ == "__main__":
    main()
