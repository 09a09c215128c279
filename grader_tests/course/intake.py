"""Takes submissions in without trusting them: `submitted/STUDENT/ASSIGNMENT/` becomes a `Submission`.

Nothing in a submission stops the class. Links are not followed, devices not opened, archives not unpacked, large files
not read; of what is left the assignment's own modules, the student's helper modules and the notebooks are taken, from
wherever in the folder they lie. Whatever was odd becomes a remark: one sentence that says what was found and what was
done about it.

`submitted/` is never changed. What nbgrader gets to see is the clean copy that `stage` writes.
"""

import hashlib
import json
import os
import re
import tokenize
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from rlhf_lab import clinic
from rlhf_lab.clinic.answers import read_answers
from rlhf_lab.doctor.cells import mark_of
from rlhf_lab.errors import LabError
from rlhf_lab.runs import replace_folder
from rlhf_lab.settings import MODULE_BYTES, MODULES, NOTEBOOK_BYTES, STUB_PACKAGE

from ..package import Unusable, read_file
from .cells import restore
from .paths import WELCOME, Assignment, Course

MAX_TOTAL = 2**27  # bytes
MAX_ENTRIES = 2000  # files and folders that are looked at
MAX_DEPTH = 6  # folders inside each other
MAX_REMARKS = 30
MAX_OUTPUTS = 1000  # of one cell; far fewer are shown
TIMESTAMP_BYTES = 2**10
MAX_NAME = 200  # bytes of a student's name: files are called by it, with more added, and 255 is the limit
YEARS = range(1970, 9999)  # outside of them nbgrader cannot show a time in another zone

STUDENT = re.compile(r"\w[\w .@'-]{0,98}\w|\w")  # what nbgrader's globs and every file system can do with
NOTHING = "Nothing was handed in that could be taken."  # the remark by which such a submission is known
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".whl")
# Not looked into: what comes with the course, and what tools leave behind.
UNUSED = {"rlhf_lab", "runs", "__pycache__", "__MACOSX", ".venv", "venv", "node_modules", "site-packages"}
UNUSED_BUT_SAID = {"solutions", "grader_tests", "authoring"}
# The number of copies that browsers and file managers put into a name: "ppo (1).py", "ppo copy.py", "ppo-2.py"
COPY = re.compile(r"[ _-]*(?:\(\d+\)|\d+|copy|Copy\d*|kopie)$", re.IGNORECASE)

# How a module names its encoding, in one of its first two lines (PEP 263)
CODING = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+")


@dataclass(frozen=True)
class Stray:
    """What lies in `submitted/` and is no submission.

    Attributes:
        student: whose folder it is, or lies in; None where it is no folder of a student.
        path: fit for a line of text.
        reason: why, and what to do, in a sentence.
    """

    student: str | None
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Submission:
    """What is examined of a submission, and what nbgrader is given.

    Attributes:
        assignment, student: whose it is.
        files: the whole package to examine, by path inside rlhf_exercises/. The student's own modules, as UTF-8 with
            plain line ends; of every other module, and in place of a missing one, what the assignment was released with.
        missing: modules that could not be taken, with the reason in a sentence.
        notebooks: text of each notebook of the assignment; where none was found, that of the released one.
        answers: diagnoses of the clinic by letter; empty where there are none.
        timestamp: text of timestamp.txt, which nbgrader's collecting leaves in a submission.
        remarks: what was odd, in sentences.
        fingerprint: SHA-256 of all this and of what the assignment asks for.
    """

    assignment: str
    student: str
    files: dict[str, bytes]
    missing: dict[str, str]
    notebooks: dict[str, str]
    answers: dict[str, str]
    timestamp: str | None
    remarks: tuple[str, ...]
    fingerprint: str


