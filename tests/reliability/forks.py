"""Runs keras-transformer commands in processes with limits or injected failures."""

import json
import os
import resource
import signal
import sys

import prepared
import sabotage
import save_loop

from keras_transformer import cli

# Program of the forked process.
CODE = "import forks; forks.main()"


class Forks:
    """Runs one command at a time in a forked process."""

    def __init__(self, folder):
        self.log = folder / "log"
        self._process = None

    def start(self, *arguments, **job):
        """Starts a command and returns its process id.

        Args:
            arguments: Arguments of the command.
            job: Options. `save_loop`: folder in which save_loop.py runs instead.
                `sabotage`: arguments of `sabotage.install`. `limit_bytes`: maximum
                size of a file. `user`: id of the user who runs the command.
        """
        self.log.write_bytes(b"")
        self._process = prepared.start(
            *(CODE, json.dumps(job), *arguments), stdout=self.log, stderr=self.log
        )
        return self._process.pid

    def is_over(self):
        """Returns whether the command has ended."""
        return self._process.exitcode is not None

    def wait(self):
        """Returns the exit code, negative for a signal, and the command's output."""
        self._process.join()
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return self._process.exitcode, log

    def run(self, *arguments, **job):
        self.start(*arguments, **job)
        return self.wait()


def main():
    """Runs the command in `sys.argv`, whose first argument is the job as JSON."""
    job = json.loads(sys.argv.pop(1))
    if job.get("user"):
        os.setgid(job["user"])
        os.setuid(job["user"])
    if job.get("limit_bytes"):
        # A write beyond the limit must be an error and not kill the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = job["limit_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sabotage.install(**job.get("sabotage") or {})
    if "save_loop" in job:
        save_loop.main(job["save_loop"])
        return
    sys.argv[0] = "keras-transformer"
    cli.main()
