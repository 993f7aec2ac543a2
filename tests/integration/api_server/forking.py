"""Loads the API server once and forks a copy for every line on standard input; prints each copy's process id."""

import os
import sys

from clotho_api_server.command import main
from clotho_api_server.state import segments

segments.SEGMENT_BYTES = 64 * 1024  # so that files end and go while they are watched
copy = 0
for _ in sys.stdin:
    if copy:
        os.waitpid(copy, 0)
    copy = os.fork()
    if copy == 0:
        os._exit(main(sys.argv[1:]))
    print(copy, flush=True)
