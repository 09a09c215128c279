"""The drill: the six functions of the course's source, with random blanks to fill in from memory.

snippets    the texts, taken from `solutions/`
blanks      what may be hidden, and a seeded draw of it
judge       is an answer right? By what the code then does, not by its letters
worker, experiments   the process that runs both versions, and what it looks at
hints       three steps for each blank
game        one round: answers, hints, points
scores      the rounds that were played, in a file
terminal, widget      the two ways to play
"""
