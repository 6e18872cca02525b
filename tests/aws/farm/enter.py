"""Run a program inside a farm: `python enter.py PID FOLDER PROGRAM WORDS...`.

PID is the farm's first process. A PID namespace holds for children only, so the program is a child of this process,
which passes signals on to it, dies as it died, and takes it along when it is itself killed.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import linux

_PASSED_ON = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]


def main(pid: int, folder: str, words: list[str]) -> int:
    """Run `words` in the namespaces of process `pid` and return its exit code."""
    terminal = os.isatty(0)
    watched = {*_PASSED_ON, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    linux.enter(pid)
    child = os.fork()
    if child == 0:
        try:
            linux.die_with_parent()
            os.chdir(folder)
            if not terminal:
                os.setsid()  # seen from inside, the caller's process group does not exist
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execvp(words[0], words)
        except OSError as error:
            print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    while True:
        woken = signal.sigwaitinfo(watched)
        if woken.si_signo == signal.SIGCHLD:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                break
        elif not (terminal and woken.si_code > 0):
            # On a terminal, Ctrl-C (which the kernel sends, with a positive code) reached the program already.
            os.kill(child, woken.si_signo)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
