"""Fetches a model's files from its Hugging Face repository into the hub's own cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coral.errors import SourceError

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "*.jinja",
)
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")
_NOT_FILES = ("*/*", "consolidated*")  # copies of the weights in other layouts


def fetch(source: str, say: Callable[[str], None], *, weights: bool) -> Path:
    """The snapshot folder of `id` or `id@revision`.

    What is cached is not fetched again, and nothing is fetched with HF_HUB_OFFLINE=1. Raises SourceError.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise SourceError(
            f"{source}: huggingface_hub is not installed", mend="pip install 'coral-llm[serve]'"
        ) from error
    repository, _, revision = source.partition("@")
    say(f"fetching {source}{'' if weights else ' (config and tokenizer)'}")
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[*TEXT_FILES, *(WEIGHT_FILES if weights else ())],
            ignore_patterns=list(_NOT_FILES),
        )
    except GatedRepoError as error:
        raise SourceError(
            f"{source} is gated", mend="accept its terms on its page and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"{source} is not on the hub, or is private", mend="check the id; for a private one set HF_TOKEN"
        ) from error
    except LocalEntryNotFoundError as error:
        raise SourceError(
            f"{source} is not in the local cache and the hub cannot be reached",
            mend="connect, unset HF_HUB_OFFLINE, or name a local folder",
        ) from error
    except Exception as error:  # the hub's client raises errors of the HTTP library it happens to use
        raise SourceError(
            f"{source} cannot be fetched: {error}", mend="try again, or name a local folder"
        ) from error
    return Path(folder)
