"""Write what is made from `solutions/`, or say what of it is out of step.

`generated.json` remembers the hash of every file that was written. A file that has another one was edited by a person,
a student perhaps, and is never overwritten unasked.
"""

import hashlib
import json
from pathlib import Path

from rlhf_lab.course import exercises
from rlhf_lab.errors import LabError

from .notebooks import marked_cells, notebook_names, student_notebook, to_text
from .paths import CELLS, MANIFEST, NOTEBOOKS, PRISTINE, README, ROOT, STUBS
from .stubs import stub_files
from .tables import markdown_table, with_table


def generated() -> dict[Path, bytes]:
    """Every generated file and its content."""
    texts = {}
    for name, text in stub_files().items():
        texts[STUBS / name] = text
        if name != "__init__.py":
            texts[PRISTINE / f"{Path(name).stem}.txt"] = text
    notebooks = {name: student_notebook(name) for name in notebook_names()}
    for name, notebook in notebooks.items():
        texts[NOTEBOOKS / f"{name}.ipynb"] = to_text(notebook)
    marked = {name: cells for name, notebook in notebooks.items() if (cells := marked_cells(notebook))}
    texts[CELLS] = json.dumps(marked, indent=1, ensure_ascii=False) + "\n"
    files = {path: text.encode("utf-8") for path, text in texts.items()}
    hashes = {shown(path): _hash(content) for path, content in files.items()}
    files[MANIFEST] = (json.dumps(hashes, indent=1) + "\n").encode("utf-8")
    # written by hand but for its table, so that it is in no manifest
    readme = with_table(README.read_text(encoding="utf-8"), "exercises", exercise_table())
    files[README] = readme.encode("utf-8")
    return files


def exercise_table() -> str:
    """All exercises as a Markdown table, for the README."""
    columns = "", "exercise", "file", "notebook", "difficulty", "importance", "minutes", "points"
    rows = []
    for e in exercises().values():
        link = f"[`{e.notebook}`](notebooks/{e.notebook}.ipynb)"
        rows.append(
            (e.number, f"`{e.name}`", f"`{e.file}`", link, e.difficulty, e.importance, e.minutes, e.points)
        )
    return markdown_table(columns, rows)


def generate(discard_edits: bool = False) -> list[Path]:
    """Write the files that differ; return them.

    Raises:
        LabError: when one of them was edited by hand, unless the edits are to be discarded.
    """
    wanted = generated()
    changed = _differing(wanted)
    if edited := [shown(path) for path in changed if _edited(path)]:
        if not discard_edits:
            raise LabError(
                f"edited by hand, and generate would overwrite it: {', '.join(edited)}. Edit solutions/ instead; "
                f"--discard-edits overwrites"
            )
    for path in changed:
        if path not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return changed


def out_of_step() -> list[Path]:
    """Files that are missing, differ from what would be generated, or are not generated any more."""
    return _differing(generated())


def _differing(wanted: dict[Path, bytes]) -> list[Path]:
    differing = [
        path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content
    ]
    folders = {STUBS: "*.py", PRISTINE: "*.txt", NOTEBOOKS: "*.ipynb"}
    present = [path for folder, pattern in folders.items() for path in sorted(folder.glob(pattern))]
    return differing + [path for path in present if path not in wanted]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _edited(path: Path) -> bool:
    """Whether a file in the way is not what was generated there."""
    if path in (MANIFEST, README) or not path.exists():
        return False
    hashes = json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}
    return hashes.get(shown(path)) != _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
