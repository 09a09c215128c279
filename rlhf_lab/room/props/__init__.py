"""Things that a student's functions are handed in an examination, and small apparatus around a call.

They run in the room, beside the student's code, so they know nothing of what is right: what they note is sent out and
judged there. One module for each stage.
"""
