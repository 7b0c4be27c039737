"""Files of some hundred bytes that ask for terabytes: graphq's errors, before anything is allocated."""
import subprocess
import sys

import hostile_models
from hostile_models import LOADED, REFUSED


def test_hostile_files():
    ran = subprocess.run([sys.executable, hostile_models.__file__], capture_output=True, text=True)
    ended = dict(line.split("|", 1) for line in ran.stdout.splitlines())
    assert list(ended) == [*REFUSED, *LOADED], (ran.returncode, ran.stderr)
    assert [f"{name}: {text}" for name, text in ended.items() if name in REFUSED and "refused: " not in text] == []
    assert [f"{name}: {text}" for name, text in ended.items() if name in LOADED and not text.startswith("done")] == []
    assert [f"{name}: {text}" for name, text in ended.items() if int(text.rsplit("|")[-1]) > 1500] == []
