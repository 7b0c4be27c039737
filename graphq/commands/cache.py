"""Show where the cache of kernels and models is and how much it holds (`info`), or empty it (`clear`)."""
import argparse

from graphq.commands.shared import JSON, option, write
from graphq.ir.names import counted
from graphq.kernels.jit import cache

ARGUMENTS = (option("action", choices=["info", "clear"]), JSON)


def run(options: argparse.Namespace) -> None:
    """Print the contents of the cache, or empty it and print how much was removed."""
    if options.action == "clear":
        removed = cache.clear()
        write(options, f"{counted(removed.modules, 'kernel module')} and {counted(removed.models, 'model')} removed",
              {"removed": removed.modules, "models": removed.models})
    else:
        info = cache.info()
        write(options, f"folder:  {info.path}\nmodules: {info.modules}\nmodels:  {info.models}\nbytes:   {info.bytes}",
              {"folder": str(info.path), "modules": info.modules, "models": info.models,
               "bytes": info.bytes})
