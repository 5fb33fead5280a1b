"""Waiting with a time limit. A timeout names the event that did not happen."""

import time

# Generous, because it only has to end hangs.
SECONDS = 300


def wait_until(condition, what, seconds=SECONDS, pause=0.02):
    """Waits until `condition()` is true and returns its result.

    Args:
        condition: Function without arguments.
        what: Event for the error message, or a function that returns it.
        seconds: Seconds after which waiting fails.
        pause: Seconds between two calls of `condition`.

    Raises:
        AssertionError: If the limit is reached.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"timeout after {seconds} s: {text}")
        time.sleep(pause)
    return found


def newest_step(folder):
    """Returns the step of the newest checkpoint in `folder`, or 0.

    Tests wait for a step or a later one, never for one file, because on a fast machine
    a checkpoint may be deleted between two checks.
    """
    return max((int(path.stem[5:]) for path in folder.glob("ckpt-*.npz")), default=0)
