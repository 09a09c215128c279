"""A room for a student's code: a confined process that calls its functions when asked, and answers with data.

An examiner outside keeps the tests and what is right; nothing in here knows either. `server` is the warm parent, with
torch loaded, that forks one child for each examination; `child` is what the child does; `confine` takes away what the
child does not need; `code` imports one exercise of a student among the reference's others; `wire` turns values into
bytes; `props` are things that a student's function is handed.
"""
