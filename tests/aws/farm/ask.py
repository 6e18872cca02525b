"""Has a Python program started by the server of warm.py: `python -I -S ask.py SOCKET NAMED PYTHON WORDS...`.

NAMED is its `sys.executable`, PYTHON the interpreter that runs it where no server answers. Starts in a hundredth of a
second.
"""

import json
import os
import select
import signal
import socket
import struct
import sys

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Ask, pass signals on, end as the program ended."""
    place, named, python, *words = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until there is a program that they can be passed on to
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(place)
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.execv(python, [python, *words])
    # What this process was given beside the three: a program's own files are not for its children.
    given = [int(name) for name in os.listdir("/proc/self/fd")]
    descriptors = [number for number in sorted(given) if number <= 2 or _handed_on(number)]
    umask = os.umask(0o22)
    order = {
        "words": words,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "umask": umask,
        "descriptors": descriptors,
        "executable": named,
    }
    data = json.dumps(order).encode()
    message = struct.pack("!I", len(data)) + data
    sent = socket.send_fds(server, [message[:60000]], descriptors)
    server.sendall(message[sent:])
    # Only the program may keep what was given: whoever reads its output waits until nobody can write any more.
    null = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(null, number) if number <= 2 else os.close(number)
    # The kernel's handler itself writes a signal's number to the server. One of Python's would wait for the next
    # bytecode: never, for a signal that comes just before a call that blocks.
    server.setblocking(False)
    signal.set_wakeup_fd(server.fileno())
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda told, _: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    select.select([server], [], [])
    answer = server.recv(4)
    if len(answer) < 4:
        os._exit(1)
    (code,) = struct.unpack("!i", answer)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _handed_on(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


if __name__ == "__main__":
    main()
