"""Every topic in every wording of its domain, and which of them are held out."""

from dataclasses import dataclass
from functools import cache

from ..topics import DOMAINS, HELD_OUT_TOPICS

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Prompt:
    text: str
    lang: str
    domain: str
    topic: str
    is_subject: bool  # the response continues the prompt's sentence; otherwise the prompt ends in a colon
    held_out_topic: bool
    held_out_wording: bool


@cache
def all_prompts(lang: str) -> tuple[Prompt, ...]:
    """Every topic in every wording of its domain."""
    prompts = []
    for domain_name, domain in DOMAINS[lang].items():
        for index, entry in enumerate(domain.nouns):
            measure, _, noun = entry.rpartition("|")
            for wordings, is_subject in ((domain.subject_wordings, True), (domain.colon_wordings, False)):
                for wording in wordings:
                    prompts.append(
                        Prompt(
                            text=wording.format(n=noun, m=measure),
                            lang=lang,
                            domain=domain_name,
                            topic=noun,
                            is_subject=is_subject,
                            held_out_topic=index >= len(domain.nouns) - HELD_OUT_TOPICS,
                            held_out_wording=wording == wordings[-1],
                        )
                    )
    return tuple(prompts)


def training_prompts(lang: str) -> list[Prompt]:
    return [p for p in all_prompts(lang) if not p.held_out_topic and not p.held_out_wording]


def held_out_topic_prompts(lang: str) -> list[Prompt]:
    return [p for p in all_prompts(lang) if p.held_out_topic]
