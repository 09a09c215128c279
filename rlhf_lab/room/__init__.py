"""A room for a student's code: a confined process that calls its functions when asked, and answers with data.

An examiner outside keeps the tests and what is right; nothing in here knows either. `server` is the warm parent, with
torch loaded, that forks one child for each examination; `child` is what the child does; `confine` takes away what the
child does not need; `code` imports one exercise of a student among the reference's others; `wire` turns values into
bytes; `props` are things that a student's function is handed.
"""

import sys

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}  # in the room

# What Python needs to read besides /usr and /lib: its own folders, and some of the system's files.
PYTHON_FOLDERS = tuple(dict.fromkeys([sys.prefix, sys.base_prefix, sys.exec_prefix]))
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu")
