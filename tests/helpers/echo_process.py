"""A compiling process that compiles nothing: it answers each job with its source and the id of its parent."""
ECHO = """
import os
from multiprocessing.connection import Connection
parent = os.getppid()
own = next((x for x in {descriptors}[1:] if os.fork() == 0), {descriptors}[0])
[os.close(x) for x in {descriptors} if x != own]
connection = Connection(own)
while connection.poll(60):
    connection.send((connection.recv()[1] + f" by {{parent}}", None))
"""