def handed_in(course: Course) -> tuple[list[tuple[str, str]], list[Stray]]:
    """What lies in `submitted/`.

    Returns:
        (assignment, student) of each submission, in order; and what is none.
    """
    found, strays = [], []
    root = course.root / "submitted"
    for student in sorted(os.listdir(root)) if root.is_dir() else []:
        if student.startswith("."):
            continue
        shown = f"submitted/{_shown(student)}"
        if problem := _no_student(root / student):
            strays.append(Stray(None, shown, problem))
            continue
        try:
            names = sorted(os.listdir(root / student))
        except OSError as error:
            strays.append(Stray(student, shown, f"it could not be read ({error.strerror})"))
            continue
        for name in names:
            if name in course.assignments:
                found.append((name, student))
            elif not name.startswith("."):
                reason = _no_assignment(course, root / student / name)
                strays.append(Stray(student, f"{shown}/{_shown(name)}", reason))
    return sorted(found), strays


def _no_student(folder: Path) -> str | None:
    """Why something in submitted/ is no folder of a student."""
    if folder.is_symlink() or not folder.is_dir():
        return "it is no folder of a student"
    if not STUDENT.fullmatch(folder.name):
        return "nbgrader cannot work with this name: rename the folder"
    if len(os.fsencode(folder.name)) > MAX_NAME:
        return "this name is too long for the files that are called by it: rename the folder"
    return None


def _no_assignment(course: Course, path: Path) -> str:
    """Why something in a student's folder is no submission."""
    if path.is_dir():
        return f"no assignment has this name: rename the folder to one of {', '.join(course.assignments)}"
    return f"it is a file, and a submission is a folder: put it into a folder called {' or '.join(course.assignments)}"


def nothing_handed_in(course: Course) -> LabError:
    """What is to be said when there is neither a submission nor a stray."""
    places = [f"submitted/STUDENT/{name}/" for name in course.assignments]
    return LabError(
        f"nothing has been handed in: submissions are expected in {course.root}, as {' or '.join(places)}"
    )


def take_in(course: Course, assignment_name: str, student: str) -> Submission:
    """Read a submission.

    Raises:
        LabError: when the course itself lacks what it was released with. No submission is a reason for an error.
    """
    assignment = course.assignment(assignment_name)
    folder = course.submitted(assignment_name, student)
    paths, of_paths = _paths(folder)
    reader = _Reader(folder)
    files, missing, of_files = _package(course, assignment, reader, paths)
    notebooks, absent, of_notebooks = _notebooks(course, assignment, reader, paths)
    answers, of_answers = _answers(assignment, notebooks)
    timestamp, of_timestamp = _timestamp(reader, paths)
    remarks = _shortened([*of_paths, *of_files, *of_notebooks, *of_answers, *of_timestamp])
    if missing.keys() == set(assignment.modules) and len(absent) == len(notebooks):
        remarks = [*remarks, NOTHING]
    content = {
        "files": files,
        "missing": missing,
        "notebooks": {name: nbformat.writes(notebook) for name, notebook in notebooks.items()},
        "answers": answers,
        "timestamp": timestamp,
        "remarks": tuple(remarks),
    }
    return Submission(assignment_name, student, **content, fingerprint=_fingerprint(assignment, content))


def stage(course: Course, submission: Submission) -> None:
    """Write the clean copy of a submission, which is what nbgrader reads."""
    with replace_folder(course.clean_copy(submission.assignment, submission.student)) as folder:
        for name, text in submission.notebooks.items():
            (folder / f"{name}.ipynb").write_text(text, encoding="utf-8")
        for name, content in submission.files.items():
            path = folder / STUB_PACKAGE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if submission.timestamp is not None:
            (folder / "timestamp.txt").write_text(submission.timestamp, encoding="utf-8")


# What is there. Each of these functions returns what it has found, and remarks on it.


def _paths(folder: Path) -> tuple[list[PurePosixPath], list[str]]:
    """What there is to take in a submission's folder."""
    if folder.parent.is_symlink() or folder.is_symlink() or not folder.is_dir():
        return [], ["The submission is a link or a single file, no folder."]
    return _look_through(folder)


