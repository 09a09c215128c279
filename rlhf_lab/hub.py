"""The model hub: a repository becomes a local folder, or one sentence says why not."""

from pathlib import Path

from .errors import LabError


def hub_folder(name: str, kind: str, files: list[str], instead: str) -> Path:
    """Download what a repository has new, or take what is on this machine where the hub cannot be reached.

    Args:
        name: the repository's name on the hub, "gpt2" or "Anthropic/hh-rlhf" for instance.
        kind: "model" or "dataset".
        files: patterns of the names of the wanted files.
        instead: what to do without the hub, the end of a sentence.

    Raises:
        LabError: when the repository is not on this machine and cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, repo_type=kind, allow_patterns=files))
    except HFValidationError:
        raise LabError(f"{name!r} is neither a folder nor the name of a {kind} on the hub") from None
    except GatedRepoError:
        raise LabError(f"the {kind} {name} asks you to accept its terms on the hub first") from None
    except RepositoryNotFoundError:
        raise LabError(f"there is no folder and no {kind} on the hub called {name}") from None
    except (HfHubHTTPError, OSError) as error:  # no network is an OSError of one kind or another
        raise LabError(
            f"the {kind} {name} is not on this machine and the hub cannot be reached ({type(error).__name__}): "
            f"connect once, {instead}"
        ) from None
