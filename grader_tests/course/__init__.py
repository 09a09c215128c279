"""The class: releasing assignments, taking submissions in, grading them with nbgrader, giving feedback."""