def _look_through(folder: Path) -> tuple[list[PurePosixPath], list[str]]:
    """Paths of the regular files of interest inside `folder`, those near the top first."""
    found: list[PurePosixPath] = []
    remarks: list[str] = []
    looked_at = 0
    queue = deque([PurePosixPath()])
    while queue:
        inner = queue.popleft()
        try:
            with os.scandir(folder / inner) as entries:
                some = sorted(islice(entries, MAX_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            remarks.append(f"The folder {_shown(inner)} could not be read ({error.strerror}).")
            continue
        for entry in some:
            path = inner / entry.name
            looked_at += 1
            if looked_at > MAX_ENTRIES:
                remarks.append(f"There are more than {MAX_ENTRIES} files: the rest was not looked at.")
                return found, remarks
            if entry.name in UNUSED or entry.name.startswith("."):
                continue
            if entry.is_symlink():
                remarks.append(f"{_shown(path)} is a link: it was not followed.")
            elif entry.is_dir(follow_symlinks=False):
                if entry.name in UNUSED_BUT_SAID:
                    remarks.append(f"The folder {_shown(path)} is not used.")
                elif len(path.parts) > MAX_DEPTH:
                    remarks.append(f"The folder {_shown(path)} lies too deep: it was not looked into.")
                else:
                    queue.append(path)
            elif not entry.is_file(follow_symlinks=False):
                remarks.append(f"{_shown(path)} is no regular file: it was not opened.")
            elif path.suffix.lower() in ARCHIVES:
                remarks.append(
                    f"{_shown(path)} is an archive: it was not unpacked. Hand in the files themselves."
                )
            else:
                found.append(path)
    return found, remarks


class _Reader:
    """Reads files of one submission, up to a total size."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._left = MAX_TOTAL

    def read(self, path: PurePosixPath, limit: int) -> bytes:
        """Raises Unusable when the file is too large, or not an ordinary file of this folder alone."""
        most = min(limit, self._left)
        content = read_file(self._folder / path, most)
        if len(content) > most == limit:
            raise Unusable(f"is larger than the {limit >> 20} MB that a file of its kind may have")
        if len(content) > most:
            raise Unusable(f"is beyond the {MAX_TOTAL >> 20} MB that all files may have together")
        self._left -= len(content)
        return content


def _shown(path: str | PurePosixPath) -> str:
    """A name that a student chose, fit for a line of text."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shortened(remarks: list[str]) -> list[str]:
    remarks = list(dict.fromkeys(remarks))
    more = len(remarks) - MAX_REMARKS
    return remarks if more <= 0 else [*remarks[:MAX_REMARKS], f"There are {more} more remarks of this kind."]


# The package


def _package(
    course: Course,
    assignment: Assignment,
    reader: _Reader,
    paths: list[PurePosixPath],
) -> tuple[dict[str, bytes], dict[str, str], list[str]]:
    """The package to examine, and the modules that are missing in it."""
    released = _released_package(course, assignment.name)
    own = {f"{module}.py" for module in assignment.modules}
    files, missing = dict(released), {}
    inside, remarks = _package_files(own, paths)
    for name in sorted(own):
        if name not in inside:
            missing[Path(name).stem] = f"{STUB_PACKAGE}/{name} was not handed in."
    for name, path in inside.items():
        of_the_course = name == "__init__.py" or name.removesuffix(".py") in MODULES
        try:
            content, odd = _python_text(reader.read(path, MODULE_BYTES))
        except Unusable as problem:
            remarks.append(f"{_shown(path)} {problem}: it was not taken.")
            if name in own:
                missing[Path(name).stem] = f"{_shown(path)} {problem}."
            continue
        remarks += [f"{_shown(path)} {remark}" for remark in odd]
        if name in own or not of_the_course:
            files[name] = content
        elif content != released.get(name):
            remarks.append(f"{_shown(path)} is no part of this assignment: the course's own is used.")
    return files, missing, remarks


def _released_package(course: Course, assignment: str) -> Mapping[str, bytes]:
    folder = course.package(assignment)
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    if not files:
        raise LabError(f"{folder} is missing or empty: release {assignment} again")
    return files


def _package_files(own: set[str], paths: list[PurePosixPath]) -> tuple[dict[str, PurePosixPath], list[str]]:
    """The files that make up the package, by their path inside it. `own` are the modules that are looked for."""
    remarks: list[str] = []
    modules = [path for path in paths if path.suffix.lower() == ".py"]
    folders = dict.fromkeys(filter(None, map(package_above, modules)))
    # the one that holds most of what is looked for; of several, the one nearest to the top
    folder = max(
        folders,
        key=lambda place: (len(own & {path.name for path in modules if path.parent == place}), -len(place.parts)),
        default=None,
    )  # fmt: skip
    for other in folders:
        if other != folder:
            remarks.append(f"{_shown(other)}/ is not used: the package was taken from {_shown(folder)}/.")
    if folder is None:
        loose = [path.parent for path in modules if _module_name(path.name, own) in own]
        if not loose:
            return {}, remarks
        folder = loose[0]
        modules = [path for path in modules if path.parent == folder and _module_name(path.name, own) in own]
        remarks.append(f"There is no folder {STUB_PACKAGE}/: modules that lay loose were taken.")
    elif folder != PurePosixPath(STUB_PACKAGE):
        remarks.append(f"The package was found in {_shown(folder)}/ and taken from there.")
    inside: dict[str, PurePosixPath] = {}
    outside = []
    # exact names first, so that a copy of a module never stands in the way of the module itself
    for path in sorted(modules, key=lambda path: (_module_name(path.name, own) != path.name, path)):
        if folder not in path.parents:
            outside.append(path.name)
            continue
        relative = path.relative_to(folder)
        name = str(relative.with_name(_module_name(relative.name, own)))
        if name in inside:
            remarks.append(f"{_shown(path)} is not used: {name} is there.")
        elif len(relative.parts) > 1 and relative.parts[0] in MODULES:
            remarks.append(f"{_shown(path)} is not used: Python would import it in the place of a module.")
        elif not all(part.isidentifier() for part in (*relative.parts[:-1], Path(name).stem)):
            remarks.append(f"{_shown(path)} is not used: Python cannot import a module of this name.")
        else:
            inside[name] = path
            if name != str(relative):
                remarks.append(f"{_shown(path)} was taken for {name}.")
    if outside:
        shown = ", ".join(_shown(name) for name in outside[:5])
        remarks.append(
            f"Python files outside {STUB_PACKAGE}/ are not used: {shown}{' ...' if outside[5:] else ''}."
        )
    return inside, remarks


def package_above(path: PurePosixPath) -> PurePosixPath | None:
    """The folder rlhf_exercises/ that a file lies in, whichever its capitals."""
    return next((p for p in reversed(path.parents) if p.name.casefold() == STUB_PACKAGE), None)


def _module_name(name: str, own: Iterable[str]) -> str:
    """The module that a file is meant to be: "PPO (1).py" is "ppo.py" where that is looked for."""
    plain = COPY.sub("", name[: -len(".py")]).lower() + ".py"
    return plain if plain in own else name


def _python_text(content: bytes) -> tuple[bytes, list[str]]:
    """A module as UTF-8 without byte-order mark and with plain line ends; what Python would make of it is the same.

    Its remarks, as those of `_decoded`, complete "NAME ...".

    Raises:
        Unusable: when it is something else than Python.
    """
    text, remarks = _decoded(content)
    if not text.strip():
        raise Unusable("is empty")
    if text.lstrip()[:1] == "{" and '"cells"' in text:
        raise Unusable("is a notebook, no Python module")
    _refuse_web_page(text)
    if re.search(r"^(?:<{7} |>{7} )", text, re.MULTILINE):
        remarks.append("holds the marks of a merge conflict.")
    return text.encode("utf-8"), remarks


def _decoded(content: bytes) -> tuple[str, list[str]]:
    """The characters of a text file, line ends as \\n, and no other encoding named in it than UTF-8."""
    remarks = []
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        remarks.append("was saved as UTF-16, which Python does not read: it was taken as UTF-8.")
        text = content.decode("utf-16", errors="replace")
    else:
        _refuse_binary(content)
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            text = content.decode(encoding)
            text.encode("utf-8")  # some encodings make halves of characters, which cannot be written
        except (SyntaxError, LookupError, UnicodeError):  # LookupError: a codec that is no encoding of text
            remarks.append("is not UTF-8: characters outside ASCII were guessed.")
            text = content.decode("cp1252", errors="replace")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n", 2)
    lines[:2] = [CODING.sub(r"\g<1>utf-8", line) for line in lines[:2]]
    return "\n".join(lines), remarks


def _refuse_binary(content: bytes) -> None:
    if content.startswith(b"PK\x03\x04"):
        raise Unusable("is a zip file under another name")
    if b"\0" in content:
        raise Unusable("is binary, no text")


def _refuse_web_page(text: str) -> None:
    if re.match(r"\s*<(?:!doctype|html)\b", text, re.IGNORECASE):
        raise Unusable("is a web page, perhaps the log-in page of a learning platform")


# The notebooks


def _notebooks(
    course: Course,
    assignment: Assignment,
    reader: _Reader,
    paths: list[PurePosixPath],
) -> tuple[dict[str, NotebookNode], list[str], list[str]]:
    """The assignment's notebooks, put together on the released ones; the names of those that were not found; remarks.

    Which file is which is told by their cells where the name does not say it.
    """
    remarks: list[str] = []
    released = {name: _released_notebook(course, assignment.name, name) for name in assignment.notebooks}
    found: dict[PurePosixPath, NotebookNode] = {}
    for path in paths:
        if path.suffix.lower() == ".ipynb":
            try:
                found[path] = _read_notebook(reader.read(path, NOTEBOOK_BYTES))
            except Unusable as problem:
                remarks.append(f"{_shown(path)} {problem}: it was not taken.")
    taken: dict[str, PurePosixPath] = {}
    absent = []
    for name, skeleton in list(released.items()):
        marks = _marks(skeleton)

        def likeness(path, name=name, marks=marks) -> tuple:
            """By name or by cells; of several the one of the right name, then of most cells, then nearest the top."""
            return path.stem == name, len(marks & _marks(found[path])), -len(path.parts)

        candidates = [p for p in found if p not in taken.values() and any(likeness(p)[:2])]
        if not candidates:
            absent.append(name)
            remarks.append(f"The notebook {name} was not found: the released one stands in its place.")
            continue
        path = taken[name] = max(candidates, key=likeness)
        if path.stem != name:
            remarks.append(f"{_shown(path)} was recognised as {name} by its cells.")
        released[name], odd = restore(found[path], skeleton)
        remarks += [f"{name}: {remark}" for remark in odd]
    for path in found:
        if path not in taken.values() and path.stem != WELCOME:
            remarks.append(f"The notebook {_shown(path)} is not used.")
    return released, absent, remarks


def _released_notebook(course: Course, assignment: str, name: str) -> NotebookNode:
    path = course.release(assignment) / f"{name}.ipynb"
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise LabError(f"{path} is missing: release {assignment} again") from None


def _read_notebook(content: bytes) -> NotebookNode:
    """A valid notebook out of whatever a tool has written; cells that are none and broken outputs are left out.

    Raises:
        Unusable: when it is no notebook.
    """
    if not content.strip():
        raise Unusable("is empty")
    if not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        _refuse_binary(content)
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8", errors="replace")
    _refuse_web_page(text)
    try:
        notebook = json.loads(text)
        if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):
            notebook = nbformat.convert(nbformat.from_dict(notebook), 4)
        cells = [cell for cell in notebook["cells"] if isinstance(cell, dict)]
        ids = Counter(str(cell.get("id")) for cell in cells)
        own = {
            name for name, times in ids.items() if times == 1 and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        }
        return nbformat.v4.new_notebook(cells=[_read_cell(*numbered, own) for numbered in enumerate(cells)])
    except RecursionError:
        raise Unusable("is nested too deeply for a notebook") from None
    except Exception:  # whatever is wrong with it, it is no notebook
        if re.search(r"^\s*(?:<{7}|>{7})", text, re.MULTILINE):
            raise Unusable("holds the marks of a merge conflict") from None
        raise Unusable("is no notebook that can be read (its JSON is damaged)") from None


def _read_cell(number: int, cell: dict, ids: set[str]) -> NotebookNode:
    """A valid cell with what counts: text, nbgrader's mark, outputs, pasted pictures; its id where it is in `ids`."""
    source = cell.get("source", "")
    lines = source if isinstance(source, list) else [source]
    source = "".join(line for line in lines if isinstance(line, str))
    source = source.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written
    kind = cell.get("cell_type") if cell.get("cell_type") in ("code", "markdown") else "raw"
    cell_id = str(cell.get("id"))
    made = {
        "code": nbformat.v4.new_code_cell,
        "markdown": nbformat.v4.new_markdown_cell,
        "raw": nbformat.v4.new_raw_cell,
    }[kind](source, id=cell_id if cell_id in ids else f"handed-in-{number}")
    metadata = cell.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("nbgrader"), dict):
        made.metadata["nbgrader"] = nbformat.from_dict(metadata["nbgrader"])
    if kind == "code" and isinstance(cell.get("outputs"), list):
        made.outputs = [
            nbformat.from_dict(output)
            for output in cell["outputs"][:MAX_OUTPUTS]
            if _is_valid(output, "output")
        ]
    if kind == "markdown" and isinstance(cell.get("attachments"), dict):
        with_pictures = NotebookNode({**made, "attachments": nbformat.from_dict(cell["attachments"])})
        made = with_pictures if _is_valid(with_pictures, "markdown_cell") else made
    return made


