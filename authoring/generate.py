"""Write what is made from `solutions/`, or say what of it is out of step."""

from pathlib import Path

from .notebooks import notebook_names, student_notebook, to_text
from .paths import NOTEBOOKS, PRISTINE, ROOT, STUBS
from .stubs import stub_files


def generated() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {}
    for name, text in stub_files().items():
        files[STUBS / name] = text
        if name != "__init__.py":
            files[PRISTINE / f"{Path(name).stem}.txt"] = text
    for name in notebook_names():
        files[NOTEBOOKS / f"{name}.ipynb"] = to_text(student_notebook(name))
    return files


def generate() -> list[Path]:
    """Write the files that differ; return them."""
    changed = out_of_step()
    wanted = generated()
    for path in changed:
        if path not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8", newline="\n")
    return changed


def out_of_step() -> list[Path]:
    """Files that are missing, differ from what would be generated, or are not generated any more."""
    wanted = generated()
    differing = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_bytes() != text.encode("utf-8")
    ]
    folders = {STUBS: "*.py", PRISTINE: "*.txt", NOTEBOOKS: "*.ipynb"}
    present = [path for folder, pattern in folders.items() for path in sorted(folder.glob(pattern))]
    return differing + [path for path in present if path not in wanted]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
