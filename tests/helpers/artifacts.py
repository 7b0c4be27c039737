"""Files of compiled models with hashes that fit, whatever else they say."""
import hashlib
import json

from graphq.model import saved_file as format

HEAD = format.HEAD.size + format.DIGEST


def opened(path):
    """The first build of a file, and all its sections."""
    found = format.File(path)
    return found.index["builds"][0], [bytes(found.section(k)) for k in range(len(found.index["sections"]))]


def sealed(build, sections):
    """A file with this build, whose hashes fit."""
    places, body = [], b""
    for x in sections:
        body += b"\0" * (-len(body) % 64)
        places.append((len(body), len(x)))
        body += x
    hashes = [hashlib.sha256(body[k:k + format.PIECE]).hexdigest() for k in range(0, len(body) + 1, format.PIECE)]
    text = json.dumps({"builds": [build], "sections": places, "hashes": hashes}).encode()
    text += b" " * (-(HEAD + len(text)) % 4096)
    head = format.HEAD.pack(format.MAGIC, format.FORMAT, 0, len(text), HEAD + len(text) + len(body))
    return head + hashlib.sha256(head + text).digest() + text + body


def mutated(x, rng):
    """JSON in which one place, chosen by chance, is something else."""
    other = [None, True, -1, 0, 2**31, 2**63, 1e308, "", "x", "__class__", "os.system", [], {}, ["partial"],
             ["name", "os", "system"], ["record", "graphq.ir.graph", "Graph"], ["array", -1], ["array", 10**9],
             ["type", "f32", [2**40, 2**40]], ["tuple"] * 3]
    if isinstance(x, list) and x and rng.random() < 0.97:
        k = int(rng.integers(len(x)))
        return [*x[:k], mutated(x[k], rng), *x[k + 1:]]
    if isinstance(x, dict) and x and rng.random() < 0.97:
        k = sorted(x)[int(rng.integers(len(x)))]
        return {**x, k: mutated(x[k], rng)}
    return other[int(rng.integers(len(other)))]
