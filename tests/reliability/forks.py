"""Runs commands of keras-transformer in forked processes, sabotaged where told.

Importing TensorFlow takes seconds; forked before its first operation, a process that
has imported it serves any number of runs. Reads a job of JSON a line from standard
input: `arguments` of the command (or the folder of a `save_loop`), the file of its
`log`, and, as wanted, `sabotage`, `limit_bytes` of a file and the number of a `user`.
Answers with the process's number, and then with its exit code, negative for a signal.
"""

import json
import os
import resource
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sabotage
import save_loop
import tensorflow  # noqa: F401, the import that is to be done once
import tensorflow_text  # noqa: F401

from keras_transformer import cli
from keras_transformer.cli import app  # noqa: F401
from keras_transformer.experiments import train as experiment  # noqa: F401
from keras_transformer.export import saved_model  # noqa: F401
from keras_transformer.training import trainer  # noqa: F401


def run(job):
    """In the child: the command, with its output in the log; never returns."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    # As a shell's foreground job has it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if job.get("user"):
        os.setgid(job["user"])
        os.setuid(job["user"])
    if job.get("limit_bytes"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = job["limit_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sabotage.install(**job.get("sabotage") or {})
    sys.argv = ["keras-transformer", *job["arguments"]]
    code = 1
    try:
        if "save_loop" in job:
            save_loop.main(job["save_loop"])
        cli.main()
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run(job)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