def _is_valid(part, kind: str) -> bool:
    """Whether a part of a notebook is what the format calls by this name."""
    try:
        nbformat.validate(nbformat.from_dict(part), ref=kind, version=4, version_minor=5)
        return True
    except Exception:
        return False


def _marks(notebook: NotebookNode) -> set[str]:
    """What tells a notebook from the others: grade ids, ids of cells, and texts, since tools may have lost the ids."""
    grade_ids = {mark["grade_id"] for cell in notebook.cells if (mark := mark_of(cell))}
    texts = {cell.source.strip() for cell in notebook.cells if len(cell.source) >= 80}
    return grade_ids | {cell.id for cell in notebook.cells} | texts


def _answers(assignment: Assignment, notebooks: dict[str, NotebookNode]) -> tuple[dict[str, str], list[str]]:
    """Diagnoses of the clinic by letter."""
    if clinic.NAME not in assignment.exercises:
        return {}, []
    cells = notebooks[assignment.notebook_of(clinic.NAME)].cells
    answers, problems = read_answers(
        next(cell.source for cell in cells if mark_of(cell).get("grade_id") == clinic.ANSWERS)
    )
    return answers, [f"The clinic: {problem}." for problem in problems]


def _timestamp(reader: _Reader, paths: list[PurePosixPath]) -> tuple[str | None, list[str]]:
    if PurePosixPath("timestamp.txt") not in paths:
        return None, []
    try:
        content = reader.read(PurePosixPath("timestamp.txt"), TIMESTAMP_BYTES)
    except Unusable:
        content = b""
    if _time(content) is None:
        return None, ["timestamp.txt holds no time: when this was handed in is not known."]
    return content.decode("utf-8").strip(), []


def time_handed_in(folder: Path | str) -> datetime | None:
    """When a submission was handed in, as its timestamp.txt says; None where it does not say it.

    Stands in the place of nbgrader's own two functions, which end with an exception where that file holds no time, and
    wait for ever where it is a pipe: one student's file would be the end of formgrader's list of the whole class.
    """
    try:
        return _time(read_file(Path(folder) / "timestamp.txt", TIMESTAMP_BYTES))
    except Unusable:
        return None


def _time(content: bytes) -> datetime | None:
    """The time, in UTC, that a timestamp.txt holds; None when it holds none that nbgrader can work with."""
    from nbgrader.utils import parse_utc

    try:
        time = parse_utc(content.decode("utf-8").strip())
    except Exception:  # whatever it is, dateutil finds no time in it
        return None
    return time if len(content) <= TIMESTAMP_BYTES and time.year in YEARS else None


def _fingerprint(assignment: Assignment, content: dict) -> str:
    digest = hashlib.sha256()
    for part in (assignment.as_json(), content):
        digest.update(json.dumps(part, sort_keys=True, default=lambda value: value.hex()).encode())
    return digest.hexdigest()
