"""Runs commands of keras-transformer in forked processes, optionally with sabotage.

TensorFlow is imported once, which takes seconds; each command runs in a fork. A job is
a line of JSON on standard input: the `arguments` of the command (or the folder of a
`save_loop`), the file of its `log`, and optionally `sabotage`, `limit_bytes` of a file
and the id of a `user`. The process prints the id of the fork, then its exit code, which
is negative for a signal.
"""

import json
import os
import resource
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sabotage
import save_loop
import tensorflow  # noqa: F401, imported once for all forks
import tensorflow_text  # noqa: F401

from keras_transformer import cli
from keras_transformer.cli import app  # noqa: F401
from keras_transformer.experiments import train as experiment  # noqa: F401
from keras_transformer.export import saved_model  # noqa: F401
from keras_transformer.training import trainer  # noqa: F401


def run(job):
    """Runs the command in the child, with its output in the log. Never returns."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    # The handler of a foreground job in a shell.
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
